//! Bulk jobs: one change, made to everything that a filter matches. A job lives in the system partition and walks through
//! the flow partitions one after the other. In each of them a [`BulkPart`] says how far it has come: the commit that changes
//! some executions also moves the part on, so that each of them is changed once whatever crashes. The order of the walk is
//! that of creation, which no change disturbs.
//!
//! The part of a partition stays until the job is forgotten: an engine that was asleep in the middle of a turn finds there
//! that the work is done.

use std::collections::BTreeMap;

use crate::encoding::{Blob, Document};
use crate::error::{Code, Error, Result};
use crate::id::{BulkId, ExecutionId};
use crate::index::{self, Due, Indexed, kind};
use crate::key::{Entry, Key};
use crate::state::PublicState;
use crate::text::Tags;
use crate::{document, limits, vocabulary};

vocabulary! {
    /// What a bulk job does to each execution.
    #[derive(Default)]
    pub enum BulkAction {
        /// Cancels it, if it has not ended.
        #[default]
        Cancel "cancel",
        /// Runs it once more, if it has ended.
        Replay "replay",
        /// Keeps it from being claimed.
        Hold "hold",
        /// Ends an operator's hold.
        Release "release",
        /// Changes its priority.
        SetPriority "set_priority",
        /// Replaces its tags.
        SetTags "set_tags",
        /// Removes it, if it has ended.
        Remove "remove",
    }
}

impl BulkAction {
    /// Whether an execution in this state can be changed so. The others are not looked at.
    pub fn applies_to(self, state: PublicState) -> bool {
        match self {
            BulkAction::Cancel | BulkAction::Hold | BulkAction::Release | BulkAction::SetPriority => {
                !state.is_terminal()
            }
            BulkAction::Replay | BulkAction::Remove => state.is_terminal(),
            BulkAction::SetTags => true,
            BulkAction::Unknown(_) => false,
        }
    }
}

vocabulary! {
    /// How far a bulk job is.
    #[derive(Default)]
    pub enum BulkState {
        /// It goes through the partitions.
        #[default]
        Running "running",
        /// It was cancelled, and is about to stop.
        Cancelling "cancelling",
        /// It went through everything, or did as much as it may.
        Completed "completed",
        /// It was stopped; changes that were made stay.
        Cancelled "cancelled",
    }
}

document! {
    /// The change that is made.
    pub struct BulkChange {
        /// The kind of change.
        "a" action: BulkAction,
        /// Why; for a cancellation and a hold.
        "r" reason: String,
        /// The priority that they get.
        "p" priority: i64,
        /// The tags that they get.
        "t" tags: Tags,
    }
}

document! {
    /// An execution that was not changed, and why.
    pub struct BulkRefusal {
        /// The execution.
        "x" execution: ExecutionId,
        /// The code of the refusal.
        "c" code: String,
    }
}

document! {
    /// Counts of the executions that were looked at, by what became of each.
    pub struct BulkCounts {
        /// Looked at.
        "x" examined: u64,
        /// Of these: matched the filter, and had not changed since the job began.
        "m" matched: u64,
        /// Of these: changed.
        "d" done: u64,
        /// Of these: were so before.
        "u" unchanged: u64,
        /// Matched the filter, and were left alone because they had changed since the job began.
        "c" changed_since: u64,
        /// Matched, and could not be changed: how many for each code.
        "r" refused: BTreeMap<String, u64>,
        /// The first of these.
        "l" refusals: Vec<BulkRefusal>,
    }
}

impl BulkCounts {
    /// How many could not be changed.
    pub fn refused_total(&self) -> u64 {
        self.refused.values().sum()
    }

    fn refuse(&mut self, execution: ExecutionId, code: Code) {
        *self.refused.entry(code.as_str().to_owned()).or_default() += 1;
        if self.refusals.len() < limits::BULK_REFUSALS_KEPT {
            self.refusals.push(BulkRefusal { execution, code: code.as_str().to_owned(), ..Default::default() });
        }
    }

