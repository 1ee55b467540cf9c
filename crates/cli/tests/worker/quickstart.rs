//! `docs/quickstart.md`, line by line: its files are written, its commands run in one shell, and what they print is what the
//! page shows. `UPDATE_QUICKSTART=1` records the page anew.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::process::TEST_TIMEOUT;

/// Stands behind the output of a command.
const MARK: &str = "--- the end of a command ---";

#[test]
fn the_quick_start_does_what_it_says() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/quickstart.md");
    let text = std::fs::read_to_string(&page).unwrap();
    let recorded = record(&text);
    if recording() {
        std::fs::write(&page, recorded).unwrap();
        return;
    }
    let (said, shown) = (normalised(&recorded), normalised(&text));
    for (said, shown) in said.lines().zip(shown.lines()) {
        assert_eq!(said, shown, "docs/quickstart.md shows something else (UPDATE_QUICKSTART=1 records it)");
    }
    assert_eq!(said.lines().count(), shown.lines().count());
}

fn recording() -> bool {
    std::env::var_os("UPDATE_QUICKSTART").is_some()
}

/// The page with what its commands print now.
fn record(page: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Shell::start(folder.path());
    let mut recorded = String::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        recorded.push_str(&format!("{line}\n"));
        let Some(kind) = line.strip_prefix("```").filter(|kind| !kind.is_empty()) else { continue };
        let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        match kind.split_once(' ') {
            Some((_, file)) => {
                let text = block.join("\n") + "\n";
                std::fs::write(folder.path().join(file), &text).unwrap();
                recorded.push_str(&text);
            }
            None => {
                for command in block.iter().filter_map(|line| line.strip_prefix("$ ")) {
                    recorded.push_str(&format!("$ {command}\n{}", shell.run(command)));
                }
            }
        }
        recorded.push_str("```\n");
    }
    recorded
}

/// One shell for the whole page. Its port is its own, so that pages and servers do not meet.
struct Shell {
    child: Child,
    commands: ChildStdin,
    lines: Receiver<String>,
    address: String,
}

impl Shell {
    fn start(folder: &Path) -> Self {
        // The page shows the output of people who have the port to themselves.
        let wanted = if recording() { "127.0.0.1:7171" } else { "127.0.0.1:0" };
        let address = std::net::TcpListener::bind(wanted).unwrap().local_addr().unwrap().to_string();
        let bin = Path::new(env!("CARGO_BIN_EXE_ff")).parent().unwrap().to_owned();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths([bin].into_iter().chain(std::env::split_paths(&path))).unwrap();
        let mut command = Command::new("sh");
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("FF_")) {
            command.env_remove(name);
        }
        command.env("PATH", path).env("FF_LISTEN", &address).env("FF_SERVER", format!("http://{address}"));
        command.current_dir(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (commands, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.take_while(|line| sender.send(line.clone()).is_ok()).for_each(drop);
        });
        Self { child, commands, lines, address }
    }

    /// Runs a command; answers with what it printed.
    fn run(&mut self, command: &str) -> String {
        writeln!(self.commands, "{command}\necho; echo '{MARK}'").unwrap();
        let mut output = String::new();
        loop {
            let line = self.lines.recv_timeout(TEST_TIMEOUT).unwrap_or_else(|_| panic!("{command} does not end"));
            if line == MARK {
                break;
            }
            output.push_str(line.trim_end());
            output.push('\n');
        }
        if command.starts_with("ff dev > ") {
            self.wait_for_the_server();
        }
        // The mark stands on a line of its own also behind output that has no end of line.
        let output = output.trim_end();
        if output.is_empty() { String::new() } else { format!("{output}\n") }
    }

    /// A person looks at the other terminal.
    fn wait_for_the_server(&self) {
        let deadline = std::time::Instant::now() + TEST_TIMEOUT;
        while std::net::TcpStream::connect(&self.address).is_err() {
            assert!(std::time::Instant::now() < deadline, "the server does not start");
            std::thread::yield_now();
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Without what differs from run to run: ids, ports, instants, spans, the order of what happens at once, and blanks that
/// depend on them.
fn normalised(text: &str) -> String {
    // A line that commands need only where the port is not the usual one.
    let lines = text.lines().filter(|line| !line.contains("export FF_SERVER="));
    let mut lines: Vec<String> = lines.map(normalised_line).collect();
    // The three researches of the demo end in any order, and the draft tells in that order.
    let research: Vec<usize> =
        lines.iter().enumerate().filter(|(_, line)| line.contains("research about")).map(|(place, _)| place).collect();
    if let (Some(first), Some(last)) = (research.first(), research.last()) {
        lines[*first..=*last].sort();
    }
    lines.join("\n")
}

fn normalised_line(line: &str) -> String {
    if line.trim_start().starts_with("draft ") {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        words.sort_unstable();
        return words.join(" ");
    }
    line.split_whitespace().map(normalised_word).collect::<Vec<_>>().join(" ")
}

fn normalised_word(word: &str) -> String {
    let bare = word.trim_matches(|c: char| !c.is_alphanumeric());
    let is_id = bare.len() > 30 && bare.contains(['-', ':']);
    let is_instant = bare.len() >= 20 && bare.contains('T') && bare.contains(':');
    let is_span = bare.starts_with(|c: char| c.is_ascii_digit()) && bare.ends_with(['s', 'm']) && bare.len() < 10;
    let is_number = !bare.is_empty() && bare.chars().all(|c| c.is_ascii_digit() || c == '.') && word == bare;
    if word.contains("127.0.0.1:") || is_id || is_instant {
        "...".to_owned()
    } else if is_span || is_number {
        "N".to_owned()
    } else {
        word.to_owned()
    }
}
