//! `cargo xtask torture`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use serde_json::{Value, json};

use crate::build::{build, build_planted};
use crate::campaign::{Campaign, Finished};
use crate::check::check;
use crate::crew::Launch;
use crate::fault::Fault;
use crate::history::History;
use crate::nemesis::Tempo;
use crate::options::Options;
use crate::outcome::Outcome;
use crate::rows::{self, Runner};
use crate::store::Kind;
use crate::workload::plan::Load;

/// Runs what the words ask for and prints the score. Fails when something was not as it must be.
pub fn torture(words: &[&str]) -> ExitCode {
    let outcome = match words {
        ["check", folder] => check_again(Path::new(folder)),
        _ => Options::parse(words).and_then(|options| run(&options)),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("cannot run: {why}\n\n{}", Options::usage());
            ExitCode::FAILURE
        }
    }
}

fn check_again(folder: &Path) -> Result<bool, String> {
    let score = check(&History::read(folder)?, &Outcome::read(folder)?);
    println!("{}", score.page(&folder.display().to_string()));
    Ok(score.violations() == 0)
}

fn run(options: &Options) -> Result<bool, String> {
    let program = match &options.program {
        Some(program) => program.clone(),
        None => build()?,
    };
    let myself = std::env::current_exe().map_err(|why| why.to_string())?;
    let launch = Launch(vec![myself.display().to_string()]);
    let campaign = |kind: Kind, faults: Vec<Fault>| Campaign {
        program: program.clone(),
        older: options.older.clone(),
        launch: launch.clone(),
        kind,
        faults,
        servers: None,
        time: Duration::from_secs_f64(options.minutes() * 60.0),
        goal: None,
        tempo: Tempo::USUAL,
        load: Load { pace: options.pace, ..Load::USUAL },
        seed: options.seed,
        folder: folder(&options.out, kind),
        variables: Vec::new(),
    };
    if let Some(peer) = &options.peer {
        return peer_beside_us(peer, options.minutes());
    }
    if let Some(rows) = &options.rows {
        let runner = Runner {
            campaign: &campaign,
            planted: &|| options.planted.clone().map_or_else(build_planted, Ok),
            minutes: options.minutes(),
            full: options.full,
            stores: options.stores.as_deref(),
            controls: options.control,
        };
        let about = about(options, &program);
        let card = rows::run(rows, &runner, |card| card.write(Path::new("bench/results"), &about))?;
        println!("{}", card.page());
        let (passed, all) = card.passed();
        return Ok(passed == all);
    }
    if options.control {
        return control(&campaign);
    }
    let mut sound = true;
    for kind in options.stores.as_deref().unwrap_or(&Kind::SOUND) {
        let faults = options.faults.clone().unwrap_or_else(|| kind.faults());
        let finished = campaign(*kind, faults).run()?;
        show(*kind, &finished);
        sound &= finished.score.violations() == 0;
    }
    Ok(sound)
}

fn show(kind: Kind, finished: &Finished) {
    println!("{}", finished.score.page(kind.name()));
    for (fault, why) in &finished.skipped {
        println!("SKIPPED: {}: {why}", fault.name());
    }
    let [(memory, files), (memory_at_end, files_at_end)] = finished.footprint;
    println!(
        "all servers: {memory} KiB and {files} files at the start, {memory_at_end} KiB and {files_at_end} at the end"
    );
}

/// Stores that lose what they acknowledged: the checker must see it.
fn control(campaign: &impl Fn(Kind, Vec<Fault>) -> Campaign) -> Result<bool, String> {
    let mut seen = true;
    for (kind, fault, what) in [
        (Kind::Forgetful, Fault::StoreKill, "a Valkey without persistence is killed"),
        (Kind::Async, Fault::Failover, "a replica that had not heard everything is promoted, with tier=async"),
    ] {
        println!("control: {what}, so acknowledged work is gone");
        let finished = campaign(kind, vec![fault]).run()?;
        show(kind, &finished);
        let lost = finished.score.violations();
        println!("control: the checker {}", if lost > 0 { "sees it" } else { "is BLIND" });
        seen &= lost > 0;
    }
    Ok(seen)
}

/// A folder that no campaign of this run has used.
fn folder(out: &Path, kind: Kind) -> PathBuf {
    let names = (1_u32..).map(|number| out.join(format!("{}-{number}", kind.name())));
    names.into_iter().find(|folder| !folder.exists()).unwrap_or_else(|| out.to_owned())
}

/// What a card says about itself.
fn about(options: &Options, program: &str) -> Value {
    let said = |program: &str, arguments: &[&str]| {
        let done = Command::new(program).args(arguments).output();
        done.map(|done| String::from_utf8_lossy(&done.stdout).trim().to_owned()).unwrap_or_default()
    };
    let optimised = ["release", "profiling"].iter().any(|profile| program.contains(profile));
    let build = if optimised { "release build" } else { "debug build" };
    json!({
        "date": said("date", &["+%F"]), "commit": said("git", &["rev-parse", "--short", "HEAD"]), "seed": options.seed,
        "minutes": options.minutes(), "full": options.full, "build": build,
        "valkey": said("valkey-server", &["--version"]),
    })
}

/// The same load, as far as it applies, on another system.
fn peer_beside_us(peer: &str, minutes: f64) -> Result<bool, String> {
    let script = format!("bench/peers/{peer}-torture.sh");
    let mut command = Command::new("sh");
    command.arg(&script).env("PEER_SECONDS", (minutes * 60.0).to_string());
    let ended = command.status().map_err(|why| format!("{script}: {why}"))?;
    Ok(ended.success())
}
