//! The journal of a function: recording steps, reading them, and waiting for several things at once.

use ff_core::event::Effects;
use ff_core::execution::{Execution, Wait};
use ff_core::journal::{NewEntries, StepEntry, StepIdentity, StepKind, StepRecord, StepState, StepView};
use ff_core::lease::{LeaseEnd, LeaseEnding};
use ff_core::op::{
    ListSteps, ListStepsArgs, ListStepsOutcome, Park, ParkArgs, ParkOutcome, ParkedWaitpoint, RecordSteps,
    RecordStepsArgs, RecordStepsOutcome,
};
use ff_core::suspension::SuspendReason;
use ff_core::waitpoint::{Waitpoint, WaitpointState};
use ff_core::{
    AcceptedSignal, Code, Document, Edge, EdgeId, EdgeState, Error, ExecutionId, Indexed, Key, PublicState, Result,
    SuspensionId, TerminalOutcome, limits,
};
use ff_store::Query;

use crate::caller::Caller;
use crate::op::Handle;
use crate::services::Services;
use crate::transaction::{Command, Tx};
use crate::view::some_instant;
use crate::visibility::load_visible;
use crate::{env, journal, mailbox, substitute, view};

impl Handle<RecordSteps> for Services {
    async fn handle(&self, caller: &Caller, args: RecordStepsArgs) -> Result<RecordStepsOutcome> {
        self.transactor.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let suspension = SuspensionId::mint(&env::mint(self.transactor.env(), self.transactor.now()));
        let verb = RecordEntries { caller, args: &args, suspension };
        let recorded = self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await;
        self.transactor.keep_late_reports(caller, &args.execution_id, &args.fence, &args.entries, &recorded).await;
        recorded
    }
}

struct RecordEntries<'a> {
    caller: &'a Caller,
    args: &'a RecordStepsArgs,
    suspension: SuspensionId,
}

impl Command for RecordEntries<'_> {
    type Outcome = RecordStepsOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<RecordStepsOutcome> {
        let RecordStepsArgs { execution_id, fence, first_number, entries } = self.args;
        let mut execution = load_visible(tx, self.caller, execution_id).await?;
        let new = NewEntries::of(Some(*first_number), entries)?;
        if execution.stopped_looping(fence) && journal::is_recorded(tx, &execution, fence, &new).await? {
            let next_number = first_number + entries.len() as u64;
            return Ok(RecordStepsOutcome { last_number: next_number - 1, next_number, loop_detected: true });
        }
        execution.check_fence(fence)?;
        let next_number = journal::append(tx, &execution, fence, &new).await?;
        if tx.appends_something() {
            tx.require_holder(&execution.key(), fence);
        }
        let loop_detected = journal::stop_loop(tx, &mut execution, fence, &new, self.suspension).await?;
        Ok(RecordStepsOutcome { last_number: next_number - 1, next_number, loop_detected })
    }
}

impl Handle<ListSteps> for Services {
    async fn handle(&self, caller: &Caller, args: ListStepsArgs) -> Result<ListStepsOutcome> {
        let (execution, _) = self.transactor.visible_execution(caller, &args.execution_id).await?;
        let generation = args.generation.unwrap_or(execution.generation);
        let limit = args.limit.unwrap_or(limits::PAGE_DEFAULT);
        let after = args.after.unwrap_or(0);
        let max_bytes = limits::JOURNAL_PER_ANSWER_MAX_BYTES;
        let page = self.transactor.read_journal(&execution, generation, after, limit, max_bytes).await?;
        let next_after = page.entries.last().map(|entry| entry.number).filter(|_| page.more);
        let items = view::steps(caller, page.entries);
        Ok(ListStepsOutcome { generation, items, next_number: page.next_number, next_after })
    }
}

