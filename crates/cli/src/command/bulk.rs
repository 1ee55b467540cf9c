//! `ff bulk`: one change, made to everything that the filters match.

use std::io::{BufRead, IsTerminal, Write};
use std::time::Duration;

use flowfabric::op::{CreateBulk, create_bulk, list_bulk};
use flowfabric::{BulkAction, BulkId, BulkState, BulkView};

use crate::failure::{self, Failure, Result};
use crate::input;
use crate::output::{Cell, Colour, Output, Style, Table};
use crate::progress::Bar;
use crate::selection::Selection;
use crate::session::Session;

/// How often a job is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Looks between two lines where no bar can be drawn.
const LOOKS_PER_LINE: u32 = 10;

/// The arguments of `ff bulk`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff bulk replay --state failed --since 1h --dry-run
  ff bulk replay --state failed --since 1h --rate 50 --yes
  ff bulk cancel --tag team=data --kind report
  ff bulk ls

A job goes on by itself, also when this command ends, and changes what last changed before it began.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Cancel what matches and has not ended
    #[command(after_help = "Examples:\n  ff bulk cancel --kind report --reason 'no longer needed' --yes")]
    Cancel {
        /// Why
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        job: Job,
    },
    /// Run what matches and has ended once more
    #[command(
        after_help = "Examples:\n  ff bulk replay --state failed --since 1h --dry-run\n  ff bulk replay --state failed --failure timeout --rate 50 --yes"
    )]
    Replay {
        #[command(flatten)]
        job: Job,
    },
    /// Keep what matches from starting
    #[command(after_help = "Examples:\n  ff bulk hold --lane gpu --reason 'the driver is updated' --yes")]
    Hold {
        /// Why
        #[arg(long)]
        reason: Option<String>,
        #[command(flatten)]
        job: Job,
    },
    /// Let what matches and is held start
    #[command(after_help = "Examples:\n  ff bulk release --lane gpu --yes")]
    Release {
        #[command(flatten)]
        job: Job,
    },
    /// Change how soon what matches starts
    #[command(after_help = "Examples:\n  ff bulk priority 100 --tag customer=acme --yes")]
    Priority {
        /// Higher goes first; clamped to 0..9000
        priority: i64,
        #[command(flatten)]
        job: Job,
    },
    /// Replace the tags of what matches
    #[command(after_help = "Examples:\n  ff bulk tag team=data stage=two --kind report --yes")]
    Tag {
        /// The tags that they have afterwards
        #[arg(value_name = "KEY=VALUE", value_parser = input::pair, required = true)]
        tags: Vec<(String, String)>,
        #[command(flatten)]
        job: Job,
    },
    /// Remove what matches and has ended
    #[command(after_help = "Examples:\n  ff bulk rm --state completed --ended-until 30d --yes")]
    Rm {
        #[command(flatten)]
        job: Job,
    },
    /// List bulk jobs, newest first
    #[command(
        after_help = "Examples:\n  ff bulk ls\n  ff bulk ls -o json | jq -r '.items[] | select(.state == \"running\") | .bulk_id'"
    )]
    Ls,
    /// Show a bulk job and what it could not change
    #[command(after_help = "Examples:\n  ff bulk get JOB\n  ff bulk get JOB -o json | jq .progress")]
    Get {
        /// The job
        #[arg(value_name = "JOB")]
        bulk_id: BulkId,
    },
    /// Wait until a bulk job has ended
    #[command(after_help = "Examples:\n  ff bulk wait JOB")]
    Wait {
        /// The job
        #[arg(value_name = "JOB")]
        bulk_id: BulkId,
    },
    /// Stop a bulk job; what was done stays done
    #[command(after_help = "Examples:\n  ff bulk stop JOB")]
    Stop {
        /// The job
        #[arg(value_name = "JOB")]
        bulk_id: BulkId,
    },
}

