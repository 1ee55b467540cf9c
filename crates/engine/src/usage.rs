//! Reports of usage to budgets. Reports to one budget that arrive while a commit is under way share the next one: each
//! keeps its own answer and its own evidence, all in the commit that changes the budget.

use std::collections::BTreeMap;

use ff_core::budget::Budget;
use ff_core::idempotency::{CommandRecord, Identity};
use ff_core::planted::{Bug, planted};
use ff_core::usage::{self, ReportUsageResult};
use ff_core::{Blob, Code, CommandId, Error, ExecutionId, Indexed, Key, Result, index, limits};

use crate::engine::Engine;
use crate::groups::{self, Groups, Name};
use crate::hint::Item;
use crate::scheduler::parking::Opened;
use crate::transaction::{Command, Tx};

/// `None`: the report names no dimension of the budget and did not insist.
pub(crate) type Answer = Result<Option<ReportUsageResult>>;

/// What was spent.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub(crate) usage: BTreeMap<String, i64>,
    /// Empty for none.
    pub(crate) dedup_key: String,
    /// The execution whose holder reports; its dedup keys are its own.
    pub(crate) execution: Option<ExecutionId>,
    /// Charge only the dimensions that the budget has, and nothing if it has none of them.
    pub(crate) only_known: bool,
}

/// A report, and what this engine knows this very call of it by: a repeat of the commit must not take what it did for
/// somebody else's doing.
#[derive(Debug)]
pub(crate) struct Call {
    report: Report,
    id: CommandId,
}

/// Reports on their way, by budget.
pub(crate) type Reports = Groups<Call, Option<ReportUsageResult>>;

impl Engine {
    /// Charges a budget.
    pub(crate) async fn charge(&self, namespace: &str, name: &str, report: Report) -> Answer {
        let serve = |budget| {
            let engine = self.clone();
            self.spawn_short(async move { engine.commit_reports(budget).await });
        };
        let call = Call { report, id: self.fresh_command() };
        self.reports().ask((namespace.to_owned(), name.to_owned()), call, serve).await
    }

    async fn commit_reports(&self, budget: Name) {
        let partition = self.partitions().budget_partition(&budget.0, &budget.1);
        loop {
            let waiting = self.reports().take(&budget);
            if waiting.is_empty() {
                return;
            }
            let (calls, senders): (Vec<Call>, Vec<_>) = waiting.into_iter().unzip();
            let verb = ReportAll { budget: &budget, calls: &calls };
            let turn = self.locks().take(partition, Budget::key_of(&budget.0, &budget.1)).await;
            let outcome = self.transact(partition, self.fresh_command(), &verb).await;
            drop(turn);
            let (answers, opened) =
                outcome.map_or_else(|error| (Err(error), Opened::default()), |(all, opened)| (Ok(all), opened));
            groups::answer(senders, answers);
            self.release_parked(&budget.0, &format!("b:{}", budget.1), opened).await;
        }
    }
}

struct ReportAll<'a> {
    budget: &'a Name,
    calls: &'a [Call],
}

impl Command for ReportAll<'_> {
    type Outcome = (Vec<Answer>, Opened);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Outcome> {
        let (namespace, name) = self.budget;
        let key = Budget::key_of(namespace, name);
        let Some(loaded) = tx.load::<Budget>(key.clone()).await? else {
            let missing = Error::of(Code::BudgetNotFound).with("budget", name);
            let answers = self.calls.iter().map(|_| Err(missing.clone())).collect();
            return Ok((answers, Opened::default()));
        };
        let mut budget = loaded.document;
        let before = budget.clone();
        let mut evidence = self.evidence(tx, &key).await?;
        let mut answers = Vec::with_capacity(self.calls.len());
        for call in self.calls {
            if let Some(answer) = call.known(&key, &evidence)? {
                answers.push(Ok(Some(answer)));
                continue;
            }
            let mut usage = call.report.usage.clone();
            if call.report.only_known {
                usage.retain(|dimension, _| budget.definition.dimensions.contains_key(dimension));
                if usage.is_empty() {
                    answers.push(Ok(None));
                    continue;
                }
            }
            let answer = budget.report(&usage, tx.now);
            if let Ok(answer) = &answer {
                // A report that was refused leaves its dedup key free.
                let keyed = call.keyed(&key, tx.engine.options().dedup_window_ms).filter(|_| budget.counted(answer));
                let record = call.record(&keyed.unwrap_or_else(|| call.own()), answer);
                tx.create_until(&record.0, tx.now + record.1);
                evidence.insert(record.0.key(), record.0);
            }
            answers.push(answer.map(Some));
        }
        let mut opened = Opened::default();
        if budget.opened_since(&before) {
            let count = budget.release_count();
            opened = Opened::take(&mut budget, count, tx.engine.partitions());
            tx.hint(Item::Gate(index::blocked(namespace, &format!("b:{name}"))));
        }
        if budget != before {
            tx.save(&budget);
        }
        Ok((answers, opened))
    }
}

impl ReportAll<'_> {
    /// What reports under the same dedup keys left, and, once the commit may have been applied unseen, these very calls.
    async fn evidence(&self, tx: &mut Tx<'_>, budget: &Key) -> Result<BTreeMap<Key, CommandRecord>> {
        let mut keys: Vec<Key> =
            self.calls.iter().filter_map(|call| call.keyed(budget, 0)).map(|it| it.key()).collect();
        if tx.is_repeat() {
            keys.extend(self.calls.iter().map(|call| call.own().key()));
        }
        keys.sort_unstable();
        keys.dedup();
        let found = tx.load_many::<CommandRecord>(keys.clone()).await?;
        let found = keys.into_iter().zip(found);
        Ok(found.filter_map(|(key, record)| Some((key, record?.document))).collect())
    }
}

impl Call {
    fn keyed(&self, budget: &Key, kept_ms: i64) -> Option<Identity> {
        let Report { dedup_key, execution, .. } = &self.report;
        (!dedup_key.is_empty()).then(|| usage::identity(budget, execution.as_ref(), dedup_key, kept_ms))
    }

    fn own(&self) -> Identity {
        Identity::new("usage", &[self.id.as_bytes()], limits::OWN_EVIDENCE_MS)
    }

    /// The evidence of this call, and how long it lasts.
    fn record(&self, identity: &Identity, answer: &ReportUsageResult) -> (CommandRecord, i64) {
        let answer = serde_json::to_vec(answer).expect("an answer holds only types that JSON can express");
        let record = CommandRecord { request: Blob::from(self.id.as_bytes().to_vec()), ..identity.record(answer) };
        (record, identity.kept_ms)
    }

    /// The answer, where the report was counted before: its own by this very call, `already_applied` by another.
    fn known(&self, budget: &Key, evidence: &BTreeMap<Key, CommandRecord>) -> Result<Option<ReportUsageResult>> {
        let keyed = self.keyed(budget, 0).and_then(|identity| evidence.get(&identity.key()));
        let keyed = keyed.filter(|_| !planted(Bug::UsageDedupIgnored));
        let Some(record) = keyed.or_else(|| evidence.get(&self.own().key())) else { return Ok(None) };
        if *record.request != self.id.as_bytes()[..] {
            return Ok(Some(ReportUsageResult::AlreadyApplied));
        }
        let answer = serde_json::from_slice(&record.answer);
        answer.map(Some).map_err(|error| Error::new(Code::CorruptDocument, format!("a kept answer: {error}")))
    }
}
