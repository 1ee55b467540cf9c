//! Executions that wait for people, those that have waited longest first, over all partitions; and signals for a
//! waitpoint whose execution the sender does not know.

use ff_core::budget::{Budget, BudgetQuestionView};
use ff_core::execution::Execution;
use ff_core::op::{
    ApprovalView, DeliverSignal, ListApprovals, ListApprovalsArgs, ListApprovalsOutcome, ReadQuestion,
    ReadQuestionArgs, ReadQuestionOutcome, SignalWaitpoint, SignalWaitpointArgs,
};
use ff_core::token::TokenSubject;
use ff_core::waitpoint::{Waitpoint, WaitpointState};
use ff_core::{
    Code, Document, Error, ExecutionId, Family, JsonText, Key, Partition, Result, SignalOutcome, Suspension,
    WaitpointId, index,
};
use ff_store::{Answer, IndexEntry, Query, Scan};

use crate::caller::Caller;
use crate::charges::question;
use crate::cursor;
use crate::op::Handle;
use crate::services::Services;
use crate::view::{questions, signed, some_text};

/// Rounds one call makes; a filter that matches little answers with fewer items and a cursor.
const ROUNDS_MAX: usize = 20;

/// A place in the list: since when, partition, id.
type Position = (i64, u16, [u8; 16]);

impl Handle<ListApprovals> for Services {
    async fn handle(&self, caller: &Caller, args: ListApprovalsArgs) -> Result<ListApprovalsOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let limit = self.transactor.limits().page(args.limit)?;
        if let Some(id) = &args.execution_id {
            let (execution, _) = self.transactor.visible_execution(caller, id).await?;
            let asked = execution.suspension.as_ref().is_some_and(|suspension| suspension.asks());
            let asked = asked && execution.namespace == namespace && matches(caller, &args, &execution)?;
            return Ok(ListApprovalsOutcome {
                items: view(caller, &execution).filter(|_| asked).into_iter().collect(),
                budgets: Vec::new(),
                next_cursor: None,
            });
        }
        let mut after = cursor::decode::<Position>(args.cursor.as_deref())?;
        let plain = args.cursor.is_none() && args.assignee.is_none() && args.kind.is_empty() && args.tag.is_none();
        let budgets =
            if plain && caller.lanes.is_empty() { self.asking_budgets(&namespace, limit).await? } else { Vec::new() };
        let mut items = Vec::new();
        for _ in 0..ROUNDS_MAX {
            let page = self.asking(&namespace, after, limit).await?;
            let full = page.len() == limit;
            for (position, entry) in page {
                if items.len() == limit {
                    return Ok(ListApprovalsOutcome {
                        items,
                        budgets,
                        next_cursor: after.map(|after| cursor::encode(&after)),
                    });
                }
                after = Some(position);
                let execution = entry.document.and_then(|stored| self.transactor.readable::<Execution>(&stored));
                let Some(execution) = execution.filter(|execution| execution.namespace == namespace) else { continue };
                if matches(caller, &args, &execution)? {
                    items.extend(view(caller, &execution));
                }
            }
            if !full {
                return Ok(ListApprovalsOutcome { items, budgets, next_cursor: None });
            }
        }
        Ok(ListApprovalsOutcome { items, budgets, next_cursor: after.map(|after| cursor::encode(&after)) })
    }
}

impl Services {
    /// The questions of budgets that something waits for, what has waited longest first. A budget learns only later that
    /// everything that waited for its answer has ended.
    async fn asking_budgets(&self, namespace: &str, limit: usize) -> Result<Vec<BudgetQuestionView>> {
        let budget_partitions =
            self.transactor.partitions().all().filter(|partition| partition.family == Family::Budget);
        let reads = budget_partitions.map(|partition| async move {
            let scan = Scan::first(index::asks(namespace), limit).with_documents();
            let answers = self.transactor.read(partition, vec![Query::Scan(scan)]).await?;
            answers.into_only(Answer::into_scan).map_err(Error::from)
        });
        let pages = futures_util::future::try_join_all(reads).await?;
        let stored = pages.into_iter().flat_map(|page| page.entries).filter_map(|entry| entry.document);
        let asking: Vec<Budget> = stored.filter_map(|stored| self.transactor.readable::<Budget>(&stored)).collect();
        let looks = asking.iter().map(|budget| async move {
            let awaited = question::is_awaited(&self.transactor, budget).await?;
            Ok::<_, Error>(budget.question_view().filter(|_| awaited))
        });
        let mut budgets: Vec<BudgetQuestionView> =
            futures_util::future::try_join_all(looks).await?.into_iter().flatten().collect();
        budgets.sort_by_key(|question| question.since);
        budgets.truncate(limit);
        Ok(budgets)
    }

    /// The next executions that ask, in order.
    async fn asking(
        &self,
        namespace: &str,
        after: Option<Position>,
        limit: usize,
    ) -> Result<Vec<(Position, IndexEntry)>> {
        let reads = self.transactor.flow_partitions().map(|partition| async move {
            let scan = behind(partition, Scan::first(index::asks(namespace), limit).with_documents(), after);
            let answers = self.transactor.read(partition, vec![Query::Scan(scan)]).await?;
            let page = answers.into_only(Answer::into_scan).map_err(ff_core::Error::from)?;
            Ok::<_, ff_core::Error>((partition, page.entries))
        });
        let mut all = Vec::new();
        for (partition, entries) in futures_util::future::try_join_all(reads).await? {
            all.extend(entries.into_iter().filter_map(|entry| {
                let uuid = entry.member.uuid()?.into_bytes();
                Some(((entry.score, partition.number, uuid), entry))
            }));
        }
        all.sort_by_key(|(position, _)| *position);
        all.truncate(limit);
        Ok(all)
    }
}

