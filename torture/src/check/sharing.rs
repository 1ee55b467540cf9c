//! What many executions have in common: budgets, quotas, signals, graphs, instants.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::model::Model;
use crate::history::Call;
use crate::score::Score;
use crate::workload::plan::{self, LEASE_TTL_MS, STORE_LEAP_MS, kind};

pub(super) fn judge(model: &Model<'_>, score: &mut Score) {
    usage(model, score);
    ceiling(model, score);
    slots(model, score);
    rate(model, score);
    signals(model, score);
    graphs(model, score);
    instants(model, score);
    if let Some(repairs) = model.outcome.repairs {
        score.judge("indexes agree with documents", 0, repairs == 0.0, || format!("{repairs} entries were repaired"));
    }
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(i64::MAX / 4)
}

fn usage(model: &Model<'_>, score: &mut Score) {
    let reports = || model.history.calls.iter().filter(|call| call.call == "usage");
    let all: BTreeSet<&str> = reports().map(|call| call.about("id")).collect();
    let acknowledged: BTreeSet<&str> = reports().filter(|call| call.accepted()).map(|call| call.about("id")).collect();
    let used = number(&model.outcome.budgets[plan::COUNTED]["used"]);
    let within = usize::try_from(used).is_ok_and(|used| (acknowledged.len()..=all.len()).contains(&used));
    score.judge("usage is counted once", 0, within, || {
        format!("{used} used, {} to {} were reported", acknowledged.len(), all.len())
    });
}

fn ceiling(model: &Model<'_>, score: &mut Score) {
    let taken = |standing: &Value| {
        number(&standing["used"]) - standing["overrun"].as_i64().unwrap_or(0) + number(&standing["reserved"])
    };
    for (name, most) in [(plan::CEILING, plan::CEILING_TOKENS), (plan::RACE, plan::RACE_TOKENS)] {
        for note in model.history.notes.iter().filter(|note| note.what == name) {
            let taken = taken(&note.about);
            score.judge("the ceiling holds", note.at, taken <= most, || format!("{taken} of {most} in {name}"));
        }
        let standing = &model.outcome.budgets[name];
        let at_end = taken(standing);
        score.judge("the ceiling holds", 0, at_end <= most, || format!("{at_end} at the end in {name}"));
        let reserved = number(&standing["reserved"]);
        score.judge("no reservation is left", 0, reserved == 0, || format!("{reserved} of {name} at the end"));
    }
    let standing = &model.outcome.budgets[plan::CEILING];
    let identities = |call: &str, only_accepted: bool| {
        let calls = model.history.calls.iter().filter(|one| one.call == call && one.about("budget") != plan::RACE);
        let calls = calls.filter(|one| !only_accepted || one.accepted());
        calls.map(|one| (one.about("id"), one.about("key"))).collect::<BTreeSet<_>>().len()
    };
    let each = usize::try_from(plan::CALL_TOKENS).unwrap_or_default();
    let (least, most) = (identities("settle", true) * each, identities("reserve", false) * each);
    let used = number(&standing["used"]);
    let within = usize::try_from(used).is_ok_and(|used| (least..=most).contains(&used));
    score.judge("a reservation is settled once", 0, within, || format!("{used} used, {least} to {most} were settled"));
}

/// No more leases than places at any instant, counting the time that each surely held.
fn slots(model: &Model<'_>, score: &mut Score) {
    let slotted = model.runs.values().filter(|run| run.kind == kind::SLOTTED).flat_map(|run| &run.leases);
    let mut changes: Vec<(i64, i64)> = Vec::new();
    for lease in slotted {
        let (from, to) = (lease.claim.ended, lease.holds_until.min(lease.parted));
        if from < to {
            changes.extend([(from, 1), (to, -1)]);
        }
    }
    // One that ends at an instant makes room for one that begins then.
    changes.sort_unstable();
    let mut held = 0;
    for (at, change) in changes {
        held += change;
        if change > 0 {
            score.judge("no more at once than the quota says", at, held <= plan::SLOTS_MAX, || {
                format!("{held} at once")
            });
        }
    }
    for note in model.history.notes.iter().filter(|note| note.what == "slots") {
        let in_use = number(&note.about["in_use"]);
        score.judge("no more at once than the quota says", note.at, in_use <= plan::SLOTS_MAX, || {
            format!("{in_use} places are taken")
        });
    }
    let left = model.outcome.slots_in_use;
    score.judge("no place is left taken", 0, left == 0, || format!("{left} places are taken at the end"));
}

/// More starts than the quota says that surely lie in one window.
fn rate(model: &Model<'_>, score: &mut Score) {
    let submits = model.history.calls.iter().filter(|call| call.call == "submit" && call.accepted());
    let quotas: BTreeMap<&str, &str> = submits
        .filter_map(|call| Some((call.shown["execution_id"].as_str()?, call.about["quota_policy_id"].as_str()?)))
        .collect();
    let mut starts: BTreeMap<&str, Vec<(i64, i64)>> = BTreeMap::new();
    for (id, run) in model.runs.iter().filter(|(_, run)| run.kind == kind::RATED) {
        let first = run.leases.iter().filter(|lease| lease.task["claim_kind"] == "initial");
        let first = first.map(|lease| (lease.claim.began, lease.claim.ended));
        starts.entry(quotas.get(id).copied().unwrap_or_default()).or_default().extend(first);
    }
    for mut starts in starts.into_values() {
        starts.sort_unstable();
        windows(&starts, score);
    }
}