impl Handle<Park> for Services {
    async fn handle(&self, caller: &Caller, args: ParkArgs) -> Result<ParkOutcome> {
        self.transactor.check_id(&args.execution_id)?;
        let partition = args.execution_id.partition();
        let suspension = SuspensionId::mint(&env::mint(self.transactor.env(), self.transactor.now()));
        let verb = ParkExecution { caller, args: &args, suspension };
        let parked = self.transactor.transact(partition, self.transactor.fresh_command(), &verb).await;
        self.transactor.keep_late_reports(caller, &args.execution_id, &args.fence, &args.entries, &parked).await;
        match parked? {
            Parked::Satisfied { entries, next_number } => Ok(ParkOutcome::AlreadySatisfied { entries, next_number }),
            Parked::Waiting { public_state, wake_at, waitpoints } => {
                let mut shown = Vec::with_capacity(waitpoints.len());
                for waitpoint in waitpoints {
                    let step = step_of(&waitpoint);
                    let token = self.shared.secrets.sign(&waitpoint).await?;
                    shown.push(ParkedWaitpoint { waitpoint_id: waitpoint.id, step, token });
                }
                Ok(ParkOutcome::Parked { public_state, wake_at, waitpoints: shown })
            }
        }
    }
}

/// The decision of a commit.
enum Parked {
    Waiting { public_state: PublicState, wake_at: Option<i64>, waitpoints: Vec<Waitpoint> },
    Satisfied { entries: Vec<StepView>, next_number: u64 },
}

impl Parked {
    /// The execution waits as it is now.
    fn waiting(execution: &Execution, waitpoints: Vec<Waitpoint>) -> Self {
        Parked::Waiting { public_state: execution.public_state(), wake_at: execution.wake_at(), waitpoints }
    }

    /// A repeat hears what its lease was told when it ended.
    fn again(execution: &Execution, ending: &LeaseEnding, waitpoints: Vec<Waitpoint>) -> Self {
        match ending.public_state {
            Some(public_state) => Parked::Waiting { public_state, wake_at: some_instant(ending.next_at), waitpoints },
            None => Parked::waiting(execution, waitpoints),
        }
    }
}

struct ParkExecution<'a> {
    caller: &'a Caller,
    args: &'a ParkArgs,
    suspension: SuspensionId,
}

impl Command for ParkExecution<'_> {
    type Outcome = Parked;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Parked> {
        let mut execution = load_visible(tx, self.caller, &self.args.execution_id).await?;
        let fence = &self.args.fence;
        if execution.stopped_looping(fence) {
            return Ok(Parked::waiting(&execution, Vec::new()));
        }
        if let Some(ending) = execution.ending_of(fence).filter(|ending| ending.end == LeaseEnd::Parked) {
            let waitpoints = self.waitpoints(tx, &execution).await?;
            return Ok(Parked::again(&execution, ending, waitpoints));
        }
        execution.check_fence(fence)?;
        let mut waitpoints = self.waitpoints(tx, &execution).await?;
        let fixed = self.fixed_instants(tx, &execution).await?;
        let (mut waits, begun) = self.waits(&execution, &waitpoints, &fixed, tx.now);
        // A waitpoint is closed by the signal that ended its entry; an earlier call that found it had its answer lost.
        let closed = waitpoints.iter().any(|waitpoint| waitpoint.state != WaitpointState::Pending);
        if (closed || tx.is_repeat())
            && let Some(before) = self.decided_before(tx, &execution, &waits).await?
        {
            return Ok(before);
        }
        let brought = self.args.new_entries()?;
        if journal::stop_loop(tx, &mut execution, fence, &brought, self.suspension).await? {
            journal::append(tx, &execution, fence, &brought).await?;
            return Ok(Parked::waiting(&execution, Vec::new()));
        }
        self.check_questions(tx, &execution).await?;
        let ended = self.ended(tx, &execution, &mut waits, &mut waitpoints).await?;
        let decided: Vec<StepEntry> = begun.into_iter().chain(ended.iter().cloned()).collect();
        let entries: Vec<StepEntry> = self.args.entries.iter().chain(&decided).cloned().collect();
        let new = NewEntries { first_number: self.args.first_number, entries: &entries };
        if new.is_empty() {
            journal::check_room(tx, &execution, self.args.first_number).await?;
        }
        tx.require_holder(&execution.key(), fence);
        let next_number = journal::append(tx, &execution, fence, &new).await?;
        for waitpoint in &waitpoints {
            tx.save(waitpoint);
        }
        if !ended.is_empty() {
            let first = next_number - decided.len() as u64;
            let shown = |(number, entry): (u64, &StepEntry)| {
                let (record, _) = entry.record(fence)?;
                Ok(record.view(number, tx.now, entry.content()?))
            };
            let entries = (first..).zip(&decided).map(shown).collect::<Result<Vec<_>>>()?;
            tx.pin(&execution.key());
            return Ok(Parked::Satisfied { entries, next_number });
        }
        let mut effects = Effects::default();
        execution.await_first(fence, self.suspension, waits, tx.now, &mut effects)?;
        tx.save_execution(&execution, effects);
        Ok(Parked::waiting(&execution, waitpoints))
    }
}

