//! The machine a session ran on: what matters for the figures, and nothing that tells which machine it was.

use std::fs;
use std::process::Command;

/// As the report says it.
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
    pub(crate) programs: Vec<String>,
}

impl Machine {
    pub(crate) fn describe() -> Self {
        let memory_kib = fs::read_to_string("/proc/meminfo")
            .ok()
            .and_then(|text| text.lines().next()?.split_whitespace().nth(1)?.parse::<u64>().ok())
            .unwrap_or(0);
        let programs =
            [("rustc", "--version"), ("node", "--version"), ("python3", "--version"), ("valkey-server", "--version")];
        Self {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gib: memory_kib.div_ceil(1024 * 1024),
            kernel: first_line("uname", &["-sr"]).unwrap_or_else(|| "unknown".into()),
            programs: programs.iter().filter_map(|(program, flag)| version(program, flag)).collect(),
        }
    }
}

/// The load of the last minute.
pub(crate) fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

/// Today, in UTC.
pub(crate) fn date() -> Result<String, String> {
    first_line("date", &["-u", "+%Y-%m-%d"]).ok_or_else(|| "there is no program date".into())
}

/// The name of a program and the first word of its answer that is a number.
fn version(program: &str, flag: &str) -> Option<String> {
    let line = first_line(program, &[flag])?;
    let words = line.split_whitespace().map(|word| word.trim_start_matches("v=").trim_start_matches('v'));
    let number = words.into_iter().find(|word| word.starts_with(|first: char| first.is_ascii_digit()))?;
    Some(format!("{program} {number}"))
}

fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.trim().to_owned())
}
