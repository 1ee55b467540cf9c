//! What the command line says.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::fault::Fault;
use crate::store::Kind;

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Options {
    /// The stores.
    pub stores: Vec<Kind>,
    /// Only these faults.
    pub faults: Option<Vec<Fault>>,
    /// How long each campaign lasts.
    pub minutes: f64,
    /// The command `ff`, if it is not to be built.
    pub program: Option<String>,
    /// Whether the controls run, which must fail.
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
             \x20                          [--rows 1,2,...|all] [--control] [--peer bullmq] [--seed S] [--program FF] [--pace-ms N]\n\
             \x20      cargo xtask torture check FOLDER    judges the history of a campaign again\n\nfaults:\n{}",
            faults.join("\n")
        )
    }

    /// Reads the words of the command line.
    pub fn parse(words: &[&str]) -> Result<Self, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = now.as_secs();
        let mut options = Self {
            stores: Kind::SOUND.to_vec(),
            faults: None,
            minutes: 1.0,
            program: None,
            control: false,
            rows: None,
            seed,
            peer: None,
            pace: Duration::from_millis(40),
            out: std::env::temp_dir().join(format!("ff-torture-{}", std::process::id())),
        };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            if word == "--control" {
                options.control = true;
                continue;
            }
            let value = words.next().copied().ok_or(format!("{word} needs a value"))?;
            let number = || value.parse::<f64>().map_err(|_| format!("{value} is no number"));
            match word {
                "--store" => options.stores = value.split(',').map(Kind::named).collect::<Result<_, _>>()?,
                "--faults" => options.faults = Some(value.split(',').map(Fault::named).collect::<Result<_, _>>()?),
                "--minutes" => options.minutes = number()?,
                "--program" => options.program = Some(value.to_owned()),
                "--rows" if value == "all" => options.rows = Some((1..=24).collect()),
                "--rows" => options.rows = Some(value.split(',').map(row).collect::<Result<_, _>>()?),
                "--seed" => options.seed = value.parse().map_err(|_| format!("{value} is no seed"))?,
                "--pace-ms" => options.pace = Duration::from_secs_f64(number()? / 1_000.0),
                "--peer" => options.peer = Some(value.to_owned()),
                "--out" => options.out = value.into(),
                _ => return Err(format!("{word} is no option")),
            }
        }
        Ok(options)
    }

    /// How long each campaign lasts.
    pub fn time(&self) -> Duration {
        Duration::from_secs_f64(self.minutes * 60.0)
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
        assert_eq!((options.stores, options.minutes), (vec![Kind::Sqlite], 0.5));
        assert_eq!(options.rows, Some(vec![1, 24]));
        for wrong in [&["--store", "oracle"][..], &["--rows", "25"], &["--faults", "x"], &["--minutes"], &["--x", "1"]]
        {
            assert!(Options::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