    /// Both together.
    pub fn plus(&self, other: &Self) -> Self {
        let mut sum = self.clone();
        sum.examined += other.examined;
        sum.matched += other.matched;
        sum.done += other.done;
        sum.unchanged += other.unchanged;
        sum.changed_since += other.changed_since;
        for (code, count) in &other.refused {
            *sum.refused.entry(code.clone()).or_default() += count;
        }
        sum.refusals.extend(other.refusals.iter().cloned());
        sum.refusals.truncate(limits::BULK_REFUSALS_KEPT);
        sum
    }
}

document! {
    /// One change, made to everything that a filter matches.
    pub struct BulkJob {
        /// Its identity.
        "i" id: BulkId,
        /// The namespace of the executions.
        "n" namespace: String,
        /// Which of them, as JSON; `op::BulkFilter` reads it.
        "f" filter: Blob,
        /// The change that is made to each of them.
        "ch" change: BulkChange,
        /// Nothing is changed, only counted.
        "dr" dry_run: bool,
        /// At most so many are changed, those that refuse it included.
        "mx" max: u64,
        /// At most so many a second; 0 is no limit.
        "rt" rate_per_second: u32,
        /// The name of the caller that asked for it.
        "b" created_by: String,
        /// When it began.
        "c" created_at: i64,
        /// When it last made progress.
        "u" updated_at: i64,
        /// When it ended; 0 while it has not.
        "e" ended_at: i64,
        /// How far it is.
        "s" state: BulkState,
        /// It has more matches than it may change.
        "rm" reached_max: bool,
        /// The first partition that it goes through.
        "pf" first_partition: u32,
        /// The partition that it is in.
        "p" partition: u32,
        /// The partition behind the last one.
        "pe" end_partition: u32,
        /// The sum over the partitions that it is through with.
        "st" settled: BulkCounts,
        /// The counts of the present partition's part so far.
        "cu" current: BulkCounts,
        /// In which of its turns it said so.
        "tn" turn: u64,
        /// When it goes on, or is forgotten.
        "at" next_at: i64,
    }
}

impl Document for BulkJob {
    const KIND: u8 = kind::BULK;
    crate::encoding::compiled_here!();
}

impl Indexed for BulkJob {
    fn key(&self) -> Key {
        Self::key_of(&self.id)
    }

    fn index_entries(&self, _: i64) -> Vec<Entry> {
        let key = self.key();
        let listing = index::listing(kind::BULK, &self.namespace);
        let mut entries = vec![Entry { index: listing, member: key.clone(), score: self.created_at }];
        if !self.has_ended() {
            let open = index::open_bulk(&self.namespace);
            entries.push(Entry { index: open, member: key.clone(), score: self.created_at });
        }
        entries.push(Due::Timer.entry(&key, self.next_at));
        entries
    }
}

/// The parts a job is made from.
#[derive(Debug, Clone, PartialEq)]
pub struct NewBulkJob {
    /// Derived from the identity of the call, so that a repeat names the same one.
    pub id: BulkId,
    /// The namespace of the executions.
    pub namespace: String,
    /// Which of them, as JSON.
    pub filter: Blob,
    /// The change that is made to each of them.
    pub change: BulkChange,
    /// Nothing is changed, only counted.
    pub dry_run: bool,
    /// At most so many.
    pub max: u64,
    /// At most so many a second; 0 is no limit.
    pub rate_per_second: u32,
    /// The name of the caller that asks for it.
    pub created_by: String,
    /// The flow partitions in which they can be.
    pub partitions: std::ops::Range<u32>,
}

impl BulkJob {
    /// Where a job lives in the system partition.
    pub fn key_of(id: &BulkId) -> Key {
        Key::new(kind::BULK, &[id.as_bytes()])
    }

    /// A job that begins now.
    pub fn create(new: NewBulkJob, now: i64) -> Self {
        Self {
            id: new.id,
            namespace: new.namespace,
            filter: new.filter,
            change: new.change,
            dry_run: new.dry_run,
            max: new.max,
            rate_per_second: new.rate_per_second,
            created_by: new.created_by,
            created_at: now,
            updated_at: now,
            first_partition: new.partitions.start,
            partition: new.partitions.start,
            end_partition: new.partitions.end,
            next_at: now,
            ..Default::default()
        }
    }

