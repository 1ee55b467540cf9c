//! Schedules: what is created again and again, and when.

use ff_core::execution::Execution;
use ff_core::flow::{Flow, FlowState};
use ff_core::op::parts::NamespacePage;
use ff_core::op::view::{ScheduleSummary, ScheduleView};
use ff_core::op::{
    BackfillSchedule, BackfillScheduleArgs, BackfillScheduleOutcome, CreateSchedule, CreateScheduleArgs,
    CreateScheduleOutcome, DeleteSchedule, DeleteScheduleArgs, DeleteScheduleOutcome, GetSchedule, GetScheduleArgs,
    ListSchedules, ListSchedulesOutcome, PauseSchedule, ResumeSchedule, ScheduleNote, ScheduleTemplate,
    TriggerSchedule, TriggerScheduleArgs, TriggerScheduleOutcome, UpdateSchedule, UpdateScheduleArgs,
};
use ff_core::schedule::{DueRun, NewSchedule, Origin, OriginKind, Schedule};
use ff_core::{Code, CommandId, Family, Indexed, Partition, Result, ScheduleId, text};
use uuid::Uuid;

use crate::caller::Caller;
use crate::locks::Turn;
use crate::named_documents::{no_such, page};
use crate::op::Handle;
use crate::schedule::Runs;
use crate::services::Services;
use crate::submission::Submissions;
use crate::transaction::{Command, Tx};
use crate::{cursor, env};

/// Where a schedule is.
struct Place {
    namespace: String,
    name: String,
    partition: Partition,
    /// The caller that acts on it.
    caller: Caller,
}

impl Place {
    async fn load(&self, tx: &mut Tx<'_>) -> Result<Schedule> {
        let loaded = tx.load::<Schedule>(Schedule::key_of(&self.namespace, &self.name)).await?;
        let schedule = loaded.ok_or_else(|| no_such(Code::ScheduleNotFound, &self.name))?.document;
        // A caller that acts on a schedule acts on the lanes that it fills.
        if !self.caller.lanes.is_empty() {
            let template = ScheduleTemplate::decode(&schedule.template)?;
            template.lanes().try_for_each(|lane| self.caller.check_lane(lane))?;
        }
        Ok(schedule)
    }
}

impl Services {
    fn place(&self, caller: &Caller, namespace: Option<&str>, name: &str) -> Result<Place> {
        let namespace = caller.namespace(namespace)?;
        let partition = self.transactor.partitions().schedule_partition(&namespace, name);
        Ok(Place { namespace, name: name.to_owned(), partition, caller: caller.clone() })
    }

    /// Waits for its turn at a schedule.
    async fn turn_at(&self, place: &Place) -> Turn<'_> {
        self.transactor.locks().take(place.partition, Schedule::key_of(&place.namespace, &place.name)).await
    }

    /// A schedule as people see it, with the states of its runs.
    async fn schedule_view(&self, place: &Place, schedule: &Schedule) -> Result<ScheduleView> {
        let mut view = ScheduleView::of(schedule)?;
        let mut keys = Vec::new();
        for run in &view.runs {
            keys.extend(run.execution_id.as_ref().map(Execution::key_of).or(run.flow_id.as_ref().map(Flow::key_of)));
        }
        if keys.is_empty() {
            return Ok(view);
        }
        let mut found = self.transactor.store().documents(place.partition, keys).await?.into_iter();
        for run in &mut view.runs {
            if run.execution_id.is_some() {
                let execution =
                    found.next().flatten().and_then(|stored| self.transactor.readable::<Execution>(&stored));
                run.public_state = execution.map(|execution| execution.public_state());
            } else if run.flow_id.is_some() {
                let flow = found.next().flatten().and_then(|stored| self.transactor.readable::<Flow>(&stored));
                run.flow_state = flow.map(|flow| match (&flow.ended, &flow.cancellation) {
                    (Some(end), _) => end.state,
                    (None, Some(_)) => FlowState::Cancelled,
                    (None, None) => FlowState::Running,
                });
            }
        }
        Ok(view)
    }
}

/// Names of callers come from outside and may be longer than a label.
fn name_of(caller: &Caller) -> &str {
    if text::optional_label("by", &caller.name).is_ok() { &caller.name } else { "" }
}

