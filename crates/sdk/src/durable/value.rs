//! Time and chance, the same whenever the function is called again.

use std::sync::Arc;

use ff_core::JsonText;
use ff_core::journal::{StepEntry, StepIdentity, StepKind, StepState};
use ff_core::op::{GetDeployment, get_deployment};
use uuid::Uuid;

use super::book::{Call, Steps, entry};
use super::step::result_of;
use super::watcher::Moment;
use crate::runtime::TaskError;

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

    /// Bits that nobody can guess who does not know the execution, and that are the same for one name.
    pub(crate) fn drawn(&self, name: &str) -> Uuid {
        let identity = StepIdentity { name: name.to_owned(), key: None, occurrence: None };
        identity.drawn(&self.task().execution_id(), self.task().details().generation)
    }
}