    /// Whether nothing will be changed any more.
    pub fn has_ended(&self) -> bool {
        self.ended_at != 0
    }

    /// Counts of the executions looked at so far, by what became of each.
    pub fn counts(&self) -> BulkCounts {
        self.settled.plus(&self.current)
    }

    /// Asks the job to stop; says whether that changes anything. The job has stopped once it has ended.
    pub fn cancel(&mut self, now: i64) -> bool {
        if self.has_ended() || self.state == BulkState::Cancelling {
            return false;
        }
        self.state = BulkState::Cancelling;
        self.next_at = self.mark_updated(now);
        true
    }

    /// The part of a partition has had a turn, and may have the next one so much later. A report that is older than what
    /// is known changes nothing. The last report of a part may count fewer turns than the job knew when it asked: then the
    /// partition forgot some, and no later report will come.
    pub fn take_turn(&mut self, report: &BulkReport, kept_ms: i64, now: i64) {
        let part = &report.part;
        let forgot = part.finished && report.known_turn == self.turn;
        let is_old = part.turn < self.turn && !forgot;
        if self.has_ended() || report.partition != self.partition || is_old {
            return;
        }
        let now = self.mark_updated(now);
        self.next_at = now + report.wait_ms;
        self.turn = part.turn;
        self.current = part.counts.clone();
        if !part.finished {
            return;
        }
        self.settled = self.counts();
        self.current = BulkCounts::default();
        self.turn = 0;
        self.reached_max |= part.reached_max;
        self.partition += 1;
        if self.state == BulkState::Cancelling {
            self.end(BulkState::Cancelled, kept_ms, now);
        } else if self.reached_max || self.partition >= self.end_partition {
            self.end(BulkState::Completed, kept_ms, now);
        }
    }

    fn end(&mut self, state: BulkState, kept_ms: i64, now: i64) {
        self.state = state;
        self.ended_at = now;
        self.next_at = now + kept_ms.max(limits::BULK_KEPT_MIN_MS);
    }

    fn mark_updated(&mut self, now: i64) -> i64 {
        self.updated_at = self.updated_at.max(now);
        self.updated_at
    }
}

/// The report of one turn of a part.
#[derive(Debug, Clone, PartialEq)]
pub struct BulkReport {
    /// The number of its partition.
    pub partition: u32,
    /// The turns that the job knew of when it asked.
    pub known_turn: u64,
    /// The part as it is now.
    pub part: BulkPart,
    /// How long the next turn has to wait.
    pub wait_ms: i64,
}

document! {
    /// How far a job has come in one partition.
    pub struct BulkPart {
        /// The job.
        "i" job: BulkId,
        /// Executions that changed after this instant of the partition's clock are left alone.
        "b" before: i64,
        /// How many may be changed here.
        "a" allowed: u64,
        /// How many turns it has had.
        "n" turn: u64,
        /// Everything that was created before this instant has been looked at.
        "at" cursor_at: i64,
        /// And what was created at it, up to this one.
        "id" cursor: Option<ExecutionId>,
        /// Counts of the executions looked at, by what became of each.
        "c" counts: BulkCounts,
        /// There is nothing left to look at.
        "f" finished: bool,
        /// More matches than it may change.
        "m" reached_max: bool,
        /// The next turn is not before this instant.
        "w" not_before: i64,
        /// When the engine looks whether the job is still there. A store that forgot the job leaves the part alone.
        "l" look_at: i64,
    }
}

impl Document for BulkPart {
    const KIND: u8 = kind::BULK_PART;
    crate::encoding::compiled_here!();
}

impl Indexed for BulkPart {
    fn key(&self) -> Key {
        Self::key_of(&self.job)
    }

