//! Schedules at work: their instants are decided and their runs created, each in one commit with the schedule that
//! moves on, and the ends of runs are told to them. The decision about an instant is made in `ff_core::schedule`.

use std::sync::Arc;

use ff_core::event::Effects;
use ff_core::execution::{CancelSource, Cancelled, Execution};
use ff_core::flow::{CancelFlowPolicy, Flow};
use ff_core::index::{self, Due, kind};
use ff_core::op::{CreateExecutionArgs, CreateFlowArgs, ScheduleTemplate};
use ff_core::schedule::{Decision, DueRun, Overlap, RunEnd, RunOutcome, RunRecord, Schedule, ScheduledRun, Started};
use ff_core::{Class, Code, ExecutionId, FlowId, Indexed, Key, Partition, Result, limits};
use ff_store::{Answer, Query, Scan};
use uuid::Uuid;

use crate::caller::Caller;
use crate::env;
use crate::execution_data::close_waitpoints;
use crate::flow::save_flow;
use crate::submission::{Submissions, write_new};
use crate::transaction::{Command, Transactor, Tx};

/// The creator of the runs of a schedule.
const CREATOR: &str = "schedule";
/// Why a run is cancelled that another one takes the place of.
const REPLACED: &str = "the next run of its schedule took its place";

impl Submissions {
    /// The timer of a schedule.
    pub(crate) async fn fire_schedule(&self, partition: Partition, key: Key, score: i64) -> Result<()> {
        let _turn = self.transactor.locks().take(partition, key.clone()).await;
        let advance = |most: usize, refuse: bool| Advance { submissions: self, key: &key, score, most, refuse };
        match self.transactor.transact(partition, self.transactor.fresh_command(), &advance(usize::MAX, false)).await {
            Err(error) if error.code == Code::CommitTooLarge => {}
            fired => return fired,
        }
        match self.transactor.transact(partition, self.transactor.fresh_command(), &advance(1, false)).await {
            // Not even one run fits a commit, and none ever will: the schedule goes on without it.
            Err(error) if error.code == Code::CommitTooLarge => {
                self.transactor.transact(partition, self.transactor.fresh_command(), &advance(1, true)).await
            }
            fired => fired,
        }
    }
}

impl Transactor {
    /// Tells its schedule of the end of an execution.
    pub(crate) async fn tell_schedule(&self, partition: Partition, key: &Key) -> Result<()> {
        self.transact(partition, self.fresh_command(), &TellOfExecution { key }).await
    }
}

/// Decides the instants that are due, as many as one commit takes.
struct Advance<'a> {
    submissions: &'a Submissions,
    key: &'a Key,
    score: i64,
    /// At most so many.
    most: usize,
    /// The run is refused, because it is too large for a commit.
    refuse: bool,
}

impl Command for Advance<'_> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(loaded) = tx.load::<Schedule>(self.key.clone()).await? else {
            return tx.remove_stray(self.key, Due::Timer.entry(self.key, self.score)).await;
        };
        let mut schedule = loaded.document;
        let due_until = tx.due_until();
        if schedule.next_timer().is_none_or(|at| at > due_until) {
            return tx.repair_due(self.key, schedule.next_timer(), self.score).await;
        }
        let instants = schedule.instants()?;
        let mut runs = Runs::of(self.submissions, &schedule)?;
        runs.refuse = self.refuse;
        let usual = limits::SCHEDULE_EXECUTIONS_PER_COMMIT / runs.template.executions().max(1);
        for _ in 0..tx.transactor.chunk(usual.max(1)).min(self.most) {
            let Some(run) = schedule.take_due(&instants, due_until) else { break };
            runs.decide(tx, &mut schedule, &run).await?;
        }
        tx.save(&schedule);
        if schedule.next_timer().is_some_and(|at| at <= due_until) {
            // Its entry may stand where it stood, which no timer would notice.
            tx.transactor.due().note(tx.partition, tx.now);
        }
        Ok(())
    }
}

/// The runs of a schedule that one commit decides about.
pub(crate) struct Runs<'a> {
    submissions: &'a Submissions,
    template: ScheduleTemplate,
    caller: Caller,
    /// The latest run, once it was looked for; indexes do not know of runs of this commit.
    latest: Option<Option<Latest>>,
    refuse: bool,
}

enum Latest {
    Execution(Box<Execution>),
    Flow(Box<Flow>),
}

