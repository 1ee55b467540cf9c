//! `created_in_order`: nothing is dated before what was acknowledged before it was asked for.
//!
//! A server dates what it creates by its estimate of the store's time. The estimate is behind by the quickest way back of
//! the last answers, and it knows of a step of the store's clock from the first answer after it. By so much, and no more,
//! an order may be wrong.

use std::collections::{BTreeMap, VecDeque};

use ff_core::execution::Execution;
use ff_core::{ExecutionId, Partition};

use super::{Checker, Commit};
use crate::executor::Owner;
use crate::invariant::Invariant;

/// An estimate rests on the answers of this long before the last one, or of longer.
const WINDOW_MS: i64 = 5_000;

/// When the store carried out a commit: the instant, and how often its clock had been set by then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp {
    pub(crate) at_ms: i64,
    pub(crate) clock_set: u64,
}

/// What each server has heard of each clock, and which server created what.
#[derive(Debug, Default)]
pub(crate) struct Dating {
    heard: BTreeMap<(Owner, Partition), Heard>,
    /// The server that created an execution, and when by the store's clock.
    created: BTreeMap<ExecutionId, (Owner, i64)>,
}

/// The last answers of one clock to one server.
#[derive(Debug, Default)]
struct Heard {
    clock_set: u64,
    /// When each answer came, and how long it was on its way.
    ways: VecDeque<(i64, i64)>,
}

/// The latest creations of which callers were told, and how far behind each server's estimate of a clock may be.
#[derive(Debug)]
pub(crate) struct Dated {
    latest: BTreeMap<Partition, i64>,
    lags_ms: BTreeMap<(Owner, Partition), i64>,
}

impl Dating {
    pub(super) fn created(&mut self, commit: Commit<'_>, id: ExecutionId) {
        self.created.insert(id, (commit.owner, commit.at));
    }
}

impl Checker {
    /// A server got the answer to a commit that was applied.
    pub(crate) fn heard(&mut self, owner: Owner, partition: Partition, stamp: Stamp, now_ms: i64) {
        let heard = self.dating.heard.entry((owner, partition)).or_default();
        if stamp.clock_set < heard.clock_set {
            return;
        }
        if stamp.clock_set > heard.clock_set {
            *heard = Heard { clock_set: stamp.clock_set, ways: VecDeque::new() };
        }
        heard.ways.push_back((now_ms, now_ms - stamp.at_ms));
        heard.ways.retain(|(came_ms, _)| *came_ms >= now_ms - WINDOW_MS);
    }

    /// The state of things before a caller asks for an execution; `clock_set` says how often a clock was set.
    pub(crate) fn dated_until_now(&self, clock_set: impl Fn(Partition) -> u64) -> Dated {
        let knows = self.dating.heard.iter().filter(|((_, partition), heard)| heard.clock_set == clock_set(*partition));
        let lags = knows.filter_map(|(place, heard)| Some((*place, heard.ways.iter().map(|(_, way)| *way).min()?)));
        Dated { latest: self.facts.created.clone(), lags_ms: lags.collect() }
    }

    /// A caller was told of an execution. An estimate that a store outran is ahead of it: what others date by its true
    /// time may come before that.
    pub(super) fn note_created(&mut self, execution: &Execution) {
        let id = execution.id;
        let at = self.dating.created.get(&id).map_or(execution.created_at, |(_, at)| execution.created_at.min(*at));
        let latest = self.facts.created.entry(id.partition()).or_default();
        *latest = (*latest).max(at);
    }

    /// A caller was told that an execution was created, which it asked for when things were like this.
    pub(crate) fn acknowledged_in_order(&mut self, id: ExecutionId, duplicate: bool, dated: &Dated) {
        let place = (id.partition(), Execution::key_of(&id));
        let Some(seen) = self.facts.executions.get(&place).filter(|_| !duplicate) else { return };
        let Some((owner, _)) = self.dating.created.get(&id) else { return };
        let Some(lag_ms) = dated.lags_ms.get(&(*owner, id.partition())) else { return };
        let (at, before) = (seen.document.created_at, dated.latest.get(&id.partition()).copied().unwrap_or(0));
        self.expect(at + lag_ms >= before, Invariant::CreatedInOrder, || {
            format!(
                "{id} was created at {at}, after one of {before} was acknowledged; its server is {lag_ms} ms behind"
            )
        });
    }
}
