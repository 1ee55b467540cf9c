//! Closes a flow that was made step by step.

use ff_core::event::Effects;
use ff_core::execution::Execution;
use ff_core::op::{CloseFlow, CloseFlowArgs, CloseFlowOutcome};
use ff_core::{Code, Error, ExecutionId, FlowId, Key, PublicState, Result, index, limits};
use ff_store::{Answer, Query, Scan};

use crate::caller::Caller;
use crate::cursor;
use crate::flow::{end_if_complete, load_flow, save_flow};
use crate::op::{Handle, Request};
use crate::services::Services;
use crate::transaction::{Command, Tx};

impl Handle<CloseFlow> for Services {
    async fn handle(&self, caller: &Caller, args: CloseFlowArgs) -> Result<CloseFlowOutcome> {
        self.transactor.check_flow_id(&args.flow_id)?;
        self.transactor.check_lanes_of_members(caller, &args.flow_id).await?;
        self.check_skipped(caller, &args.flow_id).await?;
        let identity = self.transactor.callers_identity::<CloseFlow>(caller, &args, None);
        self.transactor.answer_once(args.flow_id.partition(), identity, self.close_flow(caller, &args)).await
    }
}

impl Services {
    async fn close_flow(&self, caller: &Caller, args: &CloseFlowArgs) -> Result<CloseFlowOutcome> {
        let partition = args.flow_id.partition();
        self.skip_members_short_of_edges(caller, &args.flow_id).await?;
        let identity = self.transactor.identity::<CloseFlow>(caller, args, None);
        let verb = Request::<CloseFlow> { caller, args };
        let changed = self.transactor.transact_once(partition, identity, &verb).await?;
        let (flow, counts) = self.settled_flow(caller, &args.flow_id).await?;
        Ok(CloseFlowOutcome { changed, state: flow.state(&counts) })
    }

    /// Refuses a submitter whose close would skip a member that somebody else submitted. The commits that skip look again.
    async fn check_skipped(&self, caller: &Caller, flow: &FlowId) -> Result<()> {
        if !caller.only_own {
            return Ok(());
        }
        self.transactor.visible_flow(caller, flow).await?;
        let mut after = None;
        loop {
            let foreign = |member: &Execution| member.lacks_edges() && !caller.submitted(member);
            let waiting = &[PublicState::WaitingChildren];
            let (found, next) = self.transactor.flow_members(flow, waiting, after.take(), foreign).await?;
            if let Some(id) = found.first() {
                return Err(not_own(id));
            }
            if next.is_none() {
                return Ok(());
            }
            after = cursor::decode::<(i64, Vec<u8>)>(next.as_deref())?;
        }
    }

    /// Skips the members that wait for more successes than there are edges which lead to them: a closed flow gets no
    /// further ones. A close that is cut short here has closed nothing, and its repeat goes on.
    async fn skip_members_short_of_edges(&self, caller: &Caller, flow: &FlowId) -> Result<()> {
        let mut after = None;
        loop {
            let verb = SkipShortOfEdges { caller, flow, after: after.as_ref() };
            after = self.transactor.transact(flow.partition(), self.transactor.fresh_command(), &verb).await?;
            if after.is_none() {
                return Ok(());
            }
        }
    }
}

fn not_own(member: &ExecutionId) -> Error {
    let detail = "the close would skip a member that this token did not submit";
    Error::new(Code::Forbidden, detail).with("execution_id", member)
}

/// Skips some of these members. Returns where to go on.
struct SkipShortOfEdges<'a> {
    caller: &'a Caller,
    flow: &'a FlowId,
    after: Option<&'a (i64, Key)>,
}

impl Command for SkipShortOfEdges<'_> {
    type Outcome = Option<(i64, Key)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Outcome> {
        let flow = load_flow(tx, self.caller, self.flow).await?;
        if !flow.stays_open || flow.is_terminal() {
            return Ok(None);
        }
        let limit = tx.transactor.chunk(limits::RESOLVE_CHUNK);
        let waiting = index::member(flow.id.uuid, PublicState::WaitingChildren);
        let mut scan = Scan::first(waiting, limit).with_documents();
        scan.after = self.after.cloned();
        let page = tx.read(vec![Query::Scan(scan)]).await?.into_iter().find_map(Answer::into_scan).unwrap_or_default();
        let next = page.entries.last().filter(|_| page.entries.len() == limit);
        let next = next.map(|last| (last.score, last.member.clone()));
        for entry in page.entries {
            let Some(loaded) = tx.adopt::<Execution>(entry.member, entry.document)? else { continue };
            let mut member = loaded.document;
            if member.lacks_edges() {
                if self.caller.only_own && !self.caller.submitted(&member) {
                    return Err(not_own(&member.id));
                }
                let mut effects = Effects::default();
                member.skip("the flow was closed with too few dependencies for its quorum", tx.now, &mut effects)?;
                tx.save_execution(&member, effects);
            }
        }
        Ok(next)
    }
}

impl Command for Request<'_, CloseFlow> {
    type Outcome = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool> {
        let mut flow = load_flow(tx, self.caller, &self.args.flow_id).await?;
        let changed = flow.close(tx.now, tx.transactor.options().retention_ms);
        if changed {
            end_if_complete(tx, &mut flow).await?;
            save_flow(tx, &flow);
        }
        Ok(changed)
    }
}
