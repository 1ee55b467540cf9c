//! The card that rows are written on. Runs of one day write on one card: a part of a row that runs again takes the place of
//! its line, and the others stay.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{Read, Seek, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::count::Goal;

/// What became of a part of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is as it must be.
    Passed,
    /// It is not.
    Failed,
    /// Nothing was wrong, and there was less of it than the row asks for.
    Short,
    /// It cannot run here.
    Skipped,
}

impl Verdict {
    const ALL: [Verdict; 4] = [Verdict::Passed, Verdict::Failed, Verdict::Short, Verdict::Skipped];

    fn as_str(self) -> &'static str {
        match self {
            Verdict::Passed => "pass",
            Verdict::Failed => "FAIL",
            Verdict::Short => "short of its count",
            Verdict::Skipped => "skipped",
        }
    }
}

/// How much of something a row asks for, and how much there was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    /// Of what.
    pub what: String,
    /// How much is asked for.
    pub asked: u64,
    /// How much there was.
    pub reached: u64,
}

impl Count {
    /// A goal, and how much of it there was.
    pub(super) fn of(goal: Goal, reached: u64) -> Self {
        Self { what: goal.counted.name().to_owned(), asked: goal.asked, reached }
    }
}

/// One part of one row.
#[derive(Debug, Clone)]
pub struct Line {
    /// The number of the row.
    pub row: u32,
    /// What the row is about.
    pub what: String,
    /// What ran it.
    pub by: String,
    /// What became of it.
    pub verdict: Verdict,
    /// What the row counts.
    pub count: Option<Count>,
    /// Its figures.
    pub figures: String,
    /// How long it took.
    pub seconds: u64,
    /// How busy the machine was at its end.
    pub load_average: String,
    /// The score of a campaign.
    pub score: Option<Value>,
    /// The run that the line is of: its commit, its seed, its minutes.
    run: Value,
}

impl Line {
    /// A line whose row is filled in later.
    pub(super) fn new(verdict: Verdict, by: String, figures: String) -> Self {
        Self {
            row: 0,
            what: String::new(),
            by,
            verdict,
            count: None,
            figures,
            seconds: 0,
            load_average: String::new(),
            score: None,
            run: Value::Null,
        }
    }

    fn json(&self) -> Value {
        let count = self.count.as_ref();
        let count = count.map(|count| json!({ "of": count.what, "asked": count.asked, "reached": count.reached }));
        json!({
            "row": self.row, "what": self.what, "by": self.by, "verdict": self.verdict.as_str(), "count": count,
            "figures": self.figures, "seconds": self.seconds, "load_average": self.load_average, "score": self.score,
            "run": self.run,
        })
    }

    fn of(line: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let verdict = line["verdict"].as_str()?;
        let count = &line["count"];
        let count = text(&count["of"]).zip(count["asked"].as_u64()).zip(count["reached"].as_u64());
        Some(Self {
            row: line["row"].as_u64()?.try_into().ok()?,
            what: text(&line["what"])?,
            by: text(&line["by"])?,
            verdict: Verdict::ALL.into_iter().find(|one| one.as_str() == verdict)?,
            count: count.map(|((what, asked), reached)| Count { what, asked, reached }),
            figures: text(&line["figures"])?,
            seconds: line["seconds"].as_u64()?,
            load_average: text(&line["load_average"])?,
            score: Some(line["score"].clone()).filter(|score| !score.is_null()),
            run: line["run"].clone(),
        })
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}: ", self.what, self.by, self.verdict.as_str())?;
        if let Some(Count { what, asked, reached }) = &self.count {
            write!(f, "{reached} of {asked} {what}, ")?;
        }
        f.write_str(&self.figures)
    }
}

/// All lines.
#[derive(Debug, Default, Clone)]
pub struct Card {
    /// In the order of their rows, and of their parts.
    pub lines: Vec<Line>,
}

impl Card {
    /// Rows all of whose parts passed, and all rows.
    pub fn passed(&self) -> (usize, usize) {
        let mut rows: Vec<u32> = self.lines.iter().map(|line| line.row).collect();
        rows.sort_unstable();
        rows.dedup();
        let kept =
            |row: &&u32| self.lines.iter().filter(|line| line.row == **row).all(|line| line.verdict == Verdict::Passed);
        (rows.iter().filter(kept).count(), rows.len())
    }

    /// The card as a table.
    pub fn page(&self) -> String {
        let (passed, all) = self.passed();
        let mut page = format!("{passed} of {all} rows pass in those parts that were run.\n\n");
        page.push_str(
            "| # | row | run by | | count | asked | figures | s | load |\n|---|---|---|---|---|---|---|---|---|\n",
        );
        for line in &self.lines {
            let Line { row, what, by, figures, seconds, load_average, .. } = line;
            let (reached, asked) = match &line.count {
                Some(Count { what, asked, reached }) => (format!("{reached} {what}"), asked.to_string()),
                None => Default::default(),
            };
            let verdict = line.verdict.as_str();
            // Writing to a text cannot fail.
            let _ = writeln!(
                page,
                "| {row} | {what} | {by} | {verdict} | {reached} | {asked} | {figures} | {seconds} | {load_average} |"
            );
        }
        page
    }

