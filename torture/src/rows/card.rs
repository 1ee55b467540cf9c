//! The card that rows are written on.

use std::fmt::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// What became of a part of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is as it must be.
    Passed,
    /// It is not.
    Failed,
    /// It cannot run here.
    Skipped,
}

impl Verdict {
    fn as_str(self) -> &'static str {
        match self {
            Verdict::Passed => "pass",
            Verdict::Failed => "FAIL",
            Verdict::Skipped => "skipped",
        }
    }
}

/// One part of one row.
#[derive(Debug)]
pub struct Line {
    /// The number of the row.
    pub row: u32,
    /// What the row is about.
    pub what: &'static str,
    /// What ran it.
    pub by: String,
    /// What became of it.
    pub verdict: Verdict,
    /// Its figures.
    pub figures: String,
    /// How long it took.
    pub seconds: u64,
    /// The score of a campaign.
    pub score: Option<Value>,
}

impl Line {
    /// A line whose row is filled in later.
    pub(super) fn new(verdict: Verdict, by: String, figures: String) -> Self {
        Self { row: 0, what: "", by, verdict, figures, seconds: 0, score: None }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}: {}", self.what, self.by, self.verdict.as_str(), self.figures)
    }
}

/// All lines.
#[derive(Debug, Default)]
pub struct Card {
    /// In the order they ran.
    pub lines: Vec<Line>,
}

impl Card {
    /// Rows all of whose parts passed, and all rows.
    pub fn passed(&self) -> (usize, usize) {
        let mut rows: Vec<u32> = self.lines.iter().map(|line| line.row).collect();
        rows.dedup();
        let kept =
            |row: &&u32| self.lines.iter().filter(|line| line.row == **row).all(|line| line.verdict == Verdict::Passed);
        (rows.iter().filter(kept).count(), rows.len())
    }

    /// The card as a table.
    pub fn page(&self) -> String {
        let (passed, all) = self.passed();
        let mut page = format!("{passed} of {all} rows pass.\n\n");
        page.push_str("| # | row | run by | | figures | s |\n|---|---|---|---|---|---|\n");
        for line in &self.lines {
            let Line { row, what, by, figures, seconds, .. } = line;
            // Writing to a text cannot fail.
            let _ = writeln!(page, "| {row} | {what} | {by} | {} | {figures} | {seconds} |", line.verdict.as_str());
        }
        page
    }

    /// Writes the card into a folder, as a page and for programs; says where.
    pub fn write(&self, folder: &Path, about: &Value) -> Result<PathBuf, String> {
        let text = |name: &str| about[name].as_str().unwrap_or_default().to_owned();
        let date = text("date");
        std::fs::create_dir_all(folder).map_err(|why| why.to_string())?;
        let lines: Vec<Value> = self
            .lines
            .iter()
            .map(|line| {
                json!({
                    "row": line.row, "what": line.what, "by": line.by, "verdict": line.verdict.as_str(),
                    "figures": line.figures, "seconds": line.seconds, "score": line.score,
                })
            })
            .collect();
        let whole = json!({ "about": about, "lines": lines });
        let path = folder.join(format!("{date}-torture.md"));
        let whole = serde_json::to_string_pretty(&whole).map_err(|why| why.to_string())?;
        std::fs::write(path.with_extension("json"), whole).map_err(|why| why.to_string())?;
        let page = format!(
            "# The scorecard, {date}\n\nSeed {}, {} minutes for each campaign, {}.\n\n{}",
            about["seed"],
            about["minutes"],
            text("build"),
            self.page()
        );
        std::fs::write(&path, page).map_err(|why| why.to_string())?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_passes_when_all_of_its_parts_do() {
        let line = |row, verdict| Line { row, ..Line::new(verdict, String::new(), String::new()) };
        let lines = vec![
            line(1, Verdict::Passed),
            line(1, Verdict::Passed),
            line(2, Verdict::Passed),
            line(2, Verdict::Skipped),
            line(3, Verdict::Failed),
        ];
        assert_eq!(Card { lines }.passed(), (1, 3));
    }
}
