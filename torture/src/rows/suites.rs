//! Suites that stand elsewhere, run with a bound on their time.

use std::process::Command;

use super::card::{Count, Line, Verdict};
use crate::build::plain;

/// No suite takes longer than three hours: so long are ten thousand seeds of the simulator on a busy machine.
const SUITE_MAX_S: &str = "10800";

/// The full count of a suite: how much of what.
pub(super) type Full = (u64, &'static str);

/// How much of a suite there was: all of it if it came to its end, and it is not known otherwise.
fn count(full: Full, whole: bool) -> Count {
    Count { what: full.1.to_owned(), asked: full.0, reached: if whole { full.0 } else { 0 } }
}

/// Tests of a package whose names contain one of the words; there must be some. They are told their full count, if they
/// are to reach it, in a variable.
pub(super) fn tests(package: &str, words: &[&str], full: Option<(&str, Full)>) -> Line {
    let by = format!("tests of {package}: {}", words.join(", "));
    let mut arguments = vec!["test", "--package", package, "--no-fail-fast", "--"];
    arguments.extend(words);
    let told = full.map(|(variable, full)| (variable, full.0.to_string()));
    let Some((ended, text)) = run(&arguments, told) else {
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
    let mut line = Line::new(verdict, by, format!("{passed} passed, {failed} failed"));
    line.count = full.map(|(_, full)| count(full, verdict == Verdict::Passed));
    line
}

/// One of the tools; its last line that says something is the figure. Of the words, `N` becomes the full count or, without
/// one, what fits the time.
pub(super) fn xtask(words: &[&str], for_the_time: f64, full: Option<Full>) -> Line {
    let by = format!("cargo xtask {}", words.join(" "));
    let number = full.map_or_else(|| for_the_time.to_string(), |full| full.0.to_string());
    let words: Vec<&str> = words.iter().map(|word| if *word == "N" { number.as_str() } else { word }).collect();
    let arguments = [&["run", "--quiet", "--package", "xtask", "--"], &words[..]].concat();
    let Some((ended, text)) = run(&arguments, None) else {
        return Line::new(Verdict::Failed, by, "cargo does not run".to_owned());
    };
    let telling = ["seeds,", "planted bugs,", "passed", "failed"];
    let figure = text.lines().rev().find(|line| telling.iter().any(|word| line.contains(word))).unwrap_or_default();
    let figure = figure.trim_matches(['=', ' ']).to_owned();
    let mut line = Line::new(if ended { Verdict::Passed } else { Verdict::Failed }, by, figure);
    // A tool that found something and says how much it did came to its end.
    let whole = |full: Full| ended || line.figures.starts_with(&format!("{} ", full.0));
    line.count = full.map(|full| count(full, whole(full)));
    line
}

/// Whether cargo ended well, and what it printed.
fn run(arguments: &[&str], variable: Option<(&str, String)>) -> Option<(bool, String)> {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=30", SUITE_MAX_S, "cargo"]).args(arguments).envs(variable);
    let done = plain(&mut command).output().ok()?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    if !done.status.success() {
        eprintln!("{text}\n{}", String::from_utf8_lossy(&done.stderr));
    }
    Some((done.status.success(), text))
}
