//! Leases: an execution has one holder at a time, and a holder of before changes nothing.

use std::collections::BTreeSet;

use super::model::{Model, Run, counted_before, renewed};
use crate::history::Call;
use crate::score::Score;

/// Two clocks of one machine are read in milliseconds.
const ROUNDING_MS: i64 = 2;

pub(super) fn judge(model: &Model<'_>, score: &mut Score) {
    for (id, run) in &model.runs {
        one_lease_for_an_epoch(id, run, score);
        leases_do_not_overlap(id, run, score);
        late_holders_are_refused(id, run, score);
        measure_reclaims(run, score);
    }
}

fn one_lease_for_an_epoch(id: &str, run: &Run<'_>, score: &mut Score) {
    for pair in run.leases.windows(2) {
        let same = pair[0].epoch == pair[1].epoch && pair[0].lease_id != pair[1].lease_id;
        score.judge("an epoch has one lease", pair[1].claim.began, !same, || {
            format!("{id}: epoch {} under {} and {}", pair[0].epoch, pair[0].lease_id, pair[1].lease_id)
        });
    }
}

/// A lease that was given before another's time was over, and before its holder may have parted with it, came too early.
fn leases_do_not_overlap(id: &str, run: &Run<'_>, score: &mut Score) {
    for pair in run.leases.windows(2).filter(|pair| pair[0].epoch < pair[1].epoch) {
        let given = pair[1].claim.ended;
        let early = given + ROUNDING_MS < pair[0].holds_until && pair[0].parted > given;
        score.judge("leases do not overlap", given, !early, || {
            let left = pair[0].holds_until - given;
            format!("{id}: epoch {} was given {left} ms before epoch {} was over", pair[1].epoch, pair[0].epoch)
        });
    }
}

/// A call of a holder that began when another was known to hold must be refused, unless it repeats one that began before.
/// A settlement is taken late on purpose: it corrects what the engine assumed when the holder was gone.
fn late_holders_are_refused(id: &str, run: &Run<'_>, score: &mut Score) {
    let mut seen: BTreeSet<(String, String)> = BTreeSet::new();
    let mut calls: Vec<&Call> = run.calls.clone();
    calls.sort_by_key(|call| call.began);
    for call in calls {
        let first = seen.insert((call.call.clone(), call.about.to_string()));
        let epoch = call.about["epoch"].as_u64().unwrap_or_default();
        let next = run.leases.iter().find(|lease| lease.epoch > epoch && lease.claim.ended < call.began);
        if !first || next.is_none() || call.call == "settle" {
            continue;
        }
        let believed = match call.call.as_str() {
            "renew" => renewed(call),
            "usage" => call.accepted() && !counted_before(call),
            _ => call.accepted(),
        };
        score.judge("a late holder changes nothing", call.began, !believed, || {
            format!("{id}: {} of epoch {epoch} was accepted, although a later epoch was given", call.call)
        });
    }
}

/// How long after the end of a lease the execution was given to another, at the least.
fn measure_reclaims(run: &Run<'_>, score: &mut Score) {
    for pair in run.leases.windows(2).filter(|pair| pair[1].task["claim_kind"] == "reclaim") {
        // Otherwise a lease whose claim had no answer lies between.
        let next = pair[0].epoch + 1 == pair[1].epoch;
        score.reclaims.extend(pair[0].over_at.filter(|_| next).map(|over_at| (pair[1].claim.ended - over_at).max(0)));
    }
}
