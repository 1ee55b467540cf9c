//! Servers in processes of their own, each behind a proxy that clients talk to.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ff_testkit::proxy::{Proxy, Trouble};
use serde_json::Value;

use crate::http;
use crate::instant::now_ms;

/// A server that is not ready by then does not start.
const START_MAX: Duration = Duration::from_secs(60);
/// A server that was told to end is given this long.
const END_MAX: Duration = Duration::from_secs(30);
/// A server that is busy is asked for its metrics so often.
const METRICS_TRIES: usize = 5;
/// The library that moves the clock of a process (Debian: the package libfaketime).
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

/// What servers are started with.
#[derive(Debug, Clone)]
pub struct FleetOptions {
    /// The command `ff`.
    pub program: String,
    /// An older build of it, as which all servers begin.
    pub older: Option<String>,
    /// The address of the store.
    pub store: String,
    /// How many.
    pub servers: usize,
    /// Where their logs and clocks go.
    pub folder: PathBuf,
    /// Whether their clocks can be moved.
    pub clocks: bool,
    /// Further variables.
    pub variables: Vec<(String, String)>,
}

/// Which of two builds of the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Build {
    /// The one that is tortured.
    This,
    /// One of before.
    Older,
}

/// Several servers on one store.
#[derive(Debug)]
pub struct Fleet {
    options: FleetOptions,
    /// Where each listens, and where clients reach it.
    addresses: Vec<String>,
    fronts: Vec<Proxy>,
    processes: Mutex<Vec<Option<Child>>>,
    /// The build that each server runs.
    builds: Mutex<Vec<Build>>,
    /// The server that is the next to suffer.
    victim: AtomicUsize,
}

impl Fleet {
    /// Starts them one after another.
    pub fn start(options: FleetOptions) -> Result<Self, String> {
        let servers = options.servers;
        let addresses = (0..servers).map(|_| free_address()).collect::<Result<Vec<_>, _>>()?;
        let build = if options.older.is_some() { Build::Older } else { Build::This };
        let fleet = Self {
            fronts: addresses.iter().map(|address| Proxy::start(address)).collect(),
            addresses,
            processes: Mutex::new((0..servers).map(|_| None).collect()),
            builds: Mutex::new(vec![build; servers]),
            victim: AtomicUsize::new(0),
            options,
        };
        (0..servers).try_for_each(|server| fleet.restart(server))?;
        Ok(fleet)
    }

    /// Whether clocks of processes can be moved here.
    pub fn has_clocks() -> bool {
        Path::new(FAKETIME).is_file()
    }

    /// The addresses that clients use.
    pub fn fronts(&self) -> Vec<String> {
        self.fronts.iter().map(Proxy::address).collect()
    }

