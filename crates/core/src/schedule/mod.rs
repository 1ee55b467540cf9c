//! Schedules: what is created again and again, and when. A schedule lives in the flow partition that its name decides, and
//! so do its runs: advancing it and creating a run is one commit, so that an instant runs once whatever crashes.
//!
//! * `cron`: cron expressions in time zones
//! * `spec`: the instants of a schedule
//! * `run`: what became of an instant, and what a run knows of its schedule
//!
//! The template of a schedule is opaque here: `op::ScheduleTemplate` reads it.
//!
//! Every instant is decided once: `cursor` is the last one that was, and [`Schedule::take_due`] the only way to move it.

mod cron;
mod run;
mod spec;
#[cfg(test)]
mod tests;

pub use cron::{CRON_MAX_BYTES, Cron, DEFAULT_TIME_ZONE};
pub use run::{DueRun, Origin, OriginKind, RunEnd, RunOutcome, RunRecord, ScheduledRun, Started};
pub use spec::{Instants, ScheduleSpec};

use serde::{Deserialize, Serialize};

use crate::encoding::{Blob, Document};
use crate::error::{Code, Error, Result};
use crate::gate::definition_conflict;
use crate::id::{CommandId, ScheduleId};
use crate::index::{self, Due, Indexed, kind};
use crate::key::{Entry, Key};
use crate::partition::digest16;
use crate::planted::{Bug, planted};
use crate::{document, limits, text, vocabulary};

vocabulary! {
    /// What happens at an instant while the latest run has not ended.
    #[derive(Default)]
    pub enum Overlap {
        /// The next run starts beside it.
        #[default]
        Allow "allow",
        /// The instant is passed over.
        Skip "skip",
        /// The next run starts when the latest one has ended; further instants are passed over.
        BufferOne "buffer_one",
        /// The latest run is cancelled, and the next one starts.
        CancelPrevious "cancel_previous",
    }
}

/// What becomes of instants that were not seen to in time, such as while no server ran.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum CatchUp {
    /// They are passed over.
    #[default]
    None,
    /// The last of them runs.
    Last,
    /// The last of them run, up to a number.
    All(CatchUpAll),
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(CatchUp);

document! {
    /// How many instants are caught up on.
    pub api struct CatchUpAll {
        /// At most so many, the latest.
        "m" max: u32 = 100,
    }
}

impl CatchUp {
    /// At most so many of the latest instants run.
    pub fn all(max: u32) -> Self {
        Self::All(CatchUpAll { max, ..Default::default() })
    }

    fn max(&self) -> usize {
        match self {
            CatchUp::None | CatchUp::Unknown(_) => 0,
            CatchUp::Last => 1,
            CatchUp::All(all) => usize::try_from(all.max).unwrap_or(usize::MAX),
        }
    }
}

document! {
    /// The definition of a schedule, as its creator wrote it, apart from its template.
    pub struct ScheduleDefinition {
        /// When it runs.
        "s" spec: ScheduleSpec,
        /// Not before this instant.
        "b" starts_at: Option<i64>,
        /// Not after this instant.
        "e" ends_at: Option<i64>,
        /// Each run starts up to so much later, by a number that follows from its id.
        "j" jitter_ms: i64,
        /// What happens while the latest run has not ended.
        "o" overlap: Overlap,
        /// What becomes of instants that were not seen to in time.
        "c" catch_up: CatchUp,
        /// After so many failed runs in a row it pauses; 0 is never.
        "f" pause_after_failures: u32,
    }
}

impl ScheduleDefinition {
    /// Refuses what is wrong whatever the state of the system, by field.
    pub fn validate(&self) -> Result<()> {
        for (field, instant) in [("starts_at", self.starts_at), ("ends_at", self.ends_at)] {
            instant.map_or(Ok(()), |instant| text::instant(field, instant))?;
        }
        if let (Some(starts_at), Some(ends_at)) = (self.starts_at, self.ends_at)
            && ends_at < starts_at
        {
            return Err(Error::invalid("ends_at", "must not be before starts_at"));
        }
        text::within("jitter_ms", self.jitter_ms, 0..=limits::SCHEDULE_JITTER_MAX_MS)?;
        if let CatchUp::All(all) = &self.catch_up {
            text::within("catch_up.all.max", all.max, 1..=limits::SCHEDULE_CATCH_UP_MAX)?;
        }
        self.spec.read(0)?;
        self.spec.cron.as_deref().map_or(Ok(()), Cron::check)
    }
}

