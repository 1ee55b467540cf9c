//! `ff provider`: what services outside allow, and how much of it is used.

use ff_core::provider::ProviderStatus;
use flowfabric::op::{
    CreateProvider, DeleteProvider, GetProvider, ListProviders, ThrottleProvider, UpdateProvider, create_provider,
    get_provider, list_providers, throttle_provider, update_provider,
};

use crate::command::budget::Removal;
use crate::command::pages;
use crate::failure::Result;
use crate::output::{Cell, Style, Table};
use crate::session::Session;
use crate::span;

/// The arguments of `ff provider`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff provider create model-api --requests 60 --tokens 90000 --concurrent 8
  ff provider get model-api
  ff provider throttle model-api --retry-after 30s")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Create a provider; the same definition again is the same provider
    #[command(after_help = "\
Examples:
  ff provider create model-api --requests 60 --tokens 90000
  ff provider create renderer --concurrent 4")]
    Create(Create),
    /// List providers
    #[command(after_help = "Examples:\n  ff provider ls\n  ff provider ls -o json | jq '.items[] | {name, effective}'")]
    Ls,
    /// Show a provider
    #[command(after_help = "Examples:\n  ff provider get model-api")]
    Get {
        /// The provider
        name: String,
    },
    /// Change a provider; what is not named stays
    #[command(
        after_help = "Examples:\n  ff provider update model-api --requests 120\n  ff provider update renderer --concurrent 8"
    )]
    Update(Update),
    /// Tell all workers that the provider said 429: it is closed for a while, and its limits are halved
    #[command(after_help = "Examples:\n  ff provider throttle model-api --retry-after 30s")]
    Throttle {
        /// The provider
        name: String,
        /// How long it wants to be left alone [default: 5s]
        #[arg(long, value_name = "SPAN", value_parser = span::parse)]
        retry_after: Option<i64>,
    },
    /// Delete a provider
    #[command(after_help = "\
Examples:
  ff provider rm model-api
  ff provider rm model-api --force      also while calls to it are under way or booked")]
    Rm(Removal),
}

#[derive(Debug, clap::Args)]
struct Update {
    /// The provider
    name: String,
    /// Requests within the window; 0 is no limit
    #[arg(long, value_name = "COUNT")]
    requests: Option<u64>,
    /// Tokens within the window; 0 is no limit
    #[arg(long, value_name = "COUNT")]
    tokens: Option<u64>,
    /// Calls at once; 0 is no limit
    #[arg(long, value_name = "COUNT")]
    concurrent: Option<u32>,
    /// The sliding window
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    window: Option<i64>,
}

#[derive(Debug, clap::Args)]
struct Create {
    /// Its name, unique in the namespace
    name: String,
    /// Requests within the window
    #[arg(long, value_name = "COUNT", required_unless_present_any = ["tokens", "concurrent"])]
    requests: Option<u64>,
    /// Tokens within the window
    #[arg(long, value_name = "COUNT")]
    tokens: Option<u64>,
    /// Calls at once
    #[arg(long, value_name = "COUNT")]
    concurrent: Option<u32>,
    /// The sliding window [default: 1m]
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    window: Option<i64>,
}

/// Does what the verb says.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    match arguments.verb {
        Verb::Create(provider) => create(&session, provider).await,
        Verb::Ls => ls(&session).await,
        Verb::Get { name } => {
            let args = get_provider::Args { name, namespace: None };
            let status = session.client.call::<GetProvider>(args).await?;
            show(&session, &status)
        }
        Verb::Update(update) => {
            let args = update_provider::Args {
                name: update.name,
                namespace: None,
                window_ms: update.window,
                max_requests: update.requests,
                max_tokens: update.tokens,
                max_concurrent: update.concurrent,
            };
            let status = session.client.call::<UpdateProvider>(args).await?;
            show(&session, &status)
        }
        Verb::Throttle { name, retry_after } => {
            let args = throttle_provider::Args {
                name,
                namespace: None,
                status: None,
                retry_after_ms: retry_after,
                command_id: None,
            };
            let status = session.client.call::<ThrottleProvider>(args).await?;
            show(&session, &status)
        }
        Verb::Rm(removal) => {
            let answer = session.client.call::<DeleteProvider>(removal.args()).await?;
            session.out.answer(&answer, |_| format!("{} is deleted", removal.name))
        }
    }
}

async fn create(session: &Session, provider: Create) -> Result<()> {
    let args = create_provider::Args {
        name: provider.name.clone(),
        namespace: None,
        window_ms: provider.window,
        max_requests: provider.requests,
        max_tokens: provider.tokens,
        max_concurrent: provider.concurrent,
    };
    let answer = session.client.call::<CreateProvider>(args).await?;
    session.out.answer(&answer, |_| match &answer {
        create_provider::Outcome::Created => format!("{} is created", provider.name),
        create_provider::Outcome::AlreadyExists => format!("{} was there before, just so", provider.name),
        create_provider::Outcome::Unknown(variant) => variant.json().to_owned(),
    })
}

async fn ls(session: &Session) -> Result<()> {
    let items = pages(async |cursor| {
        let page = session.client.call::<ListProviders>(list_providers::Args { cursor, ..Default::default() }).await?;
        Ok((page.items, page.next_cursor))
    });
    let answer = list_providers::Outcome { items: items.await?, next_cursor: None };
    session.out.answer(&answer, |style| text(&answer.items, style))
}

fn show(session: &Session, status: &ProviderStatus) -> Result<()> {
    session.out.answer(status, |style| text(std::slice::from_ref(status), style))
}

fn text(providers: &[ProviderStatus], style: Style) -> String {
    let columns = [
        "PROVIDER",
        "WINDOW",
        "REQUESTS",
        "MAX",
        "TOKENS",
        "MAX",
        "UNDER WAY",
        "MAX",
        "BOOKED",
        "RATE",
        "CLOSED UNTIL",
    ];
    let mut table = Table::new(columns);
    let limit = |count: u64| Cell::maybe((count > 0).then_some(count));
    for provider in providers {
        table.row([
            Cell::of(&provider.name),
            Cell::of(span::show(provider.definition.window_ms)),
            Cell::of(provider.requests_in_window),
            limit(provider.effective.requests),
            Cell::of(provider.tokens_in_window),
            limit(provider.effective.tokens),
            Cell::of(provider.in_use),
            limit(u64::from(provider.effective.concurrent)),
            Cell::of(provider.booked),
            Cell::of(format!("{} %", provider.effective.percent)),
            Cell::maybe_at(provider.closed_until),
        ]);
    }
    table.text(style, "There are no providers.")
}