    /// Starts a server that is down and waits until it is ready.
    pub fn restart(&self, server: usize) -> Result<(), String> {
        let log = self.options.folder.join(format!("server-{server}.log"));
        let log = File::options().create(true).append(true).open(log).map_err(|why| why.to_string())?;
        let program = match (self.builds.lock().expect("no holder of this lock panics")[server], &self.options.older) {
            (Build::Older, Some(older)) => older,
            _ => &self.options.program,
        };
        let mut command = Command::new(program);
        command.args(["server", "--store", &self.options.store, "--listen", &self.addresses[server]]);
        command.args(["--log-level", "warn"]).envs(self.options.variables.iter().cloned());
        if self.options.clocks {
            let clock = self.clock(server);
            if !clock.is_file() {
                std::fs::write(&clock, "+0").map_err(|why| why.to_string())?;
            }
            command.env("LD_PRELOAD", FAKETIME).env("FAKETIME_TIMESTAMP_FILE", clock);
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("FAKETIME_CACHE_DURATION", "1");
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let child = child.map_err(|why| format!("{program}: {why}"))?;
        self.processes.lock().expect("no holder of this lock panics")[server] = Some(child);
        let began = Instant::now();
        while http::request(&self.addresses[server], "GET /readyz", &Value::Null)
            .is_none_or(|(status, _)| status != 200)
        {
            if began.elapsed() > START_MAX {
                let log = self.options.folder.display();
                return Err(format!("server {server} does not start; its log is in {log}"));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Ends a server and starts it again as this build.
    pub fn change_build(&self, server: usize, build: Build) -> Result<(), String> {
        self.terminate(server)?;
        self.builds.lock().expect("no holder of this lock panics")[server] = build;
        self.restart(server)
    }

    /// Ends each server in turn and starts it again with a further variable.
    pub fn restart_with(&mut self, variable: &str, value: &str) -> Result<(), String> {
        self.options.variables.push((variable.to_owned(), value.to_owned()));
        (0..self.count()).try_for_each(|server| {
            self.terminate(server)?;
            self.restart(server)
        })
    }

    /// Kills the victim; says which it was and when it was gone.
    pub fn kill(&self) -> (usize, i64) {
        let victim = self.next_victim();
        if let Some(mut child) = self.take(victim) {
            // One that ended by itself is found by its callers.
            let _ = child.kill();
            let _ = child.wait();
        }
        (victim, now_ms())
    }

    /// Tells a server to end, and waits until it has.
    pub fn terminate(&self, server: usize) -> Result<(), String> {
        let Some(mut child) = self.take(server) else { return Ok(()) };
        signal("-TERM", child.id());
        let began = Instant::now();
        while child.try_wait().map_err(|why| why.to_string())?.is_none() {
            if began.elapsed() > END_MAX {
                // It must not stay behind.
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("server {server} was told to end and did not"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.addresses.len()
    }

    /// The server that is killed next, and its address.
    pub fn victim(&self) -> (usize, &str) {
        let victim = self.victim.load(Ordering::SeqCst);
        (victim, &self.addresses[victim])
    }

    /// A server that runs and is not killed next; callers with different numbers get different ones if there are two.
    pub fn survivor(&self, number: usize) -> (usize, &str) {
        let victim = self.victim.load(Ordering::SeqCst);
        let processes = self.processes.lock().expect("no holder of this lock panics");
        let running: Vec<usize> =
            (0..self.addresses.len()).filter(|server| *server != victim && processes[*server].is_some()).collect();
        let server = running.get(number % running.len().max(1)).copied().unwrap_or((victim + 1) % self.addresses.len());
        (server, &self.addresses[server])
    }

    /// Stops the victim without ending it, as a machine that hangs, and lets it go on after a while.
    pub fn pause(&self, time: Duration) {
        let victim = self.next_victim();
        let pid = self.pids()[victim];
        for (name, then) in [("-STOP", time), ("-CONT", Duration::ZERO)] {
            if let Some(pid) = pid {
                signal(name, pid);
            }
            thread::sleep(then);
        }
    }

    /// Trouble between the clients and the victim, or all servers.
    pub fn disturb(&self, trouble: Trouble, all: bool) {
        let victim = self.victim.load(Ordering::SeqCst);
        for (number, front) in self.fronts.iter().enumerate() {
            if all || number == victim {
                front.trouble(trouble);
            }
        }
    }

    /// Moves the clock of the victim by so many seconds.
    pub fn step_clock(&self, seconds: i64) -> Result<(), String> {
        let victim = self.next_victim();
        std::fs::write(self.clock(victim), format!("{seconds:+}")).map_err(|why| why.to_string())
    }

    /// The processes that run.
    pub fn pids(&self) -> Vec<Option<u32>> {
        let processes = self.processes.lock().expect("no holder of this lock panics");
        processes.iter().map(|child| child.as_ref().map(Child::id)).collect()
    }

    /// A metric of each server, over all its labels. A server that does not show it is an error: nought would be an answer.
    pub fn metric_of_each(&self, name: &str) -> Result<Vec<f64>, String> {
        let value = |line: &str| {
            let rest = line.strip_prefix(name)?;
            let rest = if rest.starts_with('{') { rest.split_once('}')?.1 } else { rest };
            rest.strip_prefix(' ')?.trim().parse::<f64>().ok()
        };
        let sum = |address: &String| {
            let page = (0..METRICS_TRIES).find_map(|_| http::request(address, "GET /metrics", &Value::Null));
            let values: Vec<f64> = page.iter().flat_map(|(_, page)| page.lines().filter_map(value)).collect();
            (!values.is_empty()).then(|| values.iter().sum()).ok_or_else(|| format!("{address} does not show {name}"))
        };
        self.addresses.iter().map(sum).collect()
    }

    /// Reads and commits of each server so far.
    pub fn requests(&self) -> Result<Vec<f64>, String> {
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

    fn clock(&self, server: usize) -> PathBuf {
        self.options.folder.join(format!("clock-{server}"))
    }

    fn take(&self, server: usize) -> Option<Child> {
        self.processes.lock().expect("no holder of this lock panics")[server].take()
    }

    fn next_victim(&self) -> usize {
        let victim = self.victim.load(Ordering::SeqCst);
        self.victim.store((victim + 1) % self.addresses.len(), Ordering::SeqCst);
        victim
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

/// Sends a signal to a process; one that is gone is found by its callers.
pub(crate) fn signal(name: &str, pid: u32) {
    let _ = Command::new("kill").args([name, &pid.to_string()]).status();
}

/// How busy the machine is, as it says itself.
pub fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

fn free_address() -> Result<String, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|why| why.to_string())?;
    Ok(listener.local_addr().map_err(|why| why.to_string())?.to_string())
}
