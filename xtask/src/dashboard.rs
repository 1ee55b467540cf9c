//! The dashboard: builds its files, checks that the committed ones are fresh, and runs its tests in a browser.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, io};

use crate::{again, program};

/// Where its source is.
const SOURCE: &str = "dashboard";
/// Where its built files are committed, for the server to take in.
const BUILT: &str = "crates/server/dashboard";

/// Builds the files that the server takes in.
pub(crate) fn build() -> Result<(), String> {
    prepare()?;
    npm(&["run", "--silent", "build"])
}

/// Refuses committed files that are not what the source gives.
pub(crate) fn check_fresh() -> Result<(), String> {
    prepare()?;
    let folder = std::env::temp_dir().join(format!("ff-dashboard-{}", std::process::id()));
    let out = folder.display().to_string();
    let built = npm(&["run", "--silent", "build", "--", "--outDir", &out, "--logLevel", "warn"]);
    let same = built.and_then(|()| compare(&folder, Path::new(BUILT)));
    // Left over files in the folder for temporary ones do no harm.
    let _ = fs::remove_dir_all(&folder);
    same
}

/// Runs the tests in a browser, against servers that they start, of a program that has been built.
pub(crate) fn test(filters: &[&str], program: Result<PathBuf, String>) -> Result<(), String> {
    program?;
    prepare()?;
    let mut tests = super::bounded("npm");
    let (status, said) =
        again::watch(super::plain(tests.args(["test", "--silent", "--"]).args(filters).current_dir(SOURCE)))?;
    if status.success() {
        return Ok(());
    }
    let files = again::failed_in_node(&said)?;
    again::look_again(&files, || {
        let mut command = super::bounded("node");
        command.args(["--test", "--test-concurrency=1", "--test-timeout=300000"]).args(&files).current_dir(SOURCE);
        command
    })
}

/// Takes pictures of every screen for the documentation.
pub(crate) fn screenshots() -> Result<(), String> {
    prepare()?;
    program::build()?;
    npm(&["run", "--silent", "screenshots"])
}

/// Installs packages where they are missing or not those of the lock file, and makes and checks types.
fn prepare() -> Result<(), String> {
    let changed = |path: PathBuf| fs::metadata(path).and_then(|found| found.modified());
    let source = Path::new(SOURCE);
    let installed = changed(source.join("node_modules/.package-lock.json"));
    let wanted = changed(source.join("package-lock.json")).map_err(|why| format!("package-lock.json: {why}"))?;
    if installed.map_or(true, |installed| installed < wanted) {
        // Not `npm ci`: it refuses a lock file that names only the platforms a registry has.
        npm(&["install", "--silent", "--ignore-scripts"])?;
    }
    npm(&["run", "--silent", "types"])?;
    npm(&["run", "--silent", "check"])
}

fn npm(arguments: &[&str]) -> Result<(), String> {
    finish(super::bounded("npm").args(arguments).current_dir(SOURCE))
}

fn finish(command: &mut Command) -> Result<(), String> {
    match super::plain(command).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?} ended with {status}")),
        Err(why) => Err(format!("{command:?} does not run: {why}")),
    }
}

fn compare(fresh: &Path, committed: &Path) -> Result<(), String> {
    let read = |folder: &Path| files(folder, folder).map_err(|why| format!("{}: {why}", folder.display()));
    let (fresh, committed) = (read(fresh)?, read(committed)?);
    let different: Vec<&str> = fresh
        .keys()
        .chain(committed.keys())
        .filter(|name| fresh.get(*name) != committed.get(*name))
        .map(String::as_str)
        .collect();
    if different.is_empty() {
        return Ok(());
    }
    Err(format!(
        "the committed files are not what {SOURCE}/ gives: run `cargo xtask dashboard` ({})",
        different.join(", ")
    ))
}

/// Every file below a folder, by its path from `root`.
fn files(root: &Path, folder: &Path) -> io::Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(root, &path)?);
        } else {
            let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            found.insert(name, fs::read(&path)?);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_differs_or_is_missing_is_named() {
        let place = std::env::temp_dir().join(format!("ff-xtask-compare-{}", std::process::id()));
        let (one, other) = (place.join("one"), place.join("other"));
        fs::create_dir_all(one.join("assets")).unwrap();
        fs::create_dir_all(&other).unwrap();
        fs::write(one.join("index.html"), "a").unwrap();
        fs::write(other.join("index.html"), "a").unwrap();
        assert_eq!(compare(&one, &other), Ok(()));
        fs::write(one.join("assets/x.js"), "x").unwrap();
        assert!(compare(&one, &other).unwrap_err().contains("assets/x.js"));
        fs::remove_dir_all(&place).unwrap();
    }
}
