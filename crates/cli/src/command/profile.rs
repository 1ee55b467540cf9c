//! `ff profile`: the deployments that are known by name.

use crate::failure::Result;
use crate::output::{Cell, Output, Table};
use crate::profile::{self, Known};

/// The arguments of `ff profile`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff profile ls
  ff profile use production

Profiles stand in ~/.config/flowfabric/config.toml:
  default = \"local\"
  [profiles.local]
  server = \"http://127.0.0.1:7171\"
  [profiles.production]
  server = \"https://flowfabric.example.com\"
  token_file = \"/run/secrets/flowfabric\"
  namespace = \"team-a\"")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// List profiles; tokens are not shown
    #[command(after_help = "Examples:\n  ff profile ls\n  ff profile ls -o json | jq -r '.items[].name'")]
    Ls,
    /// Use a profile wherever none is named
    #[command(after_help = "Examples:\n  ff profile use production")]
    Use {
        /// The profile
        name: String,
    },
}

/// Does what the verb says. It needs no deployment.
pub(crate) fn run(out: &Output, arguments: &Arguments) -> Result<()> {
    match &arguments.verb {
        Verb::Ls => {
            let items = profile::known()?;
            out.answer(&serde_json::json!({ "items": items }), |style| {
                table(&items).text(style, "There are no profiles.")
            })
        }
        Verb::Use { name } => {
            profile::use_by_default(name)?;
            out.answer(&serde_json::json!({ "default": name }), |_| format!("{name} is used where none is named"))
        }
    }
}

fn table(items: &[Known]) -> Table {
    let mut table = Table::new(["NAME", "SERVER", "NAMESPACE", "TOKEN", "DEFAULT"]);
    for item in items {
        let word = |yes: bool| Cell::maybe(yes.then_some("yes"));
        table.row([
            Cell::of(&item.name),
            Cell::maybe(item.server.as_ref()),
            Cell::maybe(item.namespace.as_ref()),
            word(item.has_token),
            word(item.is_default),
        ]);
    }
    table
}
