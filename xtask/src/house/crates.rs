//! The arrows between crates: a crate depends on lower ones only, and none brings JSON schemas into the program that people
//! install.

use std::path::Path;

use super::Findings;

/// The crates from the bottom up; a crate may depend on those of earlier rows.
const ROWS: &[&[&str]] = &[
    &["ff-core", "ff-macros", "ff-testkit"],
    &["ff-mistakes", "ff-store", "ff-torture"],
    &["ff-store-sqlite", "ff-store-postgres", "ff-store-valkey", "ff-engine"],
    &["ff-mcp", "ff-stores"],
    &["ff-server", "flowfabric", "ff-sim"],
    &["ff-bench", "ff-sequences"],
    &["ff-cli"],
    &["xtask"],
];

fn row(package: &str) -> Option<usize> {
    ROWS.iter().position(|row| row.contains(&package))
}

/// Checks the dependencies of every package below the given folders. A dependency that only tests need may come from
/// anywhere.
pub(super) fn check(root: &Path, findings: &mut Findings) -> Result<(), String> {
    for manifest in manifests(root)? {
        let text = std::fs::read_to_string(&manifest).map_err(|error| format!("{}: {error}", manifest.display()))?;
        if asks_for_schemas(&text) {
            let refused =
                "depends on JSON schemas, which `ff` would then have, too; only tests and users of the SDK need them";
            findings.refused.push(format!("{} {refused}", manifest.display()));
        }
        let Some((package, dependencies)) = read(&text) else { continue };
        let Some(own) = row(&package) else {
            findings.refused.push(format!("{package} stands in no row of crates; add it in xtask/src/house/crates.rs"));
            continue;
        };
        for dependency in dependencies {
            if row(&dependency).is_some_and(|row| row >= own) {
                findings.refused.push(format!("{package} must not depend on {dependency}, which is not below it"));
            }
        }
    }
    Ok(())
}

fn manifests(root: &Path) -> Result<Vec<std::path::PathBuf>, String> {
    let mut found = vec![root.join("Cargo.toml")];
    for folder in [root.to_owned(), root.join("crates")] {
        let entries = std::fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path().join("Cargo.toml")));
        found.extend(paths.filter(|path| path.is_file()));
    }
    found.sort();
    Ok(found)
}

/// Whether a dependency outside of tests turns the feature `schema` on: cargo gives a package the features that any of its
/// users asks for.
fn asks_for_schemas(text: &str) -> bool {
    let mut section = "";
    text.lines().map(str::trim).any(|line| {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']);
        }
        let defaults = match section {
            "workspace.dependencies" => line.starts_with("flowfabric ") && !line.contains("default-features = false"),
            "dependencies" => line.starts_with("flowfabric") && line.contains("default-features = true"),
            _ => return false,
        };
        defaults || line.contains("\"schema\"")
    })
}

/// The name of a package and what it depends on outside of tests.
fn read(text: &str) -> Option<(String, Vec<String>)> {
    let (mut section, mut package, mut dependencies) = ("", None, Vec::new());
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']);
            continue;
        }
        let Some((name, value)) = line.split_once('=') else { continue };
        match section {
            "package" if name.trim() == "name" => package = Some(value.trim().trim_matches('"').to_owned()),
            "dependencies" => {
                let name = name.trim();
                dependencies.push(name.split('.').next().unwrap_or(name).to_owned());
            }
            _ => {}
        }
    }
    Some((package?, dependencies))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_is_read_without_what_tests_need() {
        let text = "[package]\nname = \"a\"\n[dependencies]\nff-core.workspace = true\nserde = \"1\"\n[dev-dependencies]\nx = \"1\"\n";
        assert_eq!(read(text), Some(("a".to_owned(), vec!["ff-core".to_owned(), "serde".to_owned()])));
    }

    #[test]
    fn schemas_are_for_tests_and_for_users_of_the_sdk() {
        let core = "ff-core = { workspace = true, features = [\"schema\"] }\n";
        assert!(asks_for_schemas(&format!("[dependencies]\n{core}")));
        assert!(!asks_for_schemas(&format!("[features]\ndefault = [\"schema\"]\n[dev-dependencies]\n{core}")));
        assert!(asks_for_schemas("[workspace.dependencies]\nflowfabric = { path = \"crates/sdk\" }\n"));
        assert!(!asks_for_schemas(
            "[workspace.dependencies]\nflowfabric = { path = \"a\", default-features = false }\n"
        ));
        assert!(asks_for_schemas("[dependencies]\nflowfabric = { workspace = true, default-features = true }\n"));
    }
}
