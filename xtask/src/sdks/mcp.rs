//! Clients of the Model Context Protocol: the Python package `mcp` in a fresh virtual environment, against a real server.

use super::Checks;
use super::python::python;

/// Installs the pinned client, and runs the tests that kill it.
pub(super) fn check(checks: &Checks) -> Result<(), String> {
    let programs = checks.place.join("venv").join("bin");
    checks.run("venv", checks.command(python()?).args(["-m", "venv"]).arg(checks.place.join("venv")))?;
    let mut pip = checks.command(programs.join("python"));
    pip.args(["-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--requirement", "requirements.txt"]);
    checks.run("install", &mut pip)?;
    checks.run("pytest", checks.command(programs.join("pytest")).arg("-q"))
}
