//! Everything that was said, and what must be true of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::load::{CEILING, CEILING_TOKENS, COUNTED};
use super::nemesis::Fault;
use crate::recovery::fleet::Fleet;
use crate::recovery::http::request;
use crate::recovery::record::now_ms;

/// A look at the end is repeated for so long while no server answers.
const LOOK_MAX: Duration = Duration::from_secs(30);

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Accepted,
    Refused,
    /// It is not known whether it took effect.
    Unknown,
}

#[derive(Default)]
struct Seen {
    accepted: u64,
    refused: u64,
    unknown: u64,
    /// When accepted calls began and ended.
    calls: Vec<(i64, i64)>,
    faults: Vec<(Fault, i64)>,
    /// How often each call was refused with which code.
    refusals: BTreeMap<(String, String), usize>,
    /// Executions by the key they were submitted with.
    keys: BTreeMap<String, BTreeSet<String>>,
    /// The leases that each execution was claimed under, by epoch.
    leases: BTreeMap<String, BTreeMap<u64, BTreeSet<String>>>,
    /// The epochs that completed an execution.
    completed: BTreeMap<String, BTreeSet<u64>>,
    /// Steps that were acknowledged.
    steps: BTreeMap<String, BTreeSet<String>>,
    will_spend: BTreeSet<String>,
    spent: BTreeSet<String>,
}

/// The history of a campaign.
#[derive(Default)]
pub(super) struct History(Mutex<Seen>);

impl History {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().expect("no holder of this lock panics")
    }

    pub(super) fn answered(&self, began: i64, answer: Answer) {
        let mut seen = self.seen();
        match answer {
            Answer::Accepted => {
                seen.accepted += 1;
                seen.calls.push((began, now_ms()));
            }
            Answer::Refused => seen.refused += 1,
            Answer::Unknown => seen.unknown += 1,
        }
    }

    pub(super) fn refused(&self, call: &str, problem: &Value) {
        let code = problem["code"].as_str().unwrap_or("no code").to_owned();
        *self.seen().refusals.entry((call.to_owned(), code)).or_default() += 1;
    }

    pub(super) fn began(&self, fault: Fault) {
        self.seen().faults.push((fault, now_ms()));
    }

    pub(super) fn submitted(&self, key: &str, id: &str) {
        self.seen().keys.entry(key.to_owned()).or_default().insert(id.to_owned());
    }

    pub(super) fn claimed(&self, task: &Value) {
        let id = task["execution_id"].as_str().unwrap_or_default().to_owned();
        let epoch = task["fence"]["epoch"].as_u64().unwrap_or_default();
        let lease = task["fence"]["lease_id"].as_str().unwrap_or_default().to_owned();
        self.seen().leases.entry(id).or_default().entry(epoch).or_default().insert(lease);
    }

    pub(super) fn completed(&self, id: &str, epoch: u64) {
        self.seen().completed.entry(id.to_owned()).or_default().insert(epoch);
    }

    pub(super) fn recorded(&self, id: &str, step: &str) {
        self.seen().steps.entry(id.to_owned()).or_default().insert(step.to_owned());
    }

    pub(super) fn will_spend(&self, id: &str) {
        self.seen().will_spend.insert(id.to_owned());
    }

    pub(super) fn spent(&self, id: &str) {
        self.seen().spent.insert(id.to_owned());
    }

    /// How many executions were acknowledged and not completed yet.
    pub(super) fn open(&self) -> usize {
        let seen = self.seen();
        seen.keys.values().flatten().filter(|id| !seen.completed.contains_key(*id)).count()
    }

    /// Looks at what became of everything.
    pub(super) fn check(&self, fleet: &Fleet) -> Score {
        let seen = self.seen();
        let mut score = Score::new(&seen);
        score.judge("work was done", !seen.completed.is_empty(), || "nothing was completed".to_owned());
        for (key, ids) in &seen.keys {
            score.judge("a key means one execution", ids.len() == 1, || format!("{key}: {ids:?}"));
        }
        for (id, epochs) in &seen.leases {
            let twice = epochs.iter().find(|(_, leases)| leases.len() > 1);
            score.judge("an epoch has one lease", twice.is_none(), || format!("{id}: {twice:?}"));
        }
        for id in seen.keys.values().flatten() {
            check_execution(&seen, id, fleet, &mut score);
        }
        check_budgets(&seen, fleet, &mut score);
        score
    }
}