impl Handle<CreateSchedule> for Services {
    async fn handle(&self, caller: &Caller, args: CreateScheduleArgs) -> Result<CreateScheduleOutcome> {
        let place = self.place(caller, args.namespace.as_deref(), &args.name)?;
        args.template.lanes().try_for_each(|lane| caller.check_lane(lane))?;
        let new = NewSchedule {
            id: ScheduleId::mint(&env::mint(self.transactor.env(), self.transactor.now())),
            namespace: place.namespace.clone(),
            name: args.name.clone(),
            definition: args.definition(),
            template: args.template.encode()?,
        };
        let identity = self.transactor.callers_identity::<CreateSchedule>(caller, &args, None);
        self.transactor.transact_once_by_name(place.partition, identity, &Define { new }).await
    }
}

struct Define {
    new: NewSchedule,
}

impl Command for Define {
    type Outcome = CreateScheduleOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<CreateScheduleOutcome> {
        let next_at = |schedule: &Schedule| Some(schedule.next_at).filter(|at| *at != 0);
        let key = Schedule::key_of(&self.new.namespace, &self.new.name);
        if let Some(loaded) = tx.load::<Schedule>(key).await? {
            let existing = loaded.document;
            existing.check_same(&self.new)?;
            return Ok(CreateScheduleOutcome::AlreadyExists { schedule_id: existing.id, next_at: next_at(&existing) });
        }
        let schedule = Schedule::create(self.new.clone(), tx.now)?;
        tx.save(&schedule);
        Ok(CreateScheduleOutcome::Created { schedule_id: schedule.id, next_at: next_at(&schedule) })
    }
}

impl Handle<GetSchedule> for Services {
    async fn handle(&self, caller: &Caller, args: GetScheduleArgs) -> Result<ScheduleView> {
        let place = self.place(caller, args.namespace.as_deref(), &args.name)?;
        let key = Schedule::key_of(&place.namespace, &place.name);
        let schedule = self.transactor.find::<Schedule>(place.partition, key).await?;
        let schedule = schedule.ok_or_else(|| no_such(Code::ScheduleNotFound, &place.name))?;
        self.schedule_view(&place, &schedule).await
    }
}

impl Handle<ListSchedules> for Services {
    async fn handle(&self, caller: &Caller, args: NamespacePage) -> Result<ListSchedulesOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let partitions =
            self.transactor.partitions().all().filter(|partition| partition.family == Family::Flow).collect();
        let limit = self.transactor.limits().page(args.limit)?;
        let cursor = cursor::decode::<String>(args.cursor.as_deref())?;
        let cursor = cursor.as_deref();
        let all =
            self.transactor.named_after::<Schedule>(partitions, &namespace, cursor, |schedule| &schedule.name).await?;
        let (schedules, next_cursor) = page(all, limit, |schedule| &schedule.name);
        Ok(ListSchedulesOutcome { items: schedules.iter().map(ScheduleSummary::of).collect(), next_cursor })
    }
}

impl Handle<UpdateSchedule> for Services {
    async fn handle(&self, caller: &Caller, args: UpdateScheduleArgs) -> Result<ScheduleSummary> {
        let place = self.place(caller, args.namespace.as_deref(), &args.name)?;
        args.template.lanes().try_for_each(|lane| caller.check_lane(lane))?;
        let template = args.template.encode()?;
        let identity = self.transactor.identity::<UpdateSchedule>(caller, &args, None);
        let definition = args.as_new().definition();
        let change = Change(&place, |schedule: &mut Schedule, now| {
            schedule.update(definition.clone(), template.clone(), args.expected_revision, now).map(|()| true)
        });
        let _turn = self.turn_at(&place).await;
        self.transactor.transact_once(place.partition, identity, &change).await
    }
}

impl Handle<PauseSchedule> for Services {
    async fn handle(&self, caller: &Caller, args: ScheduleNote) -> Result<ScheduleSummary> {
        let place = self.place(caller, args.namespace.as_deref(), &args.name)?;
        let identity = self.transactor.identity::<PauseSchedule>(caller, &args, None);
        let (note, by) = (args.note.as_deref().unwrap_or_default(), name_of(caller));
        let change = Change(&place, |schedule: &mut Schedule, now| schedule.pause(note, by, now));
        let _turn = self.turn_at(&place).await;
        self.transactor.transact_once(place.partition, identity, &change).await
    }
}

impl Handle<ResumeSchedule> for Services {
    async fn handle(&self, caller: &Caller, args: ScheduleNote) -> Result<ScheduleSummary> {
        let place = self.place(caller, args.namespace.as_deref(), &args.name)?;
        let identity = self.transactor.identity::<ResumeSchedule>(caller, &args, None);
        let (note, by) = (args.note.as_deref().unwrap_or_default(), name_of(caller));
        let change = Change(&place, |schedule: &mut Schedule, now| schedule.resume(note, by, now));
        let _turn = self.turn_at(&place).await;
        self.transactor.transact_once(place.partition, identity, &change).await
    }
}

