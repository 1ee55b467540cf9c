//! The feed of events, of everything and of one execution.

use std::collections::BTreeMap;

use ff_core::event::Event;
use ff_core::op::view::EventView;
use ff_core::op::{
    EVENTS_FROM_NOW, ListEvents, ListEventsArgs, ListEventsOutcome, ListExecutionEvents, ListExecutionEventsArgs,
    ListExecutionEventsOutcome,
};
use ff_core::{Partition, Result};
use ff_store::{Answer, LogPage, LogStart, Query};
use serde::{Deserialize, Serialize};

use crate::board::Listener;
use crate::caller::Caller;
use crate::op::Handle;
use crate::services::Services;
use crate::{cursor, env, logs, view};

/// How far an estimate of the difference between two clocks may be wrong.
const SKEW_MS: i64 = 10_000;
/// Records of a partition that a filtered call reads at once: a page of its answer may be far behind.
const FILTERED_ROUND: usize = 1_000;
/// Records that a call which does not wait looks at; a filter that matches little answers with nothing and a cursor.
const EXAMINED_MAX: usize = 100_000;
/// The longest pause before a look at records that may only be shown once every partition was read after them.
const AHEAD_PAUSE_MS: i64 = 1_000;

/// How far a subscriber has read.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Watermark {
    /// The latest instant of an event that was read.
    at: i64,
    /// The last number and instant in each partition that had events shortly before that.
    near: BTreeMap<u16, (u64, i64)>,
}

impl Watermark {
    /// Where to read on in a partition whose clock is ahead by so much.
    fn start(&self, partition: Partition, ahead_ms: i64) -> LogStart {
        match self.near.get(&partition.number) {
            Some((sequence, _)) => LogStart::After(*sequence),
            None if self.at == 0 => LogStart::After(0),
            None => LogStart::Since(self.at - SKEW_MS + ahead_ms),
        }
    }

    /// Whether the log has lost records that a subscriber at this mark has not read. One that only begins is promised
    /// nothing of what was before.
    fn gap(&self, partition: Partition, page: &LogPage, begins: bool) -> bool {
        match self.near.get(&partition.number) {
            // A store that forgot gives out numbers again that the subscriber believes to have read.
            Some((sequence, _)) => page.removed_up_to > *sequence || page.next <= *sequence,
            // There was nothing in any log when the mark was made.
            None if self.at == 0 => !begins && page.removed_up_to > 0,
            // The oldest record left is younger than where reading begins, and it was not the first ever.
            None => {
                let oldest = page.records.first().is_some_and(|record| record.sequence == page.first);
                !begins && oldest && page.removed_up_to > 0
            }
        }
    }

    /// Remembers where a log ends that had records once and has none now: nothing of it was missed.
    fn begin(&mut self, partition: Partition, page: &LogPage, now: i64) {
        if page.removed_up_to > 0 && page.records.is_empty() {
            self.near.entry(partition.number).or_insert((page.next.saturating_sub(1), now));
        }
    }

    /// Goes back with a log whose store forgot its end.
    fn retreat(&mut self, partition: Partition, page: &LogPage) {
        if let Some((sequence, _)) = self.near.get_mut(&partition.number) {
            *sequence = (*sequence).min(page.next.saturating_sub(1));
        }
    }

    fn advance(&mut self, partition: Partition, sequence: u64, at: i64) {
        self.at = self.at.max(at);
        self.near.insert(partition.number, (sequence, at));
    }

    /// Forgets partitions whose last event lies so far back that reading from before the mark cannot repeat it, also if the
    /// next call has another estimate of that partition's clock.
    fn settle(&mut self) {
        let from = self.at - 2 * SKEW_MS;
        self.near.retain(|_, (_, at)| *at >= from);
    }
}

