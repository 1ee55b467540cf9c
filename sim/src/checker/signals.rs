//! `signals_once`: one accepted signal for each waitpoint and idempotency key, and none with a forged token. Clients
//! write the key into the correlation id, so that a document says which key it was accepted under.

use ff_core::encoding::Document;
use ff_core::execution::Execution;
use ff_core::{AcceptedSignal, Key, Partition, SignalId};
use ff_store::memory::RawDocument;

use super::Checker;
use crate::invariant::Invariant;

/// The beginning of the correlation id of a signal with a wrong token.
pub(crate) const FORGED: &str = "forged";

impl Checker {
    /// A signal was written or removed.
    pub(super) fn signal_changed(&mut self, partition: Partition, key: &Key, after: Option<&RawDocument>) {
        let Some(signal) = after.and_then(|raw| AcceptedSignal::decode(&raw.body).ok()) else { return };
        let forged = signal.correlation_id.starts_with(FORGED);
        self.expect(!forged, Invariant::SignalsOnce, || format!("{key:?} was accepted with a forged token"));
        let place = (signal.waitpoint, signal.correlation_id.clone());
        let (first, _) = *self.facts.signals.entry(place).or_insert((signal.id, partition));
        self.expect(first == signal.id, Invariant::SignalsOnce, || {
            format!("{first} and {} were both accepted for {:?}", signal.id, signal.correlation_id)
        });
        self.facts.accepted.insert(signal.id, partition);
    }

    /// Signals that resumed an execution were accepted, each once.
    pub(super) fn check_resume_signals(&mut self, document: &Execution) {
        let signals: std::collections::BTreeSet<SignalId> = document.resume_signals.iter().copied().collect();
        let distinct = signals.len() == document.resume_signals.len();
        self.expect(distinct, Invariant::SignalsOnce, || format!("{} was resumed by one signal twice", document.id));
    }

    /// A caller was told that a signal was accepted.
    pub(crate) fn acknowledged_signal(&mut self, signal: SignalId) {
        let known = self.facts.accepted.contains_key(&signal);
        self.expect(known, Invariant::AcknowledgedSurvives, || {
            format!("signal {signal} was acknowledged and never stored")
        });
    }
}