/// A transition of a schedule that says whether it changed anything.
struct Change<'a, F>(&'a Place, F);

impl<F: Fn(&mut Schedule, i64) -> Result<bool> + Send + Sync> Command for Change<'_, F> {
    type Outcome = ScheduleSummary;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<ScheduleSummary> {
        let mut schedule = self.0.load(tx).await?;
        if (self.1)(&mut schedule, tx.now)? {
            tx.save(&schedule);
        }
        Ok(ScheduleSummary::of(&schedule))
    }
}

impl Handle<TriggerSchedule> for Services {
    async fn handle(&self, caller: &Caller, args: TriggerScheduleArgs) -> Result<TriggerScheduleOutcome> {
        let place = self.place(caller, args.namespace.as_deref(), &args.name)?;
        let identity = self.transactor.identity::<TriggerSchedule>(caller, &args, args.command_id);
        let id = identity.as_ref().map(|identity| CommandId(Uuid::from_bytes(*identity.digest()))).unwrap_or_default();
        let _turn = self.turn_at(&place).await;
        self.transactor
            .transact_once(
                place.partition,
                identity,
                &Trigger { submissions: &self.shared.submissions, place: &place, args: &args, id },
            )
            .await
    }
}

struct Trigger<'a> {
    submissions: &'a Submissions,
    place: &'a Place,
    args: &'a TriggerScheduleArgs,
    /// Part of the run's id, so that two triggers of one millisecond are two runs.
    id: CommandId,
}

impl Command for Trigger<'_> {
    type Outcome = TriggerScheduleOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<TriggerScheduleOutcome> {
        let mut schedule = self.place.load(tx).await?;
        let run = DueRun {
            scheduled_for: tx.now,
            origin: Origin::of(OriginKind::Trigger, self.id),
            overlap: self.args.overlap.unwrap_or_default(),
        };
        let record = Runs::of(self.submissions, &schedule)?.decide(tx, &mut schedule, &run).await?;
        tx.save(&schedule);
        Ok(TriggerScheduleOutcome {
            outcome: record.outcome,
            scheduled_for: record.scheduled_for,
            execution_id: record.execution,
            flow_id: record.flow,
            refused: (!record.refused.is_empty()).then_some(record.refused),
        })
    }
}

impl Handle<BackfillSchedule> for Services {
    async fn handle(&self, caller: &Caller, args: BackfillScheduleArgs) -> Result<BackfillScheduleOutcome> {
        let place = self.place(caller, args.namespace.as_deref(), &args.name)?;
        let identity = self.transactor.identity::<BackfillSchedule>(caller, &args, args.command_id);
        let id = identity.as_ref().map(|identity| CommandId(Uuid::from_bytes(*identity.digest()))).unwrap_or_default();
        let _turn = self.turn_at(&place).await;
        self.transactor.transact_once(place.partition, identity, &Refill { place: &place, args: &args, id }).await
    }
}

struct Refill<'a> {
    place: &'a Place,
    args: &'a BackfillScheduleArgs,
    id: CommandId,
}

impl Command for Refill<'_> {
    type Outcome = BackfillScheduleOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<BackfillScheduleOutcome> {
        let mut schedule = self.place.load(tx).await?;
        let stretch = (self.args.from, self.args.to);
        let instants = schedule.backfill(self.id, stretch, self.args.overlap.unwrap_or_default(), tx.now)?;
        tx.save(&schedule);
        Ok(BackfillScheduleOutcome { backfill_id: self.id, instants })
    }
}

impl Handle<DeleteSchedule> for Services {
    async fn handle(&self, caller: &Caller, args: DeleteScheduleArgs) -> Result<DeleteScheduleOutcome> {
        let place = self.place(caller, args.namespace.as_deref(), &args.name)?;
        let identity = self.transactor.identity::<DeleteSchedule>(caller, &args, None);
        let _turn = self.turn_at(&place).await;
        self.transactor.transact_once(place.partition, identity, &Delete { place: &place }).await
    }
}

struct Delete<'a> {
    place: &'a Place,
}

impl Command for Delete<'_> {
    type Outcome = DeleteScheduleOutcome;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<DeleteScheduleOutcome> {
        let schedule = self.place.load(tx).await?;
        tx.delete(&schedule.key());
        Ok(DeleteScheduleOutcome { schedule_id: schedule.id })
    }
}