impl ParkExecution<'_> {
    /// The instants of the spans in this call that an earlier one has fixed: the entry that says so is recorded below the
    /// entries which this one brings.
    async fn fixed_instants(&self, tx: &mut Tx<'_>, execution: &Execution) -> Result<Vec<(StepIdentity, i64)>> {
        let sleeps = self.args.sleeps.iter().filter(|sleep| sleep.until.is_none()).map(|sleep| &sleep.step);
        let signals = self.args.waitpoints.iter().filter(|signal| signal.timeout_ms.is_some());
        let spans: Vec<&StepIdentity> = sleeps.chain(signals.map(|signal| &signal.step)).collect();
        let below = self.args.first_number;
        if spans.is_empty() || below <= 1 {
            return Ok(Vec::new());
        }
        let found = journal::last_records(tx, execution, &spans, below).await?;
        let fixed = spans.into_iter().zip(found).filter_map(|(step, record)| {
            let waits = |record: &StepRecord| {
                record.state == StepState::Begun && matches!(record.kind, StepKind::Sleep | StepKind::Signal)
            };
            let record = record.filter(waits).filter(|record| record.next_at != 0)?;
            Some((step.clone(), record.next_at))
        });
        Ok(fixed.collect())
    }

    /// The waits, and the entries that fix the instants which this call names for the first time.
    fn waits(
        &self,
        execution: &Execution,
        waitpoints: &[Waitpoint],
        fixed: &[(StepIdentity, i64)],
        now: i64,
    ) -> (Vec<Wait>, Vec<StepEntry>) {
        let fixed = |step: &StepIdentity| fixed.iter().find(|(other, _)| step.is_same(other)).map(|(_, at)| *at);
        let (mut waits, mut begun) = (Vec::new(), Vec::new());
        let now = now.max(execution.updated_at);
        for sleep in &self.args.sleeps {
            let known = sleep.until.or_else(|| fixed(&sleep.step));
            let until = known.unwrap_or_else(|| now.saturating_add(sleep.sleep_ms.unwrap_or(0)));
            let provider = sleep.provider.clone().unwrap_or_default();
            let wait = Wait { until, provider, ..wait(&sleep.step, StepKind::Sleep) };
            if known.is_none() {
                begun.push(StepEntry { next_at: Some(until), ..wait.ended(StepState::Begun) });
            }
            waits.push(wait);
        }
        for (signal, waitpoint) in self.args.waitpoints.iter().zip(waitpoints) {
            let known = signal.timeout_at.or_else(|| fixed(&signal.step).filter(|_| signal.timeout_ms.is_some()));
            let until = known.or(signal.timeout_ms.map(|ms| now.saturating_add(ms)));
            let id = Some(waitpoint.id);
            let wait = Wait { until: until.unwrap_or(0), waitpoint: id, ..wait(&signal.step, StepKind::Signal) };
            if signal.timeout_ms.is_some() && known.is_none() {
                begun.push(StepEntry { next_at: until, ..wait.ended(StepState::Begun) });
            }
            waits.push(wait);
        }
        for child in &self.args.children {
            waits.push(Wait { child: Some(child.execution_id), ..wait(&child.step, StepKind::Child) });
        }
        for asked in &self.args.questions {
            waits.push(Wait { question: Some(asked.question()), ..wait(&asked.step, StepKind::Step) });
        }
        (waits, begun)
    }

    /// The decision of an earlier call with these numbers that left the lease with its holder.
    async fn decided_before(&self, tx: &mut Tx<'_>, execution: &Execution, waits: &[Wait]) -> Result<Option<Parked>> {
        let ParkArgs { fence, entries, first_number, .. } = self.args;
        let new = NewEntries { first_number: *first_number, entries };
        if !journal::is_recorded(tx, execution, fence, &new).await? {
            return Ok(None);
        }
        let first = first_number + entries.len() as u64;
        // Each wait has at most an entry that fixes its instant and one that ends it.
        let entries = journal::recorded_since(tx, execution, first, 2 * waits.len()).await?;
        let ours = |view: &StepView| {
            view.lease_id == fence.lease_id && waits.iter().any(|wait| wait.identity() == view.identity())
        };
        let ended = entries.iter().any(|view| view.state.is_ended());
        if !ended || !entries.iter().all(ours) {
            return Ok(None);
        }
        let next_number = first + entries.len() as u64;
        Ok(Some(Parked::Satisfied { entries, next_number }))
    }

    /// The waitpoints of the signals, made where they are new.
    async fn waitpoints(&self, tx: &mut Tx<'_>, execution: &Execution) -> Result<Vec<Waitpoint>> {
        let steps: Vec<&StepIdentity> = self.args.waitpoints.iter().map(|wait| &wait.step).collect();
        let found = mailbox::of_steps(tx, execution, &steps).await?;
        Ok(found.into_iter().map(|found| found.waitpoint).collect())
    }

    /// The entries of waits that are over already, which leaves the lease with its holder.
    async fn ended(
        &self,
        tx: &mut Tx<'_>,
        execution: &Execution,
        waits: &mut [Wait],
        waitpoints: &mut [Waitpoint],
    ) -> Result<Vec<StepEntry>> {
        let mut ended = Vec::new();
        for waitpoint in waitpoints.iter_mut() {
            if waitpoint.state != WaitpointState::Pending {
                return Err(Error::of(Code::WaitpointClosed).with("waitpoint_id", waitpoint.id));
            }
            let wait = waits.iter().find(|wait| wait.waitpoint == Some(waitpoint.id));
            if let (Some(fact), Some(wait)) = (waitpoint.consume(tx.now), wait) {
                ended.push(signalled(tx, wait, &fact.id).await?);
            }
        }
        let edge_of = |child: &ExecutionId| Edge::key_of(&EdgeId::between(child, &execution.id));
        let mut children: Vec<&mut Wait> = waits.iter_mut().filter(|wait| wait.child.is_some()).collect();
        let keys: Vec<Key> = children.iter().filter_map(|wait| wait.child.as_ref().map(edge_of)).collect();
        let edges = tx.load_many::<Edge>(keys).await?;
        for (wait, loaded) in children.iter_mut().zip(edges) {
            let edge = match loaded {
                Some(loaded) => loaded.document,
                None => self.substitute_child(tx, execution, wait).await?,
            };
            // A child that ends while this is committed must find its parent parked, or park must find it ended.
            tx.pin(&edge.key());
            if matches!(edge.state, EdgeState::Satisfied | EdgeState::Impossible) {
                let reason = failure_of(tx, wait.child.as_ref(), edge.outcome).await?;
                ended.push(wait.child_ended(edge.outcome, &reason));
            }
        }
        let taken: Vec<StepIdentity> = ended.iter().map(identity).collect();
        let due = waits.iter().filter(|wait| wait.until != 0 && wait.until <= tx.now.max(execution.updated_at));
        ended.extend(due.filter(|wait| !taken.contains(&wait.identity())).map(Wait::timed_out));
        Ok(ended)
    }
}