#[derive(Debug, clap::Args)]
struct Job {
    #[command(flatten)]
    selection: Selection,
    /// Change nothing, only count
    #[arg(long)]
    dry_run: bool,
    /// Change so many at the most
    #[arg(long, value_name = "COUNT")]
    max: Option<u64>,
    /// Change so many a second at the most
    #[arg(long, value_name = "COUNT")]
    rate: Option<u32>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// Do not wait for the end
    #[arg(long)]
    no_wait: bool,
}

impl Job {
    fn args(&self, action: BulkAction) -> create_bulk::Args {
        create_bulk::Args {
            namespace: None,
            filter: self.selection.as_filter(),
            action,
            reason: None,
            priority: None,
            tags: None,
            dry_run: self.dry_run.then_some(true),
            max: self.max,
            rate_per_second: self.rate,
            command_id: None,
        }
    }
}

/// Does what the verb says.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let (args, job) = match arguments.verb {
        Verb::Ls => return ls(&session).await,
        Verb::Get { bulk_id } => {
            let job = session.client.get_bulk(bulk_id).await?;
            return session.out.answer(&job, |style| details(&job, style));
        }
        Verb::Wait { bulk_id } => return follow(&session.patient().await?, bulk_id).await,
        Verb::Stop { bulk_id } => {
            let job = session.client.cancel_bulk(bulk_id).await?;
            return session.out.answer(&job, |style| details(&job, style));
        }
        Verb::Cancel { reason, job } => (create_bulk::Args { reason, ..job.args(BulkAction::Cancel) }, job),
        Verb::Replay { job } => (job.args(BulkAction::Replay), job),
        Verb::Hold { reason, job } => (create_bulk::Args { reason, ..job.args(BulkAction::Hold) }, job),
        Verb::Release { job } => (job.args(BulkAction::Release), job),
        Verb::Priority { priority, job } => {
            (create_bulk::Args { priority: Some(priority), ..job.args(BulkAction::SetPriority) }, job)
        }
        Verb::Tag { tags, job } => {
            let tags = Some(tags.into_iter().collect());
            (create_bulk::Args { tags, ..job.args(BulkAction::SetTags) }, job)
        }
        Verb::Rm { job } => (job.args(BulkAction::Remove), job),
    };
    begin(session.patient().await?, &job, args).await
}

/// Begins a job, if the person at the terminal agrees, and follows it to its end.
async fn begin(session: Session, job: &Job, args: create_bulk::Args) -> Result<()> {
    if !job.dry_run && !job.yes && !agreed(&session, &args).await? {
        return Err(Failure::new(failure::NOT_CONFIRMED, "not_confirmed", "nothing was changed"));
    }
    let begun = session.client.call::<CreateBulk>(args).await?;
    if job.no_wait {
        return session.out.answer(&begun, |_| begun.bulk_id.to_string());
    }
    follow(&session, begun.bulk_id).await
}

