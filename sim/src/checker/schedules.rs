//! `each_instant_once`: a schedule moves on over an instant in the commit that starts its run, or says what became of it
//! instead, and no run is made twice.

use ff_core::encoding::Document;
use ff_core::execution::Execution;
use ff_core::flow::Flow;
use ff_core::index::kind;
use ff_core::schedule::{RunOutcome, Schedule};
use ff_core::{Key, Partition, ScheduleId};
use ff_store::memory::RawDocument;

use super::{Checker, Commit, touched};
use crate::invariant::Invariant;

impl Checker {
    /// A schedule was written or removed.
    pub(super) fn schedule_changed(&mut self, commit: Commit<'_>, key: &Key, after: Option<&RawDocument>) {
        let decode = |raw: &RawDocument| Schedule::decode(&raw.body).ok();
        let (Some(before), Some(after)) = (commit.before.get(key).and_then(decode), after.and_then(decode)) else {
            return;
        };
        if before.id != after.id {
            return;
        }
        let name = &after.name;
        let (from, to) = (before.cursor, after.cursor);
        self.expect(to >= from, Invariant::EachInstantOnce, || format!("{name} went back from {from} to {to}"));
        // A caller that changes it, or lets it go on, decides that instants before that are not run.
        if before.revision != after.revision {
            return;
        }
        let every_ms = after.definition.spec.every_ms.unwrap_or(i64::MAX);
        let steps = |at: i64| (at - after.anchor).div_euclid(every_ms);
        for step in steps(from) + 1..=steps(to) {
            let instant = after.anchor + step * every_ms;
            let told = |outcome: RunOutcome| outcome != RunOutcome::Started;
            let recorded = after.runs.iter().any(|run| run.scheduled_for == instant && told(run.outcome));
            let started = started_in(commit, after.id).any(|started| started == instant);
            self.expect(recorded || started, Invariant::EachInstantOnce, || {
                format!("{name} moved on over {instant}, and nothing came of it")
            });
        }
        let early = to > commit.at && to > from;
        self.expect(!early, Invariant::TimersKeepTime, || format!("{name} decided about {to} at {}", commit.at));
    }

    /// A run was created, as an execution or as a flow.
    pub(super) fn check_run(&mut self, schedule: Option<ScheduleId>, partition: Partition, key: &Key) {
        if let Some(schedule) = schedule {
            let fresh = self.facts.runs.insert((schedule, partition, key.clone()));
            self.expect(fresh, Invariant::EachInstantOnce, || format!("{key:?} was made twice by its schedule"));
        }
    }
}

/// The instants of runs that a commit creates.
fn started_in(commit: Commit<'_>, schedule: ScheduleId) -> impl Iterator<Item = i64> {
    let created = touched(commit.batch).into_iter().filter(move |key| !commit.before.contains_key(key));
    created.filter_map(move |key| {
        let raw = commit.contents.document(&key)?;
        let run = match key.kind() {
            kind::EXECUTION => Execution::decode(&raw.body).ok()?.schedule,
            kind::FLOW => Flow::decode(&raw.body).ok()?.schedule,
            _ => None,
        }?;
        (run.schedule == schedule).then_some(run.scheduled_for)
    })
}
