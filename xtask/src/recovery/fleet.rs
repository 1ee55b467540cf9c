//! Servers in processes of their own.

use std::fs::File;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::http;
use super::record::now_ms;
use crate::plain;

/// A server that is not ready by then does not start.
const START_MAX: Duration = Duration::from_secs(60);

/// Builds the command; says where it is.
pub(crate) fn build() -> Result<String, String> {
    let built = plain(Command::new("cargo").args(["build", "--package", "ff-cli"])).status();
    match built {
        Ok(status) if status.success() => {}
        _ => return Err("the command cannot be built".into()),
    }
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    Ok(format!("{target}/debug/ff"))
}

/// How busy the machine is, as it says itself.
pub(crate) fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

pub(crate) struct Fleet {
    program: String,
    store: String,
    addresses: Vec<String>,
    processes: Mutex<Vec<Option<Child>>>,
    /// The server that is killed next.
    victim: AtomicUsize,
}

impl Fleet {
    /// So many servers on one store.
    pub(crate) fn start(program: &str, store: &str, servers: usize) -> Result<Self, String> {
        let fleet = Self {
            program: program.to_owned(),
            store: store.to_owned(),
            addresses: (0..servers).map(|_| free_address()).collect::<Result<_, _>>()?,
            processes: Mutex::new((0..servers).map(|_| None).collect()),
            victim: AtomicUsize::new(0),
        };
        (0..servers).try_for_each(|server| fleet.restart(server))?;
        Ok(fleet)
    }

    /// Starts a server that is down and waits until it is ready.
    pub(crate) fn restart(&self, server: usize) -> Result<(), String> {
        let log = std::env::temp_dir().join(format!("ff-recovery-{server}.log"));
        let log = File::options().create(true).append(true).open(log).map_err(|why| why.to_string())?;
        let mut command = Command::new(&self.program);
        command.args(["server", "--store", &self.store, "--listen", &self.addresses[server]]);
        let child = command.stdout(Stdio::null()).stderr(log).spawn().map_err(|why| why.to_string())?;
        self.processes.lock().expect("no holder of this lock panics")[server] = Some(child);
        let began = Instant::now();
        while http::request(&self.addresses[server], "GET /readyz", &Value::Null)
            .is_none_or(|(status, _)| status != 200)
        {
            if began.elapsed() > START_MAX {
                return Err(format!("server {server} does not start"));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Kills the victim; says which it was and when it was gone.
    pub(crate) fn kill(&self) -> (usize, i64) {
        let victim = self.victim.load(Ordering::SeqCst);
        if let Some(mut child) = self.processes.lock().expect("no holder of this lock panics")[victim].take() {
            // One that ended by itself is found by its callers.
            let _ = child.kill();
            let _ = child.wait();
        }
        let at = now_ms();
        self.victim.store((victim + 1) % self.addresses.len(), Ordering::SeqCst);
        (victim, at)
    }

    /// The server that is killed next, and its address.
    pub(crate) fn victim(&self) -> (usize, &str) {
        let victim = self.victim.load(Ordering::SeqCst);
        (victim, &self.addresses[victim])
    }

    /// A server that runs and is not killed next; callers with different numbers get different ones if there are two.
    pub(crate) fn survivor(&self, number: usize) -> (usize, &str) {
        let victim = self.victim.load(Ordering::SeqCst);
        let processes = self.processes.lock().expect("no holder of this lock panics");
        let running: Vec<usize> =
            (0..self.addresses.len()).filter(|server| *server != victim && processes[*server].is_some()).collect();
        let server = running.get(number % running.len().max(1)).copied().unwrap_or((victim + 1) % self.addresses.len());
        (server, &self.addresses[server])
    }

    /// Any server, whether or not it runs; callers with different numbers get different ones.
    pub(crate) fn any(&self, number: usize) -> &str {
        &self.addresses[number % self.addresses.len()]
    }

    /// Stops the victim without ending it, as a machine that hangs, and lets it go on after a while.
    pub(crate) fn pause(&self, time: Duration) {
        let victim = self.victim.load(Ordering::SeqCst);
        let pid = self.processes.lock().expect("no holder of this lock panics")[victim].as_ref().map(Child::id);
        for (signal, then) in [("-STOP", time), ("-CONT", Duration::ZERO)] {
            if let Some(pid) = pid {
                // One that is gone is found by its callers.
                let _ = Command::new("kill").args([signal, &pid.to_string()]).status();
            }
            thread::sleep(then);
        }
        self.victim.store((victim + 1) % self.addresses.len(), Ordering::SeqCst);
    }

    /// Reads and commits of each server so far.
    pub(crate) fn requests(&self) -> Result<Vec<f64>, String> {
        let count = |address: &String| {
            let (_, page) = http::request(address, "GET /metrics", &Value::Null).ok_or("a server shows no metrics")?;
            let value = |name: &str| {
                let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
                line.and_then(|text| text.trim().parse::<f64>().ok()).ok_or(format!("{name} is not shown"))
            };
            Ok(value("flowfabric_store_reads_total")? + value("flowfabric_commit_seconds_count")?)
        };
        self.addresses.iter().map(count).collect()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for child in self.processes.lock().expect("no holder of this lock panics").iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn free_address() -> Result<String, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|why| why.to_string())?;
    Ok(listener.local_addr().map_err(|why| why.to_string())?.to_string())
}
