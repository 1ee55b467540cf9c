//! Suites that stand elsewhere, run with a bound on their time.

use std::process::Command;

use super::card::{Line, Verdict};
use crate::build::plain;

/// No suite takes longer than three hours: so long are ten thousand seeds of the simulator on a busy machine.
const SUITE_MAX_S: &str = "10800";

/// How much of a suite is run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    /// For each minute that campaigns last.
    pub(super) at_one_minute: u64,
    /// When rows are to have their full count.
    pub(super) full: u64,
}

impl Size {
    /// How much of it.
    pub(super) fn count(self, minutes: f64, full: bool) -> u64 {
        let by_time = (self.at_one_minute as f64 * minutes).max(1.0).round();
        if full { self.full } else { by_time as u64 }
    }
}

/// Tests of a package whose names contain one of the words; there must be some. They are told variables.
pub(super) fn tests(package: &str, words: &[&str], variables: &[(&str, &str)]) -> Line {
    let told: String = variables.iter().map(|(name, value)| format!(", {name}={value}")).collect();
    let by = format!("tests of {package}: {}{told}", words.join(", "));
    let mut arguments = vec!["test", "--package", package, "--no-fail-fast", "--"];
    arguments.extend(words);
    let Some((ended, text)) = run(&arguments, variables) else {
        return Line::new(Verdict::Failed, by, "cargo does not run".to_owned());
    };
    let (mut passed, mut failed) = (0, 0);
    for line in text.lines().filter_map(|line| line.strip_prefix("test result: ")) {
        let count = |word: &str| {
            let mut parts = line.split([';', '.']).map(str::trim);
            parts.find_map(|part| part.strip_suffix(word)?.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        passed += count("passed");
        failed += count("failed");
    }
    let verdict = if ended && failed == 0 && passed > 0 { Verdict::Passed } else { Verdict::Failed };
    Line::new(verdict, by, format!("{passed} passed, {failed} failed"))
}

/// One of the tools; its last line that says something is the figure.
pub(super) fn xtask(words: &[&str], count: u64) -> Line {
    let count = count.to_string();
    let words: Vec<&str> = words.iter().map(|word| if *word == "N" { count.as_str() } else { word }).collect();
    let by = format!("cargo xtask {}", words.join(" "));
    let arguments = [&["run", "--quiet", "--package", "xtask", "--"], &words[..]].concat();
    let Some((ended, text)) = run(&arguments, &[]) else {
        return Line::new(Verdict::Failed, by, "cargo does not run".to_owned());
    };
    let telling = ["seeds,", "planted bugs,", "passed", "failed"];
    let figure = text.lines().rev().find(|line| telling.iter().any(|word| line.contains(word))).unwrap_or_default();
    let figure = figure.trim_matches(['=', ' ']).to_owned();
    Line::new(if ended { Verdict::Passed } else { Verdict::Failed }, by, figure)
}

/// Whether cargo ended well, and what it printed.
fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Option<(bool, String)> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=30", SUITE_MAX_S, "cargo"]).args(arguments).envs(variables.iter().copied());
    let done = plain(&mut command).output().ok()?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    if !done.status.success() {
        eprintln!("{text}\n{}", String::from_utf8_lossy(&done.stderr));
    }
    Some((done.status.success(), text))
}