vocabulary! {
    /// Whether a schedule runs.
    pub enum ScheduleState {
        /// It does, or will.
        Active "active",
        /// A caller paused it, or too many runs failed.
        Paused "paused",
        /// It has no instant any more.
        Ended "ended",
    }
}

document! {
    /// The note of the last pause or resumption.
    pub struct Note {
        /// In words; may be empty.
        "t" text: String,
        /// The name of the caller that said it.
        "b" by: String,
        /// When it was said.
        "a" at: i64,
    }
}

document! {
    /// A stretch of the past or the future whose instants are run once more.
    pub struct Backfill {
        /// Its identity, which is part of the ids of its runs.
        "i" id: CommandId,
        /// The last instant that was decided, or one right before the first.
        "c" cursor: i64,
        /// The last instant.
        "t" to: i64,
        /// What happens while the latest run has not ended.
        "o" overlap: Overlap,
        /// When it was asked for.
        "a" asked_at: i64,
    }
}

document! {
    /// A run that waits for the latest one to end.
    pub struct Buffered {
        /// Its instant.
        "f" scheduled_for: i64,
        /// Why it runs.
        "o" origin: Origin,
    }
}

document! {
    /// A schedule: a template, and the instants at which an execution or a flow is created from it.
    pub struct Schedule {
        /// Its identity. One that is made anew under an old name has another one.
        "i" id: ScheduleId,
        /// The namespace it belongs to.
        "n" namespace: String,
        /// Unique in the namespace; decides the partition.
        "m" name: String,
        /// When it runs.
        "d" definition: ScheduleDefinition,
        /// The template of what it creates, as JSON.
        "t" template: Blob,
        /// Grows with every change that people make.
        "r" revision: u64,
        /// When it was created.
        "c" created_at: i64,
        /// When it last changed.
        "u" updated_at: i64,
        /// Where intervals count from.
        "an" anchor: i64,
        /// Since when it has been running by its present definition; what lies before is late by nature.
        "as" active_since: i64,
        /// Every instant up to this one has been decided.
        "cu" cursor: i64,
        /// The next instant; 0 when there is none.
        "nx" next_at: i64,
        /// When it is seen to: a little later where there is jitter.
        "fi" fires_at: i64,
        /// Instants up to here run however late it is.
        "lu" late_until: i64,
        /// Whether it is paused.
        "p" paused: bool,
        /// The note of the last pause or resumption.
        "nt" note: Option<Note>,
        /// Stretches whose instants are run once more, in the order in which they were asked for.
        "bf" backfills: Vec<Backfill>,
        /// A run that waits for the latest one to end.
        "bu" buffered: Option<Buffered>,
        /// It is to be looked at because a run ended; 0 when not.
        "w" wake_at: i64,
        /// Failed runs in a row.
        "f" failures: u32,
        /// Records of the last instants, the oldest first.
        "rs" runs: Vec<RunRecord>,
        /// How many runs it has started.
        "rc" run_count: i64,
    }
}

impl Document for Schedule {
    const KIND: u8 = kind::SCHEDULE;
    crate::encoding::compiled_here!();
}

impl Indexed for Schedule {
    fn key(&self) -> Key {
        Self::key_of(&self.namespace, &self.name)
    }

    fn index_entries(&self, _: i64) -> Vec<Entry> {
        let key = self.key();
        let listing = index::listing(kind::SCHEDULE, &self.namespace);
        let mut entries = vec![Entry { index: listing, member: key.clone(), score: index::name_score(&self.name) }];
        entries.extend(self.next_timer().map(|at| Due::Timer.entry(&key, at)));
        entries
    }
}

/// The parts a schedule is made from.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSchedule {
    /// Minted before the commit, so that a repeat names the same one.
    pub id: ScheduleId,
    /// The namespace it belongs to.
    pub namespace: String,
    /// Unique in the namespace.
    pub name: String,
    /// When it runs.
    pub definition: ScheduleDefinition,
    /// The template of what it creates, as JSON.
    pub template: Blob,
}

