//! Time and random values that are the same whenever the function is called again.

use std::sync::Arc;

use ff_core::JsonText;
use ff_core::journal::{StepEntry, StepIdentity, StepKind, StepState};
use ff_core::op::{GetDeployment, get_deployment};
use uuid::Uuid;

use super::book::{Call, Steps, entry};
use super::step::result_of;
use super::watcher::Moment;
use crate::task_error::TaskError;

impl Steps {
    /// The store's time at the first call of this name.
    pub(crate) fn now(self: &Arc<Self>, name: &str) -> impl Future<Output = Result<i64, TaskError>> + Send + use<> {
        let steps = self.clone();
        let call = self.call(name, None);
        async move { steps.now_once(call?).await }
    }

    async fn now_once(self: &Arc<Self>, call: Call) -> Result<i64, TaskError> {
        if let Some(known) = self.ended(&call.identity, StepKind::Now).await? {
            return result_of(&known);
        }
        self.reached(Moment::BeforeBody, &call.identity).await?;
        let _busy = self.busy();
        let now = self.task().client().call::<GetDeployment>(get_deployment::Args {}).await?.now;
        let read = StepEntry {
            kind: Some(StepKind::Now),
            result: Some(JsonText(now.to_string())),
            ..entry(&call.identity, StepState::Completed)
        };
        self.record(read).await?;
        Ok(now)
    }

    /// A number from 0 up to 1 that is the same for one name and key.
    pub(crate) fn random(&self, name: &str, key: Option<&str>) -> f64 {
        drawn(name, key).random(&self.task().execution_id(), self.task().details().generation)
    }

    /// A UUID that is the same for one name and key.
    pub(crate) fn uuid(&self, name: &str, key: Option<&str>) -> Uuid {
        drawn(name, key).uuid(&self.task().execution_id(), self.task().details().generation)
    }
}

/// The identity of a drawn value. It has no entry in the journal; the identity only tells one draw from another.
fn drawn(name: &str, key: Option<&str>) -> StepIdentity {
    StepIdentity { name: name.to_owned(), key: key.map(str::to_owned), occurrence: None }
}
