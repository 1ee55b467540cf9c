//! The TypeScript SDK: types, lints and tests, then its tarball installed into an empty project.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Checks, size};
use crate::again;

/// The oldest Node that the package supports.
const NODE_MAJOR_MIN: u32 = 20;
/// How many lines the test runner counts in.
const SUMMARY_LINES: usize = 8;

/// Installs the pinned tools, checks the sources, and loads the packed package.
pub(super) fn check(checks: &Checks) -> Result<(), String> {
    let npm = || checks.command("npm");
    let tool = |name: &str| checks.command(checks.folder.join("node_modules/.bin").join(name));
    size::check(checks, "src", &size::TYPESCRIPT)?;
    node()?;
    checks.run("install", npm().args(["ci", "--no-audit", "--no-fund"]))?;
    let fresh = checks.place.join("wire.ts");
    let from = ["../../crates/server/openapi.json", "--default-non-nullable=false", "-o"];
    checks.run("generate", tool("openapi-typescript").args(from).arg(&fresh))?;
    same(&fresh, &checks.folder.join("src/wire.ts"))?;
    checks.run("build", npm().args(["run", "build"]))?;
    checks.run("tsc", tool("tsc").args(["-p", "tsconfig.json"]))?;
    checks.run("eslint", tool("eslint").args(["src", "test", "examples"]))?;
    let tests = tests(&checks.folder.join("build/test"))?;
    let runner = |files: &mut dyn Iterator<Item = &Path>| {
        let mut command = checks.command("node");
        command.args(["--test", "--test-reporter=tap"]).args(files);
        command
    };
    let mut all = runner(&mut tests.iter().map(PathBuf::as_path));
    checks.run_tests(SUMMARY_LINES, &mut all, again::failed_in_node, |failed| {
        runner(&mut failed.iter().map(Path::new))
    })?;
    load_package(checks)
}

/// Loads the package as a user gets it: the tarball, in a project that has nothing else.
fn load_package(checks: &Checks) -> Result<(), String> {
    checks.run("pack", checks.command("npm").args(["pack", "--pack-destination"]).arg(&checks.place))?;
    let project = checks.place.join("project");
    let package = r#"{"private": true, "type": "module"}"#;
    std::fs::create_dir_all(&project)
        .and_then(|()| std::fs::write(project.join("package.json"), package))
        .map_err(|why| format!("{}: {why}", project.display()))?;
    let tarball = checks.place.join(format!("flowfabric-sdk-{}.tgz", env!("CARGO_PKG_VERSION")));
    let mut install = checks.command("npm");
    checks
        .run("install it", install.args(["install", "--no-audit", "--no-fund"]).arg(tarball).current_dir(&project))?;
    let import = "const { Client, Worker, task } = await import('@flowfabric/sdk'); \
                  const { Server } = await import('@flowfabric/sdk/testing'); \
                  console.log([Client, Worker, task, Server].map((each) => each.name).join(', '))";
    let mut node = checks.command("node");
    checks.run("import it", node.args(["--input-type=module", "-e", import]).current_dir(&project))
}

fn node() -> Result<(), String> {
    let missing = || format!("no node {NODE_MAJOR_MIN} or later was found; install nodejs and npm");
    let output = Command::new("node").arg("--version").output().map_err(|_| missing())?;
    let version = String::from_utf8_lossy(&output.stdout);
    let major = version.trim().trim_start_matches('v').split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_some_and(|major| major >= NODE_MAJOR_MIN) { Ok(()) } else { Err(missing()) }
}

/// The compiled test files.
fn tests(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    let files = entries.filter_map(Result::ok).map(|entry| entry.path());
    let mut tests: Vec<PathBuf> = files.filter(|file| file.to_string_lossy().ends_with(".test.js")).collect();
    tests.sort();
    if tests.is_empty() { Err(format!("there are no tests in {}", folder.display())) } else { Ok(tests) }
}

/// Refuses generated types that do not come from today's OpenAPI document.
fn same(fresh: &Path, committed: &Path) -> Result<(), String> {
    let read = |path: &Path| std::fs::read(path).map_err(|why| format!("{}: {why}", path.display()));
    if read(fresh)? == read(committed)? {
        return Ok(());
    }
    Err("src/wire.ts is out of date: run `npm run generate` in sdks/typescript".to_owned())
}
