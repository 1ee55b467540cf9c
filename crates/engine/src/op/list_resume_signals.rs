//! Lists the signals that resumed the current attempt.

use bytes::Bytes;
use ff_core::execution::Execution;
use ff_core::op::ListResumeSignals;
use ff_core::op::list_resume_signals::{Args, Outcome};
use ff_core::{Blob, Key, Result, ResumeSignal, Signal, SignalId};
use ff_store::{Answer, Query};

use crate::engine::{Caller, Engine, Handle};

impl Handle<ListResumeSignals> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let (execution, _) = self.visible_execution(caller, &args.execution_id).await?;
        Ok(Outcome { items: self.resume_signals(&execution).await? })
    }
}

impl Engine {
    /// Signals with their payloads, in one round trip.
    pub(crate) async fn read_signals(&self, execution: &Execution, ids: &[SignalId]) -> Result<Vec<ResumeSignal>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<Key> = ids.iter().map(Signal::key_of).collect();
        let queries = vec![Query::Documents(keys.clone()), Query::Blobs(keys)];
        let mut answers = self.read(execution.id.partition(), queries).await?.answers.into_iter();
        let documents = answers.next().and_then(Answer::into_documents).unwrap_or_default();
        let blobs: Vec<Option<Bytes>> = answers.next().and_then(Answer::into_blobs).unwrap_or_default();
        let mut signals = Vec::with_capacity(ids.len());
        for (document, blob) in documents.into_iter().zip(blobs) {
            let signal = document.and_then(|stored| self.readable::<Signal>(&stored));
            signals.extend(signal.map(|signal| signal.into_resume_signal(blob.map(Blob))));
        }
        Ok(signals)
    }
}
