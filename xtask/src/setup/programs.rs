//! Programs that scripts in the documentation call, which tests run as they stand there.

use super::apt;

const PROGRAMS: [&str; 2] = ["curl", "jq"];

/// Installs the programs that are missing, where we may; otherwise says what to install.
pub(crate) fn install_missing() -> Result<(), String> {
    let missing: Vec<&str> = PROGRAMS.into_iter().filter(|program| !apt::in_path(program)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let say_how = |why: String| format!("{0} missing and {why}; install {0}", missing.join(" and "));
    apt::check().map_err(&say_how)?;
    eprintln!("installing {}", missing.join(" and "));
    apt::get(&["update"]).map_err(&say_how)?;
    apt::get(&[&["install", "--no-install-recommends"], missing.as_slice()].concat()).map_err(&say_how)
}
