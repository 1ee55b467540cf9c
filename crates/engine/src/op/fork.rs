//! Forks: executions that begin with the journal of another one. Both live in one partition; the journal is copied
//! in the background, a bounded part in each commit, and the new execution is held until that is done.

use std::sync::Arc;

use bytes::Bytes;
use ff_core::execution::{Execution, Fork, NewExecution};
use ff_core::op::parts::Content;
use ff_core::op::{ForkExecution, ForkExecutionArgs, ForkExecutionOutcome, ListForks, ListForksArgs, ListForksOutcome};
use ff_core::{Blob, Error, ExecutionId, Indexed, Result, Sharing, index};
use ff_store::{Answer, Query, Scan};

use crate::caller::Caller;
use crate::flow::{cursor_of, parse_cursor};
use crate::limits::bytes;
use crate::op::Handle;
use crate::services::Services;
use crate::submission::write_new;
use crate::system::SubmissionTerms;
use crate::transaction::{Command, Tx};
use crate::visibility::load_visible;
use crate::{env, journal, payload, view};

impl Handle<ForkExecution> for Services {
    async fn handle(&self, caller: &Caller, args: ForkExecutionArgs) -> Result<ForkExecutionOutcome> {
        self.transactor.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let input = args.input()?;
        bytes("input", input.as_ref().map_or(0, |input| input.bytes.len()), self.transactor.limits().input_max_bytes)?;
        let (origin, _) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        caller.check_lane(&origin.lane)?;
        let terms = self.shared.system.submission_terms(&origin.namespace, &origin.lane).await?;
        // The input of the origin may be large, and is not part of the commit's reads.
        let input = match input {
            Some(input) => Some(input),
            None => self.transactor.optional_content(payload::Which::Input, &origin.id, &origin.input).await?,
        };
        let mint = self.transactor.rising(env::mint(self.transactor.env(), self.transactor.now()));
        let id = ExecutionId::in_partition(partition, &mint);
        let verb = MakeFork { caller, args: &args, id, input, terms };
        let identity = self.transactor.identity::<ForkExecution>(caller, &args, args.command_id);
        self.transactor.transact_once(partition, identity, &verb).await
    }
}

struct MakeFork<'a> {
    caller: &'a Caller,
    args: &'a ForkExecutionArgs,
    id: ExecutionId,
    input: Option<Content>,
    terms: SubmissionTerms,
}

impl Command for MakeFork<'_> {
    type Outcome = ForkExecutionOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<ForkExecutionOutcome> {
        if let Some(refusal) = &self.terms.refusal {
            return Err(refusal.clone());
        }
        let origin = load_visible(tx, self.caller, &self.args.execution_id).await?;
        origin.check_journal_copied()?;
        // The origin keeps the generation that is copied for as long as it knows of the fork.
        tx.pin(&origin.key());
        let below = match &self.args.before_step {
            Some(step) => {
                let found = journal::find(tx, &origin, step).await?;
                let missing = || Error::invalid("before_step", format!("the journal has no entry {}", step.label()));
                found.first.ok_or_else(missing)?
            }
            None => journal::next_number(tx, &origin).await?,
        };
        let (request, blob) = self.request(&origin);
        let mut execution = Execution::create(request, tx.now)?;
        let fork = Fork { origin: origin.id, generation: origin.generation, below, next: 1, ..Default::default() };
        execution.fork_from(fork);
        let answer = ForkExecutionOutcome {
            execution_id: execution.id,
            origin_id: origin.id,
            public_state: execution.public_state(),
        };
        write_new(tx, execution, blob, self.terms.announced);
        Ok(answer)
    }
}

impl MakeFork<'_> {
    /// The request that the origin was made from, with what the caller wants otherwise. A fork is in no flow.
    fn request(&self, origin: &Execution) -> (NewExecution, Option<Bytes>) {
        let (input, blob) = payload::divide(self.input.clone());
        let mut policy = origin.policy.clone();
        let budgets = match &self.args.budget_ids {
            Some(budgets) => {
                Arc::make_mut(&mut policy).budget_ids.clear();
                budgets.clone()
            }
            None => origin.budgets.clone(),
        };
        let request = NewExecution {
            id: self.id,
            namespace: origin.namespace.clone(),
            lane: origin.lane.clone(),
            kind: origin.kind.clone(),
            priority: origin.priority,
            creator: origin.creator.clone(),
            submitted_by: self.caller.submitter(),
            idempotency_key: String::new(),
            tags: self.args.tags.clone().unwrap_or_else(|| origin.tags.clone()),
            policy,
            capabilities: origin.required_capabilities(),
            budgets,
            quota: origin.quota.clone(),
            input,
            delay_until: None,
            deadline_at: None,
            flow: None,
            node: String::new(),
            request_hash: Blob::from(self.id.uuid.as_bytes().to_vec()),
            trace_context: origin.trace_context.clone(),
            schedule: None,
            sharing: origin
                .sharing
                .as_deref()
                .cloned()
                .map(|shared| Sharing { single: None, ..shared })
                .unwrap_or_default(),
        };
        (request, blob)
    }
}

impl Handle<ListForks> for Services {
    async fn handle(&self, caller: &Caller, args: ListForksArgs) -> Result<ListForksOutcome> {
        let (origin, _) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        let limit = self.transactor.limits().page(args.limit)?;
        let mut scan = Scan::last(index::forks(origin.id.uuid), limit).with_documents();
        scan.after = parse_cursor(args.cursor.as_deref())?;
        let answers = self.transactor.read(origin.id.partition(), vec![Query::Scan(scan)]).await?;
        let page = answers.into_only(Answer::into_scan).map_err(Error::from)?;
        let full = page.entries.len() == limit;
        let last = page.entries.last().map(|entry| (entry.score, entry.member.clone()));
        let found =
            page.entries.into_iter().filter_map(|entry| self.transactor.readable::<Execution>(&entry.document?));
        let items = found.map(|execution| view::summary(&execution)).collect();
        Ok(ListForksOutcome { items, next_cursor: last.filter(|_| full).as_ref().map(cursor_of) })
    }
}
