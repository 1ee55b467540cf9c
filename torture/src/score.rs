//! How it went: looks and violations of each rule, for each fault, and how soon work went on after each.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use crate::history::{Answer, Call, History};

/// Calls that began before the first fault.
const BEFORE: &str = "no fault yet";

/// A rule that was judged.
#[derive(Debug, Default)]
pub struct Rule {
    /// How often it was looked at.
    pub looks: u64,
    /// How often it was broken.
    pub violations: u64,
    /// The first time.
    pub first: Option<String>,
}

/// What happened under one fault: from its beginning to that of the next.
#[derive(Debug, Default)]
pub struct UnderFault {
    /// How often it struck.
    pub strikes: u64,
    /// Calls that began.
    pub calls: u64,
    /// Violations of rules that have a time.
    pub violations: u64,
    /// After each: how soon a task that was completed after it had been mended was completed, in ms.
    pub recoveries: Vec<i64>,
    /// The longest that no task was completed while it lasted, in ms.
    pub outages: Vec<i64>,
}

/// How it went.
#[derive(Debug)]
pub struct Score {
    /// Calls by how they ended.
    pub accepted: u64,
    /// Calls that were refused.
    pub refused: u64,
    /// Calls without an answer, or with one that says nothing about their effect.
    pub unknown: u64,
    /// Rules by name.
    pub rules: BTreeMap<&'static str, Rule>,
    /// By the name of the fault.
    pub faults: BTreeMap<String, UnderFault>,
    /// How often each thing happened that guards are there for.
    pub guards: BTreeMap<&'static str, u64>,
    /// How often each code was answered.
    pub codes: BTreeMap<(String, String), u64>,
    /// How long after its lease was surely over each lost execution was given anew, in ms.
    pub reclaims: Vec<i64>,
    /// When each fault began.
    windows: Vec<(i64, String)>,
}

impl Score {
    /// Counts what the history alone says.
    pub fn of(history: &History) -> Self {
        let mut score = Self {
            accepted: 0,
            refused: 0,
            unknown: 0,
            rules: BTreeMap::new(),
            faults: BTreeMap::new(),
            guards: GUARDS.iter().map(|(name, _)| (*name, 0)).collect(),
            codes: BTreeMap::new(),
            reclaims: Vec::new(),
            windows: Vec::new(),
        };
        let name = |about: &Value| about["fault"].as_str().unwrap_or_default().to_owned();
        for note in history.notes.iter().filter(|note| note.what == "fault") {
            score.windows.push((note.at, name(&note.about)));
            score.faults.entry(name(&note.about)).or_default().strikes += 1;
        }
        for call in &history.calls {
            score.count(call);
        }
        score.measure_recoveries(history);
        score
    }

    fn count(&mut self, call: &Call) {
        match call.answer {
            Answer::Accepted => self.accepted += 1,
            Answer::Refused => self.refused += 1,
            Answer::Unknown => self.unknown += 1,
        }
        if call.status >= 400 {
            *self.codes.entry((call.call.clone(), call.code().to_owned())).or_default() += 1;
        }
        for (name, fired) in GUARDS {
            if fired(call) {
                *self.guards.entry(name).or_default() += 1;
            }
        }
        let fault = self.fault_at(call.began);
        self.faults.entry(fault).or_default().calls += 1;
    }

    fn measure_recoveries(&mut self, history: &History) {
        let mut ends: Vec<(i64, i64)> = history
            .calls
            .iter()
            .filter(|call| call.call == "complete" && call.accepted())
            .map(|call| (call.ended, call.began))
            .collect();
        ends.sort_unstable();
        let mut began = None;
        for note in &history.notes {
            match note.what.as_str() {
                "fault" => began = Some(note.at),
                "healed" => {
                    let Some(began) = began.take() else { continue };
                    let under = self.faults.entry(note.about["fault"].as_str().unwrap_or_default().to_owned());
                    let under = under.or_default();
                    let next = ends.iter().find(|(ended, _)| *ended >= note.at);
                    under.recoveries.extend(next.map(|(ended, _)| ended - note.at));
                    let mut times: Vec<i64> =
                        ends.iter().map(|(ended, _)| *ended).filter(|at| (began..note.at).contains(at)).collect();
                    times.insert(0, began);
                    times.push(next.map_or(note.at, |(ended, _)| *ended));
                    under.outages.extend(times.windows(2).map(|pair| pair[1] - pair[0]).max());
                }
                _ => {}
            }
        }
    }

