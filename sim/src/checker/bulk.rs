//! `each_match_once`: a bulk job moves on over an execution in the commit that changes it, and never goes back.

use ff_core::bulk::{BulkJob, BulkPart};
use ff_core::encoding::Document;
use ff_core::index::kind;
use ff_core::{BulkId, Key, Partition};
use ff_store::memory::{Contents, RawDocument};

use super::{Checker, Commit, touched};
use crate::invariant::Invariant;

impl Checker {
    /// The part of a job in one partition was written.
    pub(super) fn bulk_part_changed(&mut self, commit: Commit<'_>, key: &Key, after: Option<&RawDocument>) {
        let decode = |raw: &RawDocument| BulkPart::decode(&raw.body).ok();
        let Some(after) = after.and_then(decode) else { return };
        let before = commit.before.get(key).and_then(decode).unwrap_or_default();
        let place = |part: &BulkPart| part.cursor.map(|id| (part.cursor_at, id.uuid));
        self.expect(place(&before) <= place(&after), Invariant::EachMatchOnce, || {
            format!("bulk job {} went back in {}", after.job, commit.partition)
        });
        let counts = &after.counts;
        let settled = counts.done + counts.unchanged + counts.refused_total();
        self.expect(counts.matched == settled, Invariant::EachMatchOnce, || {
            format!("bulk job {} lost count of its matches: {counts:?}", after.job)
        });
        self.check_matches(commit, &before, &after);
    }

    /// Each execution that this commit changes and passes over is passed over for the first time.
    fn check_matches(&mut self, commit: Commit<'_>, before: &BulkPart, after: &BulkPart) {
        let mut changed = 0;
        for key in touched(commit.batch).into_iter().filter(|key| key.kind() == kind::EXECUTION) {
            changed += 1;
            let Some(raw) = commit.contents.document(&key) else { continue };
            let Ok(execution) = ff_core::execution::Execution::decode(&raw.body) else { continue };
            let place = Some((execution.created_at, execution.id.uuid));
            let passed = |part: &BulkPart| part.cursor.map(|id| (part.cursor_at, id.uuid)) >= place;
            if passed(after) && !passed(before) {
                let fresh = self.facts.bulk_matches.insert((after.job, commit.partition, key.clone()));
                self.expect(fresh, Invariant::EachMatchOnce, || {
                    format!("bulk job {} changed {key:?} twice", after.job)
                });
            }
        }
        let done = after.counts.done.saturating_sub(before.counts.done);
        // A dry run counts what it would do; nothing else is counted that the commit does not do.
        self.expect(done <= changed || changed == 0, Invariant::EachMatchOnce, || {
            format!("bulk job {} says that it changed {done}, and the commit changes {changed}", after.job)
        });
    }

    /// Whether a job is still under way.
    pub(super) fn bulk_under_way(&self, contents: &Contents) -> bool {
        let jobs = contents.partitions().filter(|(partition, _)| *partition == Partition::SYSTEM);
        let jobs = jobs.flat_map(|(_, contents)| contents.documents()).filter(|(key, _)| key.kind() == kind::BULK);
        jobs.filter_map(|(_, raw)| BulkJob::decode(&raw.body).ok()).any(|job| !job.has_ended())
    }
}

/// An execution that a job has changed, for the facts of the checker.
pub(crate) type Match = (BulkId, Partition, Key);
