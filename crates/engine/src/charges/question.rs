//! Whether something waits for the answer to the question of a budget.

use ff_core::budget::Budget;
use ff_core::execution::Execution;
use ff_core::gate::Gate;
use ff_core::{Result, index};

use crate::transaction::Transactor;

/// Whether an execution waits for the answer: everything that did may have ended. The one that met the limit first usually
/// does, so that one read decides.
pub(crate) async fn is_awaited(transactor: &Transactor, budget: &Budget) -> Result<bool> {
    let gate = Gate::Budget(&budget.name).to_string();
    if let Some(id) = &budget.question.execution {
        let found = transactor.find::<Execution>(id.partition(), Execution::key_of(id)).await?;
        if found.is_some_and(|execution| execution.asks_budget() && execution.parked_on == gate) {
            return Ok(true);
        }
    }
    let waiting = index::blocked(&budget.namespace, &gate);
    for place in budget.parked_in.places(transactor.partitions()) {
        if transactor.store().count(place, waiting.clone(), i64::MIN, i64::MAX).await? > 0 {
            return Ok(true);
        }
    }
    Ok(false)
}
