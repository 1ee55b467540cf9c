//! `cargo xtask sim`: runs seeds, shows those that fail, and counts what guards refused.

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use ff_sim::guards::GuardCounts;
use ff_sim::invariant::Invariant;
use ff_sim::jobs::in_order;
use ff_sim::planted::{Bug, catch};
use ff_sim::run::{Report, Setup, run};

/// Runs the simulator.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask sim")]
struct Options {
    /// How many seeds to run.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// Only this one seed, with its history.
    #[arg(long)]
    seed: Option<u64>,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// How many steps the storm lasts.
    #[arg(long, default_value_t = 4_000)]
    steps: u64,
    /// How many seeds run at a time: as many as the machine has cores, unless this says otherwise. What is printed is the
    /// same.
    #[arg(long)]
    jobs: Option<usize>,
    /// An invariant that is not looked at, to see what else is broken.
    #[arg(long)]
    except: Vec<String>,
    /// Switch on planted bugs one by one; each must be caught.
    #[arg(long)]
    planted: bool,
    /// Only this planted bug.
    #[arg(long, requires = "planted")]
    bug: Option<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let directory = Path::new("target/sim");
    let named = |invariant: &&Invariant| options.except.iter().any(|name| name == invariant.as_str());
    let except: Vec<Invariant> = Invariant::ALL.iter().filter(named).copied().collect();
    if options.planted {
        return planted(&options, &except);
    }
    if let Some(seed) = options.seed {
        let setup = Setup { seed, steps: options.steps, keep_history: true, focus: None, except };
        let report = run(&setup, directory);
        show(&report);
        return if report.violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    }
    let started = Instant::now();
    let (mut steps, mut executions, mut failed) = (0, 0, 0);
    let mut hash = 0u64;
    let mut guards = GuardCounts::default();
    let mut slowest = (0.0, 0);
    let work = |seed| {
        let began = Instant::now();
        let setup = Setup { seed, steps: options.steps, keep_history: false, focus: None, except: except.clone() };
        (run(&setup, directory), began.elapsed().as_secs_f64())
    };
    in_order(options.jobs(), options.seed_range(), work, |(report, seconds)| {
        steps += report.steps;
        executions += report.executions;
        hash = hash.rotate_left(1) ^ report.hash;
        guards.add(&report.guards);
        if seconds > slowest.0 {
            slowest = (seconds, report.seed);
        }
        if report.violation.is_some() {
            failed += 1;
            show(&report);
        }
        let done = report.seed - options.from + 1;
        if done.is_multiple_of(PROGRESS_SEEDS) {
            eprintln!(
                "{done} of {} seeds after {:.0} s, {failed} failed",
                options.seeds,
                started.elapsed().as_secs_f64()
            );
        }
    });
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{} seeds, {failed} failed, {steps} steps, {executions} executions, {:.0} steps per second, trace hash {hash:016x}",
        options.seeds,
        steps as f64 / seconds
    );
    eprintln!("{seconds:.0} s, of which the slowest seed, {}, took {:.1} s", slowest.1, slowest.0);
    let idle = show_guards(&guards, options.seeds);
    if failed > 0 || idle { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

impl Options {
    fn jobs(&self) -> usize {
        self.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
    }

    fn seed_range(&self) -> std::ops::Range<u64> {
        self.from..self.from.saturating_add(self.seeds)
    }
}

/// A long campaign says so often how far it is.
const PROGRESS_SEEDS: u64 = 100;
/// Seeds after which every kind of guard must have refused something.
const GUARDS_REFUSE_AFTER: u64 = 500;
/// A table of guards; true if a kind of guard never refused anything in a long campaign. `expired` of servers is how their
/// heartbeats ask until when each other's registration holds: those refusals are answers.
fn show_guards(guards: &GuardCounts, seeds: u64) -> bool {
    println!("{:10} {:12} {:>12} {:>10}", "guard", "of", "judged", "refused");
    for ((guard, document), judged, refused) in guards.rows() {
        println!("{guard:10} {document:12} {judged:>12} {refused:>10}");
    }
    let never = guards.never_refused();
    if !never.is_empty() {
        println!("never refused: {}", never.join(", "));
    }
    !never.is_empty() && seeds >= GUARDS_REFUSE_AFTER
}

/// A table of bugs and the invariants that caught them.
fn planted(options: &Options, except: &[Invariant]) -> ExitCode {
    // A planted bug may well panic; the table says so, and a backtrace for each would bury it.
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = 0;
    let wanted = |bug: &&Bug| options.bug.as_deref().is_none_or(|name| name == bug.as_str());
    let bugs: Vec<&Bug> = Bug::ALL.iter().filter(wanted).collect();
    let all = 0..u64::try_from(bugs.len()).unwrap_or(u64::MAX);
    let bug_at = |place: u64| *bugs[usize::try_from(place).unwrap_or(usize::MAX)];
    let work = |place| (bug_at(place), catch(bug_at(place), options.seed_range(), options.steps, except));
    in_order(options.jobs(), all, work, |(bug, caught)| match caught.map(|caught| caught.by) {
        Some(Some((seed, violation))) => {
            println!("{:26} {:22} seed {seed}: {}", bug.as_str(), violation.invariant.as_str(), violation.detail);
        }
        Some(None) => {
            missed += 1;
            println!("{:26} NOT CAUGHT in {} seeds: {}", bug.as_str(), options.seeds, bug.what());
        }
        None => {
            missed += 1;
            println!("this build has no planted bugs: cargo xtask sim --planted");
        }
    });
    println!("{} planted bugs, {} caught", bugs.len(), bugs.len() - missed);
    if missed > 0 || bugs.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn show(report: &Report) {
    let Report { seed, steps, hash, executions, .. } = report;
    match &report.violation {
        Some(violation) => {
            println!("seed {seed}: {violation}");
            println!("  cargo xtask sim --seed {seed}");
        }
        None => println!("seed {seed}: no violation, {steps} steps, {executions} executions"),
    }
    println!("  trace hash {hash:016x}");
    if let Some(path) = &report.history {
        println!("  history {}", path.display());
    }
}
