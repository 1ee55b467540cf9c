//! Rust source as the checks see it: without comments, texts and tests, and cut into the top modules of a crate.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The top modules of a crate, each with its files as (depth below the module, plain source).
pub(super) type Modules = BTreeMap<String, Vec<File>>;

/// One file of a module.
pub(super) struct File {
    /// How many `super` lead from the file to the root of the crate.
    pub(super) depth: usize,
    /// The source without comments, texts and tests.
    pub(super) text: String,
}

/// Reads a crate's `src` folder. `lib.rs` is its own module of that name.
pub(super) fn modules(src: &Path) -> Result<Modules, String> {
    let mut modules = Modules::new();
    for path in rust_files(src)? {
        let inner = path.strip_prefix(src).map_err(|error| error.to_string())?;
        let parts: Vec<String> =
            inner.with_extension("").iter().map(|part| part.to_string_lossy().into_owned()).collect();
        let [top, rest @ ..] = parts.as_slice() else { continue };
        if top == "main" || top == "bin" || parts.iter().any(|part| part == "tests") {
            continue;
        }
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let nested = rest.iter().filter(|part| part.as_str() != "mod").count();
        let file = File { depth: nested + 1, text: plain(&text) };
        modules.entry(top.clone()).or_default().push(file);
    }
    Ok(modules)
}

/// Every `.rs` file below a folder, in order.
pub(super) fn rust_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for entry in entries {
        let path = entry.map_err(|error| error.to_string())?.path();
        if path.is_dir() {
            found.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The source without line comments and the contents of texts, up to its tests, which stand last in a file.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for line in text.lines() {
        if line.starts_with("#[cfg(test)]") {
            break;
        }
        let mut quoted = false;
        let mut letters = line.chars().peekable();
        while let Some(letter) = letters.next() {
            match letter {
                '\\' if quoted => {
                    letters.next();
                }
                '"' => {
                    quoted = !quoted;
                    plain.push('"');
                }
                // A character literal, not a text that begins.
                '\'' if !quoted && letters.peek() == Some(&'"') => {
                    letters.next();
                }
                '/' if !quoted && letters.peek() == Some(&'/') => break,
                _ if quoted => {}
                letter => plain.push(letter),
            }
        }
        plain.push('\n');
    }
    plain
}

/// The words of a source: names and the signs between them, without spaces.
pub(super) fn words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
        let end = match first {
            first if is_name(first) => rest.find(|letter| !is_name(letter)).unwrap_or(rest.len()),
            ':' if rest.starts_with("::") => 2,
            first => first.len_utf8(),
        };
        let (word, tail) = rest.split_at(end);
        words.push(word);
        rest = tail.trim_start();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_texts_and_tests_are_left_out() {
        let text = "use crate::a; // crate::b\nlet x = \"crate::c\"; let q = '\"'; crate::d\n#[cfg(test)]\ncrate::e\n";
        let plain = plain(text);
        for (name, there) in [("a", true), ("b", false), ("c", false), ("d", true), ("e", false)] {
            assert_eq!(plain.contains(&format!("crate::{name}")), there, "{name}");
        }
    }

    #[test]
    fn words_are_names_and_signs() {
        assert_eq!(words("use crate::{a, b_1};"), ["use", "crate", "::", "{", "a", ",", "b_1", "}", ";"]);
    }
}