impl<'a> Runs<'a> {
    pub(crate) fn of(submissions: &'a Submissions, schedule: &Schedule) -> Result<Self> {
        let namespace = Some(schedule.namespace.clone());
        Ok(Self {
            submissions,
            template: ScheduleTemplate::decode(&schedule.template)?,
            caller: Caller { name: CREATOR.to_owned(), namespace, ..Caller::system() },
            latest: None,
            refuse: false,
        })
    }

    /// Decides about one instant; the caller saves the schedule.
    pub(crate) async fn decide(&mut self, tx: &mut Tx<'_>, schedule: &mut Schedule, run: &DueRun) -> Result<RunRecord> {
        let open = run.overlap != Overlap::Allow && self.latest_is_open(tx, schedule).await?;
        let record = match schedule.decide(run, open) {
            Decision::Skip => RunRecord::of(run, RunOutcome::Skipped, tx.now),
            Decision::Buffer => {
                // The end of the latest run wakes this one, so that it must not slip in before.
                self.pin_latest(tx);
                schedule.buffer(run, tx.now);
                return Ok(RunRecord::of(run, RunOutcome::Buffered, tx.now));
            }
            Decision::Start => self.start(tx, schedule, run).await?,
            Decision::Replace => self.replace(tx, schedule, run).await?,
        };
        schedule.record(record.clone());
        Ok(record)
    }

    /// Creates a run in the place of the latest one, which goes on if the creation is refused.
    async fn replace(&mut self, tx: &mut Tx<'_>, schedule: &Schedule, run: &DueRun) -> Result<RunRecord> {
        let previous = self.latest.take();
        let record = self.start(tx, schedule, run).await?;
        match record.outcome {
            RunOutcome::Started => cancel_run(tx, previous.flatten()).await?,
            _ => self.latest = previous,
        }
        Ok(record)
    }

    /// Creates a run. A refusal becomes the outcome of the instant; the schedule goes on.
    async fn start(&mut self, tx: &mut Tx<'_>, schedule: &Schedule, run: &DueRun) -> Result<RunRecord> {
        if self.refuse {
            return Ok(RunRecord::refused(run, Code::CommitTooLarge, tx.now));
        }
        match self.create(tx, schedule, run).await {
            Ok(started) => Ok(RunRecord::started(run, started, tx.now)),
            Err(error) if matches!(error.code.class(), Class::Unavailable | Class::Internal) => Err(error),
            Err(error) => {
                tracing::warn!(schedule = %schedule.name, %error, "a run of a schedule was refused");
                Ok(RunRecord::refused(run, error.code, tx.now))
            }
        }
    }

    async fn create(&mut self, tx: &mut Tx<'_>, schedule: &Schedule, run: &DueRun) -> Result<Started> {
        let derived = run.origin.run_id(&schedule.id, run.scheduled_for);
        let partition = tx.partition.number;
        let scheduled = Some(Box::new(ScheduledRun {
            schedule: schedule.id,
            name: schedule.name.clone(),
            scheduled_for: run.scheduled_for,
            number: schedule.run_count + 1,
            ..Default::default()
        }));
        match &self.template {
            ScheduleTemplate::Execution(request) => {
                let key = Execution::key_of(&ExecutionId { partition, uuid: derived });
                let id = ExecutionId { partition, uuid: free_id(tx, derived, key).await? };
                let args = CreateExecutionArgs { execution_id: Some(id), ..(**request).clone() };
                let mut submission = self.submissions.submission(&self.caller, &args).await?;
                submission.check_new()?;
                submission.request.schedule = scheduled;
                let execution = Execution::create(submission.request, tx.now)?;
                self.latest = Some(Some(Latest::Execution(Box::new(execution.clone()))));
                write_new(tx, execution, submission.blob, submission.announced);
                Ok(Started::Execution(id))
            }
            ScheduleTemplate::Flow(request) => {
                let key = Flow::key_of(&FlowId { partition, uuid: derived });
                let id = FlowId { partition, uuid: free_id(tx, derived, key).await? };
                let args = CreateFlowArgs { flow_id: Some(id), ..(**request).clone() };
                let mut flow = self.submissions.flow_to_write(&self.caller, id, &args).await?;
                flow.new.schedule = scheduled;
                let created = flow.write(tx)?;
                self.latest = Some(Some(Latest::Flow(Box::new(created))));
                Ok(Started::Flow(id))
            }
            ScheduleTemplate::Unknown(variant) => Err(variant.refused("template")),
        }
    }

