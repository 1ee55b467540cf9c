//! PostgreSQL: the programs alone are needed, because tests make clusters of their own.

use std::fs;
use std::path::Path;

use super::apt;

/// Where distributions put the programs of the server, besides the search path.
const PLACES: [&str; 4] = ["/usr/lib/postgresql", "/usr/pgsql", "/opt/homebrew/opt", "/usr/local/opt"];

/// Installs PostgreSQL where it is missing and we may; otherwise says what to install.
pub(crate) fn install_missing() -> Result<(), String> {
    if present() {
        return Ok(());
    }
    let by_hand =
        "install PostgreSQL 13 or later (the package postgresql), with initdb and postgres in the search path";
    let say_how = |why: String| format!("PostgreSQL is missing and {why}; {by_hand}");
    apt::check().map_err(&say_how)?;
    eprintln!("installing PostgreSQL");
    // The package would start a cluster that is not wanted.
    keep_from_starting().map_err(|why| say_how(why.to_string()))?;
    apt::get(&["update"]).map_err(&say_how)?;
    apt::get(&["install", "--no-install-recommends", "postgresql"]).map_err(&say_how)?;
    if present() { Ok(()) } else { Err(by_hand.into()) }
}

fn present() -> bool {
    let complete = |directory: &Path| directory.join("initdb").is_file() && directory.join("postgres").is_file();
    let versions = PLACES.iter().filter_map(|place| fs::read_dir(place).ok()).flatten().flatten();
    let path = std::env::var_os("PATH").unwrap_or_default();
    versions.into_iter().any(|version| complete(&version.path().join("bin")))
        || std::env::split_paths(&path).any(|directory| complete(&directory))
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
