//! `cargo xtask recovery`: how soon three servers on one store make up for one of them that is killed.
//!
//! Every 20 seconds one server is killed with SIGKILL and started again. Until then the load talks to exactly that
//! server; what it acknowledged must go on at the others: submits are claimed, downstreams of ended members start,
//! delays end, and leases that it gave are reclaimed. Before the load begins the idle servers' requests are counted.

mod load;
mod record;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use ff_testkit::{postgres, valkey};

use self::record::Record;
use crate::build::build;
use crate::fleet::{Fleet, FleetOptions, load_average};

/// So many servers.
const SERVERS: usize = 3;
/// Between two kills.
const KILL_EVERY: Duration = Duration::from_secs(20);
/// A killed server is started again after this.
const RESTART_AFTER: Duration = Duration::from_secs(6);
/// How long the idle servers are watched.
const IDLE: Duration = Duration::from_secs(20);
/// Acknowledged work that is not taken up this long after the last kill is lost.
const GRACE: Duration = Duration::from_secs(60);

struct Options {
    stores: Vec<String>,
    minutes: f64,
    program: Option<String>,
}

impl Options {
    fn parse(arguments: &[&str]) -> Result<Self, String> {
        let stores = ["valkey", "postgres"].map(str::to_owned).to_vec();
        let mut options = Self { stores, minutes: 5.0, program: None };
        let mut words = arguments.iter();
        while let Some(&word) = words.next() {
            let value = words.next().copied().ok_or(format!("{word} needs a value"))?;
            match word {
                "--store" => options.stores = value.split(',').map(str::to_owned).collect(),
                "--minutes" => options.minutes = value.parse().map_err(|_| format!("{value} is no number"))?,
                "--program" => options.program = Some(value.to_owned()),
                _ => return Err(format!("{word} is no option")),
            }
        }
        Ok(options)
    }
}

/// Runs the campaign on each store and prints what it showed. Fails when the promise was not kept.
pub fn recovery(arguments: &[&str]) -> ExitCode {
    let outcome = Options::parse(arguments).and_then(|options| {
        let program = match &options.program {
            Some(program) => program.clone(),
            None => build()?,
        };
        let mut kept = true;
        for store in &options.stores {
            kept &= campaign(store, &program, options.minutes)?;
        }
        Ok(kept)
    });
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("cannot run the campaign: {why}");
            eprintln!("usage: cargo xtask recovery [--store valkey,postgres] [--minutes N] [--program FF]");
            ExitCode::FAILURE
        }
    }
}

/// A store that ends with the campaign.
enum Running {
    Valkey(valkey::Server),
    Postgres(postgres::Server),
}

impl Running {
    fn start(name: &str) -> Result<Self, String> {
        match name {
            "valkey" => Ok(Self::Valkey(valkey::Server::start())),
            "postgres" => Ok(Self::Postgres(postgres::Server::start())),
            _ => Err(format!("{name} is no store of several servers")),
        }
    }

    fn url(&self) -> String {
        match self {
            Self::Valkey(server) => server.url(),
            Self::Postgres(server) => server.url(),
        }
    }
}

fn campaign(name: &str, program: &str, minutes: f64) -> Result<bool, String> {
    let store = Running::start(name)?;
    let folder = std::env::temp_dir().join(format!("ff-recovery-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|why| why.to_string())?;
    let (program, store_url) = (program.to_owned(), store.url());
    let fleet = Arc::new(Fleet::start(FleetOptions {
        program,
        older: None,
        store: store_url,
        servers: SERVERS,
        folder,
        clocks: false,
        variables: Vec::new(),
    })?);
    // Servers that were alone notice each other.
    thread::sleep(Duration::from_secs(5));
    let before = fleet.requests()?;
    thread::sleep(IDLE);
    let asked: Vec<f64> =
        fleet.requests()?.iter().zip(&before).map(|(now, then)| (now - then) / IDLE.as_secs_f64()).collect();
    let worst = asked.iter().copied().fold(0.0, f64::max);
    println!("{name}: idle, each of three servers asks the store {worst:.2} times a second at the most");

    let record = Arc::new(Record::default());
    let load = load::start(&fleet, &record);
    let kills = (minutes * 60.0 / KILL_EVERY.as_secs_f64()).max(1.0).round();
    let mut done = 0.0;
    while done < kills {
        thread::sleep(KILL_EVERY - RESTART_AFTER);
        let (server, at) = fleet.kill();
        record.killed(server, at);
        thread::sleep(RESTART_AFTER);
        fleet.restart(server)?;
        done += 1.0;
    }
    load.stop_submitting.store(true, Ordering::SeqCst);
    let waited = std::time::Instant::now();
    while record.open() > 0 && waited.elapsed() < GRACE {
        thread::sleep(Duration::from_millis(200));
    }
    load.stop();
    println!("{name}: {kills} kills in {minutes} minutes, load average {}", load_average());
    Ok(record.print(name) && worst <= 1.0)
}
