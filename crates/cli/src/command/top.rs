//! `ff top`: the present: lanes, how much they start and end, what waits longest in them, and the workers.

use std::collections::BTreeMap;
use std::time::Duration;

use flowfabric::op::{Count, EVENTS_FROM_NOW, ListEvents, ListWorkers, list_events, list_workers};
use flowfabric::{EventKind, EventType, LaneState, PublicState, WorkerView, limits};
use serde::Serialize;

use crate::command::count::number;
use crate::command::pages;
use crate::failure::Result;
use crate::output::{Cell, Style, Table, lane_state, public_state};
use crate::session::Session;
use crate::span;

/// Clears the terminal.
const CLEAR: &str = "\x1b[2J\x1b[H";
/// Pages of events that one look reads. Where more has happened, the rates are lower bounds.
const EVENT_PAGES: usize = 20;

/// The arguments of `ff top`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff top
  ff top --every 5s
  ff top --once -o json | jq '.lanes[] | select(.waiting.value > 100)'")]
pub(crate) struct Arguments {
    /// How often to look
    #[arg(long, value_name = "SPAN", value_parser = span::parse, default_value = "2s")]
    every: i64,
    /// Look once, without rates, and end
    #[arg(long)]
    once: bool,
}

/// The figures of one look.
#[derive(Debug, Serialize)]
struct Reading {
    at: i64,
    states: BTreeMap<PublicState, Count>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rates: Option<Rates>,
    lanes: Vec<LaneReading>,
    workers: Vec<WorkerView>,
}

/// How much happened in a second, on average since the last look.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct Rates {
    started: f64,
    completed: f64,
    failed: f64,
    ended_otherwise: f64,
    /// More happened than was counted.
    more: bool,
}

#[derive(Debug, Serialize)]
struct LaneReading {
    lane: String,
    state: LaneState,
    waiting: Count,
    /// When the next in line was created.
    #[serde(skip_serializing_if = "Option::is_none")]
    oldest_created_at: Option<i64>,
    workers: usize,
    capacity: u64,
    leases_held: u64,
}

/// Looks, once or until it is interrupted.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    if arguments.once {
        let reading = read(&session, None).await?;
        return session.out.answer(&reading, |style| text(&reading, style));
    }
    let session = session.patient().await?;
    let mut events = Events { cursor: EVENTS_FROM_NOW.to_owned(), looked_at: tokio::time::Instant::now() };
    events.count(&session).await?;
    let mut rates = None;
    loop {
        let reading = read(&session, rates).await?;
        match session.out.is_terminal() {
            true => session.out.text(&format!("{CLEAR}{}", text(&reading, session.out.style())))?,
            false => session.out.line(&reading, |style| format!("{}\n", text(&reading, style)))?,
        }
        tokio::time::sleep(Duration::from_millis(arguments.every.max(100).unsigned_abs())).await;
        rates = Some(events.count(&session).await?);
    }
}

/// The events since the last look.
struct Events {
    cursor: String,
    looked_at: tokio::time::Instant,
}

impl Events {
    async fn count(&mut self, session: &Session) -> Result<Rates> {
        let mut rates = Rates { more: true, ..Rates::default() };
        for _ in 0..EVENT_PAGES {
            let page = session.client.call::<ListEvents>(list_events::Args {
                kinds: vec![EventKind::Completion, EventKind::Lease],
                cursor: Some(self.cursor.clone()),
                limit: Some(limits::PAGE_MAX),
                ..Default::default()
            });
            let page = page.await?;
            self.cursor = page.next_cursor;
            let is_last = page.items.len() < limits::PAGE_MAX;
            for item in page.items {
                match item.event.event_type {
                    EventType::LeaseAcquired | EventType::LeaseReclaimed => rates.started += 1.0,
                    EventType::Completed => rates.completed += 1.0,
                    EventType::Failed => rates.failed += 1.0,
                    EventType::Cancelled | EventType::Expired | EventType::Skipped => rates.ended_otherwise += 1.0,
                    _ => {}
                }
            }
            if is_last {
                rates.more = page.gap;
                break;
            }
        }
        let seconds = self.looked_at.elapsed().as_secs_f64().max(0.001);
        self.looked_at = tokio::time::Instant::now();
        for rate in [&mut rates.started, &mut rates.completed, &mut rates.failed, &mut rates.ended_otherwise] {
            *rate = (*rate / seconds * 10.0).round() / 10.0;
        }
        Ok(rates)
    }
}

