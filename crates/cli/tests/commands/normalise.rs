//! Ids, times and secrets as they would be in every run.

use std::collections::BTreeMap;

/// Values of these names differ from run to run.
const RANDOM_STRINGS: [&str; 9] =
    ["version", "store_version", "cursor", "next_cursor", "event_id", "fingerprint", "secret", "address", "source"];
const RANDOM_NUMBERS: [&str; 4] = ["round_trip_us", "clock_offset_ms", "per_hour", "forecast"];

/// The text with everything replaced that a run decides.
pub(crate) fn normalise(text: &str) -> String {
    let mut text = ids(text);
    for name in RANDOM_STRINGS {
        text = json_string(&text, name);
    }
    for name in RANDOM_NUMBERS {
        text = json_number(&text, name);
    }
    text.lines().map(|line| spans(&instants(line))).collect::<Vec<_>>().join("\n")
}

/// Ids are numbered in the order they appear, in the same width.
fn ids(text: &str) -> String {
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    let mut normal = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_hexdigit() && c != '-').unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if is_id(word) {
            let next = known.len() + 1;
            let number = *known.entry(word).or_insert(next);
            let prefix = &word[..word.len() - 36];
            normal.push_str(&format!("{prefix}00000000-0000-0000-0000-{number:012}"));
        } else {
            normal.push_str(word);
        }
        let mut letters = after.chars();
        normal.extend(letters.next());
        rest = letters.as_str();
    }
    normal
}

fn is_id(word: &str) -> bool {
    let uuid = match word.len() {
        36 => word,
        41 if word.as_bytes()[4] == b'-' => &word[5..],
        _ => return false,
    };
    [8, 13, 18, 23].iter().all(|&dash| uuid.as_bytes()[dash] == b'-') && uuid.matches('-').count() == 4
}

/// Instants: RFC 3339 and milliseconds since the epoch.
fn instants(line: &str) -> String {
    let mut normal = String::new();
    let mut rest = line;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        normal.push_str(&rest[..start]);
        rest = &rest[start..];
        let end = rest.find(|c: char| !c.is_ascii_digit() && !"-:TZ".contains(c)).unwrap_or(rest.len());
        let word = &rest[..end];
        let is_time = word.len() == 20 && word.ends_with('Z') && word.contains('T');
        let is_millis = word.len() == 13 && word.starts_with("1") && word.chars().all(|c| c.is_ascii_digit());
        normal.push_str(match (is_time, is_millis) {
            (true, _) => "2026-01-01T00:00:00Z",
            (_, true) => "1767225600000",
            _ => word,
        });
        rest = &rest[end..];
    }
    normal + rest
}

/// How long something took, or was off.
fn spans(line: &str) -> String {
    if line.starts_with("ff_") {
        return "ff_<secret>".to_owned();
    }
    let mut line = line.to_owned();
    for before in [" completed in ", " cancelled in ", " failed in "] {
        if let Some((head, tail)) = line.clone().split_once(before) {
            let after = tail.split_once(' ').map(|(_, after)| format!(" {after}")).unwrap_or_default();
            line = format!("{head}{before}<span>{after}");
        }
    }
    for before in ["round trip", "clock ", "server ", "took ", "version ", "setting      page_count"] {
        if line.starts_with(before) {
            line = format!("{before} <varies>");
        }
    }
    line
}

fn json_string(text: &str, name: &str) -> String {
    replace_after(text, &[format!("\"{name}\": \""), format!("\"{name}\":\"")], |c| c == '"')
}

fn json_number(text: &str, name: &str) -> String {
    replace_after(text, &[format!("\"{name}\": ")], |c| !c.is_ascii_digit() && c != '-')
}

fn replace_after(text: &str, heads: &[String], is_end: impl Fn(char) -> bool) -> String {
    let mut text = text.to_owned();
    for head in heads {
        let mut normal = String::new();
        let mut rest = text.as_str();
        while let Some(start) = rest.find(head) {
            let (before, after) = rest.split_at(start + head.len());
            normal.push_str(before);
            normal.push_str("...");
            rest = &after[after.find(&is_end).unwrap_or(after.len())..];
        }
        normal.push_str(rest);
        text = normal;
    }
    text
}

#[test]
fn what_a_run_decides_is_replaced_and_nothing_else() {
    let id = "0000-0197f0a2-5b5e-7c3a-9d0e-5f8a4c1b2d3e";
    let text = format!("{id} at 2026-11-15T08:00:01Z\n\"a_at\": 1794729600123,\n\"cursor\": \"xyz\", 60s {id}");
    assert_eq!(
        normalise(&text),
        "0000-00000000-0000-0000-0000-000000000001 at 2026-01-01T00:00:00Z\n\"a_at\": 1767225600000,\n\
         \"cursor\": \"...\", 60s 0000-00000000-0000-0000-0000-000000000001"
    );
}
