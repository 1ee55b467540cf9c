//! What the history says about each execution.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::history::{Answer, Call, History};
use crate::outcome::Outcome;
use crate::workload::plan::{LEASE_TTL_MS, STORE_LEAP_MS};

/// A lease that a worker was told of.
#[derive(Debug)]
pub(super) struct Lease<'a> {
    pub(super) epoch: u64,
    pub(super) lease_id: &'a str,
    /// The claim that brought it.
    pub(super) claim: &'a Call,
    pub(super) task: &'a Value,
    /// It lasts at least until then: it was given or renewed no earlier than the call began, and the store's time leaps
    /// no further.
    pub(super) holds_until: i64,
    /// It was over by then; `None` if its last renewal has no answer, so that nobody knows.
    pub(super) over_at: Option<i64>,
    /// The earliest that its holder may have parted with it.
    pub(super) parted: i64,
}

/// An execution.
#[derive(Debug, Default)]
pub(super) struct Run<'a> {
    pub(super) kind: &'a str,
    /// By epoch.
    pub(super) leases: Vec<Lease<'a>>,
    /// Calls of lease holders.
    pub(super) calls: Vec<&'a Call>,
}

/// Everything by execution.
#[derive(Debug)]
pub(super) struct Model<'a> {
    pub(super) history: &'a History,
    pub(super) outcome: &'a Outcome,
    pub(super) runs: BTreeMap<&'a str, Run<'a>>,
    /// Executions and flows that were acknowledged under a key, and when first.
    pub(super) keys: BTreeMap<&'a str, (i64, BTreeSet<&'a str>)>,
}

impl<'a> Model<'a> {
    pub(super) fn of(history: &'a History, outcome: &'a Outcome) -> Self {
        let mut model = Self { history, outcome, runs: BTreeMap::new(), keys: BTreeMap::new() };
        for call in &history.calls {
            model.take(call);
        }
        for run in model.runs.values_mut() {
            run.leases.sort_by_key(|lease| (lease.epoch, lease.claim.began));
            run.measure();
        }
        model
    }

    fn take(&mut self, call: &'a Call) {
        match call.call.as_str() {
            "submit" | "flow" if call.accepted() => {
                let id = call.shown["execution_id"].as_str().or(call.shown["flow_id"].as_str()).unwrap_or_default();
                let known = self.keys.entry(call.about("key")).or_insert((call.ended, BTreeSet::new()));
                known.1.insert(id);
                if call.call == "submit" {
                    self.runs.entry(id).or_default().kind = call.about("kind");
                }
            }
            "claim" if call.accepted() => {
                for task in call.shown["tasks"].as_array().into_iter().flatten() {
                    let run = self.runs.entry(task["execution_id"].as_str().unwrap_or_default()).or_default();
                    run.kind = task["kind"].as_str().unwrap_or_default();
                    run.leases.push(Lease {
                        epoch: task["fence"]["epoch"].as_u64().unwrap_or_default(),
                        lease_id: task["fence"]["lease_id"].as_str().unwrap_or_default(),
                        claim: call,
                        task,
                        holds_until: call.began + LEASE_TTL_MS - STORE_LEAP_MS,
                        over_at: Some(call.ended + LEASE_TTL_MS),
                        parted: i64::MAX,
                    });
                }
            }
            _ if call.about["epoch"].is_u64() => {
                self.runs.entry(call.about("id")).or_default().calls.push(call);
            }
            _ => {}
        }
    }
}

impl Run<'_> {
    /// Works out until when each lease surely held.
    fn measure(&mut self) {
        for lease in &mut self.leases {
            let own = self.calls.iter().filter(|call| call.about["epoch"].as_u64() == Some(lease.epoch));
            let last_renewal = own.clone().filter(|call| call.call == "renew").max_by_key(|call| call.began);
            if last_renewal.is_some_and(|call| call.answer == Answer::Unknown) {
                lease.over_at = None;
            }
            for call in own {
                match call.call.as_str() {
                    "renew" if renewed(call) => {
                        lease.holds_until = lease.holds_until.max(call.began + LEASE_TTL_MS - STORE_LEAP_MS);
                        lease.over_at = lease.over_at.map(|at| at.max(call.ended + LEASE_TTL_MS));
                    }
                    "complete" | "fail" | "suspend" => lease.parted = lease.parted.min(call.began),
                    _ => {}
                }
            }
        }
    }
}

/// Whether a renewal was answered with yes.
pub(super) fn renewed(call: &Call) -> bool {
    call.accepted() && call.shown["results"][0]["outcome"] == "renewed"
}

/// Whether a report of usage was answered with: another under its key was counted, this one is not.
pub(super) fn counted_before(call: &Call) -> bool {
    let budgets = call.shown["budgets"].as_object().into_iter().flat_map(|all| all.values());
    budgets.into_iter().any(|answer| answer["outcome"] == "already_applied")
}