/// The decision about an instant, given how the latest run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It runs.
    Start,
    /// The latest run is cancelled, and it runs.
    Replace,
    /// It is passed over.
    Skip,
    /// It runs when the latest one has ended.
    Buffer,
}

impl Schedule {
    /// The key of a schedule by its name.
    pub fn key_of(namespace: &str, name: &str) -> Key {
        Key::new(kind::SCHEDULE, &[&digest16(&[namespace.as_bytes(), name.as_bytes()])])
    }

    /// A schedule that begins now, or at its `starts_at`, which may be in the past.
    pub fn create(new: NewSchedule, now: i64) -> Result<Self> {
        text::name("namespace", &new.namespace)?;
        text::name("name", &new.name)?;
        new.definition.validate()?;
        let mut schedule = Self {
            id: new.id,
            namespace: new.namespace,
            name: new.name,
            template: new.template,
            anchor: new.definition.starts_at.unwrap_or(now),
            cursor: first_cursor(&new.definition, now),
            definition: new.definition,
            revision: 1,
            created_at: now,
            updated_at: now,
            active_since: now,
            ..Default::default()
        };
        schedule.aim(&schedule.instants()?);
        Ok(schedule)
    }

    /// Creating the same schedule again is fine; with another definition it is not.
    pub fn check_same(&self, new: &NewSchedule) -> Result<()> {
        if self.definition == new.definition && self.template == new.template {
            return Ok(());
        }
        Err(definition_conflict("schedule", &self.name))
    }

    /// Its instants.
    pub fn instants(&self) -> Result<Instants> {
        let pattern = self.definition.spec.read(self.anchor)?;
        Ok(Instants::new(pattern, self.definition.starts_at, self.definition.ends_at))
    }

    /// Whether nothing will happen to it by itself any more.
    pub fn state(&self) -> ScheduleState {
        if self.paused {
            ScheduleState::Paused
        } else if self.next_at == 0 && self.backfills.is_empty() && self.buffered.is_none() {
            ScheduleState::Ended
        } else {
            ScheduleState::Active
        }
    }

    /// When something happens to it by itself.
    pub fn next_timer(&self) -> Option<i64> {
        let regular = (!self.paused && self.next_at != 0).then_some(self.fires_at);
        let backfill = self.backfills.iter().map(|backfill| backfill.asked_at).min();
        let woken = (self.wake_at != 0).then_some(self.wake_at);
        [regular, backfill, woken].into_iter().flatten().min()
    }

    /// The next instant that is to be decided now, and moves on behind it: a run that waited for the latest one first, then
    /// the regular instants, then backfills.
    pub fn take_due(&mut self, instants: &Instants, now: i64) -> Option<DueRun> {
        if let Some(buffered) = self.take_woken(now) {
            return Some(buffered);
        }
        if let Some(instant) = self.take_regular(instants, now) {
            self.mark_updated(now);
            return Some(DueRun {
                scheduled_for: instant,
                origin: Origin::regular(),
                overlap: self.definition.overlap,
            });
        }
        self.take_backfill(instants, now)
    }

    fn take_woken(&mut self, now: i64) -> Option<DueRun> {
        if self.wake_at == 0 || self.wake_at > now {
            return None;
        }
        self.wake_at = 0;
        self.mark_updated(now);
        let Buffered { scheduled_for, origin, .. } = self.buffered.take()?;
        Some(DueRun { scheduled_for, origin, overlap: Overlap::BufferOne })
    }

    fn take_regular(&mut self, instants: &Instants, now: i64) -> Option<i64> {
        let due = |schedule: &Self| !schedule.paused && schedule.next_at != 0 && schedule.fires_at <= now;
        if !due(self) {
            return None;
        }
        let late = self.late_before(now);
        if self.next_at <= late && self.next_at > self.late_until {
            self.catch_up(instants, late, now);
            if !due(self) {
                return None;
            }
        }
        let instant = self.next_at;
        self.cursor = instant;
        self.aim(instants);
        if planted(Bug::InstantForgotten) && instant % 7 == 0 {
            return None;
        }
        Some(instant)
    }

    /// Instants up to this one are late: the engine did not see to them in time, or they lie before the schedule.
    fn late_before(&self, now: i64) -> i64 {
        (now - limits::SCHEDULE_LATE_MS - self.definition.jitter_ms - 1).max(self.active_since - 1)
    }

