//! `ff call`: any operation of the API by its name. An operation without a command of its own is reached this way.

use ff_core::op::OPERATIONS;
use serde_json::Value;

use crate::failure::Result;
use crate::input::{self, SOURCE, Source};
use crate::output::{Cell, Output, Table};
use crate::session::Session;

/// The arguments of `ff call`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff call --list                                        the operations there are
  ff call get_state '{\"execution_id\": \"ID\"}'
  ff call hold_execution '{\"execution_id\": \"ID\", \"reason\": \"not now\"}'
  ff call change_priority @change.json

Arguments and answer are JSON, as /openapi.json of the server describes them; path parameters are fields like any other.")]
pub(crate) struct Arguments {
    /// The operation
    #[arg(required_unless_present = "list")]
    operation: Option<String>,
    /// Its arguments: JSON, @FILE, or - for standard input
    #[arg(value_name = SOURCE)]
    arguments: Option<Source>,
    /// List the operations
    #[arg(long, conflicts_with_all = ["operation", "arguments"])]
    list: bool,
}

impl Arguments {
    /// Whether only the list is asked for.
    pub(crate) fn lists(&self) -> bool {
        self.list
    }
}

/// Lists the operations.
pub(crate) fn list(out: &Output) -> Result<()> {
    let names: Vec<&str> = OPERATIONS.iter().map(|operation| operation.name).collect();
    out.answer(&names, |style| {
        let mut table = Table::new(["OPERATION", "METHOD", "PATH"]);
        for operation in OPERATIONS {
            table.row([Cell::of(operation.name), Cell::of(operation.method.as_str()), Cell::of(operation.path)]);
        }
        table.text(style, "")
    })
}

/// Calls one.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let text = arguments.arguments.as_ref().map_or_else(|| Ok("{}".to_owned()), Source::read_text)?;
    let name = arguments.arguments.as_ref().map_or("argument", Source::name);
    let args: Value =
        serde_json::from_str(&text).map_err(|error| input::malformed(name, error.line(), error.column(), &error))?;
    let operation = arguments.operation.as_deref().unwrap_or_default();
    let answer = session.client.call_json(operation, args).await?;
    session.out.answer(&answer, |_| serde_json::to_string_pretty(&answer).unwrap_or_default())
}
