//! The help texts of every command.

use std::path::Path;
use std::sync::LazyLock;

use crate::support::{Transcript, command, run};

/// Commands that talk to no deployment.
pub(crate) const LOCAL: [&str; 7] =
    ["bench", "dev", "server", "completions", "exit-codes", "profile ls", "profile use"];

fn help(path: &[String]) -> String {
    let mut arguments: Vec<&str> = path.iter().map(String::as_str).collect();
    arguments.push("--help");
    let ended = run(command(&arguments), "");
    assert_eq!(ended.code, 0, "{ended:?}");
    ended.stdout
}

/// The commands a help text lists.
fn listed(help: &str) -> Vec<String> {
    let section = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = section.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).filter(|name| name != "help").collect()
}

/// Every command with its help text.
static ALL: LazyLock<Vec<(Vec<String>, String)>> = LazyLock::new(|| {
    let mut found = Vec::new();
    let mut open = vec![Vec::new()];
    while let Some(path) = open.pop() {
        let text = help(&path);
        for name in listed(&text) {
            open.push([path.clone(), vec![name]].concat());
        }
        found.push((path, text));
    }
    found
});

/// The commands that do something, without those that only group others.
pub(crate) fn leaves() -> Vec<String> {
    ALL.iter().filter(|(_, help)| listed(help).is_empty()).map(|(path, _)| path.join(" ")).collect()
}

/// Whether a command speaks to a deployment. The commands for programs that a worker runs speak to the worker.
pub(crate) fn is_remote(leaf: &str) -> bool {
    !LOCAL.contains(&leaf) && !leaf.starts_with("task ")
}

#[test]
fn every_help_text_has_an_example() {
    assert!(ALL.len() > 40, "{} commands", ALL.len());
    for (path, text) in ALL.iter() {
        let example = text.lines().skip_while(|line| !line.starts_with("Examples:")).nth(1).unwrap_or_default();
        let expected = format!("  ff {}", path.first().map(String::as_str).unwrap_or_default());
        let found = example.starts_with(&expected) || text.contains(&format!("\n{expected}"));
        assert!(found, "ff {} --help has no example:\n{text}", path.join(" "));
    }
}

#[test]
fn every_command_is_in_a_snapshot_for_people_and_for_programs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/commands/snapshots");
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        lines.extend(text.lines().filter(|line| line.starts_with("$ ff ")).map(str::to_owned));
    }
    // The output of `ff mcp` is for a host that speaks the protocol.
    for leaf in leaves().iter().filter(|leaf| is_remote(leaf) && *leaf != "mcp") {
        let of_leaf = |line: &&String| line.starts_with(&format!("$ ff {leaf} ")) || **line == format!("$ ff {leaf}");
        let (json, table): (Vec<&String>, Vec<&String>) =
            lines.iter().filter(of_leaf).partition(|line| line.ends_with("-o json"));
        assert!(!json.is_empty() && !table.is_empty(), "ff {leaf}: {} tables, {} JSON", table.len(), json.len());
    }
}

#[test]
fn exit_codes_are_documented() {
    let mut it = Transcript::new("");
    it.ff(&["help", "exit-codes"]);
    it.finish("exit_codes");
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md")).unwrap();
    for code in 0..=15 {
        assert!(page.contains(&format!("| {code} |")), "docs/cli.md does not know {code}");
    }
}

#[test]
fn the_page_about_the_command_line_names_every_command() {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cli.md")).unwrap();
    for leaf in leaves() {
        assert!(page.contains(&format!("`ff {leaf}")), "docs/cli.md does not name ff {leaf}");
    }
}
