//! Valkey servers for tests: one alone, a primary with a replica, a cluster of three primaries with a replica each.
//!
//! Each server is the child of a small shell that waits for its standard input to close. The test process holds the
//! other end, so the servers end with it however it ends.

mod client;
mod cluster;

pub use client::{Client, Value};
pub use cluster::{Cluster, Migration};

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::port::free_port;

/// Everything a server should do by itself happens within this time, or the test fails.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// A port may be taken between looking and binding: then another is tried.
const START_ATTEMPTS: usize = 5;

const GUARD: &str =
    r#"valkey-server "$@" >/dev/null 2>&1 & pid=$!; echo $pid; cat >/dev/null; kill -9 $pid 2>/dev/null; wait"#;
const FOLDER_GUARD: &str = r#"cat >/dev/null; sleep 1; rm -rf "$1""#;

/// One server on a port and in a folder of its own.
#[derive(Debug)]
pub struct Server {
    port: u16,
    folder: PathBuf,
    settings: Vec<String>,
    process: Option<Process>,
    /// Removes the folder when the test process is gone.
    _folder_guard: Child,
}

#[derive(Debug)]
struct Process {
    guard: Child,
    pid: String,
}

impl Drop for Process {
    fn drop(&mut self) {
        // The guard ends its server when its input closes.
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

impl Server {
    /// A server without persistence.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with more settings, as on its command line: `["--appendonly", "yes"]`.
    pub fn start_with(settings: &[&str]) -> Self {
        require_program();
        let folder = new_folder();
        let folder_guard = Command::new("sh")
            .args(["-c", FOLDER_GUARD, "sh"])
            .arg(&folder)
            .stdin(Stdio::piped())
            .spawn()
            .expect("sh can be run");
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let mut server = Self { port: 0, folder, settings, process: None, _folder_guard: folder_guard };
        for _ in 0..START_ATTEMPTS {
            server.port = free_port();
            if server.try_start() {
                return server;
            }
        }
        panic!("valkey-server did not start; its log is in {}", server.folder.display());
    }

    /// A port for something else that a server shall listen on.
    pub fn free_port() -> u16 {
        free_port()
    }

    /// `host:port`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The store address of this server alone.
    pub fn url(&self) -> String {
        format!("valkey://{}", self.address())
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of its data and log.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A connection for commands.
    pub fn client(&self) -> Client {
        Client::connect(&self.address()).unwrap_or_else(|why| panic!("{}: {why}", self.address()))
    }

    /// One command, as words; panics on an error reply.
    pub fn command(&self, words: &str) -> Value {
        self.client().command(words)
    }

    /// A field of INFO.
    pub fn info(&self, field: &str) -> Option<String> {
        let text = self.command("INFO").into_text();
        let line = text.lines().find(|line| line.split(':').next() == Some(field))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    }

    /// Ends the process at once, as a crash would.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Stops the process where it is, without closing its connections.
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets a stopped process go on.
    pub fn thaw(&self) {
        self.signal("-CONT");
    }

    /// Ends the process in an orderly way.
    pub fn shut_down(&mut self) {
        // The server closes the connection instead of answering.
        let _ = self.client().try_command(&[b"SHUTDOWN", b"NOSAVE"]);
        self.process = None;
    }

    /// Starts the process again, on the same port and data.
    pub fn restart(&mut self) {
        self.process = None;
        let started = self.try_start();
        let log = self.folder.join("valkey.log");
        assert!(started, "no start on port {}: {}", self.port, std::fs::read_to_string(log).unwrap_or_default());
    }

    /// Makes a replica a primary.
    pub fn promote(&self) {
        self.command("REPLICAOF NO ONE");
    }

    /// Makes the server a replica and waits until it follows.
    pub fn follow(&self, primary: &Server) {
        self.command(&format!("REPLICAOF 127.0.0.1 {}", primary.port));
        self.wait_until_following();
    }

    fn wait_until_following(&self) {
        wait_until("a replica follows its primary", || self.info("master_link_status").as_deref() == Some("up"));
    }

    fn signal(&self, signal: &str) {
        let process = self.process.as_ref().expect("the server runs");
        let status = Command::new("kill").args([signal, &process.pid]).status();
        assert!(status.is_ok_and(|status| status.success()), "kill {signal} {}", process.pid);
    }

    fn try_start(&mut self) -> bool {
        let mut guard = Command::new("sh")
            .args(["-c", GUARD, "sh"])
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", ""])
            .args(["--repl-diskless-sync-delay", "0", "--logfile", "valkey.log"])
            .arg("--dir")
            .arg(&self.folder)
            .args(&self.settings)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh can be run");
        let mut pid = String::new();
        let stdout = guard.stdout.take().expect("stdout is piped");
        BufReader::new(stdout).read_line(&mut pid).expect("the guard tells the process id");
        let process = Process { guard, pid: pid.trim().to_owned() };
        let deadline = Instant::now() + WAIT_MAX;
        while Instant::now() < deadline {
            if !process_exists(&process.pid) {
                return false;
            }
            let answer = Client::connect(&self.address()).and_then(|mut client| client.try_command(&[b"PING"]));
            // An answer of any kind but LOADING: a server with a password refuses PING and is ready.
            if answer.is_ok_and(|answer| !matches!(&answer, Value::Error(text) if text.starts_with("LOADING"))) {
                self.process = Some(process);
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process = None;
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// A primary and its replica.
#[derive(Debug)]
pub struct Replicated {
    /// Takes writes.
    pub primary: Server,
    /// Follows.
    pub replica: Server,
}

impl Replicated {
    /// Starts both and waits until the replica follows.
    pub fn start() -> Self {
        let (primary, replica) = (Server::start(), Server::start());
        replica.follow(&primary);
        Self { primary, replica }
    }

    /// The store address that names both.
    pub fn url(&self) -> String {
        format!("valkey://{},{}", self.primary.address(), self.replica.address())
    }
}

/// Waits for something the servers do by themselves.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT_MAX;
    while !condition() {
        assert!(Instant::now() < deadline, "it did not happen that {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn require_program() {
    let found = Command::new("valkey-server").arg("--version").output();
    assert!(
        found.is_ok_and(|output| output.status.success()),
        "valkey-server is missing: run `cargo xtask test` as root, or install Valkey 8.0 or later \
         (on Debian 12: the package valkey-server of bookworm-backports)",
    );
}

fn process_exists(pid: &str) -> bool {
    // The state follows the name in parentheses; a process that ended but was not waited for yet is a zombie.
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let state = status.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

fn new_folder() -> PathBuf {
    static COUNTER: AtomicU32 = AtomicU32::new(0);
    let number = COUNTER.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("flowfabric-valkey-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the temporary folder can be written");
    folder
}
