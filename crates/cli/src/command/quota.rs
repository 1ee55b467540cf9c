//! `ff quota`: how much may start, and how much may run.

use flowfabric::QuotaStatus;
use flowfabric::op::{CreateQuota, DeleteQuota, ListQuotas, create_quota, list_quotas, update_quota};

use crate::command::budget::Removal;
use crate::command::pages;
use crate::failure::Result;
use crate::output::{Cell, Style, Table};
use crate::session::Session;
use crate::span;

/// The arguments of `ff quota`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff quota create model-api --requests 60 --window 1m
  ff quota get model-api
  ff quota ls")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Create a quota; the same definition again is the same quota
    #[command(after_help = "\
Examples:
  ff quota create model-api --requests 60 --window 1m
  ff quota create gpu --concurrent 4 --jitter 200ms")]
    Create(Create),
    /// List quotas
    #[command(after_help = "Examples:\n  ff quota ls\n  ff quota ls -o json | jq '.items[] | {name, in_use}'")]
    Ls,
    /// Show a quota
    #[command(after_help = "Examples:\n  ff quota get model-api")]
    Get {
        /// The quota
        name: String,
    },
    /// Change a quota; what is not named stays
    #[command(
        after_help = "Examples:\n  ff quota update model-api --requests 120\n  ff quota update gpu --concurrent 8"
    )]
    Update(Update),
    /// Delete a quota
    #[command(after_help = "\
Examples:
  ff quota rm model-api
  ff quota rm model-api --force         also while executions run under it: what has not started waits for a new one")]
    Rm(Removal),
}

#[derive(Debug, clap::Args)]
struct Update {
    /// The quota
    name: String,
    /// Attempts that may start within the window; 0 is no limit
    #[arg(long, value_name = "COUNT")]
    requests: Option<u32>,
    /// The sliding window, in whole seconds
    #[arg(long, value_name = "SPAN", value_parser = window)]
    window: Option<u32>,
    /// Attempts that may run at once; 0 is no limit
    #[arg(long, value_name = "COUNT")]
    concurrent: Option<u32>,
    /// Spreads the reopening of parked work
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    jitter: Option<i64>,
}

#[derive(Debug, clap::Args)]
struct Create {
    /// Its name, unique in the namespace
    name: String,
    /// Attempts that may start within the window
    #[arg(long, value_name = "COUNT", required_unless_present = "concurrent")]
    requests: Option<u32>,
    /// The sliding window, in whole seconds [default: 1m]
    #[arg(long, value_name = "SPAN", value_parser = window)]
    window: Option<u32>,
    /// Attempts that may run at once
    #[arg(long, value_name = "COUNT")]
    concurrent: Option<u32>,
    /// Spreads the reopening of parked work
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    jitter: Option<i64>,
}

/// Reads a window: a span, or a bare number of seconds.
fn window(text: &str) -> std::result::Result<u32, String> {
    if let Ok(seconds) = text.parse() {
        return Ok(seconds);
    }
    let ms = span::parse(text)?;
    let seconds = u32::try_from(ms / 1_000).ok().filter(|_| ms % 1_000 == 0);
    seconds.ok_or_else(|| "the window has whole seconds, such as 90s or 1m".to_owned())
}

/// Does what the verb says.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    match arguments.verb {
        Verb::Create(quota) => create(&session, quota).await,
        Verb::Ls => ls(&session).await,
        Verb::Get { name } => {
            let status = session.client.quota(&name).await?;
            session.out.answer(&status, |style| text(std::slice::from_ref(&status), style))
        }
        Verb::Update(update) => {
            let args = update_quota::Args {
                name: update.name,
                namespace: None,
                window_seconds: update.window,
                max_requests: update.requests,
                max_concurrent: update.concurrent,
                jitter_ms: update.jitter,
            };
            let status = session.client.update_quota(args).await?;
            session.out.answer(&status, |style| text(std::slice::from_ref(&status), style))
        }
        Verb::Rm(removal) => {
            let answer = session.client.call::<DeleteQuota>(removal.args()).await?;
            session.out.answer(&answer, |_| format!("{} is deleted", removal.name))
        }
    }
}

async fn create(session: &Session, quota: Create) -> Result<()> {
    let args = create_quota::Args {
        name: quota.name.clone(),
        namespace: None,
        window_seconds: quota.window,
        max_requests: quota.requests,
        max_concurrent: quota.concurrent,
        jitter_ms: quota.jitter,
    };
    let answer = session.client.call::<CreateQuota>(args).await?;
    session.out.answer(&answer, |_| match &answer {
        create_quota::Outcome::Created => format!("{} is created", quota.name),
        create_quota::Outcome::AlreadyExists => format!("{} was there before, just so", quota.name),
        create_quota::Outcome::Unknown(variant) => variant.json().to_owned(),
    })
}

async fn ls(session: &Session) -> Result<()> {
    let items = pages(async |cursor| {
        let page = session.client.call::<ListQuotas>(list_quotas::Args { cursor, ..Default::default() }).await?;
        Ok((page.items, page.next_cursor))
    });
    let answer = list_quotas::Outcome { items: items.await?, next_cursor: None };
    session.out.answer(&answer, |style| text(&answer.items, style))
}

fn text(quotas: &[QuotaStatus], style: Style) -> String {
    let mut table = Table::new(["QUOTA", "STARTED", "MAX", "WINDOW", "RUNNING", "MAX", "OPENS"]);
    let limit = |count: u32| Cell::maybe((count > 0).then_some(count));
    for quota in quotas {
        table.row([
            Cell::of(&quota.name),
            Cell::of(quota.started_in_window),
            limit(quota.definition.max_requests),
            Cell::of(format!("{}s", quota.definition.window_seconds)),
            Cell::of(quota.in_use),
            limit(quota.definition.max_concurrent),
            Cell::maybe_at(quota.opens_at),
        ]);
    }
    table.text(style, "There are no quotas.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_a_span_or_a_number_of_seconds() {
        assert_eq!((window("90"), window("1m"), window("1h30m")), (Ok(90), Ok(60), Ok(5_400)));
        assert!(window("500ms").is_err() && window("soon").is_err());
    }
}
