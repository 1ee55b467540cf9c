//! The Python SDK: its wheel in a fresh virtual environment, then mypy, ruff and pytest.

use std::path::Path;
use std::process::Command;

use super::{Checks, size};
use crate::again;

/// Builds the wheel, installs it with the pinned tools, and checks it.
pub(super) fn check(checks: &Checks) -> Result<(), String> {
    let python = python()?;
    let programs = checks.place.join("venv").join("bin");
    let wheels = checks.place.join("dist");
    let pip = || {
        let mut pip = checks.command(programs.join("python"));
        pip.args(["-m", "pip", "--disable-pip-version-check", "--quiet"]);
        pip
    };
    size::check(checks, "src/flowfabric", &size::PYTHON)?;
    checks.run("python", checks.command(python).args(["-c", "import sys; print(sys.version.split()[0])"]))?;
    checks.run("venv", checks.command(python).args(["-m", "venv"]).arg(checks.place.join("venv")))?;
    checks.run("build", pip().args(["wheel", "--no-deps", "--wheel-dir"]).arg(&wheels).arg("."))?;
    let wheel = only_file(&wheels)?;
    checks.run("install", pip().arg("install").arg(format!("{}[dev]", wheel.display())))?;
    checks.run("ruff", checks.command(programs.join("ruff")).args(["check"]))?;
    checks.run("ruff", checks.command(programs.join("ruff")).args(["format", "--check"]))?;
    checks.run("mypy", &mut checks.command(programs.join("mypy")))?;
    let pytest = || checks.command(programs.join("pytest"));
    checks.run_tests(1, &mut pytest(), again::failed_in_pytest, |failed| {
        let mut command = pytest();
        command.args(failed);
        command
    })
}

/// The first Python that is new enough.
pub(super) fn python() -> Result<&'static str, String> {
    let new_enough = "import sys, venv; sys.exit(sys.version_info < (3, 10))";
    let works =
        |name: &&&str| Command::new(name).args(["-c", new_enough]).output().is_ok_and(|out| out.status.success());
    ["python3", "python", "python3.13", "python3.12", "python3.11", "python3.10"]
        .iter()
        .find(works)
        .copied()
        .ok_or_else(|| {
            "no python 3.10 or later with the module venv was found; install python3 and python3-venv".to_owned()
        })
}

fn only_file(folder: &Path) -> Result<std::path::PathBuf, String> {
    let entries = std::fs::read_dir(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    let files: Vec<_> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    match files.as_slice() {
        [file] => Ok(file.clone()),
        _ => Err(format!("one wheel was expected in {}, there are {}", folder.display(), files.len())),
    }
}
