//! The scorecard: 24 rows, each run by campaigns of this program, by suites that stand elsewhere, or by both. A row passes
//! when all of its parts do; a part that cannot run here is said to be skipped, and its row does not pass.

mod card;
mod cuts;
mod suites;

use std::time::Instant;

use crate::campaign::{Campaign, Finished};
use crate::fault::Fault;
use crate::store::Kind;

pub use card::{Card, Line, Verdict};

/// A part of a row.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// A campaign that must break no rule, and whose rules of these names must have been looked at.
    Campaign(Kind, &'static [Fault], &'static [&'static str]),
    /// The same with so many servers.
    Servers(Kind, usize, &'static [Fault], &'static [&'static str]),
    /// A campaign on a store that loses what it acknowledged, which must be seen.
    Control(Kind, &'static [Fault]),
    /// Connections that are cut at every byte.
    Cuts(Kind),
    /// Tests of a package whose names contain one of these words.
    Tests(&'static str, &'static [&'static str]),
    /// `cargo xtask` with these words; `N` becomes a number that grows with the minutes.
    Xtask(&'static [&'static str], u64),
}

/// A row of the scorecard.
#[derive(Debug)]
struct Row {
    number: u32,
    what: &'static str,
    parts: &'static [Part],
}

use Fault::*;
use Part::{Campaign as On, Control, Cuts, Servers, Tests, Xtask};

const ROWS: [Row; 24] = [
    Row {
        number: 1,
        what: "workers are killed all the time",
        parts: &[
            On(Kind::Valkey, &[WorkerKill], &["leases do not overlap", "an epoch has one lease"]),
            On(Kind::Postgres, &[WorkerKill], &["leases do not overlap"]),
        ],
    },
    Row {
        number: 2,
        what: "a worker that was stopped past its leases goes on",
        parts: &[
            On(Kind::Valkey, &[WorkerStop], &["a late holder changes nothing"]),
            Tests("flowfabric", &["a_process_that_slept_too_long_is_refused_when_it_wakes"]),
        ],
    },
    Row {
        number: 3,
        what: "servers are killed in mid request",
        parts: &[
            On(Kind::Sqlite, &[ServerKill], &["what was acknowledged is there", "a key means one execution"]),
            On(Kind::Postgres, &[ServerKill], &["what was acknowledged is there", "a key means one execution"]),
        ],
    },
    Row {
        number: 4,
        what: "Valkey is killed and started again on its AOF",
        parts: &[On(Kind::Valkey, &[StoreKill], &["what was acknowledged is there", "indexes agree with documents"])],
    },
    Row {
        number: 5,
        what: "SQLite and PostgreSQL are killed",
        parts: &[
            On(Kind::Sqlite, &[ServerKill], &["indexes agree with documents"]),
            On(Kind::Postgres, &[StoreKill], &["what was acknowledged is there", "indexes agree with documents"]),
            Tests("ff-store-sqlite", &["survives_a_kill"]),
            Tests("ff-store-postgres", &["survives_twenty_kills"]),
        ],
    },
    Row {
        number: 6,
        what: "a partition, then a promotion, in each tier",
        parts: &[
            On(Kind::Replicated, &[Failover], &["what was acknowledged is there", "an epoch has one lease"]),
            Control(Kind::Async, &[Failover]),
        ],
    },
    Row {
        number: 7,
        what: "each primary of a cluster is killed in turn",
        parts: &[On(Kind::Cluster, &[PrimaryKill], &["what was acknowledged is there"])],
    },
    Row {
        number: 8,
        what: "slots move to a fresh server under load",
        parts: &[On(Kind::Cluster, &[SlotMove], &["what was acknowledged is there"])],
    },
    Row {
        number: 9,
        what: "functions are flushed; old and newer libraries",
        parts: &[
            On(Kind::Valkey, &[FunctionFlush], &["what was acknowledged is there"]),
            Tests("ff-store-valkey", &["library", "protocol"]),
        ],
    },
    Row {
        number: 10,
        what: "connections are cut at every byte",
        parts: &[Cuts(Kind::Sqlite), Cuts(Kind::Valkey), Tests("ff-store-postgres", &["cut_in_the_middle"])],
    },
    Row {
        number: 11,
        what: "the store is full, then it has room again",
        parts: &[
            On(Kind::Valkey, &[StoreFull], &["what was acknowledged is there"]),
            On(Kind::Sqlite, &[StoreFull], &["what was acknowledged is there"]),
            Tests("ff-store-postgres", &["a_full_disk"]),
        ],
    },
    Row {
        number: 12,
        what: "clocks of servers are an hour wrong",
        parts: &[
            On(Kind::Valkey, &[Clock], &["leases do not overlap", "no timer is early"]),
            On(Kind::Postgres, &[Clock], &["leases do not overlap", "no timer is early"]),
        ],
    },
    Row {
        number: 13,
        what: "five servers on one store, killed at random",
        parts: &[
            Servers(Kind::Valkey, 5, &[ServerKill], &["the ceiling holds", "no more at once than the quota says"]),
            Servers(Kind::Postgres, 5, &[ServerKill], &["the ceiling holds", "no more at once than the quota says"]),
        ],
    },
    Row {
        number: 14,
        what: "claimers race for a budget",
        parts: &[
            On(
                Kind::Valkey,
                &[WorkerKill, ServerKill],
                &["the ceiling holds", "no reservation is left", "usage is counted once"],
            ),
            Tests("ff-engine", &["budget", "spend"]),
        ],
    },
    Row {
        number: 15,
        what: "every offset of a quota's window",
        parts: &[
            On(Kind::Valkey, &[ServerKill], &["no more in a window than the quota says"]),
            Tests("ff-engine", &["quota", "window"]),
        ],
    },
    Row {
        number: 16,
        what: "signals that are repeated, forged and late",
        parts: &[
            On(
                Kind::Postgres,
                &[ClientsReset, ClientsDeaf],
                &["a key means one signal", "a signal has one effect", "a forged token is refused"],
            ),
            Tests("ff-engine", &["signal"]),
        ],
    },
    Row {
        number: 17,
        what: "random graphs with failures and kills",
        parts: &[
            On(
                Kind::Valkey,
                &[ServerKill, WorkerKill],
                &["a child starts after its upstreams", "a graph ends as its members did"],
            ),
            Tests("ff-engine", &["flow"]),
        ],
    },
    Row {
        number: 18,
        what: "viewers of a stream that reconnect",
        parts: &[
            On(
                Kind::Valkey,
                &[ServerStop],
                &["an acknowledged frame is there", "frames stay in order", "no frame is there twice"],
            ),
            Tests("ff-cli", &["viewers_of_one_stream_that_reconnect"]),
        ],
    },
    Row {
        number: 19,
        what: "one random history on all stores",
        parts: &[
            Tests("ff-store-sqlite", &["a_random_history_ends_as_in_memory"]),
            Tests("ff-store-postgres", &["a_random_history_ends_as_in_memory"]),
            Tests("ff-store-valkey", &["a_random_history_ends_as_in_memory"]),
        ],
    },
    Row { number: 20, what: "the simulator", parts: &[Xtask(&["sim", "--seeds", "N"], 100)] },
    Row {
        number: 21,
        what: "planted bugs in the simulator",
        parts: &[Xtask(&["sim", "--planted", "--seeds", "N"], 40)],
    },
    Row {
        number: 22,
        what: "no way in, no leak",
        parts: &[Tests("ff-server", &["strangers", "canary", "authority", "sweep", "refusals", "session"])],
    },
    Row {
        number: 23,
        what: "made-up requests and mutated inputs",
        parts: &[Xtask(&["schemathesis", "-n", "N"], 5), Tests("ff-core", &["never_panic"])],
    },
    Row {
        number: 24,
        what: "a soak with all faults and rolling restarts",
        parts: &[
            On(
                Kind::Valkey,
                &[Rolling, ServerKill, StoreKill, WorkerStop, StoreHole, ClientsReset],
                &["nothing is stuck"],
            ),
            On(
                Kind::Postgres,
                &[Rolling, ServerKill, StoreKill, Terminate, LockTable, StoreReset],
                &["nothing is stuck"],
            ),
        ],
    },
];

/// Runs rows and gives their card. `campaign` makes one on a store with faults.
pub fn run(numbers: &[u32], minutes: f64, campaign: &dyn Fn(Kind, Vec<Fault>) -> Campaign) -> Card {
    let mut card = Card::default();
    for row in ROWS.iter().filter(|row| numbers.contains(&row.number)) {
        for part in row.parts {
            let began = Instant::now();
            let mut line = run_part(*part, minutes, campaign);
            line.row = row.number;
            line.what = row.what;
            line.seconds = began.elapsed().as_secs();
            println!("row {}: {}", row.number, line);
            card.lines.push(line);
        }
    }
    card
}

fn run_part(part: Part, minutes: f64, campaign: &dyn Fn(Kind, Vec<Fault>) -> Campaign) -> Line {
    match part {
        Part::Campaign(kind, faults, rules) => judged(&campaign(kind, faults.to_vec()), rules),
        Part::Servers(kind, servers, faults, rules) => {
            let mut campaign = campaign(kind, faults.to_vec());
            campaign.servers = Some(servers);
            judged(&campaign, rules)
        }
        Part::Control(kind, faults) => control(&campaign(kind, faults.to_vec())),
        Part::Cuts(kind) => cuts::run(&campaign(kind, Vec::new())),
        Part::Tests(package, words) => suites::tests(package, words),
        Part::Xtask(words, at_one_minute) => suites::xtask(words, at_one_minute, minutes),
    }
}

fn judged(campaign: &Campaign, rules: &[&str]) -> Line {
    let by = by(campaign);
    let finished = match campaign.run() {
        Ok(finished) => finished,
        Err(why) => return Line::new(Verdict::Failed, by, why),
    };
    println!("{}", finished.score.page(campaign.kind.name()));
    let unseen = rules.iter().find(|rule| finished.score.rules.get(**rule).is_none_or(|rule| rule.looks == 0));
    let verdict = match (finished.score.violations(), unseen, &finished.skipped[..]) {
        (0, None, []) => Verdict::Passed,
        (0, None, _) => Verdict::Skipped,
        _ => Verdict::Failed,
    };
    let mut figures = figures(&finished);
    figures.extend(unseen.map(|rule| format!("never looked at: {rule}")));
    figures.extend(finished.skipped.iter().map(|(fault, why)| format!("{} skipped: {why}", fault.name())));
    let mut line = Line::new(verdict, by, figures.join(", "));
    line.score = Some(finished.score.json());
    line
}

/// What must be seen is that something is gone.
fn control(campaign: &Campaign) -> Line {
    let by = format!("control: {}", by(campaign));
    match campaign.run() {
        Ok(finished) => {
            let seen = finished.score.violations();
            let lost = finished.score.rules.get("what was acknowledged is there").map_or(0, |rule| rule.violations);
            let verdict = if seen > 0 { Verdict::Passed } else { Verdict::Failed };
            let mut line = Line::new(verdict, by, format!("{seen} violations seen, {lost} acknowledged lost"));
            line.score = Some(finished.score.json());
            line
        }
        Err(why) => Line::new(Verdict::Failed, by, why),
    }
}

fn by(campaign: &Campaign) -> String {
    let faults: Vec<&str> = campaign.faults.iter().map(|fault| fault.name()).collect();
    format!("{} {}", campaign.kind.name(), faults.join("+"))
}

fn figures(finished: &Finished) -> Vec<String> {
    let score = &finished.score;
    let strikes: u64 = score.faults.values().map(|under| under.strikes).sum();
    let mut figures = vec![
        format!("{} calls", score.calls()),
        format!("{strikes} faults"),
        format!("{} violations", score.violations()),
    ];
    let slowest = score.faults.keys().filter_map(|fault| score.slowest_recovery(fault)).max();
    figures.extend(slowest.map(|ms| format!("back after {ms} ms at the most")));
    if let Some(p99) = score.reclaim_p99() {
        figures.push(format!("reclaim p99 {p99} ms after expiry"));
    }
    figures
}
