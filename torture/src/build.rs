//! The program under torture.

use std::process::Command;

/// The variables that cargo set for us must not reach it again: some packages would be built anew for it.
pub(crate) fn plain(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            command.env_remove(name);
        }
    }
    command
}

/// Builds `ff`; says where it is.
pub(crate) fn build() -> Result<String, String> {
    build_into(&target(), &[])
}

/// Builds `ff` with bugs that can be switched on; says where it is. No other build finds it in its place.
pub(crate) fn build_planted() -> Result<String, String> {
    build_into(&format!("{}/planted", target()), &["--features", "ff-core/planted"])
}

fn target() -> String {
    std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into())
}

fn build_into(target: &str, features: &[&str]) -> Result<String, String> {
    let mut command = Command::new("cargo");
    command.args(["build", "--quiet", "--package", "ff-cli", "--target-dir", target]).args(features);
    match plain(&mut command).status() {
        Ok(status) if status.success() => Ok(format!("{target}/debug/ff")),
        _ => Err("the command cannot be built".into()),
    }
}
