//! Gates that refused: nothing behind a closed gate is tried. A gate that opens is tried by one candidate, and then by
//! as many at once as it has admitted since, so that not all candidates are tried at once and parked again.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::budget;
use ff_core::gate::Gate;

use super::queue::QueueId;

/// Admissions in a row after which a gate counts as open.
const OPEN_AFTER: usize = 64;

/// A gate by namespace and name.
pub(super) type GateName = (String, String);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Closed {
        until: i64,
        since: i64,
    },
    /// How many candidates may be tried at once, how many are, and how many were admitted since the gate opened.
    Trying {
        allowed: usize,
        trying: usize,
        admitted: usize,
    },
}

/// The gates that are not simply open, and the queues behind every gate.
#[derive(Debug, Default)]
pub(super) struct Gates {
    states: BTreeMap<GateName, State>,
    queues: BTreeMap<GateName, BTreeSet<QueueId>>,
    /// The gates that name a budget, quota or concurrency key.
    parts: BTreeMap<GateName, BTreeSet<String>>,
}

impl Gates {
    /// Whether no gate refused lately.
    pub(super) fn are_all_open(&self) -> bool {
        self.states.is_empty()
    }

    /// Whether another candidate behind this gate may be tried.
    pub(super) fn admits(&self, namespace: &str, gate: &str) -> bool {
        // A shortcut, because most work has no gate and this function is called whenever a queue changes.
        if gate.is_empty() || self.are_all_open() {
            return true;
        }
        match self.states.get(&(namespace.to_owned(), gate.to_owned())) {
            None => true,
            Some(State::Closed { .. }) => false,
            Some(State::Trying { allowed, trying, .. }) => trying < allowed,
        }
    }

    pub(super) fn add_queue(&mut self, namespace: &str, gate: &str, id: &QueueId) {
        if gate.is_empty() {
            return;
        }
        let name = (namespace.to_owned(), gate.to_owned());
        self.index(&name);
        self.queues.entry(name).or_default().insert(id.clone());
    }

    pub(super) fn remove_queue(&mut self, namespace: &str, gate: &str, id: &QueueId) {
        if gate.is_empty() {
            return;
        }
        let name = (namespace.to_owned(), gate.to_owned());
        let Some(queues) = self.queues.get_mut(&name) else { return };
        queues.remove(id);
        if !queues.is_empty() {
            return;
        }
        self.queues.remove(&name);
        self.unindex_if_gone(&name);
    }

    fn index(&mut self, name: &GateName) {
        for part in parts_of(&name.1) {
            self.parts.entry((name.0.clone(), part)).or_default().insert(name.1.clone());
        }
    }

    fn unindex_if_gone(&mut self, name: &GateName) {
        if self.queues.contains_key(name) || self.states.contains_key(name) {
            return;
        }
        for part in parts_of(&name.1) {
            let part = (name.0.clone(), part);
            if let Some(gates) = self.parts.get_mut(&part) {
                gates.remove(&name.1);
                if gates.is_empty() {
                    self.parts.remove(&part);
                }
            }
        }
    }

    /// The known queues behind a gate.
    pub(super) fn queues(&self, name: &GateName) -> Vec<QueueId> {
        self.queues.get(name).into_iter().flatten().cloned().collect()
    }

    /// How many more candidates behind a gate may be tried.
    pub(super) fn room(&self, name: &GateName) -> usize {
        match self.states.get(name) {
            None => usize::MAX,
            Some(State::Closed { .. }) => 0,
            Some(State::Trying { allowed, trying, .. }) => allowed.saturating_sub(*trying),
        }
    }

    /// When a closed gate opens by itself.
    pub(super) fn closed_until(&self, name: &GateName) -> Option<i64> {
        match self.states.get(name) {
            Some(State::Closed { until, .. }) => Some(*until),
            _ => None,
        }
    }

    /// Since when a closed gate has been closed.
    pub(super) fn closed_since(&self, name: &GateName) -> Option<i64> {
        match self.states.get(name) {
            Some(State::Closed { since, .. }) => Some(*since),
            _ => None,
        }
    }

    /// The gates that are closed.
    pub(super) fn closed(&self) -> Vec<GateName> {
        let closed = self.states.iter().filter(|(_, state)| matches!(state, State::Closed { .. }));
        closed.map(|(name, _)| name.clone()).collect()
    }

    /// Closes a gate that refused. Returns whether it was not closed before.
    pub(super) fn close(&mut self, name: &GateName, until: i64, now: i64) -> bool {
        self.index(name);
        let closed = self.closed_since(name);
        self.states.insert(name.clone(), State::Closed { until, since: closed.unwrap_or(now) });
        closed.is_none()
    }