fn windows(starts: &[(i64, i64)], score: &mut Score) {
    let most = usize::try_from(plan::RATE_MAX).unwrap_or_default();
    for window in starts.windows(most + 1) {
        let last = window.iter().map(|(_, ended)| *ended).max().unwrap_or_default();
        let kept = last - window[0].0 >= plan::RATE_WINDOW_S * 1_000;
        score.judge("no more in a window than the quota says", window[0].0, kept, || {
            format!("{} starts within {} ms", window.len(), last - window[0].0)
        });
    }
}

fn signals(model: &Model<'_>, score: &mut Score) {
    for call in model.history.calls.iter().filter(|call| call.call == "forged") {
        score.judge("a forged token is refused", call.began, !call.accepted(), || call.about("id").to_owned());
    }
    let mut sent: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
    for call in model.history.calls.iter().filter(|call| call.call == "signal") {
        sent.entry(call.about("id")).or_default().push(call);
    }
    for (id, answers) in sent {
        let mut at = 0;
        let ids: BTreeSet<&str> = answers
            .into_iter()
            .filter(|call| call.accepted())
            .filter_map(|call| {
                at = call.ended;
                call.shown["signal_id"].as_str().or(call.shown["existing_signal_id"].as_str())
            })
            .collect();
        score.judge("a key means one signal", at, ids.len() <= 1, || format!("{id}: {ids:?}"));
        let Some(run) = model.runs.get(id) else { continue };
        let resumed = run.leases.iter().filter(|lease| lease.task["claim_kind"] == "resumed").count();
        score.judge("a signal has one effect", at, resumed <= 1, || format!("{id} was resumed {resumed} times"));
        for lease in run.leases.iter().filter(|lease| lease.task["claim_kind"] == "resumed") {
            let brought = lease.task["resume_signals"].as_array().map_or(0, Vec::len);
            score.judge("a resumed task brings its signal", lease.claim.ended, brought == 1, || {
                format!("{id} brings {brought} signals")
            });
        }
    }
}

fn graphs(model: &Model<'_>, score: &mut Score) {
    for call in model.history.calls.iter().filter(|call| call.call == "flow" && call.accepted()) {
        let member = |name: &Value| call.shown["executions"][name.as_str().unwrap_or_default()].as_str();
        for edge in call.about["edges"].as_array().into_iter().flatten() {
            let (Some(from), Some(to)) = (member(&edge["from"]), member(&edge["to"])) else { continue };
            let claimed = model.runs.get(to).and_then(|run| run.leases.first()).map(|lease| lease.claim.ended);
            let Some(claimed) = claimed else { continue };
            let upstream = model.runs.get(from).into_iter().flat_map(|run| &run.calls);
            let ended = upstream.filter(|call| call.call == "complete").map(|call| call.began).min();
            score.judge("a child starts after its upstreams", claimed, ended.is_some_and(|at| at <= claimed), || {
                format!("{to} was claimed at {claimed}, and {from} was completed at {ended:?}")
            });
        }
    }
    for (id, flow) in &model.outcome.flows {
        let whole = flow["state"] == "completed" && flow["counts"]["completed"] == flow["member_count"];
        score.judge("a graph ends as its members did", 0, whole, || format!("{id}: {flow}"));
    }
}

fn instants(model: &Model<'_>, score: &mut Score) {
    for call in model.history.calls.iter().filter(|call| call.call == "submit" && call.accepted()) {
        let (Some(until), Some(id)) = (call.about["delay_until"].as_i64(), call.shown["execution_id"].as_str()) else {
            continue;
        };
        let Some(first) = model.runs.get(id).and_then(|run| run.leases.first()) else { continue };
        // The store's time is the one that counts, and may have leapt.
        let given = first.task["lease_expires_at"].as_i64().unwrap_or_default() - LEASE_TTL_MS;
        let reached = given >= until && first.claim.ended + STORE_LEAP_MS >= until;
        score.judge("no timer is early", first.claim.ended, reached, || {
            let (by_store, by_machine) = (until - given, until - first.claim.ended);
            format!("{id} was claimed {by_machine} ms before its time, {by_store} ms by the store's clock")
        });
    }
    let mut instants: Vec<i64> = model.outcome.runs.values().copied().collect();
    instants.sort_unstable();
    for pair in instants.windows(2) {
        let kept = pair[1] - pair[0] == plan::SCHEDULE_EVERY_MS;
        score.judge("every instant of a schedule runs once", pair[0], kept, || format!("{} and {}", pair[0], pair[1]));
    }
    let (found, told) = (instants.len(), model.outcome.run_count);
    score.judge("a schedule tells of its runs", 0, u64::try_from(found).is_ok_and(|found| found == told), || {
        format!("{found} runs are there, the schedule tells of {told}")
    });
}
