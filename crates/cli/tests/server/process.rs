//! A server in a process of its own and the least of a client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longer than anything here may take.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The waitpoint secret of every server here. No output of any of them may hold it.
const SECRET: &str = "ca11ab1eca11ab1eca11ab1eca11ab1eca11ab1eca11ab1eca11ab1eca11ab1e";

/// The command, without the variables of the shell that runs the tests.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ff"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FF_") {
            command.env_remove(name);
        }
    }
    command.arg("server").args(arguments);
    command
}

/// A server that runs.
pub(crate) struct Process {
    child: Child,
    pub(crate) address: String,
    log: JoinHandle<String>,
}

impl Process {
    /// Starts a server on a free port and waits until it is ready.
    pub(crate) fn start(store: &str, variables: &[(&str, &str)]) -> Self {
        let mut command = command(&["--store", store, "--listen", "127.0.0.1:0", "--log-format", "json"]);
        command
            .env("FF_WAITPOINT_SECRET", SECRET)
            .envs(variables.iter().copied())
            .stderr(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (ready, address) = mpsc::channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = std::thread::spawn(move || {
            let mut log = String::new();
            for line in lines.map_while(Result::ok) {
                let parsed: Value = serde_json::from_str(&line).unwrap_or_default();
                // Others log addresses too, such as that of the store.
                let ready_now = parsed["message"] == "FlowFabric is ready";
                if let Some(address) = parsed["address"].as_str().filter(|_| ready_now) {
                    let _ = ready.send(address.to_owned());
                }
                log.push_str(&line);
                log.push('\n');
            }
            log
        });
        let address = address.recv_timeout(TEST_TIMEOUT).expect("the server does not start");
        Self { child, address, log }
    }

    /// The memory it has now, where the system tells.
    pub(crate) fn resident_bytes(&self) -> Option<usize> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        Some(line.split_whitespace().next()?.parse::<usize>().ok()? * 1024)
    }

    /// Asks it to stop.
    pub(crate) fn terminate(&self) {
        let killed = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
    }

    /// Waits for its end; answers with its status and everything it logged or printed.
    pub(crate) fn ended(mut self) -> (ExitStatus, String) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                let _ = self.child.kill();
                panic!("the server does not stop");
            }
            std::thread::yield_now();
        };
        let mut log = self.log.join().unwrap();
        self.child.stdout.take().unwrap().read_to_string(&mut log).unwrap();
        assert!(!log.contains(&SECRET[..16]), "the waitpoint secret is in the log: {log}");
        (status, log)
    }
}

/// Sends a request; `None` when there is no whole answer.
pub(crate) fn request(address: &str, head: &str, headers: &[(&str, &str)], body: &str) -> Option<(u16, Value)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(TEST_TIMEOUT)).ok()?;
    let mut text = format!("{head} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    text.push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n", body.len()));
    headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
    text.push_str(&format!("\r\n{body}"));
    stream.write_all(text.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).and_then(|text| text.parse().ok());
    // A cut answer is none: only what arrived whole was acknowledged.
    (body.len() >= length.unwrap_or(0usize)).then(|| (status, serde_json::from_str(body).unwrap_or_default()))
}
