//! One run: a storm, then calm until everything has come to rest.

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ff_core::Partition;

use crate::executor::Step;
use crate::guards::GuardCounts;
use crate::invariant::{Invariant, Violation};
use crate::world::World;
use crate::{
    client, gates, operator, reviver, signaller, subscriber, sweeper, timetable, trouble, viewer, visitor, worker,
};

pub use crate::profile::Focus;

/// Steps within one millisecond of virtual time after which something spins. Workers take no time in calm: thousands of
/// executions that wait then, each with a delivery of its end, are done within one millisecond.
const SPINNING_STEPS: u64 = 400_000;
/// Steps between two checks of everything.
const CHECK_EVERYTHING: u64 = 1_000;
/// Virtual time in which everything must come to its end once the weather is calm.
const REST_MS: i64 = 1_800_000;
/// Steps that the calm may take.
const REST_STEPS: u64 = 2_000_000;
/// How long a partition stays out of reach in calm.
const OUTAGE_MS: i64 = 12_000;
/// How long clients go on when the storm is over.
const ENCORE_MS: i64 = 10_000;
/// Until everything must be gone, ten days pass: every process stands still for two hours and then runs for a while.
const DRAIN_PAUSES: i64 = 120;
const PAUSE_MS: i64 = 7_200_000;
const AWAKE_MS: i64 = 30_000;

/// How a run is set up.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Decides everything.
    pub seed: u64,
    /// How long the storm lasts.
    pub steps: u64,
    /// Keep the lines of history.
    pub keep_history: bool,
    /// The kind of trouble that it is about, if not of all kinds.
    pub focus: Option<Focus>,
    /// Invariants that may be broken: they are not looked at, so that others can be.
    pub except: Vec<Invariant>,
}

/// The report of a run.
#[derive(Debug)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// Tasks polled.
    pub steps: u64,
    /// Over everything that happened.
    pub hash: u64,
    /// Executions that were created.
    pub executions: usize,
    /// The operations that were called.
    pub operations: std::collections::BTreeSet<&'static str>,
    /// How often each guard was judged and refused.
    pub guards: GuardCounts,
    /// The first violation, if there is one.
    pub violation: Option<Violation>,
    /// Where the history is.
    pub history: Option<PathBuf>,
}

/// Runs a seed. A panic of the code under test is a violation like any other.
pub fn run(setup: &Setup, directory: &Path) -> Report {
    let world = World::new(setup.seed, setup.focus, setup.keep_history);
    world.checker().except(&setup.except);
    let steps = std::cell::Cell::new(0);
    let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| storm_and_calm(&world, setup.steps, &steps)));
    if let Err(panic) = outcome {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default();
        world.checker().violate(Invariant::LegalStates, format!("a panic: {text}"));
    }
    let violation = world.checker().violation().cloned();
    let executions = world.checker().created;
    let operations = world.called().clone();
    let guards = world.guards().clone();
    let engines: Vec<_> = world.servers().drain(..).collect();
    world.executor.kill_all();
    drop(engines);
    if let Some(violation) = &violation {
        world.note(format_args!("{violation}"));
    }
    let hash = world.history().hash();
    let history = if setup.keep_history { world.history().save(directory, setup.seed).ok() } else { None };
    Report { seed: setup.seed, steps: steps.get(), hash, executions, operations, guards, violation, history }
}

