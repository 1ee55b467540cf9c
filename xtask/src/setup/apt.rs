//! Debian's package tool.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Says why nothing can be installed here, if so.
pub(super) fn check() -> Result<(), String> {
    if !in_path("apt-get") {
        return Err("this is not a Debian system".into());
    }
    // A process's own directory belongs to the user it runs as.
    if fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) {
        return Ok(());
    }
    Err("only root can install it".into())
}

/// Runs `apt-get` without questions.
pub(super) fn get(arguments: &[&str]) -> Result<(), String> {
    // A run level of 1 keeps a package from starting a server of its own: tests start theirs.
    let output = Command::new("apt-get")
        .args(["--quiet", "--yes", "-o", "Dpkg::Options::=--force-confold"])
        .args(arguments)
        .envs([("DEBIAN_FRONTEND", "noninteractive"), ("RUNLEVEL", "1")])
        .stdin(Stdio::null())
        .output()
        .map_err(|why| format!("apt-get cannot be run: {why}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("`apt-get {}` failed: {}", arguments.join(" "), output.stderr.escape_ascii()))
}

/// Whether a program can be run by its name, or could be by root.
pub(super) fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]).any(|folder| folder.join(program).is_file())
}