/// The part of a partition's index behind a place.
fn behind(partition: Partition, mut scan: Scan, after: Option<Position>) -> Scan {
    let Some((since, number, uuid)) = after else { return scan };
    match partition.number.cmp(&number) {
        std::cmp::Ordering::Greater => scan.min = since,
        std::cmp::Ordering::Less => scan.min = since.saturating_add(1),
        std::cmp::Ordering::Equal => scan.after = Some((since, Key::new(index::kind::EXECUTION, &[&uuid]))),
    }
    scan
}

/// Whether it is asked for, and in a lane that the caller may decide in.
fn matches(caller: &Caller, args: &ListApprovalsArgs, execution: &Execution) -> Result<bool> {
    let suspension = execution.suspension.as_ref();
    let assigned = |person: &String| suspension.is_some_and(|suspension| suspension.assignees.contains(person));
    let tagged = args.tag()?.is_none_or(|(key, value)| execution.tags.get(key).is_some_and(|found| found == value));
    Ok(tagged
        && caller.reaches(&execution.lane)
        && args.assignee.as_ref().is_none_or(assigned)
        && (args.kind.is_empty() || args.kind.contains(&execution.kind)))
}

fn view(caller: &Caller, execution: &Execution) -> Option<ApprovalView> {
    let suspension: &Suspension = execution.suspension.as_ref()?;
    Some(ApprovalView {
        execution_id: execution.id,
        namespace: execution.namespace.clone(),
        lane: execution.lane.clone(),
        kind: execution.kind.clone(),
        tags: execution.tags.clone(),
        reason: suspension.reason,
        question: some_text(&suspension.question),
        detail: some_text(&execution.blocking_detail),
        schema: some_text(&suspension.schema).map(JsonText),
        assignees: suspension.assignees.clone(),
        requested_by: some_text(&suspension.requested_by),
        since: suspension.suspended_at,
        deadline: suspension.timeout_at,
        timeout_behavior: suspension.behavior,
        condition: suspension.condition.clone(),
        signals: suspension.condition.required_names(),
        waitpoint_ids: suspension.waitpoints.clone(),
        signed: signed(suspension),
        questions: questions(caller, execution),
    })
}

impl Handle<SignalWaitpoint> for Services {
    async fn handle(&self, caller: &Caller, args: SignalWaitpointArgs) -> Result<SignalOutcome> {
        let waitpoint = self.waitpoint(&args.waitpoint_id).await?;
        // A caller that brings no token learns nothing of other namespaces.
        let waitpoint = waitpoint.filter(|waitpoint| args.token.is_some() || caller.sees(&waitpoint.namespace));
        let execution = waitpoint.map(|waitpoint| waitpoint.execution);
        if execution.is_none() && args.token.is_none() {
            return Err(Error::of(Code::WaitpointNotFound).with("waitpoint_id", args.waitpoint_id));
        }
        // A token for a waitpoint that is not there is refused where all wrong tokens are, and takes as long.
        let execution =
            execution.unwrap_or(ExecutionId { partition: args.waitpoint_id.partition, ..Default::default() });
        Handle::<DeliverSignal>::handle(self, caller, args.for_execution(execution)).await
    }
}

impl Handle<ReadQuestion> for Services {
    async fn handle(&self, caller: &Caller, args: ReadQuestionArgs) -> Result<ReadQuestionOutcome> {
        let found = self.waitpoint(&args.waitpoint_id).await?;
        let reader = match &args.token {
            Some(token) => {
                // A token for a waitpoint that is not there is refused as all wrong tokens are, and takes as long.
                let secrets = self.shared.secrets.secrets_for(&token.0).await?;
                let subject = found.as_ref().map(TokenSubject::from);
                secrets.verify(&token.0, subject.as_ref(), self.transactor.now())?;
                Caller::system()
            }
            None => caller.clone(),
        };
        let missing = || Error::of(Code::WaitpointNotFound).with("waitpoint_id", args.waitpoint_id);
        let waitpoint = found.filter(|waitpoint| reader.sees(&waitpoint.namespace)).ok_or_else(missing)?;
        let (execution, _) = self.transactor.visible_execution(&reader, &waitpoint.execution).await?;
        let open = waitpoint.state != WaitpointState::Closed && !execution.is_terminal();
        let asking = execution.suspension.as_ref().filter(|asked| open && asked.waitpoints.contains(&waitpoint.id));
        Ok(ReadQuestionOutcome {
            open,
            execution_id: execution.id,
            kind: execution.kind.clone(),
            reason: asking.map(|asked| asked.reason),
            question: asking.and_then(|asked| some_text(&asked.question)),
            detail: asking.and_then(|_| some_text(&execution.blocking_detail)),
            schema: asking.and_then(|asked| some_text(&asked.schema)).map(JsonText),
            assignees: asking.map(|asked| asked.assignees.clone()).unwrap_or_default(),
            since: asking.map(|asked| asked.suspended_at),
            deadline: asking.and_then(|asked| asked.timeout_at),
            signals: asking.map(|asked| asked.condition.required_names()).unwrap_or_default(),
        })
    }
}

impl Services {
    /// A waitpoint, whichever execution it belongs to.
    async fn waitpoint(&self, id: &WaitpointId) -> Result<Option<Waitpoint>> {
        let partition = ExecutionId { partition: id.partition, uuid: id.uuid };
        if partition.check(self.transactor.partitions()).is_err() {
            return Ok(None);
        }
        let found = self.transactor.store().documents(partition.partition(), vec![Waitpoint::key_of(id)]).await?;
        found.into_iter().next().flatten().map(|stored| Waitpoint::decode(&stored.body)).transpose()
    }
}