/// Lists events after a cursor, waiting for the first of them. At least once: a repeat has the same id.
///
/// The cursor is one watermark over all partitions, on the clock of the system partition: instants of a partition whose
/// clock differs are put by as much before they are compared. That difference is an estimate, so a partition is read
/// from a little before the watermark; where it had events in that stretch, the cursor says up to which.
impl Handle<ListEvents> for Services {
    async fn handle(&self, caller: &Caller, args: ListEventsArgs) -> Result<ListEventsOutcome> {
        let namespace = match (&args.namespace, &caller.namespace) {
            (None, None) => None,
            (asked, _) => Some(caller.namespace(asked.as_deref())?),
        };
        let limit = self.transactor.limits().page(args.limit)?;
        let deadline = self.transactor.env().now_ms()
            + self.transactor.limits().tail_wait("wait_ms", args.wait_ms.unwrap_or(0))?;
        let from_now = args.cursor.as_deref() == Some(EVENTS_FROM_NOW);
        let mut begins = args.cursor.is_none() || from_now;
        let mut mark = if from_now {
            Watermark { at: self.transactor.now(), near: BTreeMap::new() }
        } else {
            cursor::decode::<Watermark>(args.cursor.as_deref())?.unwrap_or_default()
        };
        futures_util::future::try_join_all(
            self.transactor.flow_partitions().map(|partition| self.transactor.learn_clock(partition)),
        )
        .await?;
        let mut watch = self.watch_events();
        let filter = Filter { namespace: namespace.as_deref(), args: &args, limit };
        let mut examined = 0;
        loop {
            self.transactor.refuse_if_closing()?;
            let round = self.round(&mut mark, begins, &filter).await?;
            begins = false;
            examined += round.examined;
            let left = deadline - self.transactor.env().now_ms();
            let goes_on = round.more && round.examined > 0;
            if !round.items.is_empty() || round.gap || (left <= 0 && (!goes_on || examined >= EXAMINED_MAX)) {
                mark.settle();
                let items = view::events(caller, round.items);
                return Ok(ListEventsOutcome { items, gap: round.gap, next_cursor: cursor::encode(&mark) });
            }
            if !goes_on {
                let pause_ms = if round.more { left.min(AHEAD_PAUSE_MS) } else { left };
                env::within(self.transactor.env_handle(), pause_ms, watch.changed()).await;
            }
        }
    }
}

/// Tells when events may have been appended anywhere in the deployment. Waiting costs the store nothing.
pub struct EventWatch(Vec<Listener>);

impl EventWatch {
    /// Ends when something has happened since the last call, or since watching began. Safe to cancel.
    pub async fn changed(&mut self) {
        let changes = self.0.iter_mut().map(|listener| Box::pin(listener.changed()));
        futures_util::future::select_all(changes).await;
    }
}

impl std::fmt::Debug for EventWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventWatch")
    }
}

impl Services {
    /// Begins to watch for events: watch first, then list, then wait.
    pub(crate) fn watch_events(&self) -> EventWatch {
        EventWatch(
            self.transactor
                .flow_partitions()
                .map(|partition| self.shared.board.listen(partition, logs::events()))
                .collect(),
        )
    }
}

struct Round {
    items: Vec<EventView>,
    gap: bool,
    /// Something was left unread.
    more: bool,
    /// Records that the mark was moved over.
    examined: usize,
}

/// The events that a call asks for.
struct Filter<'a> {
    namespace: Option<&'a str>,
    args: &'a ListEventsArgs,
    limit: usize,
}

impl Filter<'_> {
    fn matches(&self, event: &Event) -> bool {
        let Self { namespace, args, .. } = self;
        let tag = args.tag.as_deref().and_then(|tag| tag.split_once('='));
        namespace.is_none_or(|namespace| namespace == event.namespace)
            && (args.kinds.is_empty() || args.kinds.contains(&event.event_type.kind()))
            && args.flow_id.is_none_or(|flow| event.flow_id == Some(flow))
            && tag.is_none_or(|(key, value)| event.tags.get(key).is_some_and(|found| found == value))
    }

    /// Records of a partition to read at once.
    fn round(&self) -> usize {
        let args = self.args;
        let everything =
            self.namespace.is_none() && args.kinds.is_empty() && args.flow_id.is_none() && args.tag.is_none();
        if everything { self.limit } else { self.limit.max(FILTERED_ROUND) }
    }
}

