//! Events about budgets. The commit that passes a limit leaves the event with the budget; here it gets into the log of the
//! flow partition that the budget's name decides, once, whatever crashes in between.

use ff_core::budget::Budget;
use ff_core::event::{Effects, Event};
use ff_core::idempotency::Identity;
use ff_core::{ExecutionId, Indexed, Result, limits};

use crate::transaction::{Command, Transactor, Tx};

/// Writes what a budget owes to the log of events. The budget's timer does it again if this fails.
pub(crate) fn tell_soon(transactor: &Transactor, namespace: &str, name: &str) {
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    let through = transactor.clone();
    transactor.spawn_short(async move {
        let partition = through.partitions().budget_partition(&namespace, &name);
        let key = Budget::key_of(&namespace, &name);
        let told = match through.find::<Budget>(partition, key).await {
            Ok(Some(budget)) => tell_breaches(&through, budget).await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = told {
            tracing::warn!(%namespace, %name, %error, "an event about a budget is not told yet");
        }
    });
}

/// Writes what a budget owes to the log of events, and lets the budget forget it.
pub(crate) async fn tell_breaches(transactor: &Transactor, mut budget: Budget) -> Result<()> {
    let log_partition = budget.events_partition(transactor.partitions());
    let partition = transactor.partitions().budget_partition(&budget.namespace, &budget.name);
    loop {
        let (first, events) = budget.owed_events();
        if events.is_empty() {
            return Ok(());
        }
        let identity = identity_of(&budget, first);
        let verb = Tell { first, events };
        let below = transactor.transact_once(log_partition, Some(identity), &verb).await?;
        let verb = EventsWritten { budget: &budget, below };
        match transactor.transact_in_turn(partition, budget.key(), &verb).await? {
            Some(left) => budget = left,
            None => return Ok(()),
        }
    }
}

/// The identity of the events from this number on. A budget that is made anew under an old name has its own.
fn identity_of(budget: &Budget, first: u64) -> Identity {
    let parts: [&[u8]; 4] =
        [budget.namespace.as_bytes(), budget.name.as_bytes(), &budget.created_at.to_be_bytes(), &first.to_be_bytes()];
    Identity::new("breached", &parts, limits::DEDUP_WINDOW_MS)
}

struct Tell {
    first: u64,
    events: Vec<Event>,
}

impl Command for Tell {
    type Outcome = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64> {
        let below = self.first + self.events.len() as u64;
        // Nothing here is about an execution, so that no history is written.
        tx.apply(&ExecutionId::default(), Effects { events: self.events.clone(), ..Default::default() });
        Ok(below)
    }
}

/// The events below a number stand in the log. Answers with the budget if it owes more.
struct EventsWritten<'a> {
    budget: &'a Budget,
    below: u64,
}

impl Command for EventsWritten<'_> {
    type Outcome = Option<Budget>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Budget>> {
        let Some(loaded) = tx.load::<Budget>(self.budget.key()).await? else { return Ok(None) };
        let mut budget = loaded.document;
        if budget.created_at != self.budget.created_at {
            return Ok(None);
        }
        if budget.events_told(self.below, tx.now) {
            tx.save(&budget);
        }
        Ok(Some(budget).filter(|budget| !budget.breaches.owed.is_empty()))
    }
}
