//! A server in memory with a token, for checks from outside.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The administrator's token of every such server.
pub(crate) const TOKEN: &str = "administrator-of-checks";
/// A debug build starts well within this time.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Ends with the check.
pub(crate) struct Server {
    child: Child,
    /// Where it listens.
    pub(crate) address: String,
}

impl Server {
    /// Starts the program on a free port, and waits until it accepts connections.
    pub(crate) fn start(program: &Path) -> Result<Self, String> {
        Self::start_logging(program, "error", Stdio::null())
    }

    /// The same, with what it logs from a level on.
    pub(crate) fn start_logging(program: &Path, level: &str, log: Stdio) -> Result<Self, String> {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.map_err(|why| format!("no free port: {why}"))?.to_string();
        let mut command = Command::new(program);
        command.args(["server", "--store", "memory://", "--listen", &address, "--log-level", level]);
        command.env("FF_API_TOKEN", TOKEN).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().map_err(|why| format!("the server does not start: {why}"))?;
        let server = Self { child, address };
        let began = Instant::now();
        while TcpStream::connect(&server.address).is_err() {
            if began.elapsed() > START_TIMEOUT {
                return Err("the server does not accept connections".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }
}

impl Server {
    /// The memory that it uses, where the system tells.
    pub(crate) fn memory_kib(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().strip_suffix(" kB")?.trim().parse().ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended by itself needs no ending.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