impl Services {
    /// Reads every partition from the mark on and moves the mark over what it hands out or passes over, in order.
    async fn round(&self, mark: &mut Watermark, begins: bool, filter: &Filter<'_>) -> Result<Round> {
        let limit = filter.round();
        let reads = self.transactor.flow_partitions().map(|partition| {
            let ahead_ms = self.transactor.now_in(partition) - self.transactor.now();
            let start = mark.start(partition, ahead_ms);
            let query = Query::Log { log: logs::events(), start, limit };
            async move { (partition, ahead_ms, self.transactor.read(partition, vec![query]).await) }
        });
        let mut round = Round { items: Vec::new(), gap: false, more: false, examined: 0 };
        let mut records = Vec::new();
        // Events behind the end of a page that was full must not be overtaken by younger events elsewhere.
        let mut horizon = i64::MAX;
        for (partition, ahead_ms, answers) in futures_util::future::join_all(reads).await {
            let answers = answers?;
            // A log that was read long before another one may have got events since that are older than those of the other.
            horizon = horizon.min(answers.at - ahead_ms + SKEW_MS / 2);
            let page = answers.into_only(Answer::into_log)?;
            round.gap |= mark.gap(partition, &page, begins);
            mark.retreat(partition, &page);
            if begins {
                mark.begin(partition, &page, self.transactor.now());
            }
            if let Some(last) = page.records.last().filter(|_| page.records.len() == limit) {
                horizon = horizon.min(last.at - ahead_ms);
                round.more = true;
            }
            records.extend(page.records.into_iter().map(|record| (record.at - ahead_ms, partition, record)));
        }
        records.sort_by_key(|(at, partition, record)| (*at, *partition, record.sequence));
        for (at, partition, record) in records {
            if at > horizon || round.items.len() == filter.limit {
                round.more = true;
                break;
            }
            mark.advance(partition, record.sequence, at);
            round.examined += 1;
            let event = self.transactor.readable_record::<Event>(&logs::events(), &record.record);
            round.items.extend(
                event.filter(|event| filter.matches(event)).map(|event| view::event_view(partition, &record, event)),
            );
        }
        Ok(round)
    }
}

/// Records read at once.
const EXECUTION_EVENTS_PAGE: usize = 1_000;
/// Pages one call looks through; the rest is behind the cursor.
const EXECUTION_EVENTS_PAGES_MAX: usize = 100;
/// An execution is dated by an estimate of the store's time, its events by the store itself: reading begins a little
/// before the execution did.
const DATED_AHEAD_MAX_MS: i64 = 1_000;

impl Handle<ListExecutionEvents> for Services {
    async fn handle(&self, caller: &Caller, args: ListExecutionEventsArgs) -> Result<ListExecutionEventsOutcome> {
        let (execution, _) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        let partition = execution.id.partition();
        let limit = self.transactor.limits().page(args.limit)?;
        let mut start = match cursor::decode::<u64>(args.cursor.as_deref())? {
            Some(after) => LogStart::After(after),
            None => LogStart::Since(execution.created_at - DATED_AHEAD_MAX_MS),
        };
        let mut items = Vec::new();
        for _ in 0..EXECUTION_EVENTS_PAGES_MAX {
            let page = self.transactor.store().log(partition, logs::events(), start, EXECUTION_EVENTS_PAGE).await?;
            let full = page.records.len() == EXECUTION_EVENTS_PAGE;
            for record in page.records {
                start = LogStart::After(record.sequence);
                let Some(event) = self.transactor.readable_record::<Event>(&logs::events(), &record.record) else {
                    continue;
                };
                if event.execution_id != Some(execution.id) {
                    continue;
                }
                items.push(view::event_view(partition, &record, event));
                if items.len() == limit {
                    return Ok(ListExecutionEventsOutcome {
                        items: view::events(caller, items),
                        next_cursor: Some(cursor::encode(&record.sequence)),
                    });
                }
            }
            if !full {
                return Ok(ListExecutionEventsOutcome { items: view::events(caller, items), next_cursor: None });
            }
        }
        let next_cursor = match start {
            LogStart::After(after) => Some(cursor::encode(&after)),
            _ => None,
        };
        Ok(ListExecutionEventsOutcome { items: view::events(caller, items), next_cursor })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_not_read_again_when_the_estimate_of_a_clock_changes() {
        let (quiet, busy, last_at) = (Partition::flow(0), Partition::flow(1), 1_800_000_000_000);
        for passed_ms in (0..4 * SKEW_MS).step_by(500) {
            let mut mark = Watermark::default();
            mark.advance(quiet, 256, last_at);
            mark.advance(busy, 1, last_at + passed_ms);
            mark.settle();
            for ahead_ms in [-SKEW_MS, -3_000, 0, 3_000] {
                match mark.start(quiet, ahead_ms) {
                    LogStart::After(sequence) => assert_eq!(sequence, 256),
                    LogStart::Since(at) => assert!(at > last_at, "{passed_ms} ms later it is read since {at}"),
                    LogStart::Before(_) => panic!("nothing is read backwards"),
                }
            }
        }
    }
}
