//! One campaign: a store, servers on it, workers and clients of them, faults, and the check at the end.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::caller::{Caller, Request};
use crate::check::check;
use crate::count::{Goal, Progress};
use crate::crew::{Crew, Launch};
use crate::fault::Fault;
use crate::fleet::{Fleet, FleetOptions, load_average};
use crate::history::{History, Recorder};
use crate::nemesis::{Targets, Tempo, strike};
use crate::outcome::{Outcome, open_executions};
use crate::score::Score;
use crate::store::{Kind, Store};
use crate::workload::plan::{self, Load};
use crate::workload::{Clients, WorkerOptions};

/// The load runs for so long before the first fault.
const WARM_UP: Duration = Duration::from_secs(3);
/// Work that is left when nothing has ended for this long after the last fault is stuck.
const GRACE: Duration = Duration::from_secs(60);
/// A reservation whose holder is gone is settled within this time.
const SETTLED_WITHIN: Duration = Duration::from_secs(15);

/// In the end, reconcilers go from one partition to the next as fast as they can.
const RECONCILE_MS: &str = "1";
/// Servers that were started again have found out by then which of them looks after which partition.
const RANKED_WITHIN: Duration = Duration::from_secs(5);
/// Reconcilers have looked at everything by then, or did not manage to.
const RECONCILED_WITHIN: Duration = Duration::from_secs(180);

/// What a campaign is.
#[derive(Debug, Clone)]
pub struct Campaign {
    /// The command `ff`.
    pub program: String,
    /// An older build of it, for the fault that changes builds.
    pub older: Option<String>,
    /// How worker processes are started.
    pub launch: Launch,
    /// The store.
    pub kind: Kind,
    /// The faults, in turn.
    pub faults: Vec<Fault>,
    /// How many servers, if not as many as the store usually has.
    pub servers: Option<usize>,
    /// For how long, at the most.
    pub time: Duration,
    /// It ends when there was so much of something.
    pub goal: Option<Goal>,
    /// How fast faults follow each other.
    pub tempo: Tempo,
    /// The work.
    pub load: Load,
    /// What all decisions of the load follow from.
    pub seed: u64,
    /// Where the history goes.
    pub folder: PathBuf,
    /// Further variables for the servers.
    pub variables: Vec<(String, String)>,
}

/// A campaign that is over.
#[derive(Debug)]
pub struct Finished {
    /// How it went.
    pub score: Score,
    /// How much there was of what is its goal.
    pub reached: Option<u64>,
    /// Faults that could not happen here, and why.
    pub skipped: Vec<(Fault, &'static str)>,
    /// Memory of all servers in KiB and their open files, soon after the start and at the end.
    pub footprint: [(u64, u64); 2],
}

impl Campaign {
    /// Runs it.
    pub fn run(&self) -> Result<Finished, String> {
        std::fs::create_dir_all(&self.folder).map_err(|why| format!("{}: {why}", self.folder.display()))?;
        println!(
            "{}: seed {}, {:.0} s, faults {}, history in {}",
            self.kind.name(),
            self.seed,
            self.time.as_secs_f64(),
            self.faults.iter().map(|fault| fault.name()).collect::<Vec<_>>().join(","),
            self.folder.display()
        );
        let mut store = Store::start(self.kind, &self.folder, &self.faults)?;
        let clocks = self.faults.contains(&Fault::Clock) && Fleet::has_clocks();
        let mut fleet = Fleet::start(FleetOptions {
            program: self.program.clone(),
            older: self.older.clone().filter(|_| self.faults.contains(&Fault::Upgrade)),
            store: store.url(),
            servers: self.servers.unwrap_or_else(|| self.kind.servers()),
            folder: self.folder.clone(),
            clocks,
            variables: self.variables.clone(),
        })?;
        let recorder = Arc::new(Recorder::open(&self.folder, "clients")?);
        recorder.note("configuration", &json!({ "store": self.kind.name(), "seed": self.seed }));
        let servers = fleet.fronts();
        let (folder, threads) = (self.folder.clone(), self.load.threads);
        let options = WorkerOptions { servers: servers.clone(), folder, number: 0, seed: self.seed, threads };
        let mut clients = Clients::start(&servers, &recorder, self.seed, &self.load)?;
        let crew = Crew::start(self.launch.clone(), self.load.workers, &options)?;
        thread::sleep(WARM_UP);
        let before = footprint(&fleet);
        let tempo = self.tempo;
        let targets = Targets { fleet: &fleet, crew: &crew, store: &mut store, recorder: &recorder, tempo };
        let skipped = self.hurt(targets, clocks)?;
        clients.finish_submitting();
        let mut caller = Caller::new(&servers, &recorder, 0);
        drain(&mut caller);
        crew.stop();
        clients.stop();
        let footprint = [before, footprint(&fleet)];
        let repairs = repairs_after_a_round(&mut fleet)?;
        let history = History::read(&self.folder)?;
        let mut outcome = Outcome::look(&servers, &history, &recorder);
        outcome.repairs = repairs;
        outcome.write(&self.folder)?;
        println!("{}: load average {}", self.kind.name(), load_average());
        let reached = self.goal.map(|goal| goal.counted.in_history(&history));
        Ok(Finished { score: check(&history, &outcome), reached, skipped, footprint })
    }

