//! `ff schedule`: what is created again and again, and when.

use flowfabric::op::{CreateSchedule, create_schedule, list_schedules, update_schedule};
use flowfabric::schedule::{OriginKind, RunOutcome};
use flowfabric::{
    CatchUp, Overlap, ScheduleRunView, ScheduleSpec, ScheduleState, ScheduleSummary, ScheduleTemplate, ScheduleView,
};

use crate::failure::{Failure, Result};
use crate::flow_file;
use crate::input::{SOURCE, Source, one_of};
use crate::output::{Cell, Colour, Style, Table};
use crate::session::Session;
use crate::span;
use crate::submission::Terms;

/// The arguments of `ff schedule`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff schedule create nightly report --cron '0 2 * * *' --zone Europe/Berlin
  ff schedule ls
  ff schedule pause nightly --note 'the warehouse is moved'
  ff schedule backfill nightly --from 2026-11-01T00:00:00Z --to 2026-11-08T00:00:00Z")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Create a schedule; the same definition again is the same schedule
    #[command(after_help = "\
Examples:
  ff schedule create nightly report '{\"of\": \"yesterday\"}' --cron '0 2 * * *' --zone Europe/Berlin
  ff schedule create poll fetch --every 5m --overlap skip --jitter 10s
  ff schedule create launch announce --at 2027-01-01T00:00:00Z
  ff schedule create weekly --flow report.yaml --cron '0 6 * * MON' --catch-up last")]
    Create(Box<Create>),
    /// Change a schedule; what is not named stays as it is
    #[command(after_help = "\
Examples:
  ff schedule update nightly --cron '30 2 * * *'
  ff schedule update nightly --overlap skip --catch-up last
  ff schedule update nightly report '{\"of\": \"today\"}'")]
    Update(Box<Update>),
    /// List schedules
    #[command(
        after_help = "Examples:\n  ff schedule ls\n  ff schedule ls -o json | jq -r '.items[] | select(.state == \"paused\") | .name'"
    )]
    Ls,
    /// Show a schedule: its next instants and its last runs
    #[command(after_help = "Examples:\n  ff schedule get nightly\n  ff schedule get nightly -o json | jq .next")]
    Get {
        /// The schedule
        name: String,
    },
    /// Start no runs until it is resumed; instants that pass are passed over
    #[command(after_help = "Examples:\n  ff schedule pause nightly --note 'the warehouse is moved'")]
    Pause(Noted),
    /// Go on from now
    #[command(after_help = "Examples:\n  ff schedule resume nightly")]
    Resume(Noted),
    /// Run it once, now, paused or not
    #[command(after_help = "Examples:\n  ff schedule trigger nightly\n  ff schedule trigger nightly --overlap skip")]
    Trigger {
        /// The schedule
        name: String,
        /// What happens while the latest run has not ended [default: allow]
        #[arg(long, value_parser = one_of!(Overlap))]
        overlap: Option<Overlap>,
    },
    /// Run the instants of a stretch once more
    #[command(
        after_help = "Examples:\n  ff schedule backfill nightly --from 2026-11-01T00:00:00Z --to 2026-11-08T00:00:00Z"
    )]
    Backfill {
        /// The schedule
        name: String,
        /// The first instant that counts: a span before now or RFC 3339
        #[arg(long, value_name = "WHEN", value_parser = span::parse_past)]
        from: i64,
        /// The last instant that counts: a span before now or RFC 3339
        #[arg(long, value_name = "WHEN", value_parser = span::parse_past)]
        to: i64,
        /// What happens while the latest run has not ended [default: allow]
        #[arg(long, value_parser = one_of!(Overlap))]
        overlap: Option<Overlap>,
    },
    /// Remove a schedule; its runs stay
    #[command(after_help = "Examples:\n  ff schedule rm nightly")]
    Rm {
        /// The schedule
        name: String,
    },
}

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("when").args(["cron", "every", "at"]).required(true)))]
struct Create {
    /// Its name, unique in the namespace
    name: String,
    /// The kind of work of each run
    #[arg(required_unless_present = "flow")]
    kind: Option<String>,
    #[command(flatten)]
    definition: Definition,
}

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("when").args(["cron", "every", "at"])))]
struct Update {
    /// The schedule
    name: String,
    /// The kind of work of each run; together with the input and the options of its runs it replaces what there was
    kind: Option<String>,
    #[command(flatten)]
    definition: Definition,
}

