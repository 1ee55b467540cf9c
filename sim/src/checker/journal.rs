//! `journal_kept`: what was recorded comes with every later claim of its generation, numbered without gaps, written by
//! the holder alone, and every step ends once.

use std::collections::BTreeMap;

use ff_core::encoding::Document;
use ff_core::execution::Execution;
use ff_core::index::kind;
use ff_core::journal::{StepRecord, StepState, StepView};
use ff_core::op::view::Task;
use ff_core::{ExecutionId, Key, LeaseEpoch, LeaseId, LifecyclePhase};
use serde_json::Value;

use super::{Checker, Commit};
use crate::invariant::Invariant;
use crate::journal::ONCE;

/// The first byte of the log of a journal.
const JOURNAL: u8 = b'j';

/// A journal: the execution and its generation.
pub(crate) type JournalOf = (ExecutionId, u32);

/// A completed step whose holder was told that it is recorded.
#[derive(Debug, Clone)]
pub(crate) struct RecordedStep {
    pub(crate) number: u64,
    pub(crate) name: String,
    /// The epoch of the lease it was recorded under.
    pub(crate) epoch: LeaseEpoch,
    /// The result that its holder wrote; the results of waits are the engine's.
    pub(crate) result: Option<Value>,
}

impl RecordedStep {
    fn is(&self, entry: &StepView) -> bool {
        let result = entry.result.as_ref().and_then(|content| serde_json::from_slice::<Value>(&content.bytes).ok());
        let same = self.result.is_none() || self.result == result;
        entry.number == self.number && entry.name == self.name && entry.state.is_ended() && same
    }
}

/// The entries that commits wrote to one journal.
#[derive(Debug, Clone, Default)]
pub(crate) struct Written {
    count: u64,
    ended: BTreeMap<String, u64>,
    /// How often the body began that must not run twice, and how often a person said that it may run again.
    begun: u64,
    allowed: u64,
}

impl Checker {
    /// The journals as their holders know them.
    pub(crate) fn acknowledged_journals(&self) -> BTreeMap<JournalOf, Vec<RecordedStep>> {
        self.facts.steps.clone()
    }

    /// A holder was told that a step is recorded as completed.
    pub(crate) fn acknowledged_step(&mut self, id: ExecutionId, generation: u32, step: RecordedStep) {
        let written = self.facts.journals.get(&(id.partition(), journal_log(id, generation)));
        let seen = self.facts.executions.get(&(id.partition(), ff_core::execution::Execution::key_of(&id)));
        let removed = seen.is_none_or(|seen| !is_kept(&seen.document, generation)) || self.is_or_was_gone(id);
        // A generation may begin with entries of an earlier one; its own come behind those.
        let first = seen.and_then(|seen| seen.document.journal_segments(generation).last().map(|own| own.first));
        let there = written.is_some_and(|written| written.count + first.unwrap_or(1) > step.number);
        self.expect(there || removed, Invariant::JournalKept, || {
            format!("entry {} of {id} was acknowledged and never stored", step.number)
        });
        if !removed {
            self.facts.steps.entry((id, generation)).or_default().push(step);
        }
    }

    /// A claim brought a journal: everything that earlier leases recorded is there.
    pub(crate) fn claimed_journal(&mut self, task: &Task) {
        let id = task.execution_id;
        let entries = task.journal.as_ref().map(|journal| journal.entries.as_slice()).unwrap_or_default();
        self.check_numbers(id, entries);
        if let Some(journal) = task.journal.as_ref().filter(|journal| journal.complete) {
            let next = entries.last().map_or(1, |entry| entry.number + 1);
            self.expect(journal.next_number == next, Invariant::JournalKept, || {
                format!("{id}: a claim says that entry {} comes next, after {next} - 1", journal.next_number)
            });
        }
        let complete = task.journal.as_ref().is_none_or(|journal| journal.complete);
        let steps = self.facts.steps.get(&(id, task.generation)).cloned().unwrap_or_default();
        let earlier = steps.iter().filter(|step| step.epoch < task.fence.epoch);
        let missing = earlier.filter(|_| complete).find(|step| !entries.iter().any(|entry| step.is(entry)));
        if let Some(step) = missing {
            let detail = format!("{id}: {step:?} was acknowledged, and the claim of {:?} is without it", task.fence);
            self.violate(Invariant::JournalKept, detail);
        }
    }

