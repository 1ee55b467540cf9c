//! The answer of one call of `ff_commit_2` becomes the outcomes of its batches.

use std::collections::HashMap;

use ff_core::{CommandId, Key, LeaseEpoch, LeaseId};
use ff_store::{AppliedBatch, Batch, Conflict, ConflictReason, Fence, Guard, Outcome, Result, StoreError};
use tokio_postgres::Row;

use crate::commit::{Call, Number};
use crate::rows::ConflictRow;

/// The outcome of a call.
pub(crate) enum Answer {
    /// The outcomes, in order.
    Done(Vec<Outcome>, i64),
    /// Nothing was done, because these logs are counted.
    Recount(Vec<Key>),
}

impl Call<'_> {
    /// Reads the answer of the function.
    pub(crate) fn answer(&self, row: &Row) -> Result<Answer> {
        if let Some(logs) = get::<Option<Vec<Vec<u8>>>>(row, "recount")? {
            return Ok(Answer::Recount(logs.into_iter().map(Key::from_bytes).collect()));
        }
        let refusals = Refusals::read(self, row)?;
        let event_first: Option<i64> = get(row, "event_first")?;
        let mut guard_rows = self.guard_rows.as_slice();
        let mut numbers = self.numbers.as_slice();
        let mut outcomes = Vec::with_capacity(self.batches.len());
        for (number, batch) in (0..).zip(self.batches) {
            let (rows, numbered);
            (rows, guard_rows) = guard_rows.split_at(batch.guards.len());
            (numbered, numbers) = numbers.split_at(batch.appends.len());
            let conflict = refusals.of(number, batch, rows)?;
            let sequences = numbered.iter().map(|number| match *number {
                Number::Event(place) => event_first.map(|first| first + i64::from(place)),
                Number::Counted(place) => refusals.counted_next.get(place).copied(),
            });
            let sequences = sequences.map(|sequence| u64::try_from(sequence?).ok()).collect::<Option<_>>();
            outcomes.push(match conflict {
                Some(conflict) => Outcome::Conflict(conflict),
                None => Outcome::Applied(AppliedBatch { at: refusals.now, sequences: sequences.ok_or_else(strange)? }),
            });
        }
        Ok(Answer::Done(outcomes, refusals.now))
    }
}

/// Why some batches were not applied.
struct Refusals {
    now: i64,
    counted_next: Vec<i64>,
    /// What was found, by the row of the guards that do not hold.
    found: HashMap<usize, ConflictRow>,
    /// The logs that gave another number, by their batch.
    late: HashMap<i32, Conflict>,
}

impl Refusals {
    fn read(call: &Call<'_>, row: &Row) -> Result<Self> {
        let mut refusals = Self {
            now: get(row, "now")?,
            counted_next: get::<Option<Vec<i64>>>(row, "counted_next")?.unwrap_or_default(),
            found: HashMap::new(),
            late: HashMap::new(),
        };
        for found in get::<Option<Vec<ConflictRow>>>(row, "conflicts")?.unwrap_or_default() {
            refusals.found.insert(place(found.guard)?, found);
        }
        for late in get::<Option<Vec<i32>>>(row, "late")?.unwrap_or_default() {
            let late = place(late)?;
            let log = call.counted.get(late).ok_or_else(strange)?;
            let next = refusals.counted_next.get(late).and_then(|next| u64::try_from(*next).ok());
            let why = ConflictReason::Sequence(next.ok_or_else(strange)?);
            // A batch is told of the first of its logs.
            refusals.late.entry(log.batch).or_insert_with(|| Conflict { key: Some(Key::from_bytes(log.log)), why });
        }
        Ok(refusals)
    }

    /// The first guard of a batch that does not hold, or else its first log that gave another number. `rows` has the row
    /// of each guard.
    fn of(&self, number: i32, batch: &Batch, rows: &[usize]) -> Result<Option<Conflict>> {
        let mut refused = false;
        for (guard, row) in batch.guards.iter().zip(rows) {
            if let Some(found) = self.found.get(row) {
                refused = true;
                if let Some(why) = judge(guard, found, self.now) {
                    return Ok(Some(Conflict { key: guard.key().cloned(), why }));
                }
            }
        }
        if refused { Err(strange()) } else { Ok(self.late.get(&number).cloned()) }
    }
}

/// Why a guard does not hold; `None` if it does, and another one on the same document does not.
fn judge(guard: &Guard, found: &ConflictRow, now: i64) -> Option<ConflictReason> {
    if let Guard::NotAfter(limit) = guard {
        return (now > *limit).then_some(ConflictReason::TooLate(now));
    }
    let (Some(version), Some(epoch), Some(lease), Some(until)) =
        (found.version, found.epoch, found.lease_id, found.lease_until)
    else {
        return (!matches!(guard, Guard::Absent(_))).then_some(ConflictReason::Missing);
    };
    let fence = Fence { epoch: LeaseEpoch(epoch.cast_unsigned()), lease: LeaseId(lease) };
    match guard {
        Guard::Absent(_) => Some(ConflictReason::Exists(CommandId(version))),
        Guard::Version(_, wanted) => (wanted.0 != version).then_some(ConflictReason::Version(CommandId(version))),
        Guard::Fence(_, wanted) => (*wanted != fence).then_some(ConflictReason::Fence(fence)),
        Guard::Live(_) => (until <= now).then_some(ConflictReason::LeaseOver(until)),
        Guard::Expired(_) => (until > now).then_some(ConflictReason::LeaseHolds(until)),
        Guard::NotAfter(_) => None,
    }
}

/// A place in a list, from its number, which begins at 1.
fn place(number: i32) -> Result<usize> {
    usize::try_from(number).ok().and_then(|number| number.checked_sub(1)).ok_or_else(strange)
}

fn get<'r, T: tokio_postgres::types::FromSql<'r>>(row: &'r Row, column: &str) -> Result<T> {
    row.try_get(column).map_err(|error| StoreError::Corrupt(crate::error::text(&error)))
}

fn strange() -> StoreError {
    StoreError::Corrupt("ff_commit_2 gave an answer that does not fit its question".into())
}