/// When a schedule runs, and what it creates.
#[derive(Debug, clap::Args)]
struct Definition {
    /// The input for the worker: JSON, @FILE, or - for standard input
    #[arg(value_name = SOURCE)]
    input: Option<Source>,
    /// Each run is a flow, as this file describes it
    #[arg(long, value_name = "FILE", value_parser = Source::file, conflicts_with_all = ["kind", "input"])]
    flow: Option<Source>,
    /// A cron expression of five fields, or of six with the seconds first
    #[arg(long, value_name = "EXPRESSION")]
    cron: Option<String>,
    /// The time zone of the expression [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "cron")]
    zone: Option<String>,
    /// An interval
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    every: Option<i64>,
    /// An instant: a span from now or RFC 3339; may be repeated
    #[arg(long, value_name = "WHEN", value_parser = span::parse_instant)]
    at: Vec<i64>,
    /// Not before: a span from now or RFC 3339
    #[arg(long, value_name = "WHEN", value_parser = span::parse_instant)]
    starts: Option<i64>,
    /// Not after: a span from now or RFC 3339
    #[arg(long, value_name = "WHEN", value_parser = span::parse_instant)]
    ends: Option<i64>,
    /// Each run starts up to so much later
    #[arg(long, value_name = "SPAN", value_parser = span::parse)]
    jitter: Option<i64>,
    /// What happens while the latest run has not ended [default: allow]
    #[arg(long, value_parser = one_of!(Overlap))]
    overlap: Option<Overlap>,
    /// What becomes of instants that were not seen to in time: none, last, or how many of the last [default: none]
    #[arg(long, value_name = "none|last|COUNT", value_parser = catch_up)]
    catch_up: Option<CatchUp>,
    /// After so many failed runs in a row it pauses
    #[arg(long, value_name = "COUNT")]
    pause_after_failures: Option<u32>,
    #[command(flatten)]
    terms: Terms,
}

#[derive(Debug, clap::Args)]
struct Noted {
    /// The schedule
    name: String,
    /// Why; kept and shown
    #[arg(long)]
    note: Option<String>,
}

/// Reads what becomes of late instants.
fn catch_up(text: &str) -> Result<CatchUp, String> {
    match (text, text.parse()) {
        ("none", _) => Ok(CatchUp::None),
        ("last", _) => Ok(CatchUp::Last),
        (_, Ok(max)) => Ok(CatchUp::all(max)),
        (_, Err(_)) => Err(format!("{text:?} is neither none nor last nor a number")),
    }
}

/// Does what the verb says.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let client = &session.client;
    let changed = match arguments.verb {
        Verb::Create(schedule) => return create(&session, *schedule).await,
        Verb::Update(change) => update(&session, *change).await?,
        Verb::Ls => return ls(&session).await,
        Verb::Trigger { name, overlap } => return trigger(&session, &name, overlap).await,
        Verb::Backfill { name, from, to, overlap } => {
            let answer = client.backfill_schedule(&name, (from, to), overlap).await?;
            return session.out.answer(&answer, |_| format!("{name} runs {} instants once more", answer.instants));
        }
        Verb::Rm { name } => {
            let answer = client.delete_schedule(&name).await?;
            return session.out.answer(&answer, |_| format!("{name} is removed; its runs stay"));
        }
        Verb::Get { name } => {
            let schedule = client.get_schedule(&name).await?;
            return session.out.answer(&schedule, |style| details(&schedule, style));
        }
        Verb::Pause(change) => client.pause_schedule(&change.name, change.note.as_deref()).await?,
        Verb::Resume(change) => client.resume_schedule(&change.name, change.note.as_deref()).await?,
    };
    session.out.answer(&changed, |style| table(std::slice::from_ref(&changed), style))
}

impl Definition {
    /// The template of each run.
    fn template(&self, kind: &str) -> Result<ScheduleTemplate> {
        Ok(match &self.flow {
            Some(file) => ScheduleTemplate::Flow(Box::new(flow_file::read(file)?)),
            None => ScheduleTemplate::Execution(Box::new(self.terms.request(kind, self.input.as_ref())?)),
        })
    }

