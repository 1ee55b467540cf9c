//! Words: no sentence of a comment begins with a headless pronoun, because a reader cannot tell which caller, worker or
//! process it speaks of.

use std::path::Path;

use super::{Findings, files};

/// Words that begin no sentence of a comment: each stands where a noun should.
const HEADLESS: [&str; 9] =
    ["Who", "Whoever", "Whom", "Whose", "Somebody", "Someone", "Anybody", "Everybody", "Nobody"];

/// Checks the comments of every source file.
pub(super) fn check(root: &Path, findings: &mut Findings) -> Result<(), String> {
    for path in files::known_files(root)? {
        if !path.ends_with(".rs") {
            continue;
        }
        let text = std::fs::read_to_string(root.join(&path)).map_err(|error| format!("{path}: {error}"))?;
        for (line, word) in headless(&text) {
            findings.refused.push(format!("{path}:{line} begins a sentence with `{word}`; name its subject"));
        }
    }
    Ok(())
}

/// The numbers of the lines of comments in which a sentence begins with a headless word, each with the word.
fn headless(text: &str) -> Vec<(usize, &'static str)> {
    let lines = (1..).zip(text.lines());
    lines.filter_map(|(number, line)| Some((number, opening(comment(line)?)?))).collect()
}

/// The words of a line that is a comment and nothing else.
fn comment(line: &str) -> Option<&str> {
    let words = line.trim_start().strip_prefix("//")?;
    Some(words.trim_start_matches(['/', '!']).trim_start())
}

/// The headless word that begins the line, or a sentence in it.
fn opening(words: &str) -> Option<&'static str> {
    words.split(". ").find_map(|sentence| {
        let first = sentence.split(|letter: char| !letter.is_alphabetic()).next()?;
        HEADLESS.into_iter().find(|word| *word == first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_headless_opening_is_found_in_comments_only() {
        let text = "//! Whoever has it may signal.\n    /// It waits. Nobody runs it.\n  // Who, when.\n";
        assert_eq!(headless(text), [(1, "Whoever"), (2, "Nobody"), (3, "Who")]);
        let text = "/// A caller who waits. Whole words only: Whoop.\nlet who = \"Nobody\";\nlet x = 1; // Who\n";
        assert!(headless(text).is_empty());
    }
}
