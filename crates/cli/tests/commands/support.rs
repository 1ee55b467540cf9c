//! One server for the whole binary, and the command as a process of its own.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, mpsc};
use std::time::Duration;

use ff_server::{Config, Server, Settings};
use flowfabric::Client;

use crate::normalise::normalise;

/// Longer than any command may take.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The token of the server.
pub(crate) const TOKEN: &str = "test-administrator-token";

/// The address of the server. It runs in a thread of this process and ends with it.
pub(crate) static SERVER: LazyLock<String> = LazyLock::new(|| {
    let (ready, address) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let settings = Settings {
                store: Some("memory://".into()),
                listen: Some("127.0.0.1:0".into()),
                api_token: Some(TOKEN.into()),
                ..Settings::default()
            };
            let config = Config::resolve(settings, Settings::default()).unwrap();
            let server = Server::start(config).await.unwrap();
            ready.send(format!("http://{}", server.address())).unwrap();
            server.run(std::future::pending()).await;
        });
    });
    address.recv().expect("the server does not start")
});

/// The command without the variables of the shell that runs the tests.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ff"));
    let ours = |name: &str| name.starts_with("FF_") || ["NO_COLOR", "CLICOLOR_FORCE", "USER", "HOME"].contains(&name);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(ours) {
            command.env_remove(name);
        }
    }
    command.env("XDG_CONFIG_HOME", "/nonexistent").env("COLUMNS", "120").args(arguments);
    command
}

/// The command for the server.
pub(crate) fn connected(namespace: &str, arguments: &[&str]) -> Command {
    let mut command = command(arguments);
    command.env("FF_SERVER", SERVER.as_str()).env("FF_TOKEN", TOKEN).env("FF_NAMESPACE", namespace);
    command
}

/// The end of a command.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// Its answer, for programs.
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Runs a command with something on its standard input.
pub(crate) fn run(mut command: Command, input: &str) -> Ended {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that does not read ends without waiting for us.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let (ended, over) = mpsc::channel::<()>();
    let id = child.id().to_string();
    let watchdog = std::thread::spawn(move || {
        if over.recv_timeout(TEST_TIMEOUT) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = Command::new("kill").arg(&id).status();
        }
    });
    let output = child.wait_with_output().unwrap();
    drop(ended);
    watchdog.join().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().expect("the command takes too long");
    Ended { code, stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A session in a namespace of its own, written down.
pub(crate) struct Transcript {
    pub(crate) namespace: &'static str,
    text: String,
    folder: Option<PathBuf>,
}

impl Transcript {
    pub(crate) fn new(namespace: &'static str) -> Self {
        Self { namespace, text: String::new(), folder: None }
    }

    /// The transcript with commands that run in a folder.
    pub(crate) fn within(self, folder: &Path) -> Self {
        Self { folder: Some(folder.to_owned()), ..self }
    }

    /// Runs a command and writes down what it said; answers with its standard output.
    pub(crate) fn ff(&mut self, arguments: &[&str]) -> String {
        self.ff_with(arguments, "")
    }

    /// Runs a command with its output for people and for programs.
    pub(crate) fn both(&mut self, arguments: &[&str]) {
        self.ff(arguments);
        let mut json = arguments.to_vec();
        json.extend(["-o", "json"]);
        self.ff(&json);
    }

    /// Runs a command with something on standard input.
    pub(crate) fn ff_with(&mut self, arguments: &[&str], input: &str) -> String {
        let mut command = connected(self.namespace, arguments);
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        let ended = run(command, input);
        self.text.push_str("$ ff");
        for argument in arguments {
            let plain = argument.chars().all(|c| c.is_ascii_alphanumeric() || "-_=.@:/*".contains(c));
            let quoted = if plain && !argument.is_empty() { (*argument).to_owned() } else { format!("'{argument}'") };
            self.text.push_str(&format!(" {quoted}"));
        }
        self.text.push('\n');
        for line in input.lines() {
            self.text.push_str(&format!("< {line}\n"));
        }
        self.text.push_str(&ended.stdout);
        if !ended.stdout.is_empty() && !ended.stdout.ends_with('\n') {
            self.text.push_str("%\n");
        }
        for line in ended.stderr.lines() {
            self.text.push_str(&format!("! {}\n", line.trim_end()));
        }
        if ended.code != 0 {
            self.text.push_str(&format!("exit code {}\n", ended.code));
        }
        self.text.push('\n');
        ended.stdout.trim_end().to_owned()
    }

    /// Compares everything with what is kept.
    pub(crate) fn finish(self, name: &str) {
        let mut settings = insta::Settings::new();
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!(name, normalise(&self.text)));
    }
}

/// Runs something of a worker or another client, in a namespace.
pub(crate) fn as_client<T>(namespace: &str, work: impl AsyncFnOnce(Client) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::builder(&SERVER).token(TOKEN).namespace(namespace).connect().await.unwrap();
        work(client).await
    })
}