async fn read(session: &Session, rates: Option<Rates>) -> Result<Reading> {
    let client = &session.client;
    let counts = client.counts().await?;
    let workers = pages(async |cursor| {
        let page = client.call::<ListWorkers>(list_workers::Args { cursor, ..Default::default() }).await?;
        Ok((page.items, page.next_cursor))
    });
    let workers = workers.await?;
    let mut lanes: BTreeMap<String, LaneReading> = BTreeMap::new();
    for view in client.lanes().await? {
        lanes.insert(view.name.clone(), LaneReading { state: view.state, ..LaneReading::empty(view.name) });
    }
    fn lane<'a>(lanes: &'a mut BTreeMap<String, LaneReading>, name: &str) -> &'a mut LaneReading {
        lanes.entry(name.to_owned()).or_insert_with(|| LaneReading::empty(name.to_owned()))
    }
    for queue in &counts.waiting {
        let reading = lane(&mut lanes, &queue.lane);
        reading.waiting = reading.waiting.plus(queue.count);
        reading.oldest_created_at = reading.oldest_created_at.into_iter().chain(queue.next_created_at).min();
    }
    for worker in &workers {
        for name in &worker.lanes {
            let reading = lane(&mut lanes, name);
            reading.workers += 1;
            reading.capacity += u64::from(worker.capacity);
            reading.leases_held += worker.leases_held;
        }
    }
    Ok(Reading { at: counts.counted_at, states: counts.states, rates, lanes: lanes.into_values().collect(), workers })
}

impl LaneReading {
    fn empty(lane: String) -> Self {
        Self {
            lane,
            state: LaneState::Active,
            waiting: Count::default(),
            oldest_created_at: None,
            workers: 0,
            capacity: 0,
            leases_held: 0,
        }
    }
}

fn text(reading: &Reading, style: Style) -> String {
    let mut states = Table::new(["STATE", "COUNT"]);
    for (state, count) in reading.states.iter().filter(|(_, count)| count.value > 0) {
        states.row([Cell::coloured(state, public_state(*state)), Cell::of(number(*count))]);
    }
    let mut lanes = Table::new(["LANE", "STATE", "WAITING", "SINCE", "RUNNING", "CAPACITY", "WORKERS"]);
    for lane in &reading.lanes {
        lanes.row([
            Cell::of(&lane.lane),
            Cell::coloured(lane.state, lane_state(lane.state)),
            Cell::of(number(lane.waiting)),
            Cell::maybe_at(lane.oldest_created_at),
            Cell::of(lane.leases_held),
            Cell::of(lane.capacity),
            Cell::of(lane.workers),
        ]);
    }
    let mut workers = Table::new(["WORKER", "INSTANCE", "LANES", "RUNNING", "CAPACITY", "HEARD"]);
    for worker in &reading.workers {
        workers.row([
            Cell::of(&worker.worker_id),
            Cell::of(&worker.instance_id),
            Cell::list(&worker.lanes),
            Cell::of(worker.leases_held),
            Cell::of(worker.capacity),
            Cell::at(worker.last_heartbeat_at),
        ]);
    }
    let mut parts = vec![
        states.text(style, "There are no executions."),
        lanes.text(style, "There are no lanes."),
        workers.text(style, "No worker is registered."),
    ];
    if let Some(rates) = &reading.rates {
        let more = if rates.more { " or more" } else { "" };
        parts.insert(
            0,
            format!(
                "a second: {} started, {} completed, {} failed, {} ended otherwise{more}",
                rates.started, rates.completed, rates.failed, rates.ended_otherwise
            ),
        );
    }
    parts.join("\n\n")
}
