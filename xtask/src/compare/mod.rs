//! `cargo xtask bench compare`: ours and other systems, one after another in one session, and a report of it.
//!
//! [`systems`] says what is run, [`figures`] reads what it printed, [`targets`] what we ask of ourselves, [`report`] and
//! [`chart`] write it down. Rounds go through all systems, so that a disturbance of the machine hits all of them.

pub(crate) mod chart;
mod figures;
pub(crate) mod machine;
mod report;
pub(crate) mod systems;
mod targets;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use figures::{Run, Summary};
use machine::Machine;
pub(crate) use report::{figure, thousands};
use systems::{Size, System};

/// Everything a report is made of.
struct Session {
    date: String,
    quick: bool,
    rounds: usize,
    machine: Machine,
    runs: Vec<Run>,
}

impl Session {
    fn summaries(&self) -> Vec<Summary> {
        figures::summarise(&self.runs)
    }
}

/// Measures and writes the report; a system that fails is part of it.
pub(crate) fn compare(arguments: &[&str]) -> ExitCode {
    match Options::parse(arguments).and_then(|options| measure(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("cannot compare: {why}");
            eprintln!("usage: cargo xtask bench compare [--quick] [--only NAME,NAME] [--rounds N] [--out FOLDER]");
            eprintln!("names: {}", systems::all().iter().map(|system| system.name).collect::<Vec<_>>().join(" "));
            ExitCode::FAILURE
        }
    }
}

struct Options {
    quick: bool,
    only: Vec<String>,
    rounds: usize,
    folder: PathBuf,
}

impl Options {
    fn parse(arguments: &[&str]) -> Result<Self, String> {
        let quick = arguments.contains(&"--quick");
        let folder = systems::results(quick);
        let mut options = Self { quick, only: Vec::new(), rounds: if quick { 1 } else { 3 }, folder };
        let mut words = arguments.iter();
        while let Some(&word) = words.next() {
            let mut value = || words.next().copied().ok_or(format!("{word} needs a value"));
            match word {
                "--quick" => {}
                "--only" => options.only = value()?.split(',').map(str::to_owned).collect(),
                "--rounds" => options.rounds = value()?.parse().map_err(|_| "--rounds needs a number")?,
                "--out" => options.folder = value()?.into(),
                _ => return Err(format!("{word} is no option")),
            }
        }
        if options.rounds == 0 {
            return Err("there is at least one round".into());
        }
        Ok(options)
    }

    /// The systems asked for, in the order in which they are run.
    fn systems(&self) -> Result<Vec<System>, String> {
        let all = systems::all();
        if let Some(unknown) = self.only.iter().find(|name| all.iter().all(|system| system.name != **name)) {
            return Err(format!("there is no system {unknown}"));
        }
        Ok(all
            .into_iter()
            .filter(|system| self.only.is_empty() || self.only.iter().any(|name| name == system.name))
            .collect())
    }
}

fn measure(options: &Options) -> Result<(), String> {
    systems::enter_workspace()?;
    let systems = options.systems()?;
    let size = if options.quick { Size::quick() } else { Size::full() };
    systems::prepare(&systems)?;
    let mut session = Session {
        date: machine::date()?,
        quick: options.quick,
        rounds: options.rounds,
        machine: Machine::describe(),
        runs: Vec::new(),
    };
    let steps = options.rounds * systems.len();
    for round in 1..=options.rounds {
        for system in &systems {
            let load = machine::load();
            eprintln!(
                "[{}/{steps}] round {round} of {}: {} (load {load})",
                session.runs.len() + 1,
                options.rounds,
                system.name
            );
            session.runs.push(Run { name: system.name, round, load, lines: system.run(&size, round) });
        }
        // A session takes long; what is done so far is kept.
        write(options, &session)?;
    }
    eprintln!("wrote {}", options.folder.join(format!("{}.md", session.date)).display());
    Ok(())
}

fn write(options: &Options, session: &Session) -> Result<(), String> {
    let put = |ending: &str, text: String| {
        let path = options.folder.join(format!("{}.{ending}", session.date));
        fs::create_dir_all(&options.folder)
            .and_then(|()| fs::write(&path, text))
            .map_err(|why| format!("cannot write {}: {why}", path.display()))
    };
    let summaries = session.summaries();
    put("svg", chart::draw(&chart::of_scenarios(&summaries)))?;
    put("md", report::markdown(session, &summaries))?;
    put("json", report::json(session, &summaries))
}
