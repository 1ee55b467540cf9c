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
    match plain(Command::new("cargo").args(["build", "--quiet", "--package", "ff-cli"])).status() {
        Ok(status) if status.success() => {}
        _ => return Err("the command cannot be built".into()),
    }
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".into());
    Ok(format!("{target}/debug/ff"))
}
