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
        let (known, names) = self.known(call, report)?;
        if let Some(answer) = known.filter(|_| names.is_empty()) {
            return Ok(Charged::Reported(answer, call.names().cloned().collect()));
        }
        let lowest = self.lowest(tx, call, names.iter())?;
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
        let dedup_ms = tx.transactor.options().dedup_window_ms;
        let there = names.iter().filter(|name| self.budgets.contains_key(*name));
        let named = there.map(|name| Budget::key_of(&self.namespace, name)).filter(|_| counted);
        let mut identities: Vec<Identity> = named.filter_map(|named| report.identity(&named, dedup_ms)).collect();
        if identities.is_empty() {
            identities.push(call.own_identity());
        }
        for identity in identities {
            let (record, kept_ms) = call.record(&identity, &answer);
            tx.create_until(&record, tx.now + kept_ms);
            self.evidence.insert(record.key(), record);
        }
        let speaks_for = call.names().filter(|name| self.budgets.contains_key(*name));
        Ok(Charged::Reported(answer, speaks_for.cloned().collect()))
    }

    /// The answer, where the report was counted before: its own by this very call, `already_applied` by another; and the
    /// names of the budgets under which it was not.
    fn known(&self, call: &Call, report: &Report) -> Result<(Option<ReportUsageResult>, Vec<String>)> {
        let (mut new, mut answer) = (Vec::new(), None);
        for name in call.names() {
            let identity = report.identity(&Budget::key_of(&self.namespace, name), 0);
            let keyed = identity.and_then(|identity| self.evidence.get(&identity.key()));
            let keyed = keyed.filter(|_| !planted(Bug::UsageDedupIgnored));
            match keyed.or_else(|| self.evidence.get(&call.own_identity().key())) {
                Some(record) if *record.request == call.id.as_bytes()[..] => {
                    let kept = serde_json::from_slice(&record.answer);
                    let kept =
                        kept.map_err(|error| Error::new(Code::CorruptDocument, format!("a kept answer: {error}")));
                    return Ok((Some(kept?), Vec::new()));
                }
                Some(_) => answer = Some(ReportUsageResult::AlreadyApplied),
                None => new.push(name.clone()),
            }
        }
        Ok((answer, new))
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
