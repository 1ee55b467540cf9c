//! What the command line says.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::fault::Fault;
use crate::store::Kind;
use crate::workload::plan::Load;

/// How long a campaign lasts, unless said otherwise.
const MINUTES: f64 = 1.0;
/// How long a campaign that counts lasts at the most, unless said otherwise.
const MINUTES_MAX: f64 = 60.0;

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Options {
    /// Only these stores.
    pub stores: Option<Vec<Kind>>,
    /// Only these faults.
    pub faults: Option<Vec<Fault>>,
    /// How long each campaign lasts; with full counts, at the most.
    pub minutes: Option<f64>,
    /// Whether rows go on until they have the counts that the scorecard asks for.
    pub full: bool,
    /// The command `ff`, if it is not to be built.
    pub program: Option<String>,
    /// An older build of it, beside which it is to run.
    pub older: Option<String>,
    /// The command `ff` with bugs that can be switched on, if it is not to be built.
    pub planted: Option<String>,
    /// Whether only controls run, which must be seen to fail: those of the rows, or stores that forget.
    pub control: bool,
    /// Rows of the scorecard.
    pub rows: Option<Vec<u32>>,
    /// The seed.
    pub seed: u64,
    /// Another system that is tortured beside us.
    pub peer: Option<String>,
    /// Between two submits of a submitter.
    pub pace: Duration,
    /// Where histories and reports go.
    pub out: PathBuf,
}

impl Options {
    /// How the command is used.
    pub fn usage() -> String {
        let faults: Vec<String> =
            Fault::ALL.iter().map(|fault| format!("  {:15} {}", fault.name(), fault.what())).collect();
        format!(
            "usage: cargo xtask torture [--store sqlite,valkey,replicated,async,cluster,postgres] [--faults NAME,NAME] [--minutes N]\n\
             \x20                          [--rows 1,2,...|all [--full]] [--control] [--peer bullmq] [--seed S] [--program FF] [--pace-ms N]\n\
             \x20                          [--planted FF] [--older FF] [--out FOLDER]\n\
             \x20      cargo xtask torture check FOLDER    judges the history of a campaign again\n\n\
             --minutes is the length of each campaign (default {MINUTES}). With --full a row goes on until it has the count that the\n\
             scorecard asks for, at most --minutes (default {MINUTES_MAX}). The card of a day collects the rows of all runs.\n\
             --older names a build of before, which the fault upgrade needs: all servers begin as that one.\n\
             --control runs stores that forget, or the controls of --rows: planted bugs that a rule must see.\n\nfaults:\n{}",
            faults.join("\n")
        )
    }

    /// Reads the words of the command line.
    pub fn parse(words: &[&str]) -> Result<Self, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = now.as_secs();
        let mut options = Self {
            stores: None,
            faults: None,
            minutes: None,
            full: false,
            program: None,
            older: None,
            planted: None,
            control: false,
            rows: None,
            seed,
            peer: None,
            pace: Load::USUAL.pace,
            out: std::env::temp_dir().join(format!("ff-torture-{}", std::process::id())),
        };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            let flag = match word {
                "--control" => Some(&mut options.control),
                "--full" => Some(&mut options.full),
                _ => None,
            };
            if let Some(flag) = flag {
                *flag = true;
                continue;
            }
            let value = words.next().copied().ok_or(format!("{word} needs a value"))?;
            let number = || value.parse::<f64>().map_err(|_| format!("{value} is no number"));
            match word {
                "--store" => options.stores = Some(value.split(',').map(Kind::named).collect::<Result<_, _>>()?),
                "--faults" => options.faults = Some(value.split(',').map(Fault::named).collect::<Result<_, _>>()?),
                "--minutes" => options.minutes = Some(number()?),
                "--program" => options.program = Some(value.to_owned()),
                "--older" => options.older = Some(value.to_owned()),
                "--planted" => options.planted = Some(value.to_owned()),
                "--rows" if value == "all" => options.rows = Some((1..=24).collect()),
                "--rows" => options.rows = Some(value.split(',').map(row).collect::<Result<_, _>>()?),
                "--seed" => options.seed = value.parse().map_err(|_| format!("{value} is no seed"))?,
                "--pace-ms" => options.pace = Duration::from_secs_f64(number()? / 1_000.0),
                "--peer" => options.peer = Some(value.to_owned()),
                "--out" => options.out = value.into(),
                _ => return Err(format!("{word} is no option")),
            }
        }
        if options.full && options.rows.is_none() {
            return Err("--full is about --rows".to_owned());
        }
        Ok(options)
    }

    /// How long each campaign lasts, or lasts at the most.
    pub fn minutes(&self) -> f64 {
        self.minutes.unwrap_or(if self.full { MINUTES_MAX } else { MINUTES })
    }
}

fn row(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|row| (1..=24).contains(row)).ok_or(format!("{text} is no row of the scorecard"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_options_and_wrong_ones_are_named() {
        let options = Options::parse(&["--store", "sqlite", "--minutes", "0.5", "--rows", "1,24"]).expect("it reads");
        assert_eq!((options.minutes(), &options.stores), (0.5, &Some(vec![Kind::Sqlite])));
        assert_eq!(options.rows, Some(vec![1, 24]));
        for wrong in [
            &["--store", "oracle"][..],
            &["--rows", "25"],
            &["--faults", "x"],
            &["--minutes"],
            &["--x", "1"],
            &["--full"],
        ] {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn minutes_are_a_bound_when_rows_count() {
        let minutes = |words: &[&str]| Options::parse(words).expect("it reads").minutes();
        assert_eq!(minutes(&["--rows", "3"]), MINUTES);
        assert_eq!(minutes(&["--rows", "3", "--full"]), MINUTES_MAX);
        assert_eq!(minutes(&["--full", "--minutes", "7", "--rows", "3"]), 7.0);
    }
}
