//! The acknowledged work, the server that acknowledged it, and when it was taken up elsewhere.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use crate::instant::now_ms;

/// An answer may be read this much after the kill of the server that sent it.
const IN_FLIGHT_MS: i64 = 100;

/// The kind of promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Submit,
    Progress,
    Timer,
    Lease,
}

impl Kind {
    pub(super) const ALL: [Kind; 4] = [Kind::Submit, Kind::Progress, Kind::Timer, Kind::Lease];

    /// The lane where it becomes claimable. A leased execution is reclaimed where it was.
    pub(super) fn lane(self) -> &'static str {
        match self {
            Kind::Submit => "submitted",
            Kind::Progress => "then",
            Kind::Timer => "delayed",
            Kind::Lease => "leased",
        }
    }

    fn what(self) -> &'static str {
        match self {
            Kind::Submit => "acknowledged submits claimable",
            Kind::Progress => "flow progress",
            Kind::Timer => "timers",
            Kind::Lease => "leases after their expiry",
        }
    }

    /// The longest that is promised.
    fn promise_ms(self) -> i64 {
        if self == Kind::Lease { 1_000 } else { 5_000 }
    }
}

struct Item {
    kind: Kind,
    server: usize,
    at: i64,
    /// Not before this.
    due: i64,
}

#[derive(Default)]
struct Seen {
    items: BTreeMap<String, Item>,
    taken: BTreeMap<String, i64>,
    kills: Vec<(usize, i64)>,
}

/// Everything that happened in a campaign.
#[derive(Default)]
pub(super) struct Record(Mutex<Seen>);

impl Record {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// A server acknowledged what others must see to if it is killed.
    pub(super) fn acknowledged(&self, kind: Kind, id: &str, server: usize, due: i64) {
        self.seen().items.insert(id.to_owned(), Item { kind, server, at: now_ms(), due });
    }

    /// Notes that an execution was claimed; the first time counts.
    pub(super) fn taken(&self, id: &str, at: i64) {
        self.seen().taken.entry(id.to_owned()).or_insert(at);
    }

    pub(super) fn killed(&self, server: usize, at: i64) {
        self.seen().kills.push((server, at));
    }

    /// How much was acknowledged and not taken yet.
    pub(super) fn open(&self) -> usize {
        let seen = self.seen();
        seen.items.keys().filter(|id| !seen.taken.contains_key(*id)).count()
    }

    /// Prints the figures of what was open at a kill; says whether the promise was kept.
    pub(super) fn print(&self, store: &str) -> bool {
        let seen = self.seen();
        let mut kept = true;
        println!("| {store} | open at a kill | p50 ms | p90 ms | max ms | lost |");
        println!("|---|---|---|---|---|---|");
        for kind in Kind::ALL {
            let items = || seen.items.iter().filter(|(_, item)| item.kind == kind);
            let mut delays: Vec<i64> = items().filter_map(|(id, item)| seen.delay(id, item)).collect();
            delays.sort_unstable();
            let lost = items().filter(|(id, _)| !seen.taken.contains_key(*id)).count();
            let at = |share: usize| delays.get((delays.len().max(1) - 1) * share / 100).copied().unwrap_or(0);
            kept &= lost == 0 && at(100) <= kind.promise_ms();
            println!("| {} | {} | {} | {} | {} | {lost} |", kind.what(), delays.len(), at(50), at(90), at(100));
        }
        println!("{store}: the promise was {}", if kept { "kept" } else { "NOT kept" });
        kept
    }
}

impl Seen {
    /// How long after the kill of its server, or after it was due if that was later, something was taken up.
    fn delay(&self, id: &str, item: &Item) -> Option<i64> {
        let taken = *self.taken.get(id)?;
        let killed = self.kills.iter().find(|(server, at)| *server == item.server && item.at <= at + IN_FLIGHT_MS)?.1;
        // Work that was taken before says nothing about the kill. A lease that ended before may have been given anew by
        // the killed server, whose answer was lost.
        let counts = taken > killed && (item.kind != Kind::Lease || item.due > killed);
        counts.then(|| (taken - killed.max(item.due)).max(0))
    }
}
