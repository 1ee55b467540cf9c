//! Rules that hold when nothing goes wrong any more: work and waiting workers meet within a second, and the most urgent
//! goes first. Time is the executor's here: no clock of the store disturbs it.

use std::collections::BTreeMap;

use ff_core::encoding::Document;
use ff_core::execution::Execution;
use ff_core::index::kind;
use ff_core::lane::Lane;
use ff_core::{CapabilitySet, EligibilityState, LifecyclePhase, Partition};
use ff_store::memory::{Contents, RawDocument};

use super::{Checker, Commit, Place};
use crate::invariant::Invariant;

/// Work and a worker that waits for it meet within this time.
const MEET_MS: i64 = 1_000;
/// An engine may believe this long that a lane is as it was.
const LANE_LAG_MS: i64 = 1_000;
/// Calls to a node out of reach within one second, from all servers together, after which something spins.
const REFUSALS_MAX: u64 = 800;
/// A call that failed in the last moment of the storm is left alone for a second and then tried again.
pub(crate) const LAST_GUSTS_MS: i64 = 1_500;
/// Between two looks at everything that waits.
const LOOK_MS: i64 = 100;

/// A worker that takes work.
#[derive(Debug, Clone)]
pub(crate) struct Waiter {
    pub(crate) namespace: String,
    pub(crate) lanes: Vec<&'static str>,
    pub(crate) capabilities: CapabilitySet,
    pub(crate) since_ms: i64,
}

impl Waiter {
    fn takes(&self, document: &Execution) -> bool {
        self.namespace == document.namespace
            && self.lanes.contains(&document.lane.as_str())
            && self.capabilities.contains_all(&document.capabilities)
    }
}

/// The executions and the workers that wait for each other.
#[derive(Debug, Default)]
pub(crate) struct Meeting {
    calm: bool,
    /// When something last went wrong, or was put right.
    disturbed_ms: i64,
    out: Option<Partition>,
    /// Executions that may start, and since when.
    eligible: BTreeMap<Place, i64>,
    /// When each lane was last opened or closed, and whether it is open.
    lanes: BTreeMap<(String, String), (bool, i64)>,
    waiters: BTreeMap<u64, Waiter>,
    next_waiter: u64,
    /// Every worker that ever took work.
    workers: BTreeMap<String, Waiter>,
    next_look_ms: i64,
    /// Executions that were passed over at an instant: one claim may take several, in any order, so the instant must be
    /// over.
    overtaken: Vec<Overtaken>,
    /// The present second, and the calls that a node out of reach refused in it.
    refusals: (i64, u64),
}

/// Something less urgent was claimed first.
#[derive(Debug)]
struct Overtaken {
    place: Place,
    since_ms: i64,
    at_ms: i64,
    detail: String,
}

fn may_start(document: &Execution) -> bool {
    document.state.lifecycle_phase == LifecyclePhase::Runnable
        && document.state.eligibility_state == EligibilityState::EligibleNow
        && document.grant.is_none()
}

impl Meeting {
    pub(super) fn written(&mut self, place: &Place, before: Option<&Execution>, after: &Execution, now_ms: i64) {
        if !may_start(after) {
            self.eligible.remove(place);
        } else if !before.is_some_and(may_start) {
            self.eligible.insert(place.clone(), now_ms);
        }
    }

    pub(super) fn gone(&mut self, place: &Place) {
        self.eligible.remove(place);
    }

    /// Since when a lane has let work through; `None` while it does not.
    fn open_since(&self, document: &Execution) -> Option<i64> {
        match self.lanes.get(&(document.namespace.clone(), document.lane.clone())) {
            None => Some(0),
            Some((true, since)) => Some(since + LANE_LAG_MS),
            Some((false, _)) => None,
        }
    }
}

impl Checker {
    /// The storm is over.
    pub(crate) fn calm(&mut self, now_ms: i64) {
        self.meeting.calm = true;
        self.meeting.disturbed_ms = now_ms + LAST_GUSTS_MS;
    }

    /// Something went wrong or was put right again: what waited before that may have been missed.
    pub(crate) fn disturbed(&mut self, now_ms: i64, out: Option<Partition>) {
        self.meeting.disturbed_ms = self.meeting.disturbed_ms.max(now_ms);
        self.meeting.out = out;
    }

    /// A node that is out of reach refused a call.
    pub(crate) fn refused(&mut self, now_ms: i64, partition: Partition) {
        let second = now_ms / 1_000;
        let refusals = &mut self.meeting.refusals;
        *refusals = if refusals.0 == second { (second, refusals.1 + 1) } else { (second, 1) };
        let count = refusals.1;
        self.expect(count <= REFUSALS_MAX, Invariant::NothingSpins, || {
            format!("{partition} is out of reach and was asked {count} times within a second, until {now_ms}")
        });
    }

    /// Whether nothing has gone wrong or was put right since.
    pub(crate) fn undisturbed_since(&self, since_ms: i64) -> bool {
        self.meeting.disturbed_ms < since_ms
    }