    fn index_entries(&self, _: i64) -> Vec<Entry> {
        vec![Due::Timer.entry(&self.key(), self.look_at)]
    }
}

impl BulkPart {
    /// Where the part of a job lives in each flow partition.
    pub fn key_of(job: &BulkId) -> Key {
        Key::new(kind::BULK_PART, &[job.as_bytes()])
    }

    /// The part of a partition that the job comes to; `before` is when the job began, by the partition's clock.
    pub fn begin(job: &BulkJob, before: i64, now: i64) -> Self {
        let allowed = job.max.saturating_sub(job.settled.matched);
        let mut part = Self { job: job.id, before, allowed, cursor_at: i64::MIN, ..Default::default() };
        part.job_is_there(now);
        part
    }

    /// Its job is still there, so that it stays as well.
    pub fn job_is_there(&mut self, now: i64) {
        self.look_at = now + limits::BULK_PART_LOOK_MS;
    }

    /// How many more it may change.
    pub fn room(&self) -> u64 {
        self.allowed.saturating_sub(self.counts.matched)
    }

    /// Looks at an execution: it is not looked at again.
    pub fn pass(&mut self, created_at: i64, id: ExecutionId) {
        self.counts.examined += 1;
        self.cursor_at = created_at;
        self.cursor = Some(id);
    }

    /// Counts what became of a matching execution.
    pub fn settle(&mut self, execution: ExecutionId, changed: Result<bool, &Error>) {
        self.counts.matched += 1;
        match changed {
            Ok(true) => self.counts.done += 1,
            Ok(false) => self.counts.unchanged += 1,
            Err(error) => self.counts.refuse(execution, error.code),
        }
    }

    /// So many were changed in this turn; says how long the next one has to wait.
    pub fn end_turn(&mut self, changed: u64, rate_per_second: u32, now: i64) -> i64 {
        self.turn += 1;
        if rate_per_second != 0 {
            let spent = changed.saturating_mul(1_000).div_ceil(u64::from(rate_per_second));
            self.not_before = self.not_before.max(now).saturating_add(i64::try_from(spent).unwrap_or(i64::MAX));
        }
        self.wait_ms(now)
    }

