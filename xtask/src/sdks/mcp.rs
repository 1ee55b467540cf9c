//! Clients of the Model Context Protocol against a real server: the Python package `mcp` in a fresh virtual environment, and the
//! protocol's own conformance package.

use std::path::Path;

use super::Checks;
use super::python::python;

/// Installs the pinned clients, runs the tests that kill one of them, and the scenarios of the other.
pub(super) fn check(checks: &Checks) -> Result<(), String> {
    let programs = checks.place.join("venv").join("bin");
    checks.run("venv", checks.command(python()?).args(["-m", "venv"]).arg(checks.place.join("venv")))?;
    let mut pip = checks.command(programs.join("python"));
    pip.args(["-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--requirement", "requirements.txt"]);
    checks.run("install", &mut pip)?;
    checks.run("pytest", checks.command(programs.join("pytest")).arg("-q"))?;
    conform(checks, &programs.join("python"))
}

/// Runs the scenarios. The package is installed beside the sources, so that these stay as they are.
fn conform(checks: &Checks, python: &Path) -> Result<(), String> {
    let place = checks.place.join("conformance");
    let pinned = ["package.json", "package-lock.json"];
    std::fs::create_dir_all(&place)
        .and_then(|()| {
            pinned.iter().try_for_each(|file| std::fs::copy(checks.folder.join(file), place.join(file)).map(drop))
        })
        .map_err(|why| format!("{}: {why}", place.display()))?;
    let mut npm = checks.command("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&place);
    checks.run("npm", &mut npm)?;
    checks.run("conformance", checks.command(python).arg("conformance.py").arg(&place))
}
