//! What a row counts, so that a campaign can go on until there was enough of it.

use std::path::Path;

use crate::history::{Call, Follower, History};
use crate::workload::plan::kind;

/// Something that a row wants a number of. Calls whose answer was lost are not counted, so there are at least as many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Faults that struck and were mended.
    Faults,
    /// Executions that were acknowledged, members of graphs among them.
    Executions,
    /// Workers that went on when their lease was over or another's, and were refused.
    LateHolders,
    /// Decisions whether an amount can be reserved.
    Reservations,
    /// Starts under a quota that allows so many in a window.
    WindowStarts,
    /// Signals, without their repetitions.
    Signals,
    /// Graphs.
    Graphs,
}

impl Counted {
    /// Its name, as a card says it.
    pub fn name(self) -> &'static str {
        match self {
            Counted::Faults => "faults",
            Counted::Executions => "executions",
            Counted::LateHolders => "late holders refused",
            Counted::Reservations => "reservations decided",
            Counted::WindowStarts => "starts in windows",
            Counted::Signals => "signals",
            Counted::Graphs => "graphs",
        }
    }

    /// How many a part of a history has.
    pub fn in_history(self, history: &History) -> u64 {
        if self == Counted::Faults {
            return history.notes.iter().filter(|note| note.what == "healed").count() as u64;
        }
        history.calls.iter().map(|call| self.in_call(call)).sum()
    }

    fn in_call(self, call: &Call) -> u64 {
        let (name, accepted) = (call.call.as_str(), call.accepted());
        match self {
            Counted::Faults => 0,
            Counted::Executions => match name {
                "submit" => u64::from(accepted && call.shown["duplicate"] != true),
                "flow" if new_graph(call) => call.shown["executions"].as_object().map_or(0, |all| all.len() as u64),
                _ => 0,
            },
            Counted::LateHolders => u64::from(late(call)),
            Counted::Reservations => u64::from(name == "reserve" && accepted),
            Counted::WindowStarts => {
                let tasks = call.shown["tasks"].as_array().filter(|_| name == "claim").into_iter().flatten();
                let first = tasks.filter(|task| task["kind"] == kind::RATED && task["claim_kind"] == "initial");
                first.count() as u64
            }
            Counted::Signals => u64::from(name == "signal" && accepted && call.shown["outcome"] != "duplicate"),
            Counted::Graphs => u64::from(new_graph(call)),
        }
    }
}

fn new_graph(call: &Call) -> bool {
    call.call == "flow" && call.accepted() && call.shown["outcome"] != "already_exists"
}

/// Whether a holder was told for the first time that it holds no more.
fn late(call: &Call) -> bool {
    let lost = call.call == "renew" && call.shown["results"][0]["outcome"] == "lost";
    (lost || matches!(call.code(), "stale_lease" | "lease_expired")) && call.about["again"] != true
}

/// How many a row wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Goal {
    /// Of what.
    pub counted: Counted,
    /// How many.
    pub asked: u64,
}

/// Counts while a campaign runs.
#[derive(Debug)]
pub struct Progress {
    goal: Goal,
    follower: Follower,
    reached: u64,
}

impl Progress {
    /// Begins at nought.
    pub fn new(goal: Goal, folder: &Path) -> Self {
        Self { goal, follower: Follower::new(folder), reached: 0 }
    }

    /// Whether there is enough by now.
    pub fn is_enough(&mut self) -> Result<bool, String> {
        self.reached += self.goal.counted.in_history(&self.follower.news()?);
        Ok(self.reached >= self.goal.asked)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::history::{Answer, Note};

    fn call(name: &str, answer: Answer, shown: Value) -> Call {
        Call { call: name.to_owned(), about: Value::Null, began: 1, ended: 2, answer, status: 200, shown }
    }

    #[test]
    fn what_is_repeated_refused_or_unknown_is_not_counted() {
        let yes = |name, shown| call(name, Answer::Accepted, shown);
        let task = |kind, claim_kind| json!({ "kind": kind, "claim_kind": claim_kind });
        let tasks = json!({ "tasks": [task("rated", "initial"), task("rated", "retry"), task("plain", "initial")] });
        let calls = vec![
            yes("submit", json!({ "duplicate": false })),
            yes("submit", json!({ "duplicate": true })),
            call("submit", Answer::Unknown, Value::Null),
            yes("flow", json!({ "outcome": "created", "executions": { "a": "1", "b": "2" } })),
            yes("flow", json!({ "outcome": "already_exists", "executions": { "a": "1", "b": "2" } })),
            yes("claim", tasks),
            yes("signal", json!({ "outcome": "accepted" })),
            yes("signal", json!({ "outcome": "duplicate" })),
            yes("reserve", json!({ "outcome": "reserved" })),
            yes("reserve", json!({ "outcome": "refused" })),
            yes("renew", json!({ "results": [{ "outcome": "lost" }] })),
            call("complete", Answer::Refused, json!({ "code": "stale_lease" })),
            call("complete", Answer::Refused, json!({ "code": "execution_not_active" })),
        ];
        let note = |what: &str| Note { what: what.to_owned(), at: 1, about: Value::Null };
        let history = History { calls, notes: vec![note("fault"), note("healed"), note("fault")] };
        for (counted, count) in [
            (Counted::Faults, 1),
            (Counted::Executions, 3),
            (Counted::LateHolders, 2),
            (Counted::Reservations, 2),
            (Counted::WindowStarts, 1),
            (Counted::Signals, 1),
            (Counted::Graphs, 1),
        ] {
            assert_eq!(counted.in_history(&history), count, "{counted:?}");
        }
    }
}