    /// How long it has to wait for its next turn.
    pub fn wait_ms(&self, now: i64) -> i64 {
        (self.not_before - now).max(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(max: u64, partitions: std::ops::Range<u32>) -> BulkJob {
        let new = NewBulkJob {
            id: BulkId::default(),
            namespace: "n".into(),
            filter: b"{}".to_vec().into(),
            change: BulkChange::default(),
            dry_run: false,
            max,
            rate_per_second: 0,
            created_by: "somebody".into(),
            partitions,
        };
        BulkJob::create(new, 1_000)
    }

    fn id(number: u128) -> ExecutionId {
        ExecutionId { partition: 0, uuid: uuid::Uuid::from_u128(number) }
    }

    fn report(partition: u32, part: &BulkPart) -> BulkReport {
        BulkReport { partition, known_turn: 0, part: part.clone(), wait_ms: 0 }
    }

    #[test]
    fn a_job_goes_through_its_partitions_and_sums_them_up() {
        let mut job = job(10, 2..4);
        for partition in 2..4 {
            let mut part = BulkPart::begin(&job, 1_000, 1_000);
            part.pass(5, id(1));
            part.settle(id(1), Ok(true));
            part.end_turn(1, 0, 1_010);
            job.take_turn(&report(partition, &part), 0, 1_010);
            assert_eq!(job.counts().done, u64::from(partition - 2) + 1);
            part.finished = true;
            job.take_turn(&report(partition, &part), 0, 1_020);
            // A report that comes again, or late, is counted once.
            job.take_turn(&report(partition, &part), 0, 1_030);
        }
        assert_eq!((job.state, job.counts().done, job.ended_at), (BulkState::Completed, 2, 1_020));
        assert_eq!(job.next_at, 1_020 + limits::BULK_KEPT_MIN_MS);
    }

    #[test]
    fn a_part_that_ended_after_fewer_turns_than_are_known_moves_the_job_on() {
        let mut job = job(10, 0..1);
        let begun = BulkPart::begin(&job, 1_000, 1_000);
        job.take_turn(&report(0, &BulkPart { turn: 5, ..begun.clone() }), 0, 1_100);
        // The partition forgot its turns, and found nothing to do when it began anew.
        let last = report(0, &BulkPart { turn: 1, finished: true, ..begun });
        job.take_turn(&last, 0, 1_200);
        assert_eq!(job.turn, 5, "whoever asked before those turns is late");
        job.take_turn(&BulkReport { known_turn: 5, ..last }, 0, 1_200);
        assert_eq!(job.state, BulkState::Completed);
    }

    #[test]
    fn an_older_report_of_the_same_part_changes_nothing() {
        let mut job = job(10, 0..1);
        let mut part = BulkPart::begin(&job, 1_000, 1_000);
        part.settle(id(1), Ok(true));
        part.end_turn(1, 0, 1_000);
        let early = part.clone();
        part.settle(id(2), Ok(true));
        part.end_turn(1, 0, 1_000);
        job.take_turn(&report(0, &part), 0, 1_000);
        job.take_turn(&report(0, &early), 0, 1_000);
        assert_eq!((job.counts().done, job.turn), (2, 2));
    }

    #[test]
    fn what_is_allowed_counts_over_all_partitions() {
        let mut job = job(3, 0..4);
        let mut part = BulkPart::begin(&job, 1_000, 1_000);
        part.settle(id(1), Ok(true));
        part.settle(id(2), Err(&Error::of(Code::InUse)));
        part.finished = true;
        job.take_turn(&report(0, &part), 0, 1_000);
        let mut part = BulkPart::begin(&job, 1_000, 1_000);
        assert_eq!(part.room(), 1);
        part.settle(id(3), Ok(false));
        assert_eq!(part.room(), 0);
        (part.finished, part.reached_max) = (true, true);
        job.take_turn(&report(1, &part), 0, 1_000);
        assert_eq!((job.state, job.partition), (BulkState::Completed, 2));
        let counts = job.counts();
        assert_eq!((counts.matched, counts.done, counts.unchanged, counts.refused_total()), (3, 1, 1, 1));
        assert_eq!((counts.refused["in_use"], counts.refusals.len()), (1, 1));
    }

    #[test]
    fn refusals_are_counted_all_and_listed_up_to_a_number() {
        let mut part = BulkPart::default();
        let more = limits::BULK_REFUSALS_KEPT as u128 + 5;
        for number in 0..more {
            part.settle(id(number), Err(&Error::of(Code::InUse)));
        }
        let both = part.counts.plus(&part.counts);
        assert_eq!(u128::from(both.refused_total()), 2 * more);
        assert_eq!(both.refusals.len(), limits::BULK_REFUSALS_KEPT);
    }

    #[test]
    fn a_rate_lets_the_next_turn_wait() {
        let mut part = BulkPart::default();
        assert_eq!(part.end_turn(50, 0, 1_000), 0);
        assert_eq!(part.end_turn(50, 100, 1_000), 500);
        assert_eq!((part.wait_ms(1_200), part.wait_ms(2_000)), (300, 0));
        assert_eq!(part.end_turn(1, 3, 2_000), 334);
    }

    #[test]
    fn a_cancelled_job_ends_with_what_its_part_did_last() {
        let mut job = job(10, 0..5);
        assert!(job.cancel(1_100));
        assert!(!job.cancel(1_200));
        let mut part = BulkPart::begin(&job, 1_000, 1_000);
        part.settle(id(1), Ok(true));
        part.finished = true;
        job.take_turn(&report(0, &part), 0, 1_300);
        assert_eq!((job.state, job.counts().done), (BulkState::Cancelled, 1));
        assert!(!job.cancel(1_400));
        assert_eq!(BulkJob::decode(&job.encode()).unwrap(), job);
        assert_eq!(BulkPart::decode(&part.encode()).unwrap(), part);
    }
}
