//! `cargo xtask sdks`: builds the package of each SDK, installs it into a fresh place, and checks it there against a
//! real server. A language is one file with one function, and one line in the list below.

mod checks;
mod generated;
mod mcp;
mod python;
mod size;
mod typescript;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use checks::Checks;

/// An SDK: its folder under `sdks/`, and everything its gate checks.
type Sdk = (&'static str, fn(&Checks) -> Result<(), String>);

const SDKS: [Sdk; 4] = [
    ("python", python::check),
    ("typescript", typescript::check),
    ("mcp", mcp::check),
    ("generated", generated::check),
];

/// Checks the SDKs that are named, or all of them. Each is checked, also after another has failed.
pub(crate) fn check(names: &[&str]) -> ExitCode {
    if let Some(unknown) = names.iter().find(|name| SDKS.iter().all(|(known, _)| known != *name)) {
        let known: Vec<&str> = SDKS.iter().map(|(name, _)| *name).collect();
        eprintln!("there is no SDK {unknown:?}; there are: {}", known.join(", "));
        return ExitCode::from(2);
    }
    let program = match build_program() {
        Ok(program) => program,
        Err(why) => {
            eprintln!("the SDKs cannot be checked: {why}");
            return ExitCode::FAILURE;
        }
    };
    let mut failed = false;
    for (name, check) in SDKS.iter().filter(|(name, _)| names.is_empty() || names.contains(name)) {
        let checked = Checks::new(name, root(), program.clone()).and_then(|checks| check(&checks));
        if let Err(why) = checked {
            eprintln!("sdks/{name}: {why}");
            failed = true;
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// The `ff` that the SDKs' tests start.
fn build_program() -> Result<PathBuf, String> {
    let mut build = Command::new("cargo");
    build.current_dir(root()).args(["build", "--quiet", "--package", "ff-cli"]);
    match crate::plain(&mut build).status() {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("cargo build ended with {status}")),
        Err(why) => return Err(format!("cargo does not run: {why}")),
    }
    let ourselves = std::env::current_exe().map_err(|why| why.to_string())?;
    Ok(ourselves.with_file_name("ff"))
}
