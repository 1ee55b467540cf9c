//! How answers are written: tables and fields for people, JSON for programs.

mod style;
mod table;

use std::io::{IsTerminal, Write};

use serde::Serialize;

pub(crate) use style::{Colour, Style, flow_state, lane_state, public_state};
pub(crate) use table::{Cell, Fields, Table, one_line};

use crate::failure::{Failure, Result};

/// The form of the output: for people or for programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    #[default]
    Table,
    Json,
}

/// When to use colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum When {
    #[default]
    Auto,
    Always,
    Never,
}

/// Where answers go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    format: Format,
    style: Style,
    terminal: bool,
}

impl Output {
    /// Decides how to write by what was asked for and where standard output goes.
    pub(crate) fn new(format: Format, when: When) -> Self {
        let terminal = std::io::stdout().is_terminal();
        let colours = match when {
            When::Always => true,
            When::Never => false,
            When::Auto => terminal && welcome("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb"),
        };
        Self { format, style: Style::new(colours), terminal }
    }

    /// Whether a program reads the answers.
    pub(crate) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// Whether a person looks at the answers as they come.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal && !self.is_json()
    }

    /// How text is painted.
    pub(crate) fn style(&self) -> Style {
        self.style
    }

    /// Writes an answer.
    pub(crate) fn answer<T: Serialize>(&self, answer: &T, text: impl FnOnce(Style) -> String) -> Result<()> {
        match self.format {
            Format::Json => self.text(&pretty(answer)?),
            Format::Table => self.text(&text(self.style)),
        }
    }

    /// Writes one of several answers: JSON in one line each.
    pub(crate) fn line<T: Serialize>(&self, answer: &T, text: impl FnOnce(Style) -> String) -> Result<()> {
        match self.format {
            Format::Json => self.text(&serde_json::to_string(answer).map_err(unwritable)?),
            Format::Table => self.text(&text(self.style)),
        }
    }

    /// Writes text with an end of line.
    pub(crate) fn text(&self, text: &str) -> Result<()> {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        if !text.is_empty() && !text.ends_with('\n') {
            out.write_all(b"\n")?;
        }
        Ok(out.flush()?)
    }

    /// Writes bytes as they are. On a terminal the prompt gets a line of its own.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> Result<()> {
        let mut out = std::io::stdout().lock();
        out.write_all(bytes)?;
        if self.terminal && !bytes.ends_with(b"\n") {
            out.write_all(b"\n")?;
        }
        Ok(out.flush()?)
    }

    /// Writes bytes as they are, with more to come.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Result<()> {
        let mut out = std::io::stdout().lock();
        out.write_all(bytes)?;
        Ok(out.flush()?)
    }

    /// Says something beside the answer.
    pub(crate) fn note(&self, text: &str) {
        if !self.is_json() {
            eprintln!("{text}");
        }
    }

    /// Says why there is no answer.
    pub(crate) fn failure(&self, failure: &Failure) {
        let text = match self.format {
            Format::Json => failure.json().map(|json| json.to_string()),
            Format::Table => failure.text(),
        };
        if let Some(text) = text {
            // If standard error cannot be written, the exit code still tells.
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }
}

/// Whether a variable that stands for "no" is unset or empty.
fn welcome(variable: &str) -> bool {
    std::env::var_os(variable).is_none_or(|value| value.is_empty())
}

fn pretty<T: Serialize>(answer: &T) -> Result<String> {
    serde_json::to_string_pretty(answer).map_err(unwritable)
}

fn unwritable(error: serde_json::Error) -> Failure {
    Failure::new(ff_core::Class::Internal.exit_code(), "internal", format!("the answer cannot be written: {error}"))
}
