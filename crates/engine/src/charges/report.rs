//! Reports of usage: what was spent is counted once for each dedup key.

use ff_core::budget::{Amounts, Budget};
use ff_core::idempotency::{CommandRecord, Identity};
use ff_core::planted::{Bug, planted};
use ff_core::reservation::ReservationId;
use ff_core::usage::{self, ReportUsageResult};
use ff_core::{Blob, Code, Error, ExecutionId, Indexed, Key, Result, limits};

use super::{Call, Charged, Ledger, path_to};
use crate::transaction::Tx;

/// The amounts that were spent.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub(crate) usage: Amounts,
    /// Empty for none.
    pub(crate) dedup_key: String,
    /// The execution whose holder reports; its dedup keys are its own.
    pub(crate) execution: Option<ExecutionId>,
    /// The estimate of the lease, which gives up what it holds of the usage.
    pub(crate) estimate: Option<ReservationId>,
    /// Charge only the dimensions that the budget has, and nothing if it has none of them.
    pub(crate) only_known: bool,
}

impl Report {
    /// The identity by which a repeated report is recognised; none without a dedup key.
    pub(super) fn identity(&self, budget: &Key, kept_ms: i64) -> Option<Identity> {
        let Report { dedup_key, execution, .. } = self;
        (!dedup_key.is_empty()).then(|| usage::identity(budget, execution.as_ref(), dedup_key, kept_ms))
    }
}

impl Ledger {
    pub(super) fn report(&mut self, tx: &mut Tx<'_>, call: &Call, report: &Report) -> Result<Charged> {
        let named = Budget::key_of(&self.namespace, &call.budget);
        if let Some(answer) = self.known(call, report, &named)? {
            return Ok(Charged::Reported(answer));
        }
        let lowest = self.lowest(tx, call)?;
        let path = path_to(&mut self.budgets, &lowest)?;
        let known = report.only_known.then(|| path.counted_amounts(&report.usage));
        if known.as_ref().is_some_and(Amounts::is_empty) {
            return Ok(Charged::Nothing);
        }
        let usage = known.as_ref().unwrap_or(&report.usage);
        let drawn = self.draw(report.estimate.as_ref(), usage, tx.now)?;
        let reported = path_to(&mut self.budgets, &lowest)?.report(usage, tx.now);
        if !matches!(reported, Ok((_, true))) {
            self.undo_draw(drawn)?;
        }
        let (answer, counted) = reported?;
        // A report that was refused leaves its dedup key free.
        let keyed = report.identity(&named, tx.transactor.options().dedup_window_ms).filter(|_| counted);
        let (record, kept_ms) = call.record(&keyed.unwrap_or_else(|| call.own_identity()), &answer);
        tx.create_until(&record, tx.now + kept_ms);
        self.evidence.insert(record.key(), record);
        Ok(Charged::Reported(answer))
    }

    /// The answer, where the report was counted before: its own by this very call, `already_applied` by another.
    fn known(&self, call: &Call, report: &Report, budget: &Key) -> Result<Option<ReportUsageResult>> {
        let keyed = report.identity(budget, 0).and_then(|identity| self.evidence.get(&identity.key()));
        let keyed = keyed.filter(|_| !planted(Bug::UsageDedupIgnored));
        let Some(record) = keyed.or_else(|| self.evidence.get(&call.own_identity().key())) else { return Ok(None) };
        if *record.request != call.id.as_bytes()[..] {
            return Ok(Some(ReportUsageResult::AlreadyApplied));
        }
        let answer = serde_json::from_slice(&record.answer);
        answer.map(Some).map_err(|error| Error::new(Code::CorruptDocument, format!("a kept answer: {error}")))
    }
}

impl Call {
    /// The identity by which the engine knows this very call.
    pub(super) fn own_identity(&self) -> Identity {
        Identity::new("usage", &[self.id.as_bytes()], limits::OWN_EVIDENCE_MS)
    }

    /// The evidence of this call, and how long it lasts.
    fn record(&self, identity: &Identity, answer: &ReportUsageResult) -> (CommandRecord, i64) {
        let answer = serde_json::to_vec(answer).expect("an answer holds only types that JSON can express");
        let record = CommandRecord { request: Blob::from(self.id.as_bytes().to_vec()), ..identity.record(answer) };
        (record, identity.kept_ms)
    }
}
