//! A second look at tests that failed: a few of them are run again, alone.
//!
//! Many tests run real servers and kill them on a machine whose load they do not know. One that fails beside others and
//! passes alone depends on timing, which is worth mending but says nothing about the change under test. It is named
//! loudly in the last lines of the gate. More failures than a few, and failures that repeat, are failures.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, ExitStatus, Stdio};

/// More failures than this are no accident.
const AGAIN_MAX: usize = 3;

/// Runs a command, shows what it writes as it comes, and keeps that, too.
pub(crate) fn watch(command: &mut Command) -> Result<(ExitStatus, String), String> {
    let name = format!("{:?}", command.get_program());
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|why| format!("cannot run {name}: {why}"))?;
    let mut said = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let mut lines = BufReader::new(stdout);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).map_err(|why| format!("{name}: {why}"))? > 0 {
            // A user who closed our standard output does not want to read it.
            let _ = std::io::stdout().write_all(&line);
            said.append(&mut line);
        }
    }
    let status = child.wait().map_err(|why| format!("{name}: {why}"))?;
    // Tests may write any bytes; names of tests and files are plain text.
    Ok((status, said.utf8_chunks().map(|chunk| chunk.valid()).collect()))
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

/// The tests that cargo's runner reported as failed.
pub(crate) fn failed_in_cargo(said: &str) -> BTreeSet<String> {
    let failed = |line: &str| line.strip_prefix("test ")?.strip_suffix(" ... FAILED").map(str::to_owned);
    said.lines().filter_map(failed).collect()
}

/// The tests that pytest listed as failed, or as broken before they began.
pub(crate) fn failed_in_pytest(said: &str) -> BTreeSet<String> {
    let failed = |line: &str| {
        let rest = line.strip_prefix("FAILED ").or_else(|| line.strip_prefix("ERROR "))?;
        rest.split(" - ").next().map(str::to_owned)
    };
    said.lines().filter_map(failed).collect()
}

/// The files of the tests that node's runner reported as failed. Tests of one file may build on each other.
pub(crate) fn failed_in_node(said: &str) -> BTreeSet<String> {
    let mut failing = false;
    let mut files = BTreeSet::new();
    for line in said.lines().map(str::trim_start) {
        if line.starts_with("not ok ") || line.starts_with("ok ") {
            failing = line.starts_with("not ok ");
        } else if let Some(place) = line.strip_prefix("location: '").filter(|_| failing) {
            files.extend(place.split(':').next().map(str::to_owned));
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn failures_are_found_in_what_each_runner_prints() {
        let cargo = "test a::b ... ok\ntest a::c ... FAILED\ntest result: FAILED. 1 passed; 1 failed\n";
        assert_eq!(failed_in_cargo(cargo), set(&["a::c"]));
        let pytest = "..F.\nFAILED tests/test_x.py::test_y[valkey] - assert 1 == 2\n1 failed, 3 passed\n";
        assert_eq!(failed_in_pytest(pytest), set(&["tests/test_x.py::test_y[valkey]"]));
        let node =
            "ok 1 - fine\n  ---\n  location: '/t/a.mjs:3:1'\nnot ok 2 - bad\n  ---\n  location: '/t/b.mjs:9:1'\n";
        assert_eq!(failed_in_node(node), set(&["/t/b.mjs"]));
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