fn check_execution(seen: &Seen, id: &str, fleet: &Fleet, score: &mut Score) {
    let found = shown(fleet, &format!("/v1/executions/{id}"));
    score.judge("what was acknowledged is there", found.is_some(), || id.to_owned());
    let Some(found) = found else { return };
    let state = found["public_state"].as_str().unwrap_or_default().to_owned();
    score.judge("nothing is stuck", state == "completed", || {
        let why = shown(fleet, &format!("/v1/executions/{id}/explain")).unwrap_or_default();
        format!("{id} is {state}: {}", why["reasons"][0]["message"])
    });
    let endings = seen.completed.get(id).cloned().unwrap_or_default();
    score.judge("one ending is accepted", endings.len() <= 1, || format!("{id}: {endings:?}"));
    if let Some(epoch) = endings.first() {
        let result = shown(fleet, &format!("/v1/executions/{id}/result")).unwrap_or_default();
        score.judge("the result is that of the ending", result.as_u64() == Some(*epoch), || {
            format!("{id}: {result} instead of {epoch}")
        });
    }
    if let Some(steps) = seen.steps.get(id) {
        let page = shown(fleet, &format!("/v1/executions/{id}/steps")).unwrap_or_default();
        let names = page["items"].as_array().into_iter().flatten().filter_map(|entry| entry["name"].as_str());
        let mut kept: BTreeMap<&str, usize> = BTreeMap::new();
        names.for_each(|name| *kept.entry(name).or_default() += 1);
        for step in steps {
            let count = kept.get(step.as_str()).copied().unwrap_or(0);
            score.judge("an acknowledged step is there once", count == 1, || format!("{id}: {step} {count} times"));
        }
    }
}

fn check_budgets(seen: &Seen, fleet: &Fleet, score: &mut Score) {
    let standing =
        |name: &str| shown(fleet, &format!("/v1/budgets/{name}")).unwrap_or_default()["standing"]["tokens"].clone();
    let number = |value: &Value| value.as_i64().unwrap_or(i64::MAX);
    let used = number(&standing(COUNTED)["used"]);
    let (least, most) = (seen.spent.len(), seen.will_spend.len());
    let within = usize::try_from(used).is_ok_and(|used| (least..=most).contains(&used));
    score.judge("usage is counted once", within, || format!("{used} used, {least} to {most} were reported"));
    let ceiling = standing(CEILING);
    let taken = number(&ceiling["used"]) - number(&ceiling["overrun"]) + number(&ceiling["reserved"]);
    score.judge("the ceiling holds", taken <= CEILING_TOKENS, || format!("{taken} of {CEILING_TOKENS}"));
}

/// The answer of a server; `None` where it says that there is nothing.
fn shown(fleet: &Fleet, path: &str) -> Option<Value> {
    let began = Instant::now();
    let mut tries = 0;
    while began.elapsed() < LOOK_MAX {
        match request(fleet.any(tries), &format!("GET {path}"), &Value::Null) {
            Some((200, text)) => return serde_json::from_str(&text).ok(),
            Some((404, _)) => return None,
            _ => thread::sleep(Duration::from_millis(100)),
        }
        tries += 1;
    }
    None
}

/// How it went.
pub(super) struct Score {
    executions: usize,
    operations: u64,
    unknown: u64,
    refused: u64,
    /// How long after each fault a call that began then was accepted.
    recoveries: BTreeMap<Fault, Vec<i64>>,
    refusals: BTreeMap<(String, String), usize>,
    /// Looks and violations of each rule, with the first violation.
    rules: BTreeMap<&'static str, (usize, usize, Option<String>)>,
}

impl Score {
    fn new(seen: &Seen) -> Self {
        let mut recoveries: BTreeMap<Fault, Vec<i64>> = BTreeMap::new();
        for (fault, at) in &seen.faults {
            let first = seen.calls.iter().filter(|(began, _)| began > at).map(|(_, ended)| ended - at).min();
            recoveries.entry(*fault).or_default().extend(first);
        }
        Self {
            executions: seen.keys.len(),
            operations: seen.accepted + seen.refused + seen.unknown,
            unknown: seen.unknown,
            refused: seen.refused,
            recoveries,
            refusals: seen.refusals.clone(),
            rules: BTreeMap::new(),
        }
    }

    fn judge(&mut self, rule: &'static str, kept: bool, why: impl FnOnce() -> String) {
        let (looks, violations, first) = self.rules.entry(rule).or_default();
        *looks += 1;
        if !kept {
            *violations += 1;
            first.get_or_insert_with(why);
        }
    }

    /// Prints it; says how many violations there are.
    pub(super) fn print(&self, store: &str) -> usize {
        println!(
            "{store}: {} executions, {} calls ({} refused, {} without an answer)",
            self.executions, self.operations, self.refused, self.unknown
        );
        for ((call, code), count) in &self.refusals {
            println!("{store}: {call} was refused {count} times: {code}");
        }
        for (fault, times) in &self.recoveries {
            let mut times = times.clone();
            times.sort_unstable();
            let at = |share: usize| times.get((times.len().max(1) - 1) * share / 100).copied().unwrap_or(0);
            println!(
                "{store}: {} {} times, the next call is accepted after p50 {} ms, max {} ms",
                fault.name(),
                times.len(),
                at(50),
                at(100)
            );
        }
        println!("| {store} | looked at | violations | a million calls |");
        println!("|---|---|---|---|");
        let mut all = 0;
        for (rule, (looks, violations, first)) in &self.rules {
            let million = *violations as f64 * 1e6 / self.operations.max(1) as f64;
            println!("| {rule} | {looks} | {violations} | {million:.1} |");
            if let Some(first) = first {
                println!("|   the first: {first} | | | |");
            }
            all += violations;
        }
        all
    }
}