    fn hurt(&self, mut targets: Targets<'_>, clocks: bool) -> Result<Vec<(Fault, &'static str)>, String> {
        let mut skipped = Vec::new();
        let mut possible = self.faults.clone();
        possible.retain(|fault| {
            let why = targets.store.cannot(*fault).or_else(|| {
                (*fault == Fault::Clock && !clocks).then_some("libfaketime is not installed (Debian: libfaketime)")
            });
            let why = why.or_else(|| {
                (*fault == Fault::Upgrade && self.older.is_none()).then_some("no older build was named (--older FF)")
            });
            skipped.extend(why.map(|why| (*fault, why)));
            why.is_none()
        });
        let end = Instant::now() + self.time;
        let mut progress = self.goal.map(|goal| Progress::new(goal, &self.folder));
        let mut turn = 0;
        let mut enough = false;
        // Every fault strikes, however short the time is.
        while (Instant::now() < end && !enough) || turn < possible.len() {
            if let Some(fault) = possible.get(turn % possible.len().max(1)) {
                strike(*fault, turn / possible.len(), &mut targets)?;
            }
            turn += 1;
            thread::sleep(self.tempo.pause);
            if let Some(progress) = &mut progress {
                enough = progress.is_enough()?;
            }
        }
        Ok(skipped)
    }
}

/// Waits until all work has ended, or nothing has ended for long. The schedule makes no more of it.
fn drain(caller: &mut Caller) {
    let path = format!("/v1/schedules/{}/pause", plan::SCHEDULE);
    caller.insist(&Request { call: "pause", path, body: json!({}), about: json!({}) });
    let (mut open, mut since) = (u64::MAX, Instant::now());
    while open > 0 && since.elapsed() < GRACE {
        thread::sleep(Duration::from_millis(300));
        let left = open_executions(caller).map_or(u64::MAX, |(count, _)| count);
        if left < open {
            (open, since) = (left, Instant::now());
        }
    }
    let settled = Instant::now();
    while settled.elapsed() < SETTLED_WITHIN {
        let ceiling = caller.look_json(&format!("/v1/budgets/{}", plan::CEILING)).unwrap_or_default();
        let slots = caller.look_json(&format!("/v1/quotas/{}", plan::SLOTS)).unwrap_or_default();
        let race = caller.look_json(&format!("/v1/budgets/{}", plan::RACE)).unwrap_or_default();
        let reserved = [ceiling, race].iter().any(|budget| budget["standing"]["tokens"]["reserved"] != 0);
        if !reserved && slots["in_use"] == 0 {
            return;
        }
        thread::sleep(Duration::from_millis(300));
    }
}

/// What reconcilers repaired, and documents that could not be read; `None` if they did not get round. Their usual round
/// takes minutes, longer than a server lives here, and looks at a part of each partition. So servers that go round without
/// a pause look at everything in the end.
fn repairs_after_a_round(fleet: &mut Fleet) -> Result<Option<f64>, String> {
    let repairs = |fleet: &Fleet| -> Result<f64, String> {
        let found =
            [fleet.metric_of_each("flowfabric_repairs_total")?, fleet.metric_of_each("flowfabric_undecodable_total")?];
        Ok(found.iter().flatten().sum())
    };
    let before = repairs(fleet)?;
    fleet.restart_with("FF_RECONCILE_MS", RECONCILE_MS)?;
    thread::sleep(RANKED_WITHIN);
    let rounds = |fleet: &Fleet| fleet.metric_of_each("flowfabric_reconciled_total");
    let began = Instant::now();
    let first = rounds(fleet)?;
    // A round that was under way may have begun under other ranks; the one after it has looked at everything.
    while rounds(fleet)?.iter().zip(&first).any(|(now, first)| *now < first + 2.0) {
        if began.elapsed() > RECONCILED_WITHIN {
            println!("the reconcilers did not get round: it is not known whether indexes agree with documents");
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(200));
    }
    Ok(Some(before + repairs(fleet)?))
}

/// Memory in KiB and open files of all servers.
fn footprint(fleet: &Fleet) -> (u64, u64) {
    let pids: Vec<u32> = fleet.pids().into_iter().flatten().collect();
    let memory = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default().to_owned();
        line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or_default()
    };
    let files = |pid: &u32| std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |all| all.count() as u64);
    (pids.iter().map(memory).sum(), pids.iter().map(files).sum())
}