fn storm_and_calm(world: &Arc<World>, storm: u64, steps: &std::cell::Cell<u64>) {
    world.note(format_args!("{:?}", world.profile));
    trouble::begin(world);
    for number in 0..world.profile.workers {
        trouble::spawn(world, worker::run(Arc::clone(world), number));
    }
    for _ in 0..world.profile.clients {
        trouble::spawn(world, client::run(Arc::clone(world)));
    }
    trouble::spawn(world, operator::run(Arc::clone(world)));
    trouble::spawn(world, signaller::run(Arc::clone(world)));
    trouble::spawn(world, gates::run(Arc::clone(world)));
    trouble::spawn(world, timetable::run(Arc::clone(world)));
    trouble::spawn(world, sweeper::run(Arc::clone(world)));
    trouble::spawn(world, subscriber::run(Arc::clone(world)));
    trouble::spawn(world, viewer::watch_streams(Arc::clone(world)));
    trouble::spawn(world, viewer::subscribe(Arc::clone(world)));
    trouble::spawn(world, visitor::run(Arc::clone(world)));
    trouble::spawn(world, reviver::run(Arc::clone(world)));
    while steps.get() < storm {
        if !step(world, steps) {
            return;
        }
    }
    world.set_out(None);
    world.calm();
    world.note(format_args!("calm"));
    let last = steps.get() + REST_STEPS;
    if !encore(world, steps, last) {
        return;
    }
    let until = world.executor.now_ms() + REST_MS;
    while world.executor.now_ms() < until && steps.get() < last {
        if !step(world, steps) {
            return;
        }
        if steps.get().is_multiple_of(64) && is_at_rest(world) {
            break;
        }
    }
    let now = world.times();
    world.store.inspect(|contents| {
        let mut checker = world.checker();
        checker.check_everything(contents, now);
        checker.check_rest(contents);
    });
    trouble::check_engines_at_rest(world);
    if world.profile.drain && world.checker().violation().is_none() {
        drain(world, steps);
    }
}

/// Some more work when the storm is over, part of it while one partition is out of reach.
fn encore(world: &Arc<World>, steps: &std::cell::Cell<u64>, last: u64) -> bool {
    trouble::spawn(world, client::encore(Arc::clone(world), ENCORE_MS + OUTAGE_MS));
    if world.profile.stops > 0 {
        trouble::spawn(world, trouble::deploy(Arc::clone(world)));
    }
    let pass = |ms: i64| {
        let until = world.executor.now_ms() + ms;
        while world.executor.now_ms() < until && steps.get() < last {
            if !step(world, steps) {
                return false;
            }
        }
        true
    };
    if !pass(ENCORE_MS) {
        return false;
    }
    if world.profile.calm_outage {
        let number = world.random().below(usize::try_from(world.profile.partitions.flow).unwrap_or(1));
        world.set_out(Some(Partition::flow(u16::try_from(number).unwrap_or(0))));
    }
    if !pass(OUTAGE_MS) {
        return false;
    }
    world.set_out(None);
    true
}

/// Days pass: what ended goes, and with it everything it had.
fn drain(world: &Arc<World>, steps: &std::cell::Cell<u64>) {
    world.end();
    for number in 0..=DRAIN_PAUSES {
        // Calls that are under way end before time runs away.
        if number > 0 {
            world.executor.pause(PAUSE_MS);
        }
        let until = world.executor.now_ms() + AWAKE_MS;
        while world.executor.now_ms() < until {
            if !step(world, steps) {
                return;
            }
        }
    }
    let (now, again) = (world.times(), world.times());
    world.store.inspect(|contents| {
        let mut checker = world.checker();
        checker.check_everything(contents, now);
        if let Some(detail) = checker.leftover(contents, again) {
            checker.violate(Invariant::DrainsToEmpty, detail);
        }
    });
}

fn is_at_rest(world: &World) -> bool {
    let servers = world.servers().iter().all(|server| server.engine.is_some());
    servers && world.store.inspect(|contents| world.checker().is_at_rest(contents))
}

/// One step and its checks; false when the run is over.
fn step(world: &Arc<World>, steps: &std::cell::Cell<u64>) -> bool {
    let Step::Polled(task) = world.executor.step() else { return false };
    steps.set(steps.get() + 1);
    world.history().mix(&task.to_be_bytes());
    if steps.get().is_multiple_of(CHECK_EVERYTHING) {
        let now = world.times();
        world.store.inspect(|contents| world.checker().check_everything(contents, now));
    }
    let now_ms = world.executor.now_ms();
    world.checker().check_meetings(now_ms);
    if world.steps_within(now_ms) > SPINNING_STEPS {
        let detail = format!("{SPINNING_STEPS} steps at {now_ms}, and no end");
        world.checker().violate(Invariant::NothingSpins, detail);
    }
    world.checker().violation().is_none()
}