    /// Everything is as it was read anew.
    pub(super) fn meet_anew(&mut self, now_ms: i64) {
        let free = self.facts.executions.iter().filter(|(_, seen)| may_start(&seen.document));
        self.meeting.eligible = free.map(|(place, _)| (place.clone(), now_ms)).collect();
        self.meeting.disturbed_ms = now_ms;
    }

    pub(super) fn lane_changed(&mut self, commit: Commit<'_>, after: Option<&RawDocument>) {
        let Some(lane) = after.and_then(|raw| Lane::decode(&raw.body).ok()) else { return };
        let open = lane.state.admits_claims();
        self.meeting.lanes.insert((lane.namespace, lane.name), (open, commit.elapsed_ms));
    }

    /// The lanes as a store that forgot has them.
    pub(crate) fn lanes_anew(&mut self, contents: &Contents, now_ms: i64) {
        let system = contents.partition(Partition::SYSTEM);
        let documents = system.into_iter().flat_map(|contents| contents.documents());
        let lanes = documents.filter(|(key, _)| key.kind() == kind::LANE);
        let lanes = lanes.filter_map(|(_, raw)| Lane::decode(&raw.body).ok());
        self.meeting.lanes =
            lanes.map(|lane| ((lane.namespace, lane.name), (lane.state.admits_claims(), now_ms))).collect();
    }

    /// A worker begins to wait for work; the number ends it.
    pub(crate) fn waits(&mut self, instance: &str, waiter: Waiter) -> u64 {
        let number = self.meeting.next_waiter;
        self.meeting.next_waiter += 1;
        self.meeting.workers.insert(instance.to_owned(), waiter.clone());
        self.meeting.waiters.insert(number, waiter);
        number
    }

    /// A worker no longer waits.
    pub(crate) fn waited(&mut self, number: u64) {
        self.meeting.waiters.remove(&number);
    }

    /// Executions that nothing but a missing worker can keep from starting, and since when.
    fn startable(&self) -> impl Iterator<Item = (&Execution, i64)> {
        self.meeting.eligible.iter().filter_map(|(place, since)| {
            let document = &self.facts.executions.get(place)?.document;
            let gated = document.is_gated();
            let flow = document.flow.and_then(|flow| self.facts.flows.get(&flow));
            let cancelled = flow.is_some_and(|flow| flow.cancellation.is_some());
            let reachable = self.meeting.out != Some(place.0);
            let fresh = *since > self.meeting.disturbed_ms;
            let open = self.meeting.open_since(document)?;
            (!gated && !cancelled && reachable && fresh).then_some((document, open.max(*since)))
        })
    }

    /// In calm no work waits for long beside a worker that waits for it.
    pub(crate) fn check_meetings(&mut self, now_ms: i64) {
        if !self.meeting.calm {
            return;
        }
        self.check_overtaken(now_ms);
        if now_ms < self.meeting.next_look_ms {
            return;
        }
        self.meeting.next_look_ms = now_ms + LOOK_MS;
        let missed = self.startable().find_map(|(document, since)| {
            let waiting = |waiter: &&Waiter| waiter.takes(document) && now_ms - since.max(waiter.since_ms) > MEET_MS;
            let waiter = self.meeting.waiters.values().find(waiting)?;
            Some(format!("{} may start since {since}, {waiter:?} waits, and it is {now_ms}", document.id))
        });
        if let Some(detail) = missed {
            self.violate(Invariant::MetInTime, detail);
        }
    }

    /// In calm nothing starts before what is more urgent in its lane.
    pub(super) fn check_order(&mut self, claimed: &Execution, now_ms: i64) {
        let Some(lease) = claimed.lease.as_ref().filter(|_| self.meeting.calm) else { return };
        let Some(worker) = self.meeting.workers.get(&lease.instance_id) else { return };
        let urgent = self.startable().find(|(document, since)| {
            document.id != claimed.id
                && document.lane == claimed.lane
                && worker.takes(document)
                && document.priority > claimed.priority
                && now_ms - since > MEET_MS
        });
        let overtaken = urgent.map(|(document, _)| {
            let place = (document.id.partition(), Execution::key_of(&document.id));
            let since_ms = self.meeting.eligible.get(&place).copied().unwrap_or(0);
            let (id, priority) = (document.id, document.priority);
            let detail = format!(
                "{} of priority {} was claimed at {now_ms} before {id} of {priority}, which may start since {since_ms}",
                claimed.id, claimed.priority
            );
            Overtaken { place, since_ms, at_ms: now_ms, detail }
        });
        self.meeting.overtaken.extend(overtaken);
    }

    fn check_overtaken(&mut self, now_ms: i64) {
        let over = self.meeting.overtaken.first().is_some_and(|first| first.at_ms < now_ms);
        if !over {
            return;
        }
        for overtaken in std::mem::take(&mut self.meeting.overtaken) {
            if self.meeting.eligible.get(&overtaken.place) == Some(&overtaken.since_ms) {
                self.violate(Invariant::PriorityOrder, overtaken.detail);
            }
        }
    }
}
