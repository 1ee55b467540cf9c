//! The checks of one SDK: commands whose last line is shown, and the rest only if they fail.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::again;

/// Where an SDK is checked, and with which server.
pub(super) struct Checks {
    pub(super) name: &'static str,
    /// The SDK's sources.
    pub(super) folder: PathBuf,
    /// A place that was empty when the check began.
    pub(super) place: PathBuf,
    program: PathBuf,
}

impl Checks {
    pub(super) fn new(name: &'static str, root: PathBuf, program: PathBuf) -> Result<Self, String> {
        let place = root.join("target").join("sdks").join(name);
        let fresh = match std::fs::remove_dir_all(&place) {
            Err(why) if why.kind() != std::io::ErrorKind::NotFound => Err(why),
            _ => std::fs::create_dir_all(&place),
        };
        fresh.map_err(|why| format!("{} cannot be made anew: {why}", place.display()))?;
        Ok(Self { name, folder: root.join("sdks").join(name), place, program })
    }

    /// A command in the SDK's folder that finds our `ff`. Variables of the caller's own shell about servers stay
    /// outside.
    pub(super) fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = crate::bounded(program.as_ref());
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("FF_")) {
                command.env_remove(name);
            }
        }
        command.current_dir(&self.folder).env("FF_PROGRAM", &self.program);
        command
    }

    /// Our `ff`.
    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// Runs a command and shows its last line; all it said, if it fails.
    pub(super) fn run(&self, what: &str, command: &mut Command) -> Result<(), String> {
        let said = self.output(what, command)?;
        self.summarise(1, what, &said);
        Ok(())
    }

    /// Runs tests whose summary has several lines. A few that fail are run again, alone, by the command that `again`
    /// makes of their names.
    pub(super) fn run_tests(
        &self,
        lines: usize,
        command: &mut Command,
        failed: fn(&str) -> Result<BTreeSet<String>, String>,
        again: impl FnOnce(&BTreeSet<String>) -> Command,
    ) -> Result<(), String> {
        let (status, said) = again::watch(command)?;
        if !status.success() {
            let failed = failed(&said)?;
            again::look_again(&failed, || again(&failed))?;
        }
        self.summarise(lines, "tests", &said);
        Ok(())
    }

    fn summarise(&self, lines: usize, what: &str, said: &str) {
        let mut summary: Vec<&str> = said.lines().rev().filter(|line| !line.trim().is_empty()).take(lines).collect();
        summary.reverse();
        let summary = if summary.is_empty() { "done".into() } else { summary.join(", ") };
        println!("sdks/{}: {what}: {summary}", self.name);
    }

    /// Runs a command and gives what it wrote to its standard output; shows all it said, if it fails. The output goes to
    /// files: a pipe would be read until every process that inherited it has ended, also one that outlives the command.
    pub(super) fn output(&self, what: &str, command: &mut Command) -> Result<String, String> {
        let broken = |why: std::io::Error| format!("{what}: {why}");
        let (stdout, stderr) = (self.place.join("stdout"), self.place.join("stderr"));
        command
            .stdin(Stdio::null())
            .stdout(File::create(&stdout).map_err(broken)?)
            .stderr(File::create(&stderr).map_err(broken)?);
        let status =
            command.status().map_err(|why| format!("{what}: cannot run {:?}: {why}", command.get_program()))?;
        let stdout = std::fs::read(stdout).map_err(broken)?;
        if status.success() {
            return String::from_utf8(stdout).map_err(|why| format!("{what}: {why}"));
        }
        let stderr = std::fs::read(stderr).map_err(broken)?;
        let mut terminal = std::io::stderr().lock();
        // A user who closed our standard error does not want to read it.
        let _ = terminal.write_all(&stdout).and_then(|()| terminal.write_all(&stderr));
        Err(format!("{what} failed with {status}"))
    }
}
