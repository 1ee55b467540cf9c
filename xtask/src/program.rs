//! The `ff` that suites in other languages, the browser's tests and checks from outside start.

use std::path::PathBuf;
use std::process::Command;

/// Builds `ff` for development.
pub(crate) fn build() -> Result<PathBuf, String> {
    let mut command = Command::new("cargo");
    match crate::plain(command.args(["build", "--quiet", "--package", "ff-cli"])).status() {
        Ok(status) if status.success() => built(),
        Ok(status) => Err(format!("cargo build ended with {status}")),
        Err(why) => Err(format!("cargo does not run: {why}")),
    }
}

/// The `ff` that the tests of the workspace were built with. Building it by itself would compile nearly everything once
/// more, because tests ask the same packages for more features.
pub(crate) fn of_tests() -> Result<PathBuf, String> {
    built()
}

fn built() -> Result<PathBuf, String> {
    let ourselves = std::env::current_exe().map_err(|why| why.to_string())?;
    let program = ourselves.with_file_name("ff");
    if program.is_file() { Ok(program) } else { Err(format!("{} is missing", program.display())) }
}
