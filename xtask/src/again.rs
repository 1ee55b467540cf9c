//! A second look at tests that failed: a few of them are run again, alone.
//!
//! Many tests run real servers and kill them on a machine whose load they do not know. One that fails beside others and
//! passes alone depends on timing, which is worth mending but says nothing about the change under test. It is named
//! loudly in the last lines of the gate. More failures than a few, failures that repeat, and a runner that did not report
//! on all of its tests are failures.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// More failures than this are no accident.
const AGAIN_MAX: usize = 3;

/// How long we read on after a command has ended. A process that it left behind may hold its output open for ever.
const LEFTOVER_MAX: Duration = Duration::from_secs(5);

/// Runs a command, shows what it writes as it comes, and keeps that, too.
pub(crate) fn watch(command: &mut Command) -> Result<(ExitStatus, String), String> {
    let name = format!("{:?}", command.get_program());
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|why| format!("cannot run {name}: {why}"))?;
    let lines = show_lines(child.stdout.take().expect("the output was piped above"));
    let status = child.wait().map_err(|why| format!("{name}: {why}"))?;
    let until = Instant::now() + LEFTOVER_MAX;
    let mut said = Vec::new();
    while let Ok(mut line) = lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
        said.append(&mut line);
    }
    // Tests may write any bytes; names of tests and files are plain text.
    Ok((status, said.utf8_chunks().map(|chunk| chunk.valid()).collect()))
}

/// Shows the lines of an output in a thread that ends with the output, and passes them on.
fn show_lines(output: ChildStdout) -> Receiver<Vec<u8>> {
    let (lines, shown) = mpsc::channel();
    std::thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            // A user who closed our standard output does not want to read it.
            let _ = std::io::stdout().write_all(&line);
            if lines.send(std::mem::take(&mut line)).is_err() {
                break;
            }
        }
    });
    shown
}

/// Runs what failed again, if that is little, and says how that ended. `again` makes the command.
pub(crate) fn look_again(failed: &BTreeSet<String>, again: impl FnOnce() -> Command) -> Result<(), String> {
    let names = failed.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    if failed.is_empty() || failed.len() > AGAIN_MAX {
        return Err(format!("{} failures", failed.len()));
    }
    println!("failed, and run again alone: {names}");
    let (status, _) = watch(&mut again())?;
    if !status.success() {
        return Err(format!("failed twice: {names}"));
    }
    println!("TIMING: failed beside other tests and passed alone: {names}");
    Ok(())
}

/// The tests that cargo's runner reported as failed. A program that crashed reports nothing about its other tests, so a
/// report that is not whole is refused.
pub(crate) fn failed_in_cargo(said: &str) -> Result<BTreeSet<String>, String> {
    let failed = |line: &str| line.strip_prefix("test ")?.strip_suffix(" ... FAILED").map(str::to_owned);
    let names: Vec<String> = said.lines().filter_map(failed).collect();
    let begun = said.lines().filter(|line| is_beginning(line)).count();
    let results: Vec<&str> = said.lines().filter(|line| line.starts_with("test result: ")).collect();
    if results.len() < begun {
        return Err(format!("{} of {begun} test programs ended without a result", begun - results.len()));
    }
    let counted: usize = results.iter().filter_map(|line| count_before(line, " failed")).sum();
    if counted != names.len() {
        return Err(format!("{counted} tests failed and {} of them are named", names.len()));
    }
    // The runner marks such a test in its report and does not know it by the mark.
    Ok(names.iter().map(|name| name.trim_end_matches(" - should panic").to_owned()).collect())
}

/// Whether a test program of Rust says how many tests it is going to run.
fn is_beginning(line: &str) -> bool {
    let count = line.strip_prefix("running ").and_then(|rest| {
        let count = rest.strip_suffix(" tests").or_else(|| rest.strip_suffix(" test"))?;
        count.parse::<usize>().ok()
    });
    count.is_some()
}

/// The number that stands before a word, such as 2 in `2 failed, 3 passed` for ` failed`.
fn count_before(line: &str, word: &str) -> Option<usize> {
    let before = line.split_once(word)?.0;
    before.rsplit(|letter: char| !letter.is_ascii_digit()).next()?.parse().ok()
}

/// The tests that pytest listed as failed, or as broken before they began. A run that pytest broke off, which it says
/// between exclamation marks, and one without a summary are refused: other tests may not have run.
pub(crate) fn failed_in_pytest(said: &str) -> Result<BTreeSet<String>, String> {
    let failed = |line: &str| {
        let rest = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR "))?;
        // A line of a test's log begins with its level and a gap.
        rest.split(" - ").next().filter(|name| !name.starts_with(' ')).map(str::to_owned)
    };
    if let Some(why) = said.lines().find(|line| line.starts_with("!!!")) {
        return Err(format!("pytest broke off: {}", why.trim_matches(['!', ' '])));
    }
    let names: Vec<String> = said.lines().filter_map(failed).collect();
    let summary = said.lines().rev().find(|line| line.contains(" in ")).unwrap_or_default();
    let counted = [" failed", " error"].iter().filter_map(|word| count_before(summary, word)).sum::<usize>();
    if counted != names.len() {
        return Err(format!("pytest counted {counted} failures and named {}", names.len()));
    }
    Ok(names.into_iter().collect())
}

