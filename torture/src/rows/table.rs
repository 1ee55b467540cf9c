//! The rows, what runs them, and how much each asks for.

use super::Part::{Control, Counting, Cuts, On, Planted, Tests, Xtask};
use super::suites::Full;
use super::{Mistake, Row, Trial};
use crate::count::Counted;
use crate::fault::Fault::{self, *};
use crate::store::Kind::{self, *};
use crate::workload::plan::kind;

/// The stores that every row about servers, workers and work is run on.
const EVERY: &[Kind] = &[Sqlite, Postgres, Valkey, Cluster];

const KILLS: &[Fault] = &[WorkerKill, ServerKill];

pub(super) const ROWS: [Row; 24] = [
    Row {
        number: 1,
        what: "workers are killed all the time",
        parts: &[
            On(
                EVERY,
                Trial::new(&[WorkerKill], &["leases do not overlap", "an epoch has one lease"])
                    .until(50_000, Counted::Executions)
                    .reclaims_within(1_000),
            ),
            Planted(
                Sqlite,
                &[WorkerKill],
                Mistake { bug: "expiry_ignores_renewal", rule: "leases do not overlap", focus: kind::LONG },
            ),
        ],
    },
    Row {
        number: 2,
        what: "a worker that was stopped past its leases goes on",
        parts: &[
            On(
                EVERY,
                Trial::new(&[WorkerStop], &["a late holder changes nothing"])
                    .until(1_000, Counted::LateHolders)
                    .mostly(kind::LONG)
                    .threads(8)
                    .open_at_most(100),
            ),
            Tests("flowfabric", &["a_process_that_slept_too_long_is_refused_when_it_wakes"]),
            Planted(
                Sqlite,
                &[WorkerStop],
                Mistake { bug: "fence_not_checked", rule: "a late holder changes nothing", focus: kind::LONG },
            ),
        ],
    },
    Row {
        number: 3,
        what: "servers are killed in mid request",
        parts: &[
            On(
                EVERY,
                Trial::new(&[ServerKill], &["what was acknowledged is there", "a repeated submit has one effect"])
                    .until(500, Counted::Faults),
            ),
            Planted(
                Sqlite,
                &[ClientsReset],
                Mistake { bug: "dedup_not_written", rule: "a repeated submit has one effect", focus: kind::PLAIN },
            ),
        ],
    },
    Row {
        number: 4,
        what: "Valkey is killed and started again on its AOF",
        parts: &[
            On(
                &[Valkey],
                Trial::new(&[StoreKill], &["what was acknowledged is there", "indexes agree with documents"])
                    .until(100, Counted::Faults)
                    .back_within(5_000),
            ),
            Control(Forgetful, &[StoreKill]),
        ],
    },
    Row {
        number: 5,
        what: "SQLite and PostgreSQL are killed",
        parts: &[
            On(
                &[Sqlite],
                Trial::new(&[ServerKill], &["what was acknowledged is there", "indexes agree with documents"])
                    .until(100, Counted::Faults),
            ),
            On(
                &[Postgres],
                Trial::new(&[StoreKill], &["what was acknowledged is there", "indexes agree with documents"])
                    .until(100, Counted::Faults),
            ),
            Tests("ff-store-sqlite", &["survives_a_kill"]),
            Tests("ff-store-postgres", &["survives_twenty_kills"]),
            Planted(
                Sqlite,
                &[ServerKill],
                Mistake { bug: "index_not_updated", rule: "indexes agree with documents", focus: kind::PLAIN },
            ),
        ],
    },
    Row {
        number: 6,
        what: "a partition, then a promotion, in each tier",
        parts: &[
            On(&[Replicated], Trial::new(&[Failover], &["what was acknowledged is there", "an epoch has one lease"])),
            Control(Async, &[Failover]),
        ],
    },
    Row {
        number: 7,
        what: "each primary of a cluster is killed in turn",
        parts: &[On(&[Cluster], Trial::new(&[PrimaryKill], &["what was acknowledged is there"]).back_within(5_000))],
    },
    Row {
        number: 8,
        what: "slots move to a fresh server under load",
        parts: &[On(&[Cluster], Trial::new(&[SlotMove], &["what was acknowledged is there"]))],
    },
    Row {
        number: 9,
        what: "functions are flushed; old and newer libraries",
        parts: &[
            On(&[Valkey, Cluster], Trial::new(&[FunctionFlush], &["what was acknowledged is there"])),
            Tests("ff-store-valkey", &["library", "protocol"]),
        ],
    },
    Row {
        number: 10,
        what: "connections are cut at every byte",
        parts: &[Cuts(EVERY, 10_000), Tests("ff-store-postgres", &["cut_in_the_middle"])],
    },
    Row {
        number: 11,
        what: "the store is full, then it has room again",
        parts: &[
            On(&[Valkey, Sqlite], Trial::new(&[StoreFull], &["what was acknowledged is there"])),
            Tests("ff-store-postgres", &["a_full_disk"]),
        ],
    },
    Row {
        number: 12,
        what: "clocks of servers are an hour wrong",
        parts: &[
            On(&[Valkey, Cluster, Postgres], Trial::new(&[Clock], &["leases do not overlap", "no timer is early"])),
            Planted(
                Postgres,
                &[Clock],
                Mistake { bug: "timer_early", rule: "no timer is early", focus: kind::DELAYED },
            ),
        ],
    },
    Row {
        number: 13,
        what: "five servers on one store, killed at random",
        parts: &[
            On(
                &[Valkey, Cluster, Postgres],
                Trial::new(&[ServerKill], &["the ceiling holds", "no more at once than the quota says"]).servers(5),
            ),
            Planted(
                Postgres,
                &[ServerKill],
                Mistake { bug: "quota_slot_leaked", rule: "nothing is stuck", focus: kind::SLOTTED },
            ),
        ],
    },
    Row {
        number: 14,
        what: "claimers race for a budget",
        parts: &[
            On(
                EVERY,
                Trial::new(KILLS, &["the ceiling holds", "no reservation is left", "usage is counted once"])
                    .until(100_000, Counted::Reservations)
                    .mostly(kind::RACES)
                    .threads(8),
            ),
            Tests("ff-engine", &["budget", "spend"]),
            Planted(
                Sqlite,
                &[WorkerKill, ServerKill],
                Mistake { bug: "reserve_unchecked", rule: "the ceiling holds", focus: kind::RACES },
            ),
            Planted(
                Sqlite,
                &[WorkerKill, ServerKill],
                Mistake { bug: "usage_dedup_ignored", rule: "usage is counted once", focus: kind::PLAIN },
            ),
        ],
    },
    Row {
        number: 15,
        what: "every offset of a quota's window",
        parts: &[
            On(
                EVERY,
                Trial::new(&[ServerKill], &["no more in a window than the quota says"])
                    .until(100_000, Counted::WindowStarts)
                    .mostly(kind::RATED),
            ),
            Tests("ff-engine", &["quota", "window"]),
        ],
    },
    Row {
        number: 16,
        what: "signals that are repeated, forged and late",
        parts: &[
            On(
                EVERY,
                Trial::new(
                    &[ClientsReset, ClientsDeaf],
                    &["a key means one signal", "a signal has one effect", "a forged token is refused"],
                )
                .until(10_000, Counted::Signals)
                .mostly(kind::WAITS),
            ),
            Tests("ff-engine", &["signal"]),
            Planted(
                Sqlite,
                &[ClientsReset, ClientsDeaf],
                Mistake { bug: "signal_counted_twice", rule: "a key means one signal", focus: kind::WAITS },
            ),
            Planted(
                Sqlite,
                &[ClientsReset, ClientsDeaf],
                Mistake { bug: "token_not_checked", rule: "a forged token is refused", focus: kind::WAITS },
            ),
        ],
    },
    Row {
        number: 17,
        what: "random graphs with failures and kills",
        parts: &[
            On(
                EVERY,
                Trial::new(KILLS, &["a child starts after its upstreams", "a graph ends as its members did"])
                    .until(1_000, Counted::Graphs),
            ),
            Tests("ff-engine", &["flow"]),
            Planted(
                Sqlite,
                &[WorkerKill, ServerKill],
                Mistake { bug: "child_starts_early", rule: "a child starts after its upstreams", focus: kind::MEMBER },
            ),
        ],
    },
    Row {
        number: 18,
        what: "viewers of a stream that reconnect",
        parts: &[
            On(
                EVERY,
                Trial::new(
                    &[ServerStop],
                    &["an acknowledged frame is there", "frames stay in order", "no frame is there twice"],
                ),
            ),
            Counting("ff-cli", "viewers_of_one_stream_that_reconnect", "FF_TEST_VIEWERS", (10_000, "viewers")),
            Planted(
                Sqlite,
                &[WorkerStop],
                Mistake { bug: "frame_after_close", rule: "a late holder changes nothing", focus: kind::LONG },
            ),
        ],
    },
    Row {
        number: 19,
        what: "one random history on all stores",
        parts: &[
            Counting("ff-store-sqlite", RANDOM_HISTORY, OPERATIONS, A_MILLION),
            Counting("ff-store-postgres", RANDOM_HISTORY, OPERATIONS, A_MILLION),
            Counting("ff-store-valkey", RANDOM_HISTORY, OPERATIONS, A_MILLION),
        ],
    },
    Row { number: 20, what: "the simulator", parts: &[Xtask(&["sim", "--seeds", "N"], 100, (10_000, "seeds"))] },
    Row {
        number: 21,
        what: "planted bugs in the simulator",
        parts: &[Xtask(&["sim", "--planted", "--seeds", "N"], 40, (200, "seeds for each bug"))],
    },
    Row {
        number: 22,
        what: "no way in, no leak",
        parts: &[Tests("ff-server", &["strangers", "canary", "authority", "sweep", "refusals", "session"])],
    },
    Row {
        number: 23,
        what: "made-up requests and mutated inputs",
        parts: &[
            Xtask(&["schemathesis", "-n", "N"], 5, (100, "cases for each operation")),
            Counting("ff-core", "never_panic", "FF_FUZZ_MINUTES", (5, "minutes")),
        ],
    },
    Row {
        number: 24,
        what: "a soak with all faults and rolling restarts",
        parts: &[
            On(
                &[Valkey],
                Trial::new(
                    &[Rolling, ServerKill, StoreKill, WorkerStop, StoreHole, ClientsReset],
                    &["nothing is stuck"],
                ),
            ),
            On(
                &[Postgres],
                Trial::new(&[Rolling, ServerKill, StoreKill, Terminate, LockTable, StoreReset], &["nothing is stuck"]),
            ),
            On(
                &[Cluster],
                Trial::new(
                    &[Rolling, ServerKill, PrimaryKill, WorkerStop, FunctionFlush, ClientsReset],
                    &["nothing is stuck"],
                ),
            ),
            On(
                &[Sqlite],
                Trial::new(&[Rolling, ServerKill, WorkerStop, StoreFull, ClientsReset], &["nothing is stuck"]),
            ),
            On(
                &[Valkey, Cluster, Postgres, Sqlite],
                Trial::new(&[Upgrade], &["what was acknowledged is there", "nothing is stuck"]),
            ),
            Planted(
                Sqlite,
                &[ServerKill],
                Mistake { bug: "mark_not_left", rule: "nothing is stuck", focus: kind::MEMBER },
            ),
        ],
    },
];

const RANDOM_HISTORY: &str = "a_random_history_ends_as_in_memory";
const OPERATIONS: &str = "FF_TEST_HISTORY_OPERATIONS";
const A_MILLION: Full = (1_000_000, "operations");

#[cfg(test)]
mod tests {
    use ff_core::planted::Bug;

    use super::super::Part;
    use super::ROWS;
    use crate::check::tests::rules;

    #[test]
    fn every_number_has_its_row() {
        let numbers: Vec<u32> = ROWS.iter().map(|row| row.number).collect();
        assert_eq!(numbers, (1..=24).collect::<Vec<_>>());
    }

    #[test]
    fn rows_speak_of_rules_and_bugs_that_there_are() {
        let rules = rules();
        for part in ROWS.iter().flat_map(|row| row.parts) {
            match part {
                Part::On(_, trial) => {
                    for rule in trial.rules {
                        assert!(rules.contains(rule), "{rule}");
                    }
                }
                Part::Planted(_, _, mistake) => {
                    assert!(rules.contains(&mistake.rule), "{}", mistake.rule);
                    assert!(Bug::ALL.iter().any(|bug| bug.as_str() == mistake.bug), "{}", mistake.bug);
                }
                _ => {}
            }
        }
    }
}
