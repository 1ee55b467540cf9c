//! A cancelled flow tells its members, in chunks. What its policy leaves alone comes to its own end.

use ff_core::event::Effects;
use ff_core::execution::Execution;
use ff_core::flow::{CancelFlowPolicy, Flow, FlowCancellation};
use ff_core::{Code, Key, Partition, PublicState, Result, index, limits};
use ff_store::{Answer, Query, Scan};

use crate::engine::Engine;
use crate::op::flow::{cancel_member, end_if_complete, save_flow};
use crate::transaction::{Command, Tx};

/// Where members that have not ended may be.
const LIVE: [PublicState; 6] = [
    PublicState::Waiting,
    PublicState::Delayed,
    PublicState::RateLimited,
    PublicState::WaitingChildren,
    PublicState::Active,
    PublicState::Suspended,
];

/// Where one look at the members ended, for each state they may be in; none where all were seen.
type Positions = [Option<Option<(i64, Key)>>; LIVE.len()];

impl Engine {
    /// Carries out a flow's cancellation. A member may change its state between two looks, so they go on until one
    /// full look found nothing to do.
    pub(crate) async fn carry_out_cancellation(&self, partition: Partition, key: &Key) -> Result<()> {
        let mut chunk = limits::RESOLVE_CHUNK;
        let mut positions: Positions = [const { Some(None) }; LIVE.len()];
        let mut acted = false;
        loop {
            let verb = TellMembers { key, positions: &positions, chunk, may_finish: !acted };
            match self.transact(partition, self.fresh_command(), &verb).await {
                Ok(Told::Finished) => return Ok(()),
                Ok(Told::Page { next, acted: now }) => {
                    acted |= now;
                    positions = *next;
                    if positions.iter().all(Option::is_none) {
                        positions = [const { Some(None) }; LIVE.len()];
                        acted = false;
                    }
                }
                Err(error) if error.code == Code::CommitTooLarge && chunk > 1 => chunk /= 2,
                Err(error) => return Err(error),
            }
        }
    }
}

impl Engine {
    /// Does to one member, found in a queue, what the cancellation of its flow will do to all.
    pub(crate) async fn stop_with_flow(&self, member: &Execution) -> Result<()> {
        self.transact(member.id.partition(), self.fresh_command(), &TellOne { member }).await
    }
}

struct TellOne<'a> {
    member: &'a Execution,
}

impl Command for TellOne<'_> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(mut member) = tx.find_execution(&self.member.id).await? else { return Ok(()) };
        let Some(id) = member.flow.filter(|_| member.is_eligible()) else { return Ok(()) };
        let key = Flow::key_of(&id);
        let flow = tx.load::<Flow>(key.clone()).await?.map(|loaded| loaded.document);
        tx.pin(&key);
        match flow {
            Some(Flow { cancellation: Some(cancellation), .. }) => {
                tell(tx, member, &cancellation).await?;
            }
            Some(flow) if flow.admits_claims() => {}
            // A trace of damage: without a flow that goes on it must not run, nor stand in the way of others.
            _ => {
                if member.pause_with_flow("its flow is gone or has ended", tx.now) {
                    tx.save_execution(&member, Effects::default());
                }
            }
        }
        Ok(())
    }
}

enum Told {
    /// The flow's cancellation is complete.
    Finished,
    /// A page of members was told.
    Page { next: Box<Positions>, acted: bool },
}

/// One page of members.
struct TellMembers<'a> {
    key: &'a Key,
    positions: &'a Positions,
    chunk: usize,
    /// The look this page belongs to has not found anything to do so far.
    may_finish: bool,
}

impl Command for TellMembers<'_> {
    type Outcome = Told;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Told> {
        let Some(loaded) = tx.load::<Flow>(self.key.clone()).await? else { return Ok(Told::Finished) };
        let mut flow = loaded.document;
        let Some(cancellation) = flow.cancellation.clone() else { return Ok(Told::Finished) };
        let limit = (self.chunk / LIVE.len()).max(1);
        let open: Vec<usize> = (0..LIVE.len()).filter(|place| self.positions[*place].is_some()).collect();
        let scan = |place: &usize| {
            let mut scan = Scan::first(index::member(flow.id.uuid, LIVE[*place]), limit).with_documents();
            scan.after = self.positions[*place].clone().flatten();
            Query::Scan(scan)
        };
        let answers = tx.read(open.iter().map(scan).collect()).await?;
        let mut next: Positions = self.positions.clone();
        let mut acted = false;
        for (place, page) in open.into_iter().zip(answers.into_iter().filter_map(Answer::into_scan)) {
            let last = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
            next[place] = last.filter(|_| page.entries.len() == limit).map(Some);
            for entry in page.entries {
                if let Some(loaded) = tx.adopt_readable::<Execution>(entry.member, entry.document) {
                    acted |= tell(tx, loaded.document, &cancellation).await?;
                }
            }
        }
        let looked_at_all = next.iter().all(Option::is_none);
        if looked_at_all && !acted && self.may_finish {
            if flow.finish_cancellation() {
                end_if_complete(tx, &mut flow).await?;
                save_flow(tx, &flow);
            }
            return Ok(Told::Finished);
        }
        tx.pin(self.key);
        Ok(Told::Page { next: Box::new(next), acted })
    }
}

/// Tells one member; says whether that changed it.
async fn tell(tx: &mut Tx<'_>, mut member: Execution, cancellation: &FlowCancellation) -> Result<bool> {
    let mut effects = Effects::default();
    let changed = match cancellation.policy {
        CancelFlowPolicy::CancelAll => cancel_member(tx, &mut member, &cancellation.reason, &mut effects).await?,
        CancelFlowPolicy::CancelPending if member.has_started() => false,
        CancelFlowPolicy::CancelPending => cancel_member(tx, &mut member, &cancellation.reason, &mut effects).await?,
        CancelFlowPolicy::FlowOnly => member.pause_with_flow(&cancellation.reason, tx.now),
    };
    if changed {
        tx.save_execution(&member, effects);
    }
    Ok(changed)
}
