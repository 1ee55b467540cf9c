//! `cargo xtask sdks`: builds the package of each SDK, installs it into a fresh place, and checks it there against a
//! real server. A language is one file with one function, and one line in the list below.

mod checks;
mod generated;
mod mcp;
mod python;
mod size;
mod typescript;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use checks::Checks;

/// An SDK: its folder under `sdks/`, and everything its gate checks.
type Sdk = (&'static str, fn(&Checks) -> Result<(), String>);

const SDKS: [Sdk; 4] = [
    ("python", python::check),
    ("typescript", typescript::check),
    ("mcp", mcp::check),
    ("generated", generated::check),
];

/// Checks the SDKs that are named, or all of them, against servers of a program. Each is checked, also after another has
/// failed.
pub(crate) fn check(names: &[&str], program: Result<PathBuf, String>) -> ExitCode {
    if let Some(unknown) = names.iter().find(|name| SDKS.iter().all(|(known, _)| known != *name)) {
        let known: Vec<&str> = SDKS.iter().map(|(name, _)| *name).collect();
        eprintln!("there is no SDK {unknown:?}; there are: {}", known.join(", "));
        return ExitCode::from(2);
    }
    let program = match program {
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
