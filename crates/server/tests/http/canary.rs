//! Everything that all tests here log, at the lowest level, is searched for secrets.

use std::io::Write;
use std::sync::{Mutex, Once};

/// Stands in every secret that tests configure.
pub(crate) const MARK: &str = "canary";
/// The waitpoint secret of every server here, in hex.
pub(crate) const WAITPOINT_SECRET: &str = "c0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ff";

/// Stands in ids of requests whose log lines a test wants to see.
pub(crate) const NOTED: &str = "noted-request";

static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());
static LEAKS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Begins to watch the log of the whole process.
pub(crate) fn watch() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
            .with_ansi(false)
            .with_writer(|| Watcher);
        subscriber.init();
    });
}

/// Refuses to go on when a secret was logged.
pub(crate) fn check() {
    let leaks = LEAKS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    assert!(leaks.is_empty(), "secrets are in the log: {leaks:?}");
}

/// The log lines about a noted request.
pub(crate) fn noted(request_id: &str) -> Vec<String> {
    let notes = NOTES.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    notes.iter().filter(|line| line.contains(request_id)).cloned().collect()
}

/// Whether a text holds a secret: a marked one, or what looks like a token of a waitpoint or of the API.
pub(crate) fn tells(text: &str) -> bool {
    let hex = |text: &str| text.bytes().take_while(u8::is_ascii_hexdigit).count();
    let waitpoint = text.match_indices("k1:").any(|(at, mark)| hex(&text[at + mark.len()..]) >= 32);
    let token = text.match_indices("ff_").any(|(at, mark)| hex(&text[at + mark.len()..]) >= 8);
    text.contains(MARK) || text.contains("c0ffeec0ffee") || text.contains("whsec_") || waitpoint || token
}

struct Watcher;

impl Write for Watcher {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let line = String::from_utf8_lossy(bytes);
        if tells(&line) {
            LEAKS.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(line.clone().into_owned());
        }
        if line.contains(NOTED) {
            NOTES.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(line.into_owned());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_secret_would_be_seen() {
    assert!(tells("token=canary-administrator") && tells("ff_0190a0a0-0000_77") && tells(&format!("k1:{:064}", 0)));
    assert!(!tells("ff_server::http: answered method=GET path=/v1/executions k1: rotated"));
}