    /// Passes over the late instants that are not to be run, and lets the others run however late it is.
    fn catch_up(&mut self, instants: &Instants, late: i64, now: i64) {
        let first = self.next_at;
        let wanted = instants.last_within(self.cursor, late, self.definition.catch_up.max());
        self.cursor = wanted.first().map_or(late, |wanted| wanted - 1);
        self.late_until = late;
        self.aim(instants);
        if wanted.first() != Some(&first) {
            self.record(RunRecord::passed(first, RunOutcome::Missed, now));
        }
        self.mark_updated(now);
    }

    fn take_backfill(&mut self, instants: &Instants, now: i64) -> Option<DueRun> {
        loop {
            let backfill = self.backfills.first_mut()?;
            match instants.after(backfill.cursor).filter(|instant| *instant <= backfill.to) {
                Some(instant) => {
                    backfill.cursor = instant;
                    let origin = Origin::of(OriginKind::Backfill, backfill.id);
                    let run = DueRun { scheduled_for: instant, origin, overlap: backfill.overlap };
                    self.mark_updated(now);
                    return Some(run);
                }
                None => drop(self.backfills.remove(0)),
            }
        }
    }

    /// Decides about an instant. One that was buffered is passed over if another one waits.
    pub fn decide(&self, run: &DueRun, latest_is_open: bool) -> Decision {
        match run.overlap {
            _ if !latest_is_open => Decision::Start,
            Overlap::Allow => Decision::Start,
            Overlap::Skip | Overlap::Unknown(_) => Decision::Skip,
            Overlap::CancelPrevious => Decision::Replace,
            Overlap::BufferOne if self.buffered.is_some() => Decision::Skip,
            Overlap::BufferOne => Decision::Buffer,
        }
    }

    /// A run waits for the latest one to end.
    pub fn buffer(&mut self, run: &DueRun, now: i64) {
        self.buffered =
            Some(Buffered { scheduled_for: run.scheduled_for, origin: run.origin.clone(), ..Default::default() });
        self.record(RunRecord::of(run, RunOutcome::Buffered, now));
    }

    /// Writes down what became of an instant.
    pub fn record(&mut self, record: RunRecord) {
        self.run_count += i64::from(record.outcome == RunOutcome::Started);
        // An instant that was buffered has one record: of what came of it.
        self.runs.retain(|known| {
            known.outcome != RunOutcome::Buffered
                || known.scheduled_for != record.scheduled_for
                || known.origin != record.origin
        });
        self.runs.push(record);
        let surplus = self.runs.len().saturating_sub(limits::SCHEDULE_RUNS_KEPT);
        self.runs.drain(..surplus);
    }

    /// A run has ended. A run that waited for it is looked at, and too many failures in a row pause the schedule.
    pub fn run_ended(&mut self, end: RunEnd, now: i64) {
        let now = self.mark_updated(now);
        match end {
            RunEnd::Succeeded => self.failures = 0,
            RunEnd::Failed => self.failures = self.failures.saturating_add(1),
            RunEnd::Other => {}
        }
        if self.buffered.is_some() {
            self.wake_at = now;
        }
        let most = self.definition.pause_after_failures;
        if most != 0 && self.failures >= most && !self.paused {
            self.paused = true;
            let text = match self.failures {
                1 => "a run failed".to_owned(),
                failures => format!("{failures} runs failed in a row"),
            };
            self.note = Some(Note { text, by: "schedule".to_owned(), at: now, ..Default::default() });
            self.pass_over_buffered(now);
        }
    }

    /// Passes over a regular instant that waits for the latest run to end. A run that a person asked for goes on waiting.
    fn pass_over_buffered(&mut self, now: i64) {
        let regular = |buffered: &mut Buffered| buffered.origin == Origin::regular();
        if let Some(buffered) = self.buffered.take_if(regular) {
            self.record(RunRecord::passed(buffered.scheduled_for, RunOutcome::Missed, now));
        }
    }

    /// Pauses it; says whether it was running. Instants that pass meanwhile are passed over, and so is one that was due and
    /// waits for the latest run to end.
    pub fn pause(&mut self, note: &str, by: &str, now: i64) -> Result<bool> {
        text::text("note", note)?;
        if self.paused {
            return Ok(false);
        }
        self.paused = true;
        let now = self.noted(note, by, now);
        self.pass_over_buffered(now);
        Ok(true)
    }

