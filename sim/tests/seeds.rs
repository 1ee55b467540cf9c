//! A short storm for every gate, and a glance at the tester itself. The long runs are `cargo xtask sim`.

use std::path::Path;

use ff_sim::guards::GuardCounts;
use ff_sim::invariant::Invariant;
use ff_sim::planted::{Bug, catch};
use ff_sim::run::{Report, Setup, run};

fn simulate(seed: u64, steps: u64) -> Report {
    run(
        &Setup { seed, steps, keep_history: false, focus: None, except: Vec::new() },
        Path::new(env!("CARGO_TARGET_TMPDIR")),
    )
}

#[test]
fn no_seed_breaks_an_invariant() {
    let mut guards = GuardCounts::default();
    let mut executions = 0;
    for seed in 0..10 {
        let report = simulate(seed, 800);
        assert_eq!(report.violation, None, "cargo xtask sim --seed {seed} --steps 800");
        executions += report.executions;
        guards.add(&report.guards);
    }
    // Some profiles begin with an outage that outlasts so short a storm.
    assert!(executions > 100, "the storm made {executions} executions only");
    let refused: Vec<_> = guards.rows().filter(|(_, _, refused)| *refused > 0).map(|((guard, _), ..)| guard).collect();
    // The others refuse too rarely for so short a storm; the long campaigns ask for all of them.
    for guard in ["absent", "version", "expired"] {
        assert!(refused.contains(&guard), "no {guard} guard refused anything: {refused:?}");
    }
}

/// Operations that no actor calls, and why.
const NOT_CALLED: [(&str, &str); 3] = [
    ("get_test_clock", "the storm moves time itself"),
    ("advance_test_clock", "the storm moves time itself"),
    ("wait_until_idle", "a storm is never idle"),
];

#[test]
fn the_workload_uses_every_operation() {
    macro_rules! names {
        ($($module:ident $operation:ident;)*) => { [$(stringify!($module)),*] };
    }
    let all = ff_core::operations!(names);
    let mut called = std::collections::BTreeSet::new();
    for seed in 100..300 {
        called.extend(simulate(seed, 2_000).operations);
        if called.len() + NOT_CALLED.len() == all.len() {
            break;
        }
    }
    let excused = |name: &&str| NOT_CALLED.iter().any(|(known, _)| known == name);
    let missing: Vec<_> = all.into_iter().filter(|name| !called.contains(name) && !excused(name)).collect();
    assert!(missing.is_empty(), "no actor ever calls {missing:?}");
}

#[test]
fn a_seed_replays_exactly() {
    let (first, again, other) = (simulate(7, 800), simulate(7, 800), simulate(8, 800));
    assert_eq!((first.hash, first.steps), (again.hash, again.steps));
    assert_ne!(first.hash, other.hash);
}

#[test]
fn planted_bugs_are_caught_by_the_invariant_they_break() {
    for (bug, invariant, except) in [
        (Bug::IndexNotUpdated, Invariant::IndexesAgree, [].as_slice()),
        (Bug::RetryNotCounted, Invariant::AttemptsNumbered, &[]),
        // An early timer also removes what is to be kept a little longer.
        (Bug::TimerEarly, Invariant::TimersKeepTime, &[Invariant::NothingLost]),
    ] {
        let caught = catch(bug, 0..30, 800, except).expect("tests are built with the bugs");
        let by = caught.by.map(|(_, violation)| violation.invariant);
        assert_eq!(by, Some(invariant), "{}", bug.as_str());
    }
}
