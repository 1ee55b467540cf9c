//! The work of a marked flow, one bounded commit at a time: telling its members of its cancellation, or removing it
//! together with them.

use ff_core::flow::{Flow, FlowFired};
use ff_core::index::Due;
use ff_core::{Code, Error, Indexed, Key, Partition, Result};

use super::Resolver;
use super::cancellation::{Look, tell_members};
use super::queue::Progress;
use super::removal::remove_some;
use crate::flow::save_flow;
use crate::hint::Item;
use crate::schedule;
use crate::transaction::{Command, Tx};

/// The effect of one commit on a flow.
pub(super) enum FlowStep {
    /// It has nothing more to do.
    Done,
    /// Members were told; the pass over them goes on from here.
    Told(Look),
    /// Its schedule was told of its end; the rest comes in its next turn.
    ScheduleTold,
    /// A part of it is gone.
    Removed,
    /// Nothing more can be removed before these members have given slots back.
    Owed(Vec<Key>),
}

impl Resolver {
    /// One commit for a flow. If more is to be done, it queues again.
    pub(super) async fn flow_turn(&self, partition: Partition, key: Key, progress: Progress) {
        let chunk = progress.chunk(self.marks.chunk());
        let verb = FlowTurn { key: &key, look: progress.look.as_ref(), chunk };
        match self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await {
            Ok(FlowStep::Done) => self.marks.succeeded(partition, &key),
            Ok(FlowStep::Told(look)) => {
                self.marks.again(partition, key, Progress { look: Some(look), ..progress });
            }
            Ok(FlowStep::ScheduleTold | FlowStep::Removed) => self.marks.again(partition, key, progress),
            Ok(FlowStep::Owed(members)) => {
                for member in members {
                    self.resolve_soon(partition, member);
                }
                let detail = "members still owe something elsewhere and cannot be removed yet";
                self.try_again_later(partition, vec![key], &Error::new(Code::Contention, detail));
            }
            Err(error) if error.code == Code::CommitTooLarge && chunk > 1 => {
                self.marks.again(partition, key, Progress { chunk: Some(chunk / 2), ..progress });
            }
            Err(error) => self.try_again_later(partition, vec![key], &error),
        }
    }

    /// Fires the timer of a flow: its removal begins, or the members that its cancellation only paused are to be
    /// cancelled. Both leave a mark.
    pub(crate) async fn fire_flow(&self, partition: Partition, key: &Key, score: i64) -> Result<()> {
        self.transactor.transact(partition, self.transactor.fresh_command(), &Fire { key, score }).await
    }
}

struct FlowTurn<'a> {
    key: &'a Key,
    look: Option<&'a Look>,
    /// Members, edges and other things in this commit.
    chunk: usize,
}

impl Command for FlowTurn<'_> {
    type Outcome = FlowStep;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<FlowStep> {
        let Some(loaded) = tx.load::<Flow>(self.key.clone()).await? else { return Ok(FlowStep::Done) };
        let mut flow = loaded.document;
        if flow.owes_schedule() {
            // The schedule is told before anything of the flow is removed.
            schedule::tell_of_flow(tx, &mut flow).await?;
            return Ok(FlowStep::ScheduleTold);
        }
        match flow.cancellation.clone() {
            _ if flow.removing => remove_some(tx, &flow, self.chunk).await,
            Some(cancellation) if cancellation.outstanding => {
                let look = self.look.cloned().unwrap_or_else(|| Look::begin(&cancellation));
                tell_members(tx, flow, &cancellation, look, self.chunk).await
            }
            _ => Ok(FlowStep::Done),
        }
    }
}

struct Fire<'a> {
    key: &'a Key,
    score: i64,
}

impl Command for Fire<'_> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(loaded) = tx.load::<Flow>(self.key.clone()).await? else {
            tx.remove_stray(self.key, Due::Timer.entry(self.key, self.score)).await?;
            return Ok(());
        };
        let mut flow = loaded.document;
        match flow.fire(tx.now) {
            FlowFired::Nothing => tx.repair_due(self.key, flow.next_timer(), self.score).await?,
            FlowFired::Lapsed => save_flow(tx, &flow),
            FlowFired::Removing => {
                tx.relief();
                if flow.node_count == 0 {
                    tx.delete(&flow.key());
                    tx.hint(Item::Changed(flow.key()));
                } else {
                    save_flow(tx, &flow);
                }
            }
        }
        Ok(())
    }
}