/// The files of the tests that node's runner reported as failed. Tests of one file may build on each other. A runner that
/// was killed has not printed how many failed, and is refused: other files may not have run.
pub(crate) fn failed_in_node(said: &str) -> Result<BTreeSet<String>, String> {
    if !said.lines().any(|line| line.starts_with("# fail ")) {
        return Err("node's runner ended without a summary".to_owned());
    }
    let mut failing = false;
    let mut files = BTreeSet::new();
    for line in said.lines().map(str::trim_start) {
        if line.starts_with("not ok ") || line.starts_with("ok ") {
            failing = line.starts_with("not ok ");
        } else if let Some(place) = line.strip_prefix("location: '").filter(|_| failing) {
            files.extend(place.split(':').next().map(str::to_owned));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn failures_are_found_in_what_each_runner_prints() {
        let cargo =
            "running 2 tests\ntest a::b ... ok\ntest a::c ... FAILED\ntest result: FAILED. 1 passed; 1 failed\n";
        assert_eq!(failed_in_cargo(cargo), Ok(set(&["a::c"])));
        let pytest = "..F.\nERROR    log:x.py:3 bad\nFAILED tests/test_x.py::test_y[valkey] - assert 1 == 2\n1 failed, 3 passed in 0.30s\n";
        assert_eq!(failed_in_pytest(pytest), Ok(set(&["tests/test_x.py::test_y[valkey]"])));
        let node = "ok 1 - fine\n  ---\n  location: '/t/a.mjs:3:1'\nnot ok 2 - bad\n  ---\n  location: '/t/b.mjs:9:1'\n\
                    # pass 1\n# fail 1\n";
        assert_eq!(failed_in_node(node), Ok(set(&["/t/b.mjs"])));
    }

    #[test]
    fn a_crashed_runner_gets_no_second_look() {
        let failed = "running 1 test\ntest a::c ... FAILED\ntest result: FAILED. 0 passed; 1 failed; 0 ignored\n";
        assert_eq!(failed_in_cargo(failed), Ok(set(&["a::c"])));
        let crashed = format!("{failed}running 9 tests\ntest b::x ... ok\n");
        assert!(failed_in_cargo(&crashed).is_err(), "the second program printed no result");
        let garbled = "running 2 tests\ntest a::c ... FAILED\ntest a::d ... a server's line\nFAILED\n\
                       test result: FAILED. 0 passed; 2 failed; 0 ignored\n";
        assert!(failed_in_cargo(garbled).is_err(), "one of two failures has no name");
        let killed = "not ok 1 - bad\n  ---\n  location: '/t/b.mjs:9:1'\n";
        assert!(failed_in_node(killed).is_err(), "node's runner printed no summary");
        let not_collected =
            "ERROR tests/test_x.py - SyntaxError\n!!! Interrupted: 1 error during collection !!!\n1 error in 0.2s\n";
        assert!(failed_in_pytest(not_collected).is_err(), "no test ran");
        assert!(failed_in_pytest("FAILED tests/test_x.py::test_y - assert\n").is_err(), "pytest printed no summary");
    }

    #[test]
    fn a_test_that_should_panic_is_run_again_by_its_name() {
        let failed = "running 1 test\ntest a::c - should panic ... FAILED\ntest result: FAILED. 0 passed; 1 failed;\n";
        assert_eq!(failed_in_cargo(failed), Ok(set(&["a::c"])));
    }

    #[test]
    fn a_process_that_outlives_the_command_does_not_hold_the_gate() {
        let began = Instant::now();
        let mut command = Command::new("sh");
        let (status, said) = watch(command.args(["-c", "sleep 30 & echo said; exit 3"])).unwrap();
        assert_eq!((status.code(), said.as_str()), (Some(3), "said\n"));
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }

    #[test]
    fn many_failures_and_repeated_ones_stay_failures() {
        let many = set(&["a", "b", "c", "d"]);
        assert!(look_again(&many, || panic!("too many to run again")).is_err());
        assert!(look_again(&BTreeSet::new(), || panic!("nothing to run again")).is_err());
        assert!(look_again(&set(&["a"]), || Command::new("false")).is_err());
        assert_eq!(look_again(&set(&["a"]), || Command::new("true")), Ok(()));
    }
}