    fn fault_at(&self, at: i64) -> String {
        let before = self.windows.partition_point(|(began, _)| *began <= at);
        match before.checked_sub(1).and_then(|place| self.windows.get(place)) {
            Some((_, name)) => name.clone(),
            None => BEFORE.to_owned(),
        }
    }

    /// Looks at a rule. `at` is when what it speaks of happened; zero if it speaks of the whole.
    pub fn judge(&mut self, rule: &'static str, at: i64, kept: bool, why: impl FnOnce() -> String) {
        if !kept && at > 0 {
            let fault = self.fault_at(at);
            self.faults.entry(fault).or_default().violations += 1;
        }
        let rule = self.rules.entry(rule).or_default();
        rule.looks += 1;
        if !kept {
            rule.violations += 1;
            rule.first.get_or_insert_with(why);
        }
    }

    /// All calls.
    pub fn calls(&self) -> u64 {
        self.accepted + self.refused + self.unknown
    }

    /// All violations.
    pub fn violations(&self) -> u64 {
        self.rules.values().map(|rule| rule.violations).sum()
    }

    /// What guards are there for and never happened.
    pub fn silent_guards(&self) -> Vec<&'static str> {
        self.guards.iter().filter(|(_, count)| **count == 0).map(|(name, _)| *name).collect()
    }

    /// The longest recovery after a fault, in ms.
    pub fn slowest_recovery(&self, fault: &str) -> Option<i64> {
        self.faults.get(fault)?.recoveries.iter().copied().max()
    }

    /// How soon lost executions were given anew, all but one of a hundred.
    pub fn reclaim_p99(&self) -> Option<i64> {
        (!self.reclaims.is_empty()).then(|| at(&self.reclaims, 99))
    }

    /// The score as a page of tables.
    pub fn page(&self, store: &str) -> String {
        let mut page = String::new();
        // Writing to a text cannot fail.
        let _ = self.write(store, &mut page);
        page
    }

    fn write(&self, store: &str, page: &mut String) -> std::fmt::Result {
        let (all, accepted, refused, unknown) = (self.calls(), self.accepted, self.refused, self.unknown);
        writeln!(page, "{store}: {all} calls: {accepted} accepted, {refused} refused, {unknown} without an answer\n")?;
        writeln!(
            page,
            "| fault | strikes | calls | violations | of a million | back after p50 / p99 / max ms | longest silence ms |"
        )?;
        writeln!(page, "|---|---|---|---|---|---|---|")?;
        for (name, under) in &self.faults {
            let rate = million(under.violations, under.calls);
            let back = under.recoveries.clone();
            let (p50, p99, max) = (at(&back, 50), at(&back, 99), at(&back, 100));
            let silence = under.outages.iter().max().copied().unwrap_or_default();
            let (strikes, calls, violations) = (under.strikes, under.calls, under.violations);
            writeln!(
                page,
                "| {name} | {strikes} | {calls} | {violations} | {rate:.1} | {p50} / {p99} / {max} | {silence} |"
            )?;
        }
        writeln!(page, "\n| rule | looks | violations | of a million calls |\n|---|---|---|---|")?;
        for (name, rule) in &self.rules {
            let rate = million(rule.violations, all);
            writeln!(page, "| {name} | {} | {} | {rate:.1} |", rule.looks, rule.violations)?;
        }
        writeln!(page)?;
        for (name, rule) in self.rules.iter().filter(|(_, rule)| rule.violations > 0) {
            writeln!(page, "BROKEN: {name}: {}", rule.first.as_deref().unwrap_or_default())?;
        }
        if let Some(p99) = self.reclaim_p99() {
            let (p50, max, count) = (at(&self.reclaims, 50), at(&self.reclaims, 100), self.reclaims.len());
            writeln!(
                page,
                "{count} leases were reclaimed, p50 / p99 / max {p50} / {p99} / {max} ms after they were over"
            )?;
        }
        let fired = self.guards.iter().filter(|(_, count)| **count > 0);
        let fired: Vec<String> = fired.map(|(name, count)| format!("{name} {count}")).collect();
        writeln!(page, "guards that fired: {}", fired.join(", "))?;
        let silent = self.silent_guards();
        if !silent.is_empty() {
            writeln!(page, "guards that NEVER fired: {}", silent.join(", "))?;
        }
        let codes = self.codes.iter().map(|((call, code), count)| format!("{call} {code} {count}"));
        writeln!(page, "refusals: {}", codes.collect::<Vec<_>>().join(", "))
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        let rules = self.rules.iter().map(|(name, rule)| {
            let about = json!({ "looks": rule.looks, "violations": rule.violations, "first": rule.first });
            ((*name).to_owned(), about)
        });
        let faults = self.faults.iter().map(|(name, under)| {
            let back = &under.recoveries;
            let about = json!({
                "strikes": under.strikes, "calls": under.calls, "violations": under.violations,
                "violations_per_million_calls": million(under.violations, under.calls),
                "recovery_ms": { "p50": at(back, 50), "p99": at(back, 99), "max": at(back, 100) },
                "longest_silence_ms": under.outages.iter().max(),
            });
            (name.clone(), about)
        });
        json!({
            "calls": self.calls(), "accepted": self.accepted, "refused": self.refused, "unknown": self.unknown,
            "violations": self.violations(), "rules": rules.collect::<serde_json::Map<_, _>>(),
            "reclaim_ms": { "p50": at(&self.reclaims, 50), "p99": at(&self.reclaims, 99), "max": at(&self.reclaims, 100) },
            "faults": faults.collect::<serde_json::Map<_, _>>(), "guards": self.guards,
        })
    }
}