impl ParkExecution<'_> {
    /// Refuses to ask whether the program fits an entry that the journal does not have: no answer could lead anywhere.
    async fn check_questions(&self, tx: &mut Tx<'_>, execution: &Execution) -> Result<()> {
        for asked in self.args.questions.iter().filter(|asked| asked.reason == SuspendReason::JournalMismatch) {
            let brought = self.args.entries.iter().any(|entry| asked.step.is_same(&identity(entry)));
            if !brought && journal::find(tx, execution, &asked.step).await?.last.is_none() {
                let detail = format!("ask about {}, which the journal does not have", asked.step.label());
                return Err(Error::invalid("questions", detail));
            }
        }
        Ok(())
    }

    /// The edge of a child whose id was taken when it was spawned; the wait is for its substitute.
    async fn substitute_child(&self, tx: &mut Tx<'_>, execution: &Execution, wait: &mut Wait) -> Result<Edge> {
        let missing = Error::of(Code::ExecutionNotInFlow).with("execution_id", wait.child);
        let Some(child) = &mut wait.child else { return Err(missing) };
        let Some(uuid) = substitute::find(tx, &execution.id, child.uuid).await? else { return Err(missing) };
        child.uuid = uuid;
        let key = Edge::key_of(&EdgeId::between(child, &execution.id));
        Ok(tx.load::<Edge>(key).await?.ok_or(missing)?.document)
    }
}