    /// When it runs, if that is named.
    fn spec(&self) -> Option<ScheduleSpec> {
        let named = self.cron.is_some() || self.every.is_some() || !self.at.is_empty();
        named.then(|| ScheduleSpec {
            cron: self.cron.clone(),
            time_zone: self.zone.clone(),
            every_ms: self.every,
            at: self.at.clone(),
            ..Default::default()
        })
    }
}

impl Definition {
    /// When it runs from now on: an expression keeps its time zone unless another one is named.
    fn spec_upon(&self, known: ScheduleSpec) -> ScheduleSpec {
        match self.spec() {
            Some(spec) if spec.cron.is_some() => {
                ScheduleSpec { time_zone: spec.time_zone.clone().or(known.time_zone), ..spec }
            }
            Some(spec) => spec,
            None => ScheduleSpec { time_zone: self.zone.clone().or(known.time_zone.clone()), ..known },
        }
    }
}

/// Changes what is named, and only if nobody else changes the schedule meanwhile.
async fn update(session: &Session, change: Update) -> Result<ScheduleSummary> {
    let Update { name, kind, definition } = change;
    let now = session.client.get_schedule(&name).await?;
    let template = match (&definition.flow, &kind) {
        (None, None) if definition.terms.are_given()? => {
            return Err(Failure::usage("options for the runs replace what the schedule creates: name the kind, too"));
        }
        (None, None) => now.template,
        (_, kind) => definition.template(kind.as_deref().unwrap_or_default())?,
    };
    let args = update_schedule::Args {
        name,
        namespace: None,
        expected_revision: Some(now.revision),
        spec: definition.spec_upon(now.spec),
        starts_at: definition.starts.or(now.starts_at),
        ends_at: definition.ends.or(now.ends_at),
        jitter_ms: Some(definition.jitter.unwrap_or(now.jitter_ms)),
        overlap: Some(definition.overlap.unwrap_or(now.overlap)),
        catch_up: Some(definition.catch_up.unwrap_or(now.catch_up)),
        pause_after_failures: definition.pause_after_failures.or(now.pause_after_failures),
        template,
    };
    Ok(session.client.update_schedule(args).await?)
}

async fn create(session: &Session, schedule: Create) -> Result<()> {
    let Create { name, kind, definition } = schedule;
    let template = definition.template(kind.as_deref().unwrap_or_default())?;
    let args = create_schedule::Args {
        name: name.clone(),
        namespace: None,
        spec: definition.spec().unwrap_or_default(),
        starts_at: definition.starts,
        ends_at: definition.ends,
        jitter_ms: definition.jitter,
        overlap: definition.overlap,
        catch_up: definition.catch_up,
        pause_after_failures: definition.pause_after_failures,
        template,
    };
    let answer = session.client.call::<CreateSchedule>(args).await?;
    session.out.answer(&answer, |_| {
        let (what, next_at) = match &answer {
            create_schedule::Outcome::Created { next_at, .. } => ("is created", next_at),
            create_schedule::Outcome::AlreadyExists { next_at, .. } => ("was there before, just so", next_at),
            create_schedule::Outcome::Unknown(variant) => return variant.json().to_owned(),
        };
        let next = next_at.map_or("it never runs".to_owned(), |at| format!("it runs next at {}", span::instant(at)));
        format!("{name} {what}; {next}")
    })
}

async fn ls(session: &Session) -> Result<()> {
    let items = session.client.list_schedules().await?;
    let answer = list_schedules::Outcome { items, next_cursor: None };
    session.out.answer(&answer, |style| table(&answer.items, style))
}

async fn trigger(session: &Session, name: &str, overlap: Option<Overlap>) -> Result<()> {
    let answer = session.client.trigger_schedule(name, overlap).await?;
    session.out.answer(&answer, |_| match answer.outcome {
        RunOutcome::Started => {
            let execution = answer.execution_id.map(|id| id.to_string());
            execution.or(answer.flow_id.map(|id| id.to_string())).unwrap_or_default()
        }
        RunOutcome::Refused => format!("{name}: refused, {}", answer.refused.clone().unwrap_or_default()),
        outcome => format!("{name}: {outcome}"),
    })
}

