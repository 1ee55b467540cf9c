//! What a server that is gone had yet to do for parked work. Slots whose leases have ended are given back without waiting
//! for their timers, and gates that have room let in what waits for them without waiting for its recheck.
//!
//! The engine that opens a gate is the one that looks at it. After a crash the indexes of parked work say which gates are
//! waited for and where. They are read once when this engine starts, and whenever a server has gone or hints may have been
//! lost. A gate that has no room costs one read then.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::execution::Execution;
use ff_core::gate::Gate;
use ff_core::index::{self, BlockedName, Due, kind};
use ff_core::reservation::Reservation;
use ff_core::slot::{Slot, SlotUse};
use ff_core::{ExecutionId, Family, IndexName, Key, Partition, Result, SlotId, limits};
use ff_store::{Answer, Query, Scan, StoredDocument};
use futures_util::stream::{self, StreamExt};

use super::Timers;
use super::sweep::{MARKS_STEP_MS, SWEEPS_AT_ONCE};
use crate::due::RANK_MAX;
use crate::groups::Name;
use crate::scheduler::parking::Note;
use crate::scheduler::reads::NAMES_LIMIT;

/// Timers and names read at once, so many times in each partition. What is behind them is left to its own timers.
const PAGES_MAX: usize = 10;
/// Timers read at once.
const TIMERS_LIMIT: usize = 1_000;
/// Slots and their executions read at once.
const SLOTS_LIMIT: usize = 200;

/// The timer of a slot or of an estimate: the document and when it is due.
type SlotTimer = (Key, i64);

/// Gates by namespace and text, and where something waits for each.
type GatesWithParked = BTreeMap<Name, BTreeSet<Partition>>;

impl Timers {
    /// Looks at slots and gates beside everything else. The engine ranked first for a partition comes first there; the others
    /// find nothing to do after it.
    pub(super) fn reopen_gates_soon(&self) {
        let timers = self.clone();
        self.transactor.spawn_short(async move {
            let homes = timers.transactor.partitions().all().filter(|home| is_home_of_gates(*home));
            let mut by_rank: BTreeMap<i64, Vec<Partition>> = BTreeMap::new();
            for home in homes {
                by_rank.entry(timers.servers.rank(home).min(RANK_MAX)).or_default().push(home);
            }
            let mut waited = 0;
            for (rank, homes) in by_rank {
                timers.transactor.env().sleep((rank - waited) * MARKS_STEP_MS).await;
                waited = rank;
                if timers.transactor.refuse_if_closing().is_err() {
                    return;
                }
                timers.free_unused_slots(&homes).await;
                timers.reopen_gates_in(&homes).await;
            }
        });
    }

    /// Has the timers of young slots and estimates look before their time: a lease that ended without a mark leaves nothing
    /// else.
    async fn free_unused_slots(&self, homes: &[Partition]) {
        let looks = homes.iter().copied().map(|home| async move {
            match self.unused_slots(home).await {
                Ok(unused) => {
                    let fired = unused.into_iter().map(|timer| self.fire_early(home, timer));
                    stream::iter(fired).buffer_unordered(SWEEPS_AT_ONCE).collect::<()>().await;
                }
                Err(error) => self.not_reopened(home, &error),
            }
        });
        stream::iter(looks).buffer_unordered(SWEEPS_AT_ONCE).collect::<()>().await;
    }

    async fn fire_early(&self, home: Partition, (key, score): SlotTimer) {
        let judged = match key.kind() {
            kind::SLOT => self.fire_slot(home, key, score).await,
            _ => self.fire_reservation(home, key, score).await,
        };
        judged.unwrap_or_else(|error| self.not_reopened(home, &error));
    }

    /// The timers of slots and estimates whose claims are over. Many are looked at together, because most are in use.
    async fn unused_slots(&self, home: Partition) -> Result<Vec<SlotTimer>> {
        let young = self.young_slots(home).await?;
        let mut unused = Vec::new();
        for timers in young.chunks(SLOTS_LIMIT) {
            let keys = timers.iter().map(|(key, _)| key.clone()).collect();
            let found = self.transactor.store().documents(home, keys).await?;
            let mut by_place: BTreeMap<Partition, Vec<(ExecutionId, SlotId, SlotTimer)>> = BTreeMap::new();
            for (timer, stored) in timers.iter().zip(found) {
                let Some((execution, slot)) = stored.and_then(|stored| self.slot_of(timer.0.kind(), &stored)) else {
                    continue;
                };
                by_place.entry(execution.partition()).or_default().push((execution, slot, timer.clone()));
            }
            for (place, slots) in by_place {
                let keys = slots.iter().map(|(execution, ..)| Execution::key_of(execution)).collect();
                let executions = match self.transactor.store().documents(place, keys).await {
                    Ok(executions) => executions,
                    Err(error) => {
                        self.not_reopened(place, &error.into());
                        continue;
                    }
                };
                for ((_, slot, timer), stored) in slots.into_iter().zip(executions) {
                    let execution = stored.and_then(|stored| self.transactor.readable::<Execution>(&stored));
                    if SlotUse::of(execution.as_ref(), &slot) == SlotUse::Over {
                        unused.push(timer);
                    }
                }
            }
        }
        Ok(unused)
    }

