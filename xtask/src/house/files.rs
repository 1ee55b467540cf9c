//! Files: how large they are, whether a module names them, and whether they belong into the repository at all.

use std::path::Path;
use std::process::Command;

use super::Findings;

/// A file of more lines reads badly.
const LINES_WARN: usize = 400;
/// A file of more lines is two things.
const LINES_MAX: usize = 800;

/// The ends of names that programs leave behind.
const LEFT_BEHIND: [&str; 11] =
    [".orig", ".rej", ".bak", ".log", ".tmp", ".swp", "~", ".db", ".db-wal", ".snap.new", ".DS_Store"];
/// Folders that tools fill.
const TOOL_FOLDERS: [&str; 6] = ["target", ".schemathesis", "node_modules", "__pycache__", ".venv", "flowfabric-dev"];
/// The names that stand at the root.
const ROOT: [&str; 27] = [
    ".cargo",
    ".ci",
    ".config",
    ".github",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "Dockerfile",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "bench",
    "clippy.toml",
    "crates",
    "dashboard",
    "deny.toml",
    "deploy",
    "docs",
    "examples",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "sdks",
    "sequences",
    "sim",
];
const ROOT_TOOLS: [&str; 3] = ["testkit", "torture", "xtask"];

/// Checks every file that the repository has or is about to get.
pub(super) fn check(root: &Path, findings: &mut Findings) -> Result<(), String> {
    let mut long = Vec::new();
    for path in known_files(root)? {
        if let Some(why) = stray(&path) {
            findings.refused.push(format!("{path} is a stray file: {why}"));
        }
        if path.ends_with(".rs") {
            let text = std::fs::read_to_string(root.join(&path)).map_err(|error| format!("{path}: {error}"))?;
            match text.lines().count() {
                lines if lines > LINES_MAX => {
                    findings.refused.push(format!("{path} has {lines} lines; past {LINES_MAX} a file is two things"));
                }
                lines if lines > LINES_WARN => long.push((lines, path.clone())),
                _ => {}
            }
            if !is_named(root, &path) {
                findings.refused.push(format!("{path} is a stray file: no module names it"));
            }
        }
    }
    long.sort_by(|one, other| other.cmp(one));
    if let Some((lines, longest)) = long.first() {
        let count = long.len();
        findings.warnings.push(format!("{count} files have more than {LINES_WARN} lines; {longest} has {lines}"));
    }
    Ok(())
}

/// The files that git tracks, and those it would track if everything was added.
pub(super) fn known_files(root: &Path) -> Result<Vec<String>, String> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .map_err(|error| format!("git: {error}"))?;
    let names = String::from_utf8(listed.stdout).map_err(|error| format!("a file's name: {error}"))?;
    // One that is deleted and not committed yet is still listed.
    Ok(names.lines().filter(|name| root.join(name).is_file()).map(str::to_owned).collect())
}

fn stray(path: &str) -> Option<&'static str> {
    let mut parts = path.split('/');
    let first = parts.next().unwrap_or_default();
    if !ROOT.contains(&first) && !ROOT_TOOLS.contains(&first) {
        return Some("nothing of that name stands at the root; a new name belongs into xtask/src/house/files.rs");
    }
    if path.split('/').any(|part| TOOL_FOLDERS.contains(&part)) {
        return Some("a tool fills that folder");
    }
    LEFT_BEHIND.iter().any(|end| path.ends_with(end)).then_some("a program left it behind")
}

/// Whether the module above a source file names it. Roots of crates, tests, examples and benches need no name.
fn is_named(root: &Path, path: &str) -> bool {
    let Some((before, inner)) = path.split_once("/src/") else { return true };
    let parts: Vec<&str> = inner.trim_end_matches(".rs").split('/').collect();
    let (name, folders) = match parts.as_slice() {
        [.., folder, "mod"] => (*folder, &parts[..parts.len() - 2]),
        [.., name] => (*name, &parts[..parts.len() - 1]),
        [] => return true,
    };
    if matches!(parts.as_slice(), ["lib" | "main"] | ["bin", ..]) {
        return true;
    }
    let manifest = std::fs::read_to_string(root.join(before).join("Cargo.toml")).unwrap_or_default();
    if manifest.contains(&format!("path = \"src/{inner}\"")) {
        return true;
    }
    let folder = folders.iter().fold(root.join(before).join("src"), |folder, part| folder.join(part));
    let mut above = vec![folder.join("mod.rs"), folder.with_extension("rs")];
    if folders.is_empty() {
        above = vec![folder.join("lib.rs"), folder.join("main.rs")];
    }
    let declaration = format!("mod {name};");
    above.iter().filter_map(|path| std::fs::read_to_string(path).ok()).any(|text| text.contains(&declaration))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tools_leave_behind_is_stray() {
        assert!(stray("crates/core/src/lib.rs.orig").is_some());
        assert!(stray(".schemathesis/run.json").is_some());
        assert!(stray("notes.txt").is_some());
        assert!(stray("crates/core/src/lib.rs").is_none());
    }
}
