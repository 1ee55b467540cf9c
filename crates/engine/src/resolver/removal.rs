//! A flow past its retention goes, and its members and edges with it: in chunks, the flow last.

use ff_core::execution::Execution;
use ff_core::flow::Flow;
use ff_core::index::Due;
use ff_core::{Code, Edge, Error, Indexed, Key, Partition, PublicState, Result, index, limits};
use ff_store::{Answer, Query, Scan};

use crate::engine::Engine;
use crate::hint::Item;
use crate::op::remove_execution;
use crate::transaction::{Command, Tx};

/// Members removed by one commit.
const MEMBERS_AT_ONCE: usize = 32;

impl Engine {
    /// Removes a flow that is due, if it is.
    pub(crate) async fn fire_flow(&self, partition: Partition, key: &Key, score: i64) -> Result<()> {
        let mut members = MEMBERS_AT_ONCE;
        loop {
            let verb = Remove { key, score, members };
            match self.transact(partition, self.fresh_command(), &verb).await {
                Ok(Removed::Nothing) => return Ok(()),
                Ok(Removed::Some) => {}
                Ok(Removed::Owed(execution)) => {
                    self.resolve_soon(partition, execution);
                    let detail = "a member still owes something elsewhere and cannot be removed yet";
                    return Err(Error::new(Code::Contention, detail));
                }
                Err(error) if error.code == Code::CommitTooLarge && members > 1 => members /= 2,
                Err(error) => return Err(error),
            }
        }
    }
}

enum Removed {
    /// The flow is gone, or stays.
    Nothing,
    /// A part of it is gone.
    Some,
    /// This member must give something back first.
    Owed(Key),
}

struct Remove<'a> {
    key: &'a Key,
    score: i64,
    members: usize,
}

impl Command for Remove<'_> {
    type Outcome = Removed;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Removed> {
        let Some(loaded) = tx.load::<Flow>(self.key.clone()).await? else {
            tx.remove_stray(self.key, Due::Timer.entry(self.key, self.score)).await?;
            return Ok(Removed::Nothing);
        };
        let flow = loaded.document;
        match flow.ended.as_ref().and_then(|end| end.retain_until) {
            Some(until) if until <= tx.now => {}
            next => {
                crate::timers::repair_due(tx, self.key, next, self.score).await?;
                return Ok(Removed::Nothing);
            }
        }
        tx.relief();
        tx.pin(self.key);
        let scan = |state: &PublicState| {
            Query::Scan(Scan::first(index::member(flow.id.uuid, *state), self.members).with_documents())
        };
        let answers = tx.read(PublicState::ALL.iter().map(scan).collect()).await?;
        let pages = answers.into_iter().filter_map(Answer::into_scan).flat_map(|page| page.entries);
        let mut empty = true;
        for entry in pages.take(self.members) {
            empty = false;
            let Some(loaded) = tx.adopt::<Execution>(entry.member.clone(), entry.document)? else { continue };
            let member = loaded.document;
            if !member.owed_slots.is_empty() {
                return Ok(Removed::Owed(entry.member));
            }
            if remove_edges(tx, &member).await? {
                remove_execution(tx, &member).await?;
            }
        }
        if empty {
            tx.delete(self.key);
            tx.hint(Item::Changed(self.key.clone()));
        }
        Ok(Removed::Some)
    }
}

/// Removes the edges of a member, as many as one look finds; says whether that was all.
async fn remove_edges(tx: &mut Tx<'_>, member: &Execution) -> Result<bool> {
    let scans = [index::edges_from(member.id.uuid), index::edges_to(member.id.uuid)]
        .map(|index| Query::Scan(Scan::first(index, limits::RESOLVE_CHUNK).with_documents()));
    let mut all = true;
    for page in tx.read(scans.to_vec()).await?.into_iter().filter_map(Answer::into_scan) {
        all &= page.entries.len() < limits::RESOLVE_CHUNK;
        for entry in page.entries {
            if let Some(loaded) = tx.adopt::<Edge>(entry.member, entry.document)? {
                tx.delete(&loaded.document.key());
            }
        }
    }
    if !all {
        tx.pin(&member.key());
    }
    Ok(all)
}
