//! A server, workers and commands in processes of their own.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Longer than anything here may take.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// The command, without the variables of the shell that runs the tests.
pub(crate) fn ff(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ff"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FF_") {
            command.env_remove(name);
        }
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A process whose lines of output are events to wait for. It ends with the test.
pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    /// Starts a command; its lines are those of standard output, or of standard error.
    pub(crate) fn start(mut command: Command, errors: bool) -> Self {
        command.stdout(if errors { Stdio::null() } else { Stdio::piped() });
        command.stderr(if errors { Stdio::piped() } else { Stdio::inherit() });
        let mut child = command.spawn().unwrap();
        let pipe: Box<dyn std::io::Read + Send> = match errors {
            true => Box::new(child.stderr.take().unwrap()),
            false => Box::new(child.stdout.take().unwrap()),
        };
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                // The rest is read all the same, so that the process never blocks.
                let _ = sender.send(line);
            }
        });
        Self { child, lines }
    }

    /// The next line.
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(TEST_TIMEOUT).expect("the process says no more")
    }

    /// The next line with some words in it.
    pub(crate) fn line_with(&self, words: &str) -> String {
        loop {
            let line = self.line();
            if line.contains(words) {
                return line;
            }
        }
    }

    /// The next line as JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.line()).unwrap()
    }

    /// The lines that the process still prints.
    pub(crate) fn rest(&self) -> Vec<String> {
        std::iter::from_fn(|| self.lines.recv_timeout(TEST_TIMEOUT).ok()).collect()
    }

    pub(crate) fn terminate(&self) {
        let killed = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(killed.success());
    }

    /// Waits for its end; answers with its exit code.
    pub(crate) fn ended(mut self) -> Option<i32> {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the process does not end");
            std::thread::yield_now();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server with a folder for scripts.
pub(crate) struct Deployment {
    pub(crate) folder: TempDir,
    pub(crate) address: String,
    _server: Process,
}

impl Deployment {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with more in its environment.
    pub(crate) fn start_with(settings: &[(&str, &str)]) -> Self {
        let arguments = ["server", "--store", "memory://", "--listen", "127.0.0.1:0", "--log-format", "json"];
        let mut command = ff(&arguments);
        command.envs(settings.iter().copied());
        let server = Process::start(command, true);
        let ready: Value = serde_json::from_str(&server.line_with("is ready")).unwrap();
        let address = format!("http://{}", ready["address"].as_str().unwrap());
        Self { folder: tempfile::tempdir().unwrap(), address, _server: server }
    }

    /// A command for this server.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = ff(arguments);
        command.env("FF_SERVER", &self.address).current_dir(self.folder.path());
        command
    }

    /// Runs a command that must succeed; answers with its output.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs a command with `-o json`.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[arguments, &["-o", "json"]].concat())).unwrap()
    }

    /// Writes a script and starts a worker that runs it for work of the kind `k`. Its lines are reports in JSON.
    pub(crate) fn worker(&self, interpreter: &str, script: &str) -> Process {
        let path = self.script(script);
        let arguments = ["worker", "--kind", "k", "--lease-ttl", "1s", "--grace", "20s", "-o", "json", "--"];
        let mut command = self.command(&arguments);
        command.arg(interpreter).arg(path).env("FOLDER", self.folder.path());
        Process::start(command, false)
    }

    fn script(&self, text: &str) -> PathBuf {
        let mut file = tempfile::Builder::new().prefix("script-").tempfile_in(self.folder.path()).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.into_temp_path().keep().unwrap()
    }

    /// Everything in the stream of an execution that has ended: type and text of each frame.
    pub(crate) fn frames(&self, id: &str) -> Vec<(String, String)> {
        let shown = self.run(&["tail", id]);
        let frames = shown.lines().filter(|line| !line.starts_with("-- "));
        let words = |line: &str| line.splitn(4, ' ').map(str::to_owned).collect::<Vec<_>>();
        frames.map(words).map(|mut words| (words.swap_remove(2), words.pop().unwrap_or_default())).collect()
    }
}