    /// Puts lines in the place of those of the same part of a row, and keeps the others.
    fn with(mut self, newer: &Card) -> Self {
        for line in &newer.lines {
            match self.lines.iter_mut().find(|old| (old.row, &old.by) == (line.row, &line.by)) {
                Some(old) => *old = line.clone(),
                None => self.lines.push(line.clone()),
            }
        }
        self.lines.sort_by_key(|line| line.row);
        self
    }

    /// Writes the card into a folder, beside what others wrote there on the same day, as a page and for programs; says
    /// where. `about` is what the lines say about their run.
    pub fn write(&self, folder: &Path, about: &Value) -> Result<PathBuf, String> {
        let date = about["date"].as_str().unwrap_or_default();
        std::fs::create_dir_all(folder).map_err(|why| why.to_string())?;
        let path = folder.join(format!("{date}-torture.md"));
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(path.with_extension("json")).map_err(|why| why.to_string())?;
        // Two runs may write at the same time.
        file.lock().map_err(|why| why.to_string())?;
        let mut mine = self.clone();
        mine.lines.iter_mut().for_each(|line| line.run = about.clone());
        let whole = read(&mut file)?.with(&mine);
        let lines: Vec<Value> = whole.lines.iter().map(Line::json).collect();
        let text = serde_json::to_string_pretty(&json!({ "date": date, "lines": lines }));
        file.rewind().and_then(|()| file.set_len(0)).map_err(|why| why.to_string())?;
        file.write_all(text.map_err(|why| why.to_string())?.as_bytes()).map_err(|why| why.to_string())?;
        let page = format!("# The scorecard, {date}\n\n{}", whole.page());
        std::fs::write(&path, page).map_err(|why| why.to_string())?;
        Ok(path)
    }
}

fn read(file: &mut File) -> Result<Card, String> {
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(|why| why.to_string())?;
    if text.is_empty() {
        return Ok(Card::default());
    }
    let whole: Value = serde_json::from_str(&text).map_err(|why| format!("the card of today: {why}"))?;
    let lines = whole["lines"].as_array().ok_or("the card of today has no lines")?;
    let lines = lines.iter().map(|line| Line::of(line).ok_or(format!("the card of today: {line}")));
    Ok(Card { lines: lines.collect::<Result<_, _>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(row: u32, by: &str, verdict: Verdict) -> Line {
        Line { row, ..Line::new(verdict, by.to_owned(), String::new()) }
    }

    #[test]
    fn a_row_passes_when_all_of_its_parts_do() {
        let lines = vec![
            line(1, "a", Verdict::Passed),
            line(1, "b", Verdict::Passed),
            line(2, "a", Verdict::Passed),
            line(2, "b", Verdict::Skipped),
            line(3, "a", Verdict::Failed),
            line(4, "a", Verdict::Short),
        ];
        assert_eq!(Card { lines }.passed(), (1, 4));
    }

    #[test]
    fn runs_of_a_day_write_on_one_card() {
        let folder = std::env::temp_dir().join(format!("ff-torture-card-{}", std::process::id()));
        let write = |lines: &[Line], seed: u64| {
            Card { lines: lines.to_vec() }
                .write(&folder, &json!({ "date": "2026-01-01", "seed": seed }))
                .expect("it writes")
        };
        let count = Some(Count { what: "faults".to_owned(), asked: 500, reached: 500 });
        write(&[line(3, "sqlite", Verdict::Failed), line(3, "valkey", Verdict::Passed)], 1);
        write(
            &[line(1, "sqlite", Verdict::Passed), Line { count: count.clone(), ..line(3, "sqlite", Verdict::Passed) }],
            2,
        );
        let path = folder.join("2026-01-01-torture.json");
        let card = read(&mut File::open(&path).expect("it is there")).expect("it reads");
        let seen: Vec<_> = card.lines.iter().map(|line| (line.row, line.by.as_str(), &line.run["seed"])).collect();
        assert_eq!(seen, [(1, "sqlite", &json!(2)), (3, "sqlite", &json!(2)), (3, "valkey", &json!(1))]);
        assert_eq!((card.lines[1].verdict, &card.lines[1].count), (Verdict::Passed, &count));
        let page = std::fs::read_to_string(path.with_extension("md")).expect("it is there");
        assert!(page.contains("2 of 2 rows pass") && page.contains("| 500 faults | 500 |"), "{page}");
        let _ = std::fs::remove_dir_all(folder);
    }
}
