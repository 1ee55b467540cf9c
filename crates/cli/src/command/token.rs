//! `ff token`: API tokens.

use flowfabric::Role;
use flowfabric::op::{CreateToken, ListTokens, RevokeToken, create_token, list_tokens, revoke_token};

use crate::command::pages;
use crate::failure::Result;
use crate::input::one_of;
use crate::output::{Cell, Style, Table};
use crate::session::Session;
use crate::span;

/// The arguments of `ff token`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff token create ci --role submitter -n team-a --expires 30d
  ff token ls
  ff token revoke ci")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Create a token; its secret is shown once
    #[command(after_help = "\
Examples:
  ff token create ci --role submitter
  ff token create fleet --role worker -n team-a --expires 30d
  ff token create root --role admin --everywhere > root.token")]
    Create(Create),
    /// List tokens, without their secrets
    #[command(after_help = "Examples:\n  ff token ls\n  ff token ls -o json | jq -r '.items[].name'")]
    Ls,
    /// Revoke a token, everywhere within a second
    #[command(after_help = "Examples:\n  ff token revoke ci")]
    Revoke {
        /// Its name
        name: String,
    },
}

#[derive(Debug, clap::Args)]
struct Create {
    /// Its name; audit records carry it
    name: String,
    /// Its role
    #[arg(long, value_parser = one_of!(Role))]
    role: Role,
    /// It is good for every namespace, whatever --namespace says
    #[arg(long)]
    everywhere: bool,
    /// How long it works [default: until it is revoked]
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    expires: Option<i64>,
    /// A lane it may submit to and claim from; may be repeated [default: all]
    #[arg(long = "lane", value_name = "LANE")]
    lanes: Vec<String>,
    /// Its bearer is believed when it names the sender of a signal, such as a program that relays a chat
    #[arg(long)]
    may_assert_source: bool,
}

/// Does what the verb says.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    match arguments.verb {
        Verb::Create(create) => {
            let own = session.client.namespace().map(str::to_owned);
            let namespace = if create.everywhere { Some("*".to_owned()) } else { own };
            let args = create_token::Args {
                name: create.name,
                role: create.role,
                namespace,
                expires_in_ms: create.expires,
                may_assert_source: create.may_assert_source,
                lanes: create.lanes,
            };
            let answer = session.client.call::<CreateToken>(args).await?;
            session.out.note("The secret is shown this once:");
            session.out.answer(&answer, |_| answer.secret.0.clone())
        }
        Verb::Ls => {
            let items = pages(async |cursor| {
                let page = session.client.call::<ListTokens>(list_tokens::Args { cursor, limit: None }).await?;
                Ok((page.items, page.next_cursor))
            });
            let answer = list_tokens::Outcome { items: items.await?, next_cursor: None };
            session.out.answer(&answer, |style| text(&answer, style))
        }
        Verb::Revoke { name } => {
            let answer = session.client.call::<RevokeToken>(revoke_token::Args { name: name.clone() }).await?;
            session.out.answer(&answer, |_| {
                if answer.changed { format!("{name} is revoked") } else { format!("{name} was revoked before") }
            })
        }
    }
}

fn text(answer: &list_tokens::Outcome, style: Style) -> String {
    let mut table = Table::new(["TOKEN", "ROLE", "NAMESPACE", "CREATED", "BY", "EXPIRES", "REVOKED"]);
    for token in &answer.items {
        table.row([
            Cell::of(&token.name),
            Cell::of(token.role),
            Cell::of(&token.namespace),
            Cell::at(token.created_at),
            Cell::maybe(Some(&token.created_by)),
            Cell::maybe_at(token.expires_at),
            Cell::maybe_at(token.revoked_at),
        ]);
    }
    table.text(style, "There are no tokens.")
}