fn table(schedules: &[ScheduleSummary], style: Style) -> String {
    let mut table = Table::new(["SCHEDULE", "STATE", "WHEN", "NEXT", "LAST", "OUTCOME", "RUNS", "NOTE"]);
    for schedule in schedules {
        let last = schedule.last_run.as_ref();
        table.row([
            Cell::of(&schedule.name),
            state(schedule.state),
            Cell::of(when(&schedule.spec)),
            Cell::maybe_at(schedule.next_at),
            Cell::maybe_at(last.map(|run| run.scheduled_for)),
            last.map_or(Cell::maybe(None::<&str>), outcome),
            Cell::of(schedule.run_count),
            Cell::maybe(schedule.note.as_ref().map(|note| &note.text).filter(|text| !text.is_empty())),
        ]);
    }
    table.text(style, "There are no schedules.")
}

fn details(schedule: &ScheduleView, style: Style) -> String {
    let mut table = Table::new(["SCHEDULE", "STATE", "WHEN", "OVERLAP", "RUNS", "FAILURES", "NOTE"]);
    table.row([
        Cell::of(&schedule.name),
        state(schedule.state),
        Cell::of(when(&schedule.spec)),
        Cell::of(schedule.overlap),
        Cell::of(schedule.run_count),
        Cell::of(schedule.failures),
        Cell::maybe(schedule.note.as_ref().map(|note| &note.text).filter(|text| !text.is_empty())),
    ]);
    let mut next = Table::new(["NEXT"]);
    for instant in &schedule.next {
        next.row([Cell::of(span::instant(*instant))]);
    }
    let mut runs = Table::new(["SCHEDULED FOR", "ORIGIN", "OUTCOME", "STATE", "RUN"]);
    for run in &schedule.runs {
        let id = run.execution_id.map(|id| id.to_string()).or(run.flow_id.map(|id| id.to_string()));
        let state = run.public_state.map(|state| state.to_string()).or(run.flow_state.map(|state| state.to_string()));
        runs.row([
            Cell::of(span::instant(run.scheduled_for)),
            Cell::coloured(run.origin, if run.origin == OriginKind::Regular { Colour::Green } else { Colour::Yellow }),
            outcome(run),
            Cell::maybe(state),
            Cell::maybe(id),
        ]);
    }
    let parts = [
        table.text(style, ""),
        next.text(style, "It does not run by itself now."),
        runs.text(style, "It has not run yet."),
    ];
    parts.join("\n\n")
}

fn state(state: ScheduleState) -> Cell {
    let colour = match state {
        ScheduleState::Active => Colour::Green,
        ScheduleState::Paused | ScheduleState::Ended | ScheduleState::Unknown(_) => Colour::Yellow,
    };
    Cell::coloured(state, colour)
}

fn outcome(run: &ScheduleRunView) -> Cell {
    let colour = match run.outcome {
        RunOutcome::Started => Colour::Green,
        RunOutcome::Refused => Colour::Red,
        RunOutcome::Skipped | RunOutcome::Buffered | RunOutcome::Missed | RunOutcome::Unknown(_) => Colour::Yellow,
    };
    match &run.refused {
        Some(code) => Cell::coloured(format!("{} ({code})", run.outcome), colour),
        None => Cell::coloured(run.outcome, colour),
    }
}

fn when(spec: &ScheduleSpec) -> String {
    match (&spec.cron, spec.every_ms) {
        (Some(cron), _) => {
            format!("{cron} {}", spec.time_zone.as_deref().unwrap_or(flowfabric::schedule::DEFAULT_TIME_ZONE))
        }
        (None, Some(every_ms)) => format!("every {}", span::show(every_ms)),
        (None, None) => match spec.at[..] {
            [at] => format!("at {}", span::instant(at)),
            _ => format!("at {} instants", spec.at.len()),
        },
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        update: Update,
    }

    #[test]
    fn an_expression_keeps_its_time_zone_unless_another_is_named() {
        let known = ScheduleSpec::cron("0 2 * * *", "Europe/Berlin");
        let upon = |line: &[&str]| {
            let line = Line::parse_from(["ff", "nightly"].iter().chain(line));
            line.update.definition.spec_upon(known.clone())
        };
        assert_eq!(upon(&[]), known);
        assert_eq!(upon(&["--cron", "30 2 * * *"]), ScheduleSpec::cron("30 2 * * *", "Europe/Berlin"));
        assert_eq!(upon(&["--cron", "0 2 * * *", "--zone", "UTC"]), ScheduleSpec::cron("0 2 * * *", "UTC"));
        assert_eq!(upon(&["--every", "1h"]).time_zone, None, "an interval has none");
    }
}
