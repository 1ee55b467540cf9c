//! The words of a command line in the order in which the tree of commands has them: options of the deployment may stand
//! before the command, and `execution` before a verb that is about executions.

use std::ffi::{OsStr, OsString};

use clap::Args;

use crate::target::Target;

/// The noun that may stand before the verbs about executions.
const NOUN: &str = "execution";
/// These verbs.
const VERBS: [&str; 21] = [
    "submit", "ls", "count", "get", "steps", "decide", "fork", "diff", "explain", "result", "wait", "tail", "cancel",
    "replay", "hold", "release", "resume", "priority", "tag", "rm", "signal",
];

/// Puts options that stand before the command behind it, and leaves out the noun before a verb. What it does not know stays
/// where it is, for the parser to refuse.
pub(crate) fn arrange(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.into_iter().collect();
    let mut place = 1.min(words.len());
    while let Some(length) = words.get(place).and_then(|word| length_of_option(word)) {
        place += length;
    }
    if place >= words.len() {
        return words;
    }
    if words[place] == NOUN && words.get(place + 1).is_some_and(|verb| VERBS.iter().any(|known| verb == known)) {
        words.remove(place);
    }
    if !words[place].as_encoded_bytes().starts_with(b"-") {
        let command = words.remove(place);
        words.insert(1, command);
    }
    words
}

/// How many words an option of the deployment has; all of them take a value.
fn length_of_option(word: &OsStr) -> Option<usize> {
    let word = word.to_str()?;
    let options = Target::augment_args(clap::Command::new("ff"));
    options.get_arguments().find_map(|option| {
        let long = option.get_long().and_then(|name| word.strip_prefix("--")?.strip_prefix(name));
        let short = || option.get_short().and_then(|name| word.strip_prefix('-')?.strip_prefix(name));
        match long.or_else(short)? {
            "" => Some(2),
            joined => (joined.starts_with('=') || !word.starts_with("--")).then_some(1),
        }
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn arranged(words: &str) -> String {
        let words = arrange(words.split(' ').map(OsString::from));
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn options_may_stand_before_the_command() {
        assert_eq!(
            arranged("ff -n team -ojson --server=http://h:1 ls --all"),
            "ff ls -n team -ojson --server=http://h:1 --all"
        );
        assert_eq!(arranged("ff --token-file f flow get ID"), "ff flow --token-file f get ID");
        assert_eq!(arranged("ff -o json worker -- sh -n x"), "ff worker -o json -- sh -n x");
    }

    #[test]
    fn what_is_in_order_or_unknown_stays() {
        for words in
            ["ff", "ff ls -n team", "ff --help", "ff -n", "ff -n team", "ff --tokens x ls", "ff -n team --nope ls"]
        {
            assert_eq!(arranged(words), words);
        }
    }

    #[test]
    fn the_noun_goes_before_every_verb_about_executions() {
        let tree = crate::arguments::Arguments::command();
        for verb in VERBS {
            assert!(tree.find_subcommand(verb).is_some(), "{verb} is no command");
            assert_eq!(arranged(&format!("ff -n team {NOUN} {verb} x")), format!("ff {verb} -n team x"));
        }
        assert_eq!(arranged("ff execution server"), "ff execution server");
    }
}