/// Says what a job would do, and asks.
async fn agreed(session: &Session, args: &create_bulk::Args) -> Result<bool> {
    if session.out.is_json() || !std::io::stdin().is_terminal() {
        let text = "there is no terminal to ask at: say --yes to go on, or --dry-run to see what would happen";
        return Err(Failure::usage(text));
    }
    let dry = create_bulk::Args { dry_run: Some(true), rate_per_second: None, ..args.clone() };
    let job = session.client.call::<CreateBulk>(dry).await?;
    let job = watch(session, job.bulk_id).await?;
    let more = if job.reached_max { " (there are more)" } else { "" };
    eprint!("{} {} executions{more}? [y/N] ", verb(job.action), job.progress.done);
    std::io::stderr().flush()?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

/// Shows the progress of a job until it has ended, and what it came to.
async fn follow(session: &Session, bulk_id: BulkId) -> Result<()> {
    let job = watch(session, bulk_id).await?;
    session.out.answer(&job, |style| details(&job, style))
}

/// Shows the progress of a job until it has ended: a bar on a terminal, lines elsewhere.
async fn watch(session: &Session, bulk_id: BulkId) -> Result<BulkView> {
    let mut bar = None;
    for look in 0_u32.. {
        let job = session.client.get_bulk(bulk_id).await?;
        if job.ended_at.is_some() {
            return Ok(job);
        }
        if std::io::stderr().is_terminal() {
            let bar = bar.get_or_insert_with(|| begin_bar(&session.out, &job));
            bar.show(job.progress.partitions_done, progress(&job));
        } else if look > 0 && look.is_multiple_of(LOOKS_PER_LINE) {
            session.out.note(&format!("{bulk_id}: {}", progress(&job)));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    unreachable!("a job is looked at until it has ended")
}

fn begin_bar(out: &Output, job: &BulkView) -> Bar {
    Bar::start(out, usize::try_from(job.progress.partitions).unwrap_or(usize::MAX), verb(job.action))
}

/// How far a job is, in a few words.
fn progress(job: &BulkView) -> String {
    let progress = &job.progress;
    format!(
        "{} {}, {} examined, {} of {} partitions",
        progress.done, job.action, progress.examined, progress.partitions_done, progress.partitions
    )
}

fn verb(action: BulkAction) -> &'static str {
    match action {
        BulkAction::Cancel => "cancel",
        BulkAction::Replay => "replay",
        BulkAction::Hold => "hold",
        BulkAction::Release => "release",
        BulkAction::SetPriority => "change the priority of",
        BulkAction::SetTags => "replace the tags of",
        BulkAction::Remove => "remove",
        BulkAction::Unknown(word) => word.as_str(),
    }
}

async fn ls(session: &Session) -> Result<()> {
    let items = session.client.list_bulk().await?;
    let answer = list_bulk::Outcome { items, next_cursor: None };
    session.out.answer(&answer, |style| table(&answer.items, style))
}

fn table(jobs: &[BulkView], style: Style) -> String {
    let mut table = Table::new([
        "JOB",
        "ACTION",
        "STATE",
        "MATCHED",
        "DONE",
        "UNCHANGED",
        "REFUSED",
        "CHANGED SINCE",
        "EXAMINED",
        "BY",
        "CREATED",
    ]);
    for job in jobs {
        let action = if job.dry_run { format!("{} (dry run)", job.action) } else { job.action.to_string() };
        let more = if job.reached_max { "+" } else { "" };
        table.row([
            Cell::of(job.bulk_id),
            Cell::of(action),
            state(job),
            Cell::of(format!("{}{more}", job.progress.matched)),
            Cell::of(job.progress.done),
            Cell::of(job.progress.unchanged),
            Cell::of(job.progress.refused),
            Cell::of(job.progress.changed_since),
            Cell::of(job.progress.examined),
            Cell::of(&job.created_by),
            Cell::at(job.created_at),
        ]);
    }
    table.text(style, "There are no bulk jobs.")
}

fn state(job: &BulkView) -> Cell {
    let colour = match job.state {
        BulkState::Completed if job.progress.refused == 0 => Colour::Green,
        BulkState::Completed => Colour::Red,
        BulkState::Running | BulkState::Cancelling | BulkState::Cancelled | BulkState::Unknown(_) => Colour::Yellow,
    };
    Cell::coloured(job.state, colour)
}

fn details(job: &BulkView, style: Style) -> String {
    let mut text = table(std::slice::from_ref(job), style);
    if !job.refusals.is_empty() {
        let mut refusals = Table::new(["REFUSED", "CODE"]);
        for refusal in &job.refusals {
            refusals.row([Cell::of(refusal.execution_id), Cell::coloured(&refusal.code, Colour::Red)]);
        }
        text.push_str(&format!("\n\n{}", refusals.text(style, "")));
    }
    if job.reached_max {
        text.push_str(&format!("\n\nIt changed {} and there are more; --max raises that.", job.max));
    }
    text
}
