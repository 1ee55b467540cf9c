//! Planted bugs of a store: what it may do wrong between a commit or a read and its answer. Without a bug that is
//! switched on everything passes through unchanged.

use std::sync::{Mutex, PoisonError};

use ff_core::index::kind;
use ff_core::planted::{Bug, planted};
use ff_core::{Key, Partition};
use ff_store::{
    Answer, Answers, AppliedBatch, Batch, EntryChange, Guard, Outcome, Put, Result, Store, StoreError, StoredDocument,
};

use crate::newer;
use crate::world::World;

/// Of a thousand calls that a bug could spoil, it spoils so many; a store that fails always is not a store.
const SPOILED: i64 = 60;
/// How far back a clock that runs backwards goes.
const BACK_MS: i64 = 1_500;
/// The log of events of a partition.
const EVENTS: &[u8] = b"E";

/// The documents of a commit that was never applied, for reads that show them.
#[derive(Debug, Default)]
pub(crate) struct Doomed(Mutex<Option<(Partition, Batch)>>);

/// Sends a batch to the store.
pub(crate) async fn commit(world: &World, partition: Partition, mut batch: Batch) -> Result<Vec<Outcome>> {
    let spoils = |bug| planted(bug) && world.chance(SPOILED);
    if planted(Bug::LastWriterWins) {
        last_writer_wins(world, partition, &mut batch);
    }
    if planted(Bug::SequenceNotJudged) {
        batch.appends.iter_mut().for_each(|append| append.expected = None);
    }
    if planted(Bug::UnknownKeysDropped) {
        let before = world.look_before(partition, &batch);
        for put in batch.puts.iter_mut().filter(|put| before.contains_key(&put.key)) {
            put.body = newer::without_unknown(&put.body);
        }
    }
    if planted(Bug::LateClaimLands) {
        batch.guards.retain(|guard| !matches!(guard, Guard::NotAfter(_)));
    }
    if planted(Bug::LeaseEntryStays) {
        lease_entry_stays(&mut batch);
    }
    if planted(Bug::EdgesNotRemoved) {
        batch.deletes.retain(|key| key.kind() != kind::EDGE);
        batch
            .entries
            .retain(|change| !matches!(change, EntryChange::Remove { member, .. } if member.kind() == kind::EDGE));
    }
    if spoils(Bug::EventsDropped) {
        batch.appends.retain(|append| append.log.as_bytes() != EVENTS);
    }
    if planted(Bug::HintsSilent) {
        batch.hints.clear();
    }
    if !batch.puts.is_empty() && spoils(Bug::WriteForgotten) {
        let at = world.store.now_in(partition);
        return Ok(vec![Outcome::Applied(AppliedBatch { at, sequences: vec![1; batch.appends.len()] })]);
    }
    if !batch.puts.is_empty() && !batch.entries.is_empty() && spoils(Bug::HalfApplied) {
        let half = Batch { entries: Vec::new(), appends: Vec::new(), hints: Vec::new(), leases: Vec::new(), ..batch };
        world.store.commit(partition, [half].into()).await?;
        return Err(StoreError::Unavailable("nothing was applied".into()));
    }
    world.store.commit(partition, [batch].into()).await
}

/// A commit does not reach the store.
pub(crate) fn lost(world: &World, partition: Partition, batches: &[Batch]) {
    if planted(Bug::DirtyRead)
        && let Some(batch) = batches.first()
    {
        *world.doomed.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((partition, batch.clone()));
    }
}

/// The answers to a read, with the defect that is planted.
pub(crate) fn read(world: &World, partition: Partition, mut answers: Answers) -> Answers {
    if planted(Bug::TimeRunsBack) && world.chance(SPOILED) {
        answers.at -= BACK_MS;
    }
    if planted(Bug::PagesEndEarly) {
        for answer in &mut answers.answers {
            if let Answer::Scan(page) = answer
                && page.entries.len() > 1
            {
                page.entries.pop();
            }
        }
    }
    if planted(Bug::DirtyRead) {
        let doomed = world.doomed.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((place, batch)) = &*doomed
            && *place == partition
        {
            for answer in &mut answers.answers {
                show_doomed(batch, answer);
            }
        }
    }
    answers
}

fn show_doomed(batch: &Batch, answer: &mut Answer) {
    let dirty = |key: &Key| batch.puts.iter().find(|put| put.key == *key);
    let Answer::Documents(documents) = answer else { return };
    for document in documents.iter_mut().flatten() {
        if let Some(Put { body, fence, .. }) = dirty(&document.key) {
            let StoredDocument { key, lease_until, .. } = document.clone();
            *document = StoredDocument { key, body: body.clone(), version: batch.command, fence: *fence, lease_until };
        }
    }
}

/// Guards ask for the version that is there, whichever it is.
fn last_writer_wins(world: &World, partition: Partition, batch: &mut Batch) {
    let before = world.look_before(partition, batch);
    for guard in &mut batch.guards {
        if let Guard::Version(key, version) = guard
            && let Some(found) = before.get(key)
        {
            *version = found.version;
        }
    }
}

/// A renewal moves the lease and leaves its entry in the index of what is due where it was.
fn lease_entry_stays(batch: &mut Batch) {
    let puts = &batch.puts;
    for lease in batch.leases.iter_mut().filter(|lease| !puts.iter().any(|put| put.key == lease.key)) {
        lease.member = Key::from_bytes([b"stray", lease.key.as_bytes()].concat());
    }
}