    /// A reader read a whole journal; `known` was acknowledged before that.
    pub(crate) fn saw_journal(
        &mut self,
        args: &Value,
        generation: u32,
        entries: &[StepView],
        known: &BTreeMap<JournalOf, Vec<RecordedStep>>,
    ) {
        let Ok(id) = serde_json::from_value::<ExecutionId>(args["execution_id"].clone()) else { return };
        let place = (id.partition(), ff_core::execution::Execution::key_of(&id));
        let kept = self.facts.executions.get(&place).is_some_and(|seen| is_kept(&seen.document, generation));
        // Retention, or a generation that continued as new, may have taken the journal while it was read.
        if !kept || self.is_or_was_gone(id) {
            return;
        }
        self.check_numbers(id, entries);
        let mut steps = known.get(&(id, generation)).into_iter().flatten();
        if let Some(step) = steps.find(|step| !entries.iter().any(|entry| step.is(entry))) {
            let detail = format!("{id}: {step:?} was acknowledged, and the journal is without it");
            self.violate(Invariant::JournalKept, detail);
        }
    }

    fn check_numbers(&mut self, id: ExecutionId, entries: &[StepView]) {
        let gap = (1..).zip(entries).find(|(number, entry)| entry.number != *number);
        if let Some((number, entry)) = gap {
            let detail = format!("{id}: entry {} is where {number} should be", entry.number);
            self.violate(Invariant::JournalKept, detail);
        }
    }

    /// Checks the entries that a commit appended to journals.
    pub(super) fn check_journal_appends(&mut self, commit: Commit<'_>) {
        for append in commit.batch.appends.iter().filter(|append| append.log.as_bytes().first() == Some(&JOURNAL)) {
            let Some(uuid) = append.log.uuid() else { continue };
            let key = Key::new(kind::EXECUTION, &[uuid.as_bytes()]);
            let Some(seen) = self.facts.executions.get(&(commit.partition, key)).cloned() else {
                self.violate(Invariant::JournalKept, format!("{uuid} has a journal and is not there"));
                continue;
            };
            let running = seen.document.state.lifecycle_phase == LifecyclePhase::Active;
            let lease = seen.document.lease.as_ref().map(|lease| lease.id);
            let current = append.log == journal_log(seen.document.id, seen.document.generation);
            let mut written = self.facts.journals.remove(&(commit.partition, append.log.clone())).unwrap_or_default();
            for record in &append.records {
                written.count += 1;
                let Ok(record) = StepRecord::decode(record) else { continue };
                let by_engine = record.lease == LeaseId::default();
                let live = !running || seen.lease_until > commit.at;
                let holder = Some(record.lease) == lease && live;
                // The entries of a fork's origin are copied with the leases that recorded them, before it first runs.
                let copied = record.inherited && !running && seen.document.fork().is_some();
                self.expect(current && (holder || by_engine || copied), Invariant::JournalKept, || {
                    format!("{uuid}: {} was recorded by a lease that does not hold", record.name)
                });
                if record.name == ONCE {
                    written.begun += u64::from(record.state == StepState::Begun);
                    written.allowed += u64::from(record.state == StepState::Retrying);
                    let (begun, allowed) = (written.begun, written.allowed + 1);
                    self.expect(begun <= allowed, Invariant::JournalKept, || {
                        format!("{uuid}: {ONCE} ran {begun} times where {allowed} were allowed")
                    });
                }
                if !record.state.is_ended() {
                    continue;
                }
                let first = *written.ended.entry(record.name.clone()).or_insert(written.count);
                let count = written.count;
                self.expect(first == count, Invariant::JournalKept, || {
                    format!("{uuid}: {} ended with entry {first} and again with {count}", record.name)
                });
            }
            self.facts.journals.insert((commit.partition, append.log.clone()), written);
        }
        for trim in commit.batch.trims.iter().filter(|trim| trim.before == u64::MAX) {
            self.facts.journals.remove(&(commit.partition, trim.log.clone()));
        }
    }
}

/// Whether the journal of a generation is not on its way out.
fn is_kept(execution: &Execution, generation: u32) -> bool {
    execution.generation == generation || execution.past_generations.contains(&generation)
}

fn journal_log(id: ExecutionId, generation: u32) -> Key {
    Key::new(JOURNAL, &[id.uuid.as_bytes(), &generation.to_be_bytes()])
}