fn wait(step: &StepIdentity, kind: StepKind) -> Wait {
    Wait {
        name: step.name.clone(),
        key: step.key.clone(),
        occurrence: step.occurrence.unwrap_or(0),
        kind,
        ..Default::default()
    }
}

fn identity(entry: &StepEntry) -> StepIdentity {
    StepIdentity { name: entry.name.clone(), key: entry.key.clone(), occurrence: entry.occurrence }
}

fn step_of(waitpoint: &Waitpoint) -> StepIdentity {
    StepIdentity {
        name: waitpoint.step_name.clone(),
        key: waitpoint.step_key.clone(),
        occurrence: waitpoint.step_key.is_none().then_some(waitpoint.step_occurrence),
    }
}

/// The entry of a wait that a stored signal ends.
async fn signalled(tx: &mut Tx<'_>, wait: &Wait, id: &ff_core::SignalId) -> Result<StepEntry> {
    let key = AcceptedSignal::key_of(id);
    let mut answers = tx.read(vec![Query::Documents(vec![key.clone()]), Query::Blobs(vec![key])]).await?.into_iter();
    let document =
        answers.next().and_then(ff_store::Answer::into_documents).and_then(|mut found| found.pop()).flatten();
    let blob = answers.next().and_then(ff_store::Answer::into_blobs).and_then(|mut found| found.pop()).flatten();
    let signal = document.map(|stored| AcceptedSignal::decode(&stored.body)).transpose()?.unwrap_or_default();
    let content_type = signal.content_type.clone();
    let payload = signal.payload.clone().or(blob.map(ff_core::Blob));
    Ok(journal::signal_entry(wait, *id, payload, &content_type))
}

/// Why a child that ended before its parent parked did not succeed.
async fn failure_of(tx: &mut Tx<'_>, child: Option<&ExecutionId>, outcome: TerminalOutcome) -> Result<String> {
    let Some(child) = child.filter(|_| outcome != TerminalOutcome::Success) else { return Ok(String::new()) };
    let found = tx.load::<Execution>(Execution::key_of(child)).await?;
    Ok(found.map(|found| found.document.end_reason().to_owned()).unwrap_or_default())
}
