//! Runs schemathesis, which makes thousands of requests up from `/openapi.json`, against a server in memory.
//!
//! It comes from PyPI into a directory that is removed afterwards, so nothing has to be installed but Python.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::program;
use crate::server::{Server, TOKEN};

/// The version whose checks the server is held to.
const PACKAGE: &str = "schemathesis>=4,<5";
/// Every check is on: no 5xx; status, content type and body as documented; what breaks the schema is refused, and what keeps
/// it accepted; undeclared methods refused with `Allow`; nothing without a token.
const ARGUMENTS: &[&str] = &["--phases", "coverage,fuzzing", "--request-timeout", "40", "--warnings", "off"];
/// Limits in bytes are said in characters, because JSON Schema knows no bytes: so texts are made up of ASCII, where the two
/// are the same. A body that is too large to be read is refused like one that breaks its schema.
const CONFIGURATION: &str = r#"
hooks = "hooks"

[generation]
codec = "ascii"

[checks.negative_data_rejection]
expected-statuses = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "428", "429", "5xx"]

# These answer for each of their parts: one that breaks the schema is refused and the others go on, so that the answer is 200.
# The hooks have a check of their own that the part is refused.
[[operations]]
include-operation-id = "create_executions"
checks.negative_data_rejection.expected-statuses = ["200", "4xx"]

[[operations]]
include-operation-id = "exchange"
checks.negative_data_rejection.expected-statuses = ["200", "4xx"]
"#;
/// Makes fields agree whose rule a schema cannot say.
const HOOKS: &str = include_str!("schemathesis/hooks.py");

/// Installs it, starts a server, and runs it with further arguments, such as `-n 100` or `--seed 1`.
pub(crate) fn run(arguments: &[&str]) -> ExitCode {
    let place = Place(std::env::temp_dir().join(format!("ff-schemathesis-{}", std::process::id())));
    match check(&place.0, arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("schemathesis: {why}");
            ExitCode::FAILURE
        }
    }
}

fn check(place: &Path, arguments: &[&str]) -> Result<bool, String> {
    let programs = place.join("venv").join("bin");
    finish(Command::new("python3").args(["-m", "venv"]).arg(place.join("venv")))?;
    finish(Command::new(programs.join("pip")).args(["install", "--quiet", PACKAGE]))?;
    std::fs::write(place.join("schemathesis.toml"), CONFIGURATION).map_err(|why| why.to_string())?;
    std::fs::write(place.join("hooks.py"), HOOKS).map_err(|why| why.to_string())?;
    let server = Server::start(&program::build()?)?;
    let header = format!("Authorization: Bearer {TOKEN}");
    let mut command = Command::new(programs.join("st"));
    command
        .current_dir(place)
        .env("PYTHONPATH", place)
        .arg("run")
        .arg(format!("http://{}/openapi.json", server.address));
    command.args(["--header", &header]).args(ARGUMENTS).args(arguments);
    let passed = command.status().map_err(|why| format!("st does not run: {why}"))?.success();
    drop(server);
    Ok(passed)
}

fn finish(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{:?} ended with {status}", command.get_program())),
        Err(why) => Err(format!("{:?} does not run: {why}", command.get_program())),
    }
}

/// A directory that goes when it is no longer needed.
struct Place(PathBuf);

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
