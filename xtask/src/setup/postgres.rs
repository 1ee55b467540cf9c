//! PostgreSQL: the programs alone are needed, because tests make clusters of their own.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Where distributions put the programs of the server, besides the search path.
const PLACES: [&str; 4] = ["/usr/lib/postgresql", "/usr/pgsql", "/opt/homebrew/opt", "/usr/local/opt"];

/// Installs PostgreSQL where it is missing and we may; otherwise says what to install.
pub(crate) fn install_missing() -> Result<(), String> {
    if present() {
        return Ok(());
    }
    let by_hand =
        "install PostgreSQL 13 or later (the package postgresql), with initdb and postgres in the search path";
    if !may_install() {
        return Err(by_hand.into());
    }
    // The package would start a cluster that nobody asked for.
    keep_from_starting().map_err(|why| format!("{by_hand}: {why}"))?;
    apt(&["update"]).and_then(|()| apt(&["install", "--no-install-recommends", "postgresql"]))?;
    if present() { Ok(()) } else { Err(by_hand.into()) }
}

fn present() -> bool {
    let complete = |directory: &Path| directory.join("initdb").is_file() && directory.join("postgres").is_file();
    let versions = PLACES.iter().filter_map(|place| fs::read_dir(place).ok()).flatten().flatten();
    let path = std::env::var_os("PATH").unwrap_or_default();
    versions.into_iter().any(|version| complete(&version.path().join("bin")))
        || std::env::split_paths(&path).any(|directory| complete(&directory))
}

/// Root on a system with apt. A process's own directory belongs to the user it runs as.
fn may_install() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0) && Path::new("/usr/bin/apt-get").exists()
}

fn keep_from_starting() -> std::io::Result<()> {
    let directory = Path::new("/etc/postgresql-common");
    let settings = directory.join("createcluster.conf");
    if settings.exists() {
        return Ok(());
    }
    fs::create_dir_all(directory)?;
    fs::write(settings, "create_main_cluster = false\n")
}

fn apt(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("apt-get")
        .args(["-qq", "-y", "-o", "Dpkg::Options::=--force-confold"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run apt-get: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("apt-get {} failed: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}
