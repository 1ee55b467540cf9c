//! Node and Chromium, for the dashboard and its tests.

use std::process::Command;

use super::apt;

/// The oldest Node that builds the dashboard.
const NODE_MIN: (u32, u32) = (20, 19);
const CHROMIUM: [&str; 2] = ["chromium", "chromium-browser"];

/// Installs what is missing, or says what to install by hand.
pub(super) fn install_missing() -> Result<(), String> {
    let node = format!("install Node {}.{} or later, so that `node` and `npm` are in the PATH", NODE_MIN.0, NODE_MIN.1);
    install(node_is_good, "Node", &["nodejs", "npm"], &node)?;
    let present = || CHROMIUM.iter().any(|program| apt::in_path(program));
    install(present, "Chromium", &["chromium"], "install Chromium (the package chromium)")
}

fn install(present: impl Fn() -> bool, what: &str, packages: &[&str], by_hand: &str) -> Result<(), String> {
    if present() {
        return Ok(());
    }
    let say_how = |why: String| format!("{what} is missing or too old and {why}; {by_hand}");
    apt::check().map_err(&say_how)?;
    eprintln!("installing {what}");
    apt::get(&["update"]).map_err(&say_how)?;
    apt::get(&[&["install", "--no-install-recommends"], packages].concat()).map_err(&say_how)?;
    if present() { Ok(()) } else { Err(say_how("its package did not bring it".into())) }
}

fn node_is_good() -> bool {
    let said = Command::new("node").arg("--version").output();
    let version = said.ok().and_then(|said| String::from_utf8(said.stdout).ok());
    apt::in_path("npm") && version.and_then(|text| parse(&text)).is_some_and(|version| version >= NODE_MIN)
}

/// The first two numbers of `v20.19.0`.
fn parse(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().strip_prefix('v')?.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_node_are_compared_as_numbers() {
        assert_eq!(parse("v20.19.2\n"), Some((20, 19)));
        assert!(parse("v18.20.4").unwrap() < NODE_MIN && parse("v100.0.0").unwrap() > NODE_MIN);
        assert_eq!(parse("nonsense"), None);
    }
}
