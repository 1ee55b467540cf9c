//! `cargo xtask torture`: servers, workers and stores are killed, stopped and started again under a load that remembers every
//! answer it got. Afterwards everything that was acknowledged is looked for, and everything that must be so is checked.
//!
//! A load without faults shows nothing, and a checker that never finds anything may be blind: `--control` runs on a Valkey that
//! forgets what it acknowledged when it is killed. That run must find losses, or it fails.

mod history;
mod load;
mod nemesis;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use self::history::History;
use self::load::Load;
use self::nemesis::{Fault, Store};
use crate::recovery::fleet::{self, Fleet};

/// Between two faults.
const FAULT_EVERY: Duration = Duration::from_secs(8);
/// Work that is left when nothing has ended for this long after the last fault is stuck.
const GRACE: Duration = Duration::from_secs(60);

struct Options {
    stores: Vec<String>,
    faults: Option<Vec<Fault>>,
    minutes: f64,
    program: Option<String>,
    control: bool,
}

impl Options {
    fn parse(arguments: &[&str]) -> Result<Self, String> {
        let stores = ["sqlite", "valkey", "postgres"].map(str::to_owned).to_vec();
        let mut options = Self { stores, faults: None, minutes: 1.0, program: None, control: false };
        let mut words = arguments.iter();
        while let Some(&word) = words.next() {
            if word == "--control" {
                options.control = true;
                continue;
            }
            let value = words.next().copied().ok_or(format!("{word} needs a value"))?;
            match word {
                "--store" => options.stores = value.split(',').map(str::to_owned).collect(),
                "--faults" => options.faults = Some(value.split(',').map(Fault::named).collect::<Result<_, _>>()?),
                "--minutes" => options.minutes = value.parse().map_err(|_| format!("{value} is no number"))?,
                "--program" => options.program = Some(value.to_owned()),
                _ => return Err(format!("{word} is no option")),
            }
        }
        Ok(options)
    }
}

/// Runs a campaign on each store and prints its score. Fails when something was not as it must be.
pub(crate) fn torture(arguments: &[&str]) -> ExitCode {
    let outcome = Options::parse(arguments).and_then(|options| {
        let program = match &options.program {
            Some(program) => program.clone(),
            None => fleet::build()?,
        };
        if options.control {
            return control(&program, options.minutes);
        }
        let mut sound = true;
        for name in &options.stores {
            let store = Store::start(name)?;
            let faults = options.faults.clone().unwrap_or_else(|| store.faults());
            sound &= campaign(store, &faults, &program, options.minutes)? == 0;
        }
        Ok(sound)
    });
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("cannot run the campaign: {why}");
            eprintln!(
                "usage: cargo xtask torture [--store sqlite,valkey,postgres] [--faults {}] [--minutes N] [--program FF] [--control]",
                Fault::ALL.map(Fault::name).join(",")
            );
            ExitCode::FAILURE
        }
    }
}

/// A store that loses what it acknowledged: the checker must see it.
fn control(program: &str, minutes: f64) -> Result<bool, String> {
    println!("control: a Valkey without persistence is killed, so acknowledged work is gone");
    let violations = campaign(Store::forgetful(), &[Fault::Store], program, minutes)?;
    println!("control: the checker {}", if violations > 0 { "sees it" } else { "is BLIND" });
    Ok(violations > 0)
}

/// Runs one campaign; says how many violations it found.
fn campaign(mut store: Store, faults: &[Fault], program: &str, minutes: f64) -> Result<usize, String> {
    let fleet = Arc::new(Fleet::start(program, &store.url(), store.servers())?);
    let history = Arc::new(History::default());
    let load = Load::start(&fleet, &history)?;
    let end = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    for fault in faults.iter().cycle() {
        if Instant::now() >= end {
            break;
        }
        thread::sleep(FAULT_EVERY);
        history.began(*fault);
        nemesis::strike(*fault, &fleet, &mut store, &load)?;
    }
    load.stop_submitting.store(true, Ordering::SeqCst);
    let (mut open, mut since) = (history.open(), Instant::now());
    while open > 0 && since.elapsed() < GRACE {
        thread::sleep(Duration::from_millis(200));
        let left = history.open();
        if left < open {
            (open, since) = (left, Instant::now());
        }
    }
    load.stop();
    println!("{}: {} minutes, load average {}", store.name(), minutes, fleet::load_average());
    Ok(history.check(&fleet).print(store.name()))
}