    /// Whether the run that was created last has not ended.
    async fn latest_is_open(&mut self, tx: &mut Tx<'_>, schedule: &Schedule) -> Result<bool> {
        if self.latest.is_none() {
            let page = tx.scan(Scan::last(index::runs(schedule.id.0), 1).with_documents()).await?;
            self.latest = Some(match page.entries.into_iter().next() {
                Some(entry) if entry.member.kind() == kind::FLOW => tx
                    .adopt_readable::<Flow>(entry.member, entry.document)
                    .map(|loaded| Latest::Flow(Box::new(loaded.document))),
                Some(entry) => tx
                    .adopt_readable::<Execution>(entry.member, entry.document)
                    .map(|loaded| Latest::Execution(Box::new(loaded.document))),
                None => None,
            });
        }
        Ok(match self.latest.as_ref().and_then(Option::as_ref) {
            Some(Latest::Execution(execution)) => !execution.is_terminal(),
            Some(Latest::Flow(flow)) => flow.ended.is_none(),
            None => false,
        })
    }

    fn pin_latest(&self, tx: &mut Tx<'_>) {
        match self.latest.as_ref().and_then(Option::as_ref) {
            Some(Latest::Execution(execution)) => tx.pin(&execution.key()),
            Some(Latest::Flow(flow)) => tx.pin(&flow.key()),
            None => {}
        }
    }
}

async fn cancel_run(tx: &mut Tx<'_>, run: Option<Latest>) -> Result<()> {
    match run {
        Some(Latest::Execution(mut execution)) => {
            let suspension = execution.suspension.clone();
            let mut effects = Effects::default();
            let cancelled = execution.cancel(CancelSource::Operator, REPLACED, tx.now, &mut effects)?;
            if cancelled == Cancelled::Now {
                if let Some(suspension) = suspension {
                    close_waitpoints(tx, &suspension, &execution).await?;
                }
                tx.save_shared(Arc::from(execution), effects);
            }
        }
        Some(Latest::Flow(mut flow)) => {
            let began = flow.cancel(CancelFlowPolicy::CancelAll, REPLACED, tx.now)?;
            if began {
                save_flow(tx, &flow);
            }
        }
        None => {}
    }
    Ok(())
}

/// The id of a run. A derived one is no secret, so that another caller may have created something under it; the
/// schedule moves on in the commit that creates the run, so another id is as good.
async fn free_id(tx: &mut Tx<'_>, derived: Uuid, key: Key) -> Result<Uuid> {
    let answers = tx.read(vec![Query::Documents(vec![key])]).await?;
    let taken = answers.into_iter().filter_map(Answer::into_documents).flatten().flatten().next().is_some();
    Ok(if taken { env::mint(tx.transactor.env(), tx.now).uuid() } else { derived })
}

struct TellOfExecution<'a> {
    key: &'a Key,
}

impl Command for TellOfExecution<'_> {
    type Outcome = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(loaded) = tx.load::<Execution>(self.key.clone()).await? else { return Ok(()) };
        let mut execution = loaded.document;
        let end = RunEnd::of_execution(execution.public_state());
        let Some(run) = execution.schedule.as_mut().filter(|run| run.owes_end) else { return Ok(()) };
        run.owes_end = false;
        let run = run.clone();
        tell(tx, &execution.namespace, &run, end).await?;
        tx.save(&execution);
        Ok(())
    }
}

/// Tells its schedule of the end of a flow, and saves the flow.
pub(crate) async fn tell_of_flow(tx: &mut Tx<'_>, flow: &mut Flow) -> Result<()> {
    let end = flow.run_end();
    let Some(run) = flow.schedule.as_mut().filter(|run| run.owes_end) else { return Ok(()) };
    run.owes_end = false;
    let run = run.clone();
    if let Some(end) = end {
        tell(tx, &flow.namespace, &run, end).await?;
    }
    save_flow(tx, flow);
    Ok(())
}

/// A schedule that is gone, or was made anew, has nothing to do with it.
async fn tell(tx: &mut Tx<'_>, namespace: &str, run: &ScheduledRun, end: RunEnd) -> Result<()> {
    let Some(loaded) = tx.load::<Schedule>(Schedule::key_of(namespace, &run.name)).await? else { return Ok(()) };
    let mut schedule = loaded.document;
    if schedule.id == run.schedule {
        schedule.run_ended(end, tx.now);
        tx.save(&schedule);
    }
    Ok(())
}
