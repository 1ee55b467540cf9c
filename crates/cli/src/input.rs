//! Bytes that commands take: from an argument, a file or standard input.

use std::io::Read;
use std::str::FromStr;

use ff_core::{Blob, JsonText};
use serde::de::IgnoredAny;

use crate::failure::{Failure, Result};

/// How to say where bytes come from, for help texts.
pub(crate) const SOURCE: &str = "JSON|@FILE|-";

/// Where bytes come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// The argument itself.
    Text(String),
    /// `@file`.
    File(String),
    /// `-`.
    Stdin,
}

impl FromStr for Source {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text.strip_prefix('@') {
            Some(file) => Source::File(file.to_owned()),
            None if text == "-" => Source::Stdin,
            None => Source::Text(text.to_owned()),
        })
    }
}

impl Source {
    /// A file or standard input, where an argument that is the text itself makes no sense.
    pub(crate) fn file(text: &str) -> Result<Self, std::convert::Infallible> {
        Ok(if text == "-" { Source::Stdin } else { Source::File(text.trim_start_matches('@').to_owned()) })
    }

    /// Its name in messages.
    pub(crate) fn name(&self) -> &str {
        match self {
            Source::Text(_) => "argument",
            Source::File(file) => file,
            Source::Stdin => "stdin",
        }
    }

    /// All of its bytes.
    pub(crate) fn read(&self) -> Result<Vec<u8>> {
        let unreadable = |error| Failure::usage(format!("{} cannot be read: {error}", self.name()));
        match self {
            Source::Text(text) => Ok(text.clone().into_bytes()),
            Source::File(file) => std::fs::read(file).map_err(unreadable),
            Source::Stdin => {
                let mut bytes = Vec::new();
                std::io::stdin().lock().read_to_end(&mut bytes).map_err(unreadable)?;
                Ok(bytes)
            }
        }
    }

    /// All of its text.
    pub(crate) fn read_text(&self) -> Result<String> {
        String::from_utf8(self.read()?).map_err(|_| {
            Failure::usage(format!("{} is not UTF-8", self.name())).advice("Send bytes with --content-type.")
        })
    }
}

/// A payload as operations take it.
#[derive(Debug, Default)]
pub(crate) struct Payload {
    pub(crate) json: Option<JsonText>,
    pub(crate) bytes: Option<Blob>,
    pub(crate) content_type: Option<String>,
}

impl Payload {
    /// JSON, checked here so that mistakes are told by line and column; bytes as they are with a content type.
    pub(crate) fn read(source: Option<&Source>, content_type: Option<String>) -> Result<Self> {
        let Some(source) = source else {
            return match content_type {
                Some(_) => {
                    Err(Failure::usage("--content-type needs bytes to describe").advice("Name a file with @FILE."))
                }
                None => Ok(Self::default()),
            };
        };
        if content_type.is_some() {
            let bytes = Some(Blob(source.read()?.into()));
            return Ok(Self { json: None, bytes, content_type });
        }
        let text = source.read_text()?;
        check_json(source.name(), &text)?;
        Ok(Self { json: Some(JsonText(text.trim().to_owned())), ..Self::default() })
    }
}

/// Refuses what is no JSON, by line and column.
pub(crate) fn check_json(name: &str, text: &str) -> Result<()> {
    serde_json::from_str::<IgnoredAny>(text).map(drop).map_err(|error| {
        malformed(name, error.line(), error.column(), &error)
            .advice("Quote strings within the argument: '\"text\"'. Send other bytes with --content-type.")
    })
}

/// A refusal with line and column.
pub(crate) fn malformed(name: &str, line: usize, column: usize, why: &impl ToString) -> Failure {
    // Parsers end their messages with the place, which stands in front already.
    let why = why.to_string();
    let why = why.rsplit_once(" at line ").map_or(why.as_str(), |(why, _)| why);
    Failure::usage(format!("{name}:{line}:{column}: {why}")).with("line", line).with("column", column)
}

/// Reads `key=value`.
pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not KEY=VALUE")),
    }
}

/// Reads `name=number`.
pub(crate) fn amount(text: &str) -> Result<(String, i64), String> {
    let (name, number) = pair(text)?;
    let number = number.parse().map_err(|_| format!("{number:?} is no whole number"))?;
    Ok((name, number))
}

/// A parser for one of the names of a vocabulary.
macro_rules! one_of {
    ($type:ty) => {
        clap::builder::TypedValueParser::map(
            clap::builder::PossibleValuesParser::new(<$type>::ALL.iter().map(|value| value.as_str())),
            |name| <$type>::parse(&name).expect("clap lets only these names pass"),
        )
    };
}
pub(crate) use one_of;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_text_a_file_or_standard_input() {
        assert_eq!("@a.json".parse(), Ok(Source::File("a.json".into())));
        assert_eq!("-".parse(), Ok(Source::Stdin));
        assert_eq!("{}".parse(), Ok(Source::Text("{}".into())));
        assert_eq!(Source::file("a.json"), Ok(Source::File("a.json".into())));
    }

    #[test]
    fn malformed_json_is_told_by_line_and_column() {
        let failure = Payload::read(Some(&Source::Text("{\n  \"a\": }".into())), None).unwrap_err();
        let text = failure.text().unwrap();
        assert!(text.contains("argument:2:8: expected value\n"), "{text}");
        assert_eq!(failure.exit_code, 2);
    }

    #[test]
    fn json_keeps_its_text_and_bytes_stay_bytes() {
        let json = Payload::read(Some(&Source::Text(" {\"n\": 1.00}\n".into())), None).unwrap();
        assert_eq!(json.json, Some(JsonText("{\"n\": 1.00}".into())));
        let bytes = Payload::read(Some(&Source::Text("not json".into())), Some("text/plain".into())).unwrap();
        assert_eq!(bytes.bytes, Some(Blob::from("not json")));
        assert!(Payload::read(None, Some("text/plain".into())).is_err());
    }

    #[test]
    fn pairs_need_a_key() {
        assert_eq!(pair("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(pair("a").is_err() && pair("=b").is_err());
        assert_eq!(amount("tokens=5"), Ok(("tokens".into(), 5)));
        assert!(amount("tokens=x").is_err());
    }
}
