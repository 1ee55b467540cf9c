//! The answer of one call of `ff_commit` becomes the outcomes of its batches.

use std::collections::HashMap;

use ff_core::{CommandId, Key, LeaseEpoch, LeaseId};
use ff_store::{AppliedBatch, Conflict, ConflictReason, Fence, Guard, Outcome, Result, StoreError};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::commit::{Call, Number};

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
        let now: i64 = get(row, "now")?;
        let mut conflicts = self.conflicts(row, now)?;
        let event_first: Option<i64> = get(row, "event_first")?;
        let counted_next = get::<Option<Vec<i64>>>(row, "counted_next")?.unwrap_or_default();
        let mut numbers = self.appends.numbers.iter();
        let mut outcomes = Vec::with_capacity(self.batches.len());
        for (number, batch) in (0..).zip(self.batches) {
            let mut sequences = Vec::with_capacity(batch.appends.len());
            for number in numbers.by_ref().take(batch.appends.len()) {
                let sequence = match *number {
                    Number::Event(offset) => event_first.map(|first| first + i64::from(offset)),
                    Number::Counted(place) => counted_next.get(place).copied(),
                };
                sequences.push(sequence.and_then(|sequence| u64::try_from(sequence).ok()).ok_or_else(strange)?);
            }
            outcomes.push(match conflicts.remove(&number) {
                Some(conflict) => Outcome::Conflict(conflict),
                None => Outcome::Applied(AppliedBatch { at: now, sequences }),
            });
        }
        Ok(Answer::Done(outcomes, now))
    }

    fn conflicts(&self, row: &Row, now: i64) -> Result<HashMap<i32, Conflict>> {
        let mut conflicts = HashMap::new();
        if let Some(batches) = get::<Option<Vec<i32>>>(row, "conflict_batch")? {
            let guards: Vec<i32> = get(row, "conflict_guard")?;
            let missing: Vec<bool> = get(row, "conflict_missing")?;
            let versions: Vec<Option<Uuid>> = get(row, "conflict_version")?;
            let epochs: Vec<Option<i64>> = get(row, "conflict_epoch")?;
            let leases: Vec<Option<Uuid>> = get(row, "conflict_lease")?;
            let untils: Vec<Option<i64>> = get(row, "conflict_until")?;
            for (place, batch) in batches.into_iter().enumerate() {
                let ordinal = usize::try_from(guards[place]).map_err(|_| strange())?;
                let guard = ordinal.checked_sub(1).and_then(|index| self.guards.of.get(index)).ok_or_else(strange)?;
                let found = (!missing[place]).then_some(()).and_then(|()| {
                    let epoch = LeaseEpoch(epochs[place]?.cast_unsigned());
                    let fence = Fence { epoch, lease: LeaseId(leases[place]?) };
                    Some((CommandId(versions[place]?), fence, untils[place]?))
                });
                let why = match (guard, found) {
                    (Guard::NotAfter(_), _) => ConflictReason::TooLate(now),
                    (_, None) => ConflictReason::Missing,
                    (Guard::Absent(_), Some((version, _, _))) => ConflictReason::Exists(version),
                    (Guard::Version(..), Some((version, _, _))) => ConflictReason::Version(version),
                    (Guard::Fence(..), Some((_, fence, _))) => ConflictReason::Fence(fence),
                    (Guard::Live(_), Some((_, _, until))) => ConflictReason::LeaseOver(until),
                    (Guard::Expired(_), Some((_, _, until))) => ConflictReason::LeaseHolds(until),
                };
                conflicts.insert(batch, Conflict { key: guard.key().cloned(), why });
            }
        }
        if let Some(batches) = get::<Option<Vec<i32>>>(row, "late_batch")? {
            let logs: Vec<Vec<u8>> = get(row, "late_log")?;
            let next: Vec<i64> = get(row, "late_next")?;
            for ((batch, log), next) in batches.into_iter().zip(logs).zip(next) {
                let why = ConflictReason::Sequence(u64::try_from(next).map_err(|_| strange())?);
                conflicts.insert(batch, Conflict { key: Some(Key::from_bytes(log)), why });
            }
        }
        Ok(conflicts)
    }
}

fn get<'r, T: tokio_postgres::types::FromSql<'r>>(row: &'r Row, column: &str) -> Result<T> {
    row.try_get(column).map_err(|error| StoreError::Corrupt(crate::error::text(&error)))
}

fn strange() -> StoreError {
    StoreError::Corrupt("ff_commit gave an answer that does not fit its question".into())
}
