//! Runs schemathesis, which makes thousands of requests up from `/openapi.json`, against a server in memory.
//!
//! It comes from PyPI into a directory that is removed afterwards, so nothing has to be installed but Python.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

/// The version whose checks the server is held to.
const PACKAGE: &str = "schemathesis>=4,<5";
/// Every answer is checked: no 5xx, status, content type and body as documented, bad requests refused, undeclared
/// methods refused with `Allow`, and nothing without a token. One check is left out: that whatever fits the schema is
/// accepted, because not every rule can be said in a schema.
const ARGUMENTS: &[&str] = &[
    "--phases",
    "coverage,fuzzing",
    "--exclude-checks",
    "positive_data_acceptance",
    "--request-timeout",
    "40",
    "--warnings",
    "off",
];
/// A batch answers for each of its executions: one that is refused does not refuse the others.
const CONFIGURATION: &str = r#"
[[operations]]
include-operation-id = "create_executions"
checks.negative_data_rejection.enabled = false
"#;
const TOKEN: &str = "schemathesis-token";

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
    finish(Command::new("cargo").args(["build", "--quiet", "--package", "ff-cli"]))?;
    std::fs::write(place.join("schemathesis.toml"), CONFIGURATION).map_err(|why| why.to_string())?;
    let (server, address) = serve()?;
    let header = format!("Authorization: Bearer {TOKEN}");
    let mut command = Command::new(programs.join("st"));
    command.current_dir(place).arg("run").arg(format!("http://{address}/openapi.json"));
    command.args(["--wait-for-schema", "30", "--header", &header]).args(ARGUMENTS).args(arguments);
    let passed = command.status().map_err(|why| format!("st does not run: {why}"))?.success();
    drop(server);
    Ok(passed)
}

/// Ends with the check.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended by itself needs no ending.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve() -> Result<(Server, String), String> {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = free.map_err(|why| format!("no free port: {why}"))?.to_string();
    let program = std::env::current_exe().map_err(|why| why.to_string())?.with_file_name("ff");
    let mut command = Command::new(program);
    command.args(["server", "--store", "memory://", "--listen", &address, "--log-level", "error"]);
    command.env("FF_API_TOKEN", TOKEN).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().map_err(|why| format!("the server does not start: {why}"))?;
    Ok((Server(child), address))
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