/// A share in order.
fn at(times: &[i64], share: usize) -> i64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get((times.len().max(1) - 1) * share / 100).copied().unwrap_or(0)
}

fn million(count: u64, of: u64) -> f64 {
    count as f64 * 1e6 / of.max(1) as f64
}

/// A thing that guards are there for, and whether a call shows that it happened.
type Guard = (&'static str, fn(&Call) -> bool);

const GUARDS: [Guard; 13] = [
    ("repeated submit found", |call| call.call == "submit" && call.shown["duplicate"] == true),
    ("repeated graph found", |call| call.call == "flow" && call.shown["outcome"] == "already_exists"),
    ("repeated signal found", |call| call.call == "signal" && call.shown["outcome"] == "duplicate"),
    ("repeated usage found", |call| {
        call.call == "usage"
            && call.shown["budgets"]
                .as_object()
                .is_some_and(|all| all.values().any(|one| one["outcome"] == "already_applied"))
    }),
    ("reservation above the ceiling refused", |call| call.call == "reserve" && call.shown["outcome"] == "refused"),
    ("forged token refused", |call| call.call == "forged" && call.status == 401),
    ("stale lease refused", |call| call.code() == "stale_lease"),
    ("expired lease refused", |call| call.code() == "lease_expired"),
    ("ended execution refused", |call| call.code() == "execution_not_active"),
    ("renewal refused", |call| call.call == "renew" && call.shown["results"][0]["outcome"] == "lost"),
    ("lease reclaimed", |call| claims(call, "reclaim")),
    ("attempt retried", |call| claims(call, "retry")),
    ("unavailable store told", |call| call.status == 503),
];

fn claims(call: &Call, kind: &str) -> bool {
    let tasks = call.shown["tasks"].as_array().into_iter().flatten();
    call.call == "claim" && tasks.into_iter().any(|task| task["claim_kind"] == kind)
}
