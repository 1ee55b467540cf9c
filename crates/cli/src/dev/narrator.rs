//! The voice of the demo: short lines on standard output, in a few colours.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use flowfabric::{ExecutionId, WaitpointId};

use crate::output::{Colour, Style};
use crate::target::DEFAULT_SERVER;

/// Tells people what happens.
pub(super) struct Narrator {
    style: Style,
    /// The command to type for `ff` here.
    program: String,
    address: String,
}

impl Narrator {
    pub(super) fn new(style: Style, address: String) -> Self {
        Self { style, program: program(), address }
    }

    /// The server is there.
    pub(super) fn ready(&self, store: &str, took: Duration) {
        let address = &self.address;
        let title = self.style.bold("FlowFabric");
        self.line(&format!("{title} is ready after {} ms on {}", took.as_millis(), self.style.bold(address)));
        self.line(
            &self
                .style
                .paint(Colour::Dim, &format!("  kept in {store}; API at {address}/openapi.json; Ctrl-C ends it")),
        );
        self.line(&format!("  the dashboard: {}", self.style.bold(&format!("{address}/"))));
    }

    /// Callers need a token, which is told this once.
    pub(super) fn made_up_token(&self, token: &str) {
        self.line(&format!("  others can reach it, so callers need a token: FF_TOKEN={token}"));
    }

    /// Where the server is.
    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Where commands are typed, and what they need to know there.
    pub(super) fn elsewhere(&self) {
        self.step(Colour::Blue, "try", "in another terminal");
        if self.address != DEFAULT_SERVER {
            let command = format!("export FF_SERVER={}", self.address);
            self.line(&format!("             {}", self.style.bold(&command)));
        }
    }

    /// Prints what happened, with a word in colour before it.
    pub(super) fn step(&self, colour: Colour, word: &str, text: &str) {
        self.line(&format!("{} {text}", self.style.paint(colour, &format!("{word:>10}"))));
    }

    /// A part of a line.
    pub(super) fn token(&self, text: &str) {
        print!("{}", self.style.paint(Colour::Cyan, text));
        // A reader that stops reading does not stop the demo.
        let _ = std::io::stdout().flush();
    }

    /// The beginning of a line that tokens go on with.
    pub(super) fn begin(&self, colour: Colour, word: &str) {
        print!("{} ", self.style.paint(colour, &format!("{word:>10}")));
        let _ = std::io::stdout().flush();
    }

    /// A command to type.
    pub(super) fn command(&self, arguments: &str, what: &str) {
        let command = format!("{} {arguments}", self.program);
        self.line(&format!("             {}  {}", self.style.bold(&command), self.style.paint(Colour::Dim, what)));
    }

    /// The command by which a person who has the token may answer.
    pub(super) fn signal(&self, id: &ExecutionId, waitpoint: &WaitpointId, token: &str) {
        let body = format!(r#"{{"name": "approve", "waitpoint_id": "{waitpoint}", "token": "{token}"}}"#);
        for line in [
            format!("curl {}/v1/executions/{id}/signal \\", self.address),
            format!("     -H 'content-type: application/json' -d '{body}'"),
        ] {
            self.line(&format!("             {}", self.style.paint(Colour::Dim, &line)));
        }
    }

    /// Without the demo: what to do now.
    pub(super) fn hints(&self) {
        self.elsewhere();
        self.command("worker --kind shout -- tr a-z A-Z", "any program is a worker");
        self.command("submit shout '\"hello\"' --wait", "submit work, wait for its result");
        self.command("ls", "see what there is");
    }

    /// The demo is over, the server is not.
    pub(super) fn goes_on(&self) {
        self.line(&self.style.paint(Colour::Dim, "The server goes on until Ctrl-C."));
    }

    pub(super) fn line(&self, text: &str) {
        println!("{text}");
    }
}

/// How to call this very binary: `ff` where the shell finds it, otherwise its path from here.
fn program() -> String {
    let Ok(own) = std::env::current_exe() else { return "ff".into() };
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_own = |file: &Path| file.canonicalize().ok() == own.canonicalize().ok();
    let found = std::env::split_paths(&path).map(|folder| folder.join("ff")).find(|file| file.is_file());
    if found.is_some_and(|file| is_own(&file)) {
        return "ff".into();
    }
    let here = std::env::current_dir().ok();
    let relative = here.and_then(|here| own.strip_prefix(here).ok().map(|path| format!("./{}", path.display())));
    relative.unwrap_or_else(|| own.display().to_string())
}