    /// Opens a gate that may admit so many.
    pub(super) fn open(&mut self, name: &GateName, count: usize) {
        if count >= OPEN_AFTER {
            self.states.remove(name);
            self.unindex_if_gone(name);
            return;
        }
        match self.states.get_mut(name) {
            Some(State::Trying { allowed, .. }) => *allowed = (*allowed).max(count),
            Some(state) => *state = State::Trying { allowed: count.max(1), trying: 0, admitted: 0 },
            None => {}
        }
    }

    /// Notes that a candidate behind this gate is about to be tried. Returns whether the gate admits no other now.
    pub(super) fn begin_try(&mut self, name: &GateName) -> bool {
        match self.states.get_mut(name) {
            Some(State::Trying { allowed, trying, .. }) => {
                *trying += 1;
                trying >= allowed
            }
            _ => false,
        }
    }

    /// Notes that a candidate behind this gate was tried. Returns whether the gate has room now that it did not have
    /// before.
    pub(super) fn end_try(&mut self, name: &GateName, admitted: bool) -> bool {
        let Some(State::Trying { allowed, trying, admitted: count }) = self.states.get_mut(name) else { return false };
        *trying = trying.saturating_sub(1);
        *count += usize::from(admitted);
        *allowed = (*allowed).max(*count);
        if *count >= OPEN_AFTER {
            self.states.remove(name);
            self.unindex_if_gone(name);
        }
        true
    }

    /// The gates that name a budget or quota.
    pub(super) fn with_part(&self, namespace: &str, part: &str) -> Vec<GateName> {
        let indexed = self.parts.get(&(namespace.to_owned(), part.to_owned()));
        let mut gates: BTreeSet<GateName> =
            indexed.into_iter().flatten().map(|gate| (namespace.to_owned(), gate.clone())).collect();
        // A name that looks like several parts is not indexed under itself.
        if part.split(',').skip(1).any(Gate::begins) {
            let known = self.queues.keys().chain(self.states.keys());
            gates.extend(known.filter(|(of, gate)| of == namespace && names(gate, part)).cloned());
        }
        gates.into_iter().collect()
    }
}

/// Whether a gate names a part. Names may contain the comma that separates parts. Then a gate may match that does not
/// name the part, which only costs a look; none is missed.
fn names(gate: &str, part: &str) -> bool {
    gate.match_indices(part).any(|(at, _)| {
        let end = at + part.len();
        (at == 0 || gate.as_bytes()[at - 1] == b',') && (end == gate.len() || gate.as_bytes()[end] == b',')
    })
}

/// The budgets and the quota of a gate. A comma that no kind follows belongs to a name.
fn parts_of(gate: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for piece in gate.split(',') {
        match parts.last_mut() {
            Some(last) if !Gate::begins(piece) => {
                last.push(',');
                last.push_str(piece);
            }
            _ => parts.push(piece.to_owned()),
        }
    }
    // A budget above a named one can refuse as well, so its opening must find this gate, too.
    let above: Vec<String> = parts
        .iter()
        .filter_map(|part| Gate::budget_of(part))
        .flat_map(|name| {
            budget::names_to(name).filter(move |part| *part != name).map(|part| Gate::Budget(part).to_string())
        })
        .filter(|part| !parts.contains(part))
        .collect();
    parts.extend(above);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_names_hide_no_part() {
        assert_eq!(parts_of("b:a,b:x,y,q:z"), ["b:a", "b:x,y", "q:z"]);
        assert_eq!(parts_of("b:a,c:1:x,y,c:2:z,q:z"), ["b:a", "c:1:x,y", "c:2:z", "q:z"]);
        assert!(names("b:a,b:x,y,q:z", "b:x,y") && names("b:a,b:b", "b:a,b:b") && names("b:a,b:ab", "b:ab"));
        assert!(!names("b:ab", "b:a") && !names("b:a,b:bc", "b:b"));
    }

    #[test]
    fn an_opened_gate_is_tried_by_one_and_then_by_as_many_as_it_admitted() {
        let mut gates = Gates::default();
        let name = ("n".to_owned(), "q:a".to_owned());
        assert!(gates.admits("n", "q:a") && gates.close(&name, 10, 0) && !gates.admits("n", "q:a"));
        assert!(
            !gates.close(&name, 12, 5) && gates.closed_since(&name) == Some(0) && gates.closed_until(&name) == Some(12)
        );
        gates.open(&name, 1);
        assert!(gates.begin_try(&name) && !gates.admits("n", "q:a"), "one at a time");
        gates.end_try(&name, true);
        assert!(gates.begin_try(&name) && gates.end_try(&name, true));
        assert!(!gates.begin_try(&name) && gates.begin_try(&name), "two at a time");
        assert!(gates.close(&name, 20, 0) && !gates.admits("n", "q:a"));
        gates.open(&name, OPEN_AFTER);
        assert!(gates.admits("n", "q:a") && gates.states.is_empty() && gates.parts.is_empty());
    }
}