    /// Lets it go on from now; says whether it was paused.
    pub fn resume(&mut self, note: &str, by: &str, now: i64) -> Result<bool> {
        text::text("note", note)?;
        if !self.paused {
            return Ok(false);
        }
        let now = self.noted(note, by, now);
        self.paused = false;
        self.failures = 0;
        self.restart_at(now)?;
        if self.buffered.is_some() {
            self.wake_at = now;
        }
        Ok(true)
    }

    /// Replaces its definition, if it is the one that the caller has seen. It goes on from now; the past is not run again.
    pub fn update(
        &mut self,
        definition: ScheduleDefinition,
        template: Blob,
        expected_revision: Option<u64>,
        now: i64,
    ) -> Result<()> {
        if let Some(expected) = expected_revision.filter(|expected| *expected != self.revision) {
            let detail = format!("the schedule has revision {}, not {expected}", self.revision);
            let error = Error::new(Code::StaleRevision, detail);
            return Err(error.with("expected", expected).with("revision", self.revision));
        }
        definition.validate()?;
        let now = self.mark_updated(now);
        self.template = template;
        if definition.spec != self.definition.spec || definition.starts_at != self.definition.starts_at {
            self.anchor = definition.starts_at.unwrap_or(now);
        }
        self.definition = definition;
        self.revision += 1;
        self.pass_over_buffered(now);
        self.restart_at(now)
    }

    /// Runs the instants of a stretch once more, from the first up to and with the last of them.
    pub fn backfill(&mut self, id: CommandId, (from, to): (i64, i64), overlap: Overlap, now: i64) -> Result<usize> {
        text::instant("from", from)?;
        text::instant("to", to)?;
        if to < from {
            return Err(Error::invalid("to", "must not be before from"));
        }
        if self.backfills.len() >= limits::SCHEDULE_BACKFILLS_MAX {
            return Err(text::too_many("backfills", self.backfills.len() + 1, limits::SCHEDULE_BACKFILLS_MAX));
        }
        let most = limits::SCHEDULE_BACKFILL_INSTANTS_MAX;
        let count = self.instants()?.within(from - 1, to, most + 1).len();
        if count > most {
            return Err(Error::invalid("to", format!("is too far from from: more than {most} instants lie between")));
        }
        let now = self.mark_updated(now);
        if count > 0 {
            self.backfills.push(Backfill { id, cursor: from - 1, to, overlap, asked_at: now, ..Default::default() });
        }
        Ok(count)
    }

    /// Lets the schedule go on behind this instant.
    fn restart_at(&mut self, now: i64) -> Result<()> {
        self.active_since = now;
        self.cursor = self.cursor.max(now);
        self.aim(&self.instants()?);
        Ok(())
    }

    /// Finds the next instant, and when it is seen to.
    fn aim(&mut self, instants: &Instants) {
        self.next_at = instants.after(self.cursor).unwrap_or(0);
        self.fires_at = self.next_at;
        if self.next_at != 0 && self.definition.jitter_ms != 0 {
            // No run passes the next one.
            let gap = instants.after(self.next_at).map_or(i64::MAX, |following| following - self.next_at);
            let most = self.definition.jitter_ms.min(gap.saturating_sub(1));
            self.fires_at += Origin::regular().jitter(&self.id, self.next_at, most);
        }
    }

    fn noted(&mut self, note: &str, by: &str, now: i64) -> i64 {
        let at = self.mark_updated(now);
        self.revision += 1;
        self.note = Some(Note { text: note.to_owned(), by: by.to_owned(), at, ..Default::default() });
        at
    }

    fn mark_updated(&mut self, now: i64) -> i64 {
        self.updated_at = self.updated_at.max(now);
        self.updated_at
    }
}

/// Where a new schedule begins: with what lies behind its start, which may be in the past, or behind now.
fn first_cursor(definition: &ScheduleDefinition, now: i64) -> i64 {
    match (definition.starts_at, definition.spec.at.iter().min()) {
        (Some(starts_at), _) => starts_at - 1,
        // Instants that were named are meant, also those that have passed.
        (None, Some(first)) => now.min(first - 1),
        (None, None) => now,
    }
}
