//! Schedules: what is created again and again, and when.

use ff_core::op::view::{ScheduleSummary, ScheduleView};
use ff_core::op::{
    BackfillSchedule, CreateSchedule, DeleteSchedule, GetSchedule, ListSchedules, PauseSchedule, ResumeSchedule,
    ScheduleNote, ScheduleTemplate, TriggerSchedule, UpdateSchedule, backfill_schedule, create_schedule,
    delete_schedule, get_schedule, list_schedules, trigger_schedule, update_schedule,
};
use ff_core::schedule::{CatchUp, Overlap, ScheduleSpec};

use crate::client::Client;
use crate::error::Result;

/// A schedule in the making.
///
/// ```
/// # async fn example(client: flowfabric::Client) -> flowfabric::Result<()> {
/// use flowfabric::{Overlap, ScheduleSpec};
///
/// let report = client.submit("report").input(&"yesterday").into_template()?;
/// let spec = ScheduleSpec::cron("0 2 * * *", "Europe/Berlin");
/// client.schedule("nightly", spec, report).overlap(Overlap::Skip).create().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a schedule is made by `create`"]
pub struct NewSchedule<'a> {
    client: &'a Client,
    args: create_schedule::Args,
}

impl NewSchedule<'_> {
    /// Not before this instant. One in the past lets `catch_up` decide about the instants since then.
    pub fn starts_at(mut self, instant_ms: i64) -> Self {
        self.args.starts_at = Some(instant_ms);
        self
    }

    /// Not after this instant.
    pub fn ends_at(mut self, instant_ms: i64) -> Self {
        self.args.ends_at = Some(instant_ms);
        self
    }

    /// Each run starts up to so much later.
    pub fn jitter_ms(mut self, jitter_ms: i64) -> Self {
        self.args.jitter_ms = Some(jitter_ms);
        self
    }

    /// What happens while the latest run has not ended.
    pub fn overlap(mut self, overlap: Overlap) -> Self {
        self.args.overlap = Some(overlap);
        self
    }

    /// What becomes of instants that were not seen to in time.
    pub fn catch_up(mut self, catch_up: CatchUp) -> Self {
        self.args.catch_up = Some(catch_up);
        self
    }

    /// After so many failed runs in a row it pauses.
    pub fn pause_after_failures(mut self, failures: u32) -> Self {
        self.args.pause_after_failures = Some(failures);
        self
    }

    /// Creates it. The same definition again is no error.
    pub async fn create(self) -> Result<create_schedule::Outcome> {
        self.client.call::<CreateSchedule>(self.args).await
    }
}

/// Schedules.
impl Client {
    /// A schedule that creates something at each of its instants.
    pub fn schedule(&self, name: impl Into<String>, spec: ScheduleSpec, template: ScheduleTemplate) -> NewSchedule<'_> {
        let args = create_schedule::Args {
            name: name.into(),
            namespace: None,
            spec,
            starts_at: None,
            ends_at: None,
            jitter_ms: None,
            overlap: None,
            catch_up: None,
            pause_after_failures: None,
            template,
        };
        NewSchedule { client: self, args }
    }

    /// A schedule with its next instants and what became of the last ones.
    pub async fn get_schedule(&self, name: &str) -> Result<ScheduleView> {
        self.call::<GetSchedule>(get_schedule::Args { name: name.to_owned(), namespace: None }).await
    }

    /// All schedules by name.
    pub async fn list_schedules(&self) -> Result<Vec<ScheduleSummary>> {
        let mut schedules = Vec::new();
        let mut page = list_schedules::Args::default();
        loop {
            let answer = self.call::<ListSchedules>(page.clone()).await?;
            schedules.extend(answer.items);
            match answer.next_cursor {
                Some(cursor) => page.cursor = Some(cursor),
                None => return Ok(schedules),
            }
        }
    }

    /// Replaces the definition and the template of a schedule.
    pub async fn update_schedule(&self, schedule: update_schedule::Args) -> Result<ScheduleSummary> {
        self.call::<UpdateSchedule>(schedule).await
    }

    /// Pauses a schedule; the note is kept and shown.
    pub async fn pause_schedule(&self, name: &str, note: Option<&str>) -> Result<ScheduleSummary> {
        self.call::<PauseSchedule>(noted(name, note)).await
    }

    /// Lets a paused schedule go on from now.
    pub async fn resume_schedule(&self, name: &str, note: Option<&str>) -> Result<ScheduleSummary> {
        self.call::<ResumeSchedule>(noted(name, note)).await
    }

    /// Runs a schedule once, now.
    pub async fn trigger_schedule(&self, name: &str, overlap: Option<Overlap>) -> Result<trigger_schedule::Outcome> {
        let args = trigger_schedule::Args { name: name.to_owned(), namespace: None, overlap, command_id: None };
        self.call::<TriggerSchedule>(args).await
    }

    /// Runs the instants of a stretch once more.
    pub async fn backfill_schedule(
        &self,
        name: &str,
        (from, to): (i64, i64),
        overlap: Option<Overlap>,
    ) -> Result<backfill_schedule::Outcome> {
        let name = name.to_owned();
        let args = backfill_schedule::Args { name, namespace: None, from, to, overlap, command_id: None };
        self.call::<BackfillSchedule>(args).await
    }

    /// Removes a schedule. Its runs stay.
    pub async fn delete_schedule(&self, name: &str) -> Result<delete_schedule::Outcome> {
        self.call::<DeleteSchedule>(delete_schedule::Args { name: name.to_owned(), namespace: None }).await
    }
}

fn noted(name: &str, note: Option<&str>) -> ScheduleNote {
    ScheduleNote { name: name.to_owned(), namespace: None, note: note.map(str::to_owned) }
}
