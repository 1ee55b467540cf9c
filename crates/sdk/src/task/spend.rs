//! Spending in two steps: an amount is held in the task's budgets before it is spent, so that tasks that race for the
//! same budget never pass its limit together.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ff_core::budget::Amounts;
use ff_core::op::{ReleaseSpend, ReserveSpend, SettleSpend, SettledSpend, release_spend, reserve_spend, settle_spend};

use super::ClaimedTask;
use crate::error::Result;
use crate::task_error::{TaskError, category};

/// The value of a piece of work, and the amounts it really spent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spent<T> {
    value: T,
    actual: Amounts,
}

impl<T> Spent<T> {
    /// A value and its cost, by dimension.
    pub fn new<'a>(value: T, actual: impl IntoIterator<Item = (&'a str, i64)>) -> Self {
        Self { value, actual: amounts(actual) }
    }
}

impl ClaimedTask {
    /// Holds amounts in the task's budgets. The same key under this lease is the same reservation. A refusal says how
    /// much is left and when it resets.
    pub async fn reserve<'a>(
        &self,
        key: impl Into<String>,
        estimate: impl IntoIterator<Item = (&'a str, i64)>,
        ttl: Option<Duration>,
    ) -> Result<reserve_spend::Outcome> {
        let args = reserve_spend::Args {
            execution_id: self.execution_id(),
            fence: self.fence(),
            amounts: amounts(estimate),
            key: key.into(),
            ttl_ms: ttl.map(|ttl| i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX)),
            budget: None,
        };
        self.core.call::<ReserveSpend>(args).await
    }

    /// Reports the amounts that were really spent of a reservation; returns the overrun in each budget that held it.
    pub async fn settle<'a>(
        &self,
        key: impl Into<String>,
        actual: impl IntoIterator<Item = (&'a str, i64)>,
    ) -> Result<BTreeMap<String, SettledSpend>> {
        self.settle_amounts(key.into(), amounts(actual)).await
    }

    /// Gives a reservation back, because nothing was spent.
    pub async fn release(&self, key: impl Into<String>) -> Result<()> {
        let (execution_id, fence) = (self.execution_id(), self.fence());
        self.core.call::<ReleaseSpend>(release_spend::Args { execution_id, fence, key: key.into() }).await.map(drop)
    }

    /// Reserves the estimate, does the work, and settles the amounts that it really spent.
    ///
    /// Without room in one of the task's budgets the work is not begun, and the task fails with the category
    /// [`BUDGET_REFUSED`](category::BUDGET_REFUSED). Work that fails counts as spent in full, unless its error says that nothing was done
    /// ([`TaskError::not_done`]); work that dies with its worker counts as spent in full, too.
    ///
    /// ```no_run
    /// # async fn call_model() -> Result<(String, i64), flowfabric::TaskError> { Ok((String::new(), 7)) }
    /// # async fn example(ctx: flowfabric::TaskContext) -> Result<String, flowfabric::TaskError> {
    /// use flowfabric::Spent;
    /// let answer = ctx.spend("model call", [("tokens", 2_000)], || async {
    ///     let (answer, tokens) = call_model().await?;
    ///     Ok(Spent::new(answer, [("tokens", tokens)]))
    /// });
    /// # answer.await
    /// # }
    /// ```
    pub async fn spend<'a, T, F>(
        &self,
        name: impl Into<String>,
        estimate: impl IntoIterator<Item = (&'a str, i64)>,
        work: impl FnOnce() -> F,
    ) -> Result<T, TaskError>
    where
        F: Future<Output = Result<Spent<T>, TaskError>>,
    {
        // A function may spend under the same name many times, so each reservation gets a number. Under another lease
        // everything is reserved anew.
        let number = self.core.spends.fetch_add(1, Ordering::Relaxed);
        let (name, estimate) = (name.into(), amounts(estimate));
        let key = format!("{name} #{number}");
        let asked = estimate.iter().map(|(dimension, amount)| (dimension.as_str(), *amount));
        let held = match self.reserve(&key, asked, None).await? {
            reserve_spend::Outcome::Reserved { budgets } => !budgets.is_empty(),
            reserve_spend::Outcome::Refused(refusal) => {
                let refused = format!(
                    "{name}: budget {} has {} {} left of {}, {} were asked for",
                    refusal.budget, refusal.left, refusal.dimension, refusal.limit, refusal.requested
                );
                return Err(TaskError::new(refused).category(category::BUDGET_REFUSED));
            }
            reserve_spend::Outcome::Unknown(variant) => {
                let unknown = format!("{name}: nothing is known to be reserved: {}", variant.json());
                return Err(TaskError::new(unknown).category(category::BUDGET_REFUSED));
            }
            // The task was released, and its function is called again when the question is answered.
            reserve_spend::Outcome::Asked { .. } => return Err(TaskError::released()),
        };
        let spent = work().await;
        match (&spent, held) {
            (_, false) => {}
            (Ok(spent), true) => drop(self.settle_amounts(key, spent.actual.clone()).await?),
            (Err(error), true) if error.is_not_done() => self.release(key).await?,
            (Err(_), true) => drop(self.settle_amounts(key, estimate).await?),
        }
        spent.map(|spent| spent.value)
    }

    async fn settle_amounts(&self, key: String, actual: Amounts) -> Result<BTreeMap<String, SettledSpend>> {
        let args = settle_spend::Args { execution_id: self.execution_id(), fence: self.fence(), key, actual };
        Ok(self.core.call::<SettleSpend>(args).await?.budgets)
    }
}

fn amounts<'a>(amounts: impl IntoIterator<Item = (&'a str, i64)>) -> Amounts {
    amounts.into_iter().map(|(dimension, amount)| (dimension.to_owned(), amount)).collect()
}