    /// The execution and the try of a slot or an estimate.
    fn slot_of(&self, document_kind: u8, stored: &StoredDocument) -> Option<(ExecutionId, SlotId)> {
        if document_kind == kind::SLOT {
            return self.transactor.readable::<Slot>(stored).map(|slot| (slot.execution, slot.id));
        }
        let reservation = self.transactor.readable::<Reservation>(stored)?;
        Some((reservation.execution, reservation.slot?))
    }

    /// The timers of slots and estimates that no engine has looked at yet.
    async fn young_slots(&self, home: Partition) -> Result<Vec<SlotTimer>> {
        let mut found = Vec::new();
        let limit = self.transactor.chunk(TIMERS_LIMIT);
        let latest = self.transactor.now_in(home) + limits::SLOT_ORPHAN_AGE_MS;
        let mut scan = Scan::first(index::due(), limit).up_to(latest);
        for _ in 0..PAGES_MAX {
            let answers = self.transactor.read(home, vec![Query::Scan(scan.clone())]).await?;
            let page = answers.into_only(Answer::into_scan)?;
            let timers = page.entries.iter().filter_map(|entry| Some((Due::parse(&entry.member)?.0, entry.score)));
            found.extend(timers.filter(|(key, _)| matches!(key.kind(), kind::SLOT | kind::RESERVATION)));
            let Some(last) = page.entries.last().filter(|_| page.entries.len() == limit) else { break };
            scan = scan.after(last.score, last.member.clone());
        }
        Ok(found)
    }

    /// Lets in what waits for the gates that live in these partitions.
    async fn reopen_gates_in(&self, homes: &[Partition]) {
        let gates = self.gates_with_parked().await.into_iter().filter_map(|((namespace, text), places)| {
            let home = self.scheduler.home_of(&namespace, Gate::parse(&text)?);
            homes.contains(&home).then_some((home, namespace, text, places))
        });
        let looks = gates.map(|(home, namespace, text, places)| async move {
            let Some(gate) = Gate::parse(&text) else { return };
            let note = Note::of(places.into_iter().collect());
            let noted = self.scheduler.note_parked(&namespace, gate, note).await;
            noted.unwrap_or_else(|error| self.not_reopened(home, &error));
        });
        stream::iter(looks).buffer_unordered(SWEEPS_AT_ONCE).collect::<()>().await;
    }

    async fn gates_with_parked(&self) -> GatesWithParked {
        let looks = self.transactor.flow_partitions().map(|place| async move { (place, self.gates_in(place).await) });
        let mut gates = GatesWithParked::new();
        for (place, found) in stream::iter(looks).buffered(SWEEPS_AT_ONCE).collect::<Vec<_>>().await {
            match found {
                Ok(found) => {
                    for gate in found {
                        gates.entry(gate).or_default().insert(place);
                    }
                }
                Err(error) => self.not_reopened(place, &error),
            }
        }
        gates
    }

    /// The gates for which something waits in a partition.
    async fn gates_in(&self, place: Partition) -> Result<BTreeSet<Name>> {
        let limit = self.transactor.chunk(NAMES_LIMIT);
        let names = |prefix, after| Query::Indexes { prefix: vec![prefix], after, limit };
        let mut gates = BTreeSet::new();
        let mut left: Vec<(u8, Option<IndexName>)> = index::BLOCKED_PREFIXES.map(|prefix| (prefix, None)).into();
        for _ in 0..PAGES_MAX {
            let queries = left.iter().map(|(prefix, after)| names(*prefix, after.clone())).collect();
            let answers = self.transactor.read(place, queries).await?.answers;
            let pages = answers.into_iter().map(|answer| answer.into_indexes().unwrap_or_default());
            let mut further = Vec::new();
            for ((prefix, _), page) in left.into_iter().zip(pages) {
                let parsed = page.iter().filter_map(BlockedName::parse);
                gates.extend(parsed.map(|name| (name.namespace, name.gate)));
                further.extend(page.last().filter(|_| page.len() == limit).map(|last| (prefix, Some(last.clone()))));
            }
            left = further;
            if left.is_empty() {
                break;
            }
        }
        Ok(gates)
    }

    fn not_reopened(&self, partition: Partition, error: &ff_core::Error) {
        if let Some(suppressed) = self.transactor.may_log("what waits for a gate cannot be looked at") {
            tracing::warn!(%partition, %error, suppressed, "what waits for a gate cannot be looked at; left to its timers");
        }
    }
}

/// Whether budgets, quotas or concurrency keys live in a partition.
fn is_home_of_gates(partition: Partition) -> bool {
    matches!(partition.family, Family::Budget | Family::Quota)
}
