//! Installs Valkey from the distribution: from the release itself where it carries Valkey, else from its backports.
//!
//! The backports entry is the machine's own Debian entry under another suite name, so that whatever mirror the
//! machine uses is used for this too.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::apt;

const PROGRAM: &str = "valkey-server";
const SOURCES: &str = "/etc/apt/sources.list.d/flowfabric-backports";
const BY_HAND: &str = "install Valkey 8.0 or later, so that `valkey-server` and `valkey-cli` are in the PATH \
                       (on Debian 12: the package valkey-server of bookworm-backports)";

/// Installs `valkey-server` when it is missing.
pub(crate) fn install_missing() -> Result<(), String> {
    if apt::in_path(PROGRAM) {
        return Ok(());
    }
    let by_hand = |why: String| format!("{PROGRAM} is missing and {why}; {BY_HAND}");
    apt::check().map_err(&by_hand)?;
    eprintln!("installing {PROGRAM}");
    if !has_candidate() {
        add_backports().map_err(&by_hand)?;
        apt::get(&["update"]).map_err(&by_hand)?;
    }
    apt::get(&["install", "--no-install-recommends", PROGRAM]).map_err(&by_hand)?;
    if apt::in_path(PROGRAM) { Ok(()) } else { Err(by_hand("its package did not bring it".into())) }
}

/// Writes the machine's Debian entry once more, with the backports suite.
fn add_backports() -> Result<(), String> {
    let codename = codename()?;
    for path in source_files() {
        let Ok(text) = fs::read_to_string(&path) else { continue };
        let deb822 = path.extension().is_some_and(|extension| extension == "sources");
        let entry = if deb822 { backports_stanza(&text, &codename) } else { backports_line(&text, &codename) };
        if let Some(entry) = entry {
            let target = format!("{SOURCES}.{}", if deb822 { "sources" } else { "list" });
            return fs::write(&target, entry).map_err(|why| format!("{target} cannot be written: {why}"));
        }
    }
    Err(format!("no Debian entry for {codename} was found in /etc/apt"))
}

fn codename() -> Result<String, String> {
    let release = fs::read_to_string("/etc/os-release").map_err(|why| format!("/etc/os-release: {why}"))?;
    release
        .lines()
        .find_map(|line| line.strip_prefix("VERSION_CODENAME="))
        .map(|name| name.trim_matches('"').to_owned())
        .ok_or_else(|| "/etc/os-release names no release".into())
}

fn source_files() -> Vec<PathBuf> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).filter(|path| {
            let extension = path.extension().and_then(|extension| extension.to_str());
            matches!(extension, Some("sources" | "list")) && !path.to_string_lossy().starts_with(SOURCES)
        }));
    }
    files.sort();
    files
}

/// The first stanza of the deb822 format that carries the release, with only the backports suite.
fn backports_stanza(text: &str, codename: &str) -> Option<String> {
    let carries = |stanza: &&str| {
        stanza.lines().any(|line| {
            line.strip_prefix("Suites:").is_some_and(|suites| suites.split_whitespace().any(|suite| suite == codename))
        })
    };
    let stanza = text.split("\n\n").find(carries)?;
    let lines = stanza.lines().filter(|line| !line.starts_with('#')).map(|line| {
        if line.starts_with("Suites:") { format!("Suites: {codename}-backports\n") } else { format!("{line}\n") }
    });
    Some(lines.collect())
}

/// The first `deb` line that carries the release, with the backports suite.
fn backports_line(text: &str, codename: &str) -> Option<String> {
    let line =
        text.lines().find(|line| line.starts_with("deb ") && line.split_whitespace().any(|word| word == codename))?;
    let backports = format!("{codename}-backports");
    let words: Vec<&str> =
        line.split_whitespace().map(|word| if word == codename { backports.as_str() } else { word }).collect();
    Some(words.join(" ") + "\n")
}

fn has_candidate() -> bool {
    Command::new("apt-cache").args(["madison", PROGRAM]).output().is_ok_and(|output| !output.stdout.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backports_entry_is_the_machines_own_with_another_suite() {
        let text = "Types: deb\n# a comment\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\n\
                    Components: main\nSigned-By: /keyring.gpg\n\nTypes: deb\nSuites: bookworm-security\n";
        let expected = "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm-backports\n\
                        Components: main\nSigned-By: /keyring.gpg\n";
        assert_eq!(backports_stanza(text, "bookworm").as_deref(), Some(expected));
        assert_eq!(backports_stanza(text, "trixie"), None);
    }

    #[test]
    fn one_line_entries_are_understood_too() {
        let text = "# main\ndeb-src http://mirror.example/debian bookworm main\n\
                    deb [arch=amd64] http://mirror.example/debian bookworm main contrib\n";
        let expected = "deb [arch=amd64] http://mirror.example/debian bookworm-backports main contrib\n";
        assert_eq!(backports_line(text, "bookworm").as_deref(), Some(expected));
    }
}
