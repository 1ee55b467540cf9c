//! Clients that others generate from the OpenAPI document: it is linted, a Python and a TypeScript client are made of it,
//! their types are checked, and each works with a real server.

use std::path::Path;

use super::Checks;
use super::python::python;
use crate::server::{Server, TOKEN};

/// The files that the clients are checked with.
const FILES: [&str; 7] = [
    "generator.yaml",
    "package.json",
    "package-lock.json",
    "requirements.txt",
    "smoke.py",
    "smoke.ts",
    "tsconfig.json",
];

/// Everything happens beside the sources, so that these stay as they are.
pub(super) fn check(checks: &Checks) -> Result<(), String> {
    for file in FILES {
        std::fs::copy(checks.folder.join(file), checks.place.join(file)).map_err(|why| format!("{file}: {why}"))?;
    }
    let document = checks.folder.join("../../crates/server/openapi.json");
    let server = Server::start(checks.program())?;
    lint(checks, &document)?;
    typescript(checks, &document, &server)?;
    in_python(checks, &document, &server)
}

/// Warnings count: a document that is merely valid can still be one that generators stumble over.
fn lint(checks: &Checks, document: &Path) -> Result<(), String> {
    let mut npm = checks.command("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]).current_dir(&checks.place);
    checks.run("npm", &mut npm)?;
    let mut redocly = checks.command(checks.place.join("node_modules/.bin/redocly"));
    redocly.env("REDOCLY_TELEMETRY", "off").env("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true").env("NO_COLOR", "1");
    redocly.args(["lint", "--format=json"]).arg(document).current_dir(&checks.place);
    let report = checks.output("redocly", &mut redocly)?;
    let report: serde_json::Value = serde_json::from_str(&report).map_err(|why| format!("redocly: {why}"))?;
    let problems = report["problems"].as_array().ok_or("redocly: the report lists no problems")?;
    for problem in problems {
        eprintln!("{}: {} at {}", problem["ruleId"], problem["message"], problem["location"][0]["pointer"]);
    }
    if problems.is_empty() { Ok(()) } else { Err(format!("redocly finds {} problems", problems.len())) }
}

fn typescript(checks: &Checks, document: &Path, server: &Server) -> Result<(), String> {
    let tool = |name: &str| {
        let mut tool = checks.command(checks.place.join("node_modules/.bin").join(name));
        tool.current_dir(&checks.place);
        tool
    };
    let mut generate = tool("openapi-ts");
    generate.arg("--input").arg(document).args(["--output", "flowfabric", "--client", "@hey-api/client-fetch"]);
    checks.run("openapi-ts", generate.env("NO_COLOR", "1"))?;
    checks.run("tsc", &mut tool("tsc"))?;
    let mut smoke = checks.command("node");
    smoke.arg("built/smoke.js").current_dir(&checks.place);
    checks.run("node", smoke.env("FF_SERVER", format!("http://{}", server.address)).env("FF_TOKEN", TOKEN))
}

fn in_python(checks: &Checks, document: &Path, server: &Server) -> Result<(), String> {
    let programs = checks.place.join("venv").join("bin");
    checks.run("venv", checks.command(python()?).args(["-m", "venv"]).arg(checks.place.join("venv")))?;
    let tool = |name: &str| {
        let mut tool = checks.command(programs.join(name));
        tool.current_dir(&checks.place);
        tool
    };
    let pip = ["-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--requirement", "requirements.txt"];
    checks.run("install", tool("python").args(pip))?;
    let mut generate = tool("openapi-python-client");
    generate.args(["generate", "--meta", "none", "--config", "generator.yaml", "--fail-on-warning"]);
    generate.args(["--output-path", "flowfabric_generated", "--path"]).arg(document);
    checks.run("openapi-python-client", &mut generate)?;
    checks.run("mypy", tool("mypy").args(["flowfabric_generated", "smoke.py"]))?;
    let mut smoke = tool("python");
    checks.run(
        "python",
        smoke.arg("smoke.py").env("FF_SERVER", format!("http://{}", server.address)).env("FF_TOKEN", TOKEN),
    )
}
