//! The scorecard: 24 rows, each run by campaigns of this program, by suites that stand elsewhere, or by both. A row passes
//! when all of its parts do; a part that cannot run here is said to be skipped, and its row does not pass.

mod card;
mod cuts;
mod suites;
mod table;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::campaign::{Campaign, Finished};
use crate::count::{Counted, Goal};
use crate::fault::Fault;
use crate::fleet::load_average;
use crate::nemesis::Tempo;
use crate::score::Score;
use crate::store::Kind;
use crate::workload::plan::Load;

pub use card::{Card, Count, Line, Verdict};
use suites::Full;
use table::ROWS;

/// How long servers with a planted bug are tortured.
const CONTROL_TIME: Duration = Duration::from_secs(20);
/// How much work waits for them.
const CONTROL_OPEN_MAX: u64 = 100;

/// A row of the scorecard.
#[derive(Debug)]
struct Row {
    number: u32,
    what: &'static str,
    parts: &'static [Part],
}

/// A part of a row.
#[derive(Debug, Clone, Copy)]
enum Part {
    /// A campaign on each of several stores, that must break no rule.
    On(&'static [Kind], Trial),
    /// A campaign on a store that loses what it acknowledged, which must be seen.
    Control(Kind, &'static [Fault]),
    /// A campaign on servers with a planted bug, which a rule must see.
    Planted(Kind, &'static [Fault], Mistake),
    /// So many connections that are cut, at every byte, on each of several stores.
    Cuts(&'static [Kind], u64),
    /// Tests of a package whose names contain one of these words.
    Tests(&'static str, &'static [&'static str]),
    /// A test of a package with this name, which is told its full count in a variable.
    Counting(&'static str, &'static str, &'static str, Full),
    /// `cargo xtask` with these words; `N` becomes so many for each minute, or the full count.
    Xtask(&'static [&'static str], u32, Full),
}

/// A mistake that a row must be able to see.
#[derive(Debug, Clone, Copy)]
struct Mistake {
    /// The name of the planted bug.
    bug: &'static str,
    /// The rule that it breaks.
    rule: &'static str,
    /// What most of the work is, so that it shows soon.
    focus: &'static str,
}

/// What a campaign of a row is.
#[derive(Debug, Clone, Copy)]
struct Trial {
    faults: &'static [Fault],
    /// Rules that must have been looked at.
    rules: &'static [&'static str],
    /// How many servers, if not as many as the store usually has.
    servers: Option<usize>,
    /// What the row counts.
    goal: Option<Goal>,
    /// What most of the work is, when the row is to have its full count.
    focus: Option<&'static str>,
    /// How many tasks each worker process has in hand then, if not as many as usual.
    threads: Option<usize>,
    /// How much work waits at the most then, if not as much as usual.
    open_max: Option<u64>,
    /// How soon all but one of a hundred lost leases are given anew after their end, in ms.
    reclaim_p99_max: Option<i64>,
    /// How soon work goes on after a fault was mended, in ms.
    back_max: Option<i64>,
}

impl Trial {
    const fn new(faults: &'static [Fault], rules: &'static [&'static str]) -> Self {
        Self {
            faults,
            rules,
            servers: None,
            goal: None,
            focus: None,
            threads: None,
            open_max: None,
            reclaim_p99_max: None,
            back_max: None,
        }
    }

    const fn until(self, asked: u64, counted: Counted) -> Self {
        Self { goal: Some(Goal { counted, asked }), ..self }
    }

    const fn servers(self, servers: usize) -> Self {
        Self { servers: Some(servers), ..self }
    }

    const fn mostly(self, kind: &'static str) -> Self {
        Self { focus: Some(kind), ..self }
    }

    const fn threads(self, threads: usize) -> Self {
        Self { threads: Some(threads), ..self }
    }

    const fn open_at_most(self, open: u64) -> Self {
        Self { open_max: Some(open), ..self }
    }

    const fn reclaims_within(self, ms: i64) -> Self {
        Self { reclaim_p99_max: Some(ms), ..self }
    }

    const fn back_within(self, ms: i64) -> Self {
        Self { back_max: Some(ms), ..self }
    }

    /// The first of its limits that a campaign was slower than.
    fn too_slow(&self, score: &Score) -> Option<String> {
        let reclaim = score.reclaim_p99().zip(self.reclaim_p99_max).filter(|(took, most)| took > most);
        let slowest = score.faults.keys().filter_map(|fault| score.slowest_recovery(fault)).max();
        let back = slowest.zip(self.back_max).filter(|(took, most)| took > most);
        let reclaim = reclaim.map(|(_, most)| format!("reclaims take longer than {most} ms"));
        reclaim.or(back.map(|(_, most)| format!("work goes on later than {most} ms after a fault")))
    }
}

/// How rows are run.
pub struct Runner<'a> {
    /// Makes a campaign on a store with faults.
    pub campaign: &'a dyn Fn(Kind, Vec<Fault>) -> Campaign,
    /// Builds the command `ff` with bugs that can be switched on, and says where it is.
    pub planted: &'a dyn Fn() -> Result<String, String>,
    /// How long each campaign lasts; with full counts, at the most.
    pub minutes: f64,
    /// Whether rows go on until they have their count.
    pub full: bool,
    /// Only parts on these stores. Suites are not run then.
    pub stores: Option<&'a [Kind]>,
    /// Only the controls, which must be seen to fail.
    pub controls: bool,
}

/// Runs rows and gives their card. The card is kept after each part, so that a run that is ended has written what it did.
pub fn run(
    numbers: &[u32],
    runner: &Runner<'_>,
    keep: impl Fn(&Card) -> Result<PathBuf, String>,
) -> Result<Card, String> {
    let mut card = Card::default();
    for row in ROWS.iter().filter(|row| numbers.contains(&row.number)) {
        for (part, kind) in row.parts.iter().flat_map(|part| runner.wanted(part)) {
            let began = Instant::now();
            let mut line = runner.run(part, kind);
            line.row = row.number;
            line.what = row.what.to_owned();
            line.seconds = began.elapsed().as_secs();
            line.load_average = load_average();
            println!("row {}: {line}", row.number);
            card.lines.push(line);
            println!("written to {}", keep(&card)?.display());
        }
    }
    Ok(card)
}

impl Runner<'_> {
    /// The stores that a part is to run on; a suite has none.
    fn wanted(&self, part: &'static Part) -> Vec<(&'static Part, Option<Kind>)> {
        let kinds = match part {
            Part::On(..) | Part::Cuts(..) | Part::Tests(..) | Part::Counting(..) | Part::Xtask(..) if self.controls => {
                Vec::new()
            }
            Part::On(kinds, _) | Part::Cuts(kinds, _) => kinds.to_vec(),
            Part::Control(kind, _) | Part::Planted(kind, ..) => vec![*kind],
            Part::Tests(..) | Part::Counting(..) | Part::Xtask(..) => {
                return if self.stores.is_none() { vec![(part, None)] } else { Vec::new() };
            }
        };
        let wanted = |kind: &Kind| self.stores.is_none_or(|stores| stores.contains(kind));
        kinds.into_iter().filter(wanted).map(|kind| (part, Some(kind))).collect()
    }

    fn run(&self, part: &Part, kind: Option<Kind>) -> Line {
        let campaign = |faults: &[Fault]| (self.campaign)(kind.expect("a campaign has a store"), faults.to_vec());
        match part {
            Part::On(_, trial) => judged(&self.campaign(campaign(trial.faults), trial), trial),
            Part::Control(_, faults) => control(&campaign(faults)),
            Part::Planted(_, faults, mistake) => self.planted(campaign(faults), mistake),
            Part::Cuts(_, asked) => cuts::run(&campaign(&[]), self.full.then_some(*asked)),
            Part::Tests(package, words) => suites::tests(package, words, None),
            Part::Counting(package, name, variable, full) => {
                suites::tests(package, &[name], self.full.then_some((variable, *full)))
            }
            Part::Xtask(words, at_one_minute, full) => {
                let for_the_time = (f64::from(*at_one_minute) * self.minutes).max(1.0).round();
                suites::xtask(words, for_the_time, self.full.then_some(*full))
            }
        }
    }

    /// A campaign on servers with a bug, which is short: a bug that is seldom seen would be a poor control.
    fn planted(&self, campaign: Campaign, mistake: &Mistake) -> Line {
        let by = format!("control: {} on {}", mistake.bug, by(&campaign));
        let program = match (self.planted)() {
            Ok(program) => program,
            Err(why) => return Line::new(Verdict::Failed, by, why),
        };
        let mut campaign = Campaign { program, time: CONTROL_TIME.min(campaign.time), ..campaign };
        // What a bug keeps from ending is waited for, so there is little of it.
        campaign.load = Load { focus: Some(mistake.focus), threads: 8, open_max: CONTROL_OPEN_MAX, ..Load::FULL };
        campaign.variables.push(("FF_PLANTED_BUG".to_owned(), mistake.bug.to_owned()));
        match campaign.run() {
            Ok(finished) => {
                let seen = finished.score.rules.get(mistake.rule).map_or(0, |rule| rule.violations);
                let verdict = if seen > 0 { Verdict::Passed } else { Verdict::Failed };
                let figures = format!("broken {seen} times: {}", mistake.rule);
                let mut line = Line::new(verdict, by, figures);
                line.score = Some(finished.score.json());
                line
            }
            Err(why) => Line::new(Verdict::Failed, by, why),
        }
    }

    fn campaign(&self, campaign: Campaign, trial: &Trial) -> Campaign {
        let mut campaign = Campaign { servers: trial.servers, ..campaign };
        if let Some(goal) = trial.goal.filter(|_| self.full) {
            campaign.goal = Some(goal);
            campaign.tempo = Tempo::FAST;
            // Faults take their time whatever the load is; work is done as fast as it can be.
            if goal.counted != Counted::Faults {
                let threads = trial.threads.unwrap_or(Load::FULL.threads);
                let open_max = trial.open_max.unwrap_or(Load::FULL.open_max);
                campaign.load = Load { focus: trial.focus, threads, open_max, ..Load::FULL };
            }
        }
        campaign
    }
}

fn judged(campaign: &Campaign, trial: &Trial) -> Line {
    let by = by(campaign);
    let finished = match campaign.run() {
        Ok(finished) => finished,
        Err(why) => return Line::new(Verdict::Failed, by, why),
    };
    println!("{}", finished.score.page(campaign.kind.name()));
    let unseen = trial.rules.iter().find(|rule| finished.score.rules.get(**rule).is_none_or(|rule| rule.looks == 0));
    let count = campaign.goal.zip(finished.reached).map(|(goal, reached)| Count::of(goal, reached));
    let short = count.as_ref().is_some_and(|count| count.reached < count.asked);
    let slow = trial.too_slow(&finished.score);
    let verdict = match (finished.score.violations(), unseen, &finished.skipped[..]) {
        (0, None, _) if slow.is_some() => Verdict::Failed,
        (0, None, []) if short => Verdict::Short,
        (0, None, []) => Verdict::Passed,
        (0, None, _) => Verdict::Skipped,
        _ => Verdict::Failed,
    };
    let mut figures = figures(&finished);
    figures.extend(slow);
    figures.extend(unseen.map(|rule| format!("never looked at: {rule}")));
    figures.extend(finished.skipped.iter().map(|(fault, why)| format!("{} skipped: {why}", fault.name())));
    let mut line = Line::new(verdict, by, figures.join(", "));
    line.count = count;
    line.score = Some(finished.score.json());
    line
}

/// What must be seen is that something is gone.
fn control(campaign: &Campaign) -> Line {
    let by = format!("control: {}", by(campaign));
    match campaign.run() {
        Ok(finished) => {
            let seen = finished.score.violations();
            let lost = finished.score.rules.get("what was acknowledged is there").map_or(0, |rule| rule.violations);
            let verdict = if seen > 0 { Verdict::Passed } else { Verdict::Failed };
            let mut line = Line::new(verdict, by, format!("{seen} violations seen, {lost} acknowledged lost"));
            line.score = Some(finished.score.json());
            line
        }
        Err(why) => Line::new(Verdict::Failed, by, why),
    }
}

fn by(campaign: &Campaign) -> String {
    let faults: Vec<&str> = campaign.faults.iter().map(|fault| fault.name()).collect();
    format!("{} {}", campaign.kind.name(), faults.join("+"))
}

fn figures(finished: &Finished) -> Vec<String> {
    let score = &finished.score;
    let strikes: u64 = score.faults.values().map(|under| under.strikes).sum();
    let mut figures = vec![
        format!("{} calls", score.calls()),
        format!("{strikes} faults"),
        format!("{} violations", score.violations()),
    ];
    let slowest = score.faults.keys().filter_map(|fault| score.slowest_recovery(fault)).max();
    figures.extend(slowest.map(|ms| format!("back after {ms} ms at the most")));
    if let Some(p99) = score.reclaim_p99() {
        figures.push(format!("reclaim p99 {p99} ms after expiry"));
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::History;

    /// The parts of a row that run, as the words of the command choose them.
    fn chosen(number: u32, stores: Option<&[Kind]>, controls: bool) -> Vec<(&'static Part, Option<Kind>)> {
        let none = |_, _| unreachable!("nothing is run");
        let no_build = || Err(String::new());
        let runner = Runner { campaign: &none, planted: &no_build, minutes: 1.0, full: true, stores, controls };
        let row = ROWS.iter().find(|row| row.number == number).expect("there is such a row");
        row.parts.iter().flat_map(|part| runner.wanted(part)).collect()
    }

    #[test]
    fn a_store_leaves_out_the_others_and_the_suites() {
        let all = chosen(2, None, false);
        assert!(all.iter().any(|(part, _)| matches!(part, Part::Tests(..))), "{all:?}");
        let postgres = chosen(2, Some(&[Kind::Postgres]), false);
        assert!(matches!(postgres[..], [(Part::On(..), Some(Kind::Postgres))]), "{postgres:?}");
    }

    #[test]
    fn controls_run_alone_if_they_are_asked_for() {
        let controls = chosen(4, None, true);
        assert!(matches!(controls[..], [(Part::Control(..), Some(Kind::Forgetful))]), "{controls:?}");
        assert!(matches!(chosen(17, None, true)[..], [(Part::Planted(..), Some(Kind::Sqlite))]));
        assert!(chosen(20, None, true).is_empty());
    }

    #[test]
    fn a_campaign_that_is_slower_than_its_row_allows_is_told_so() {
        let mut score = Score::of(&History::default());
        score.reclaims = vec![900, 1_500];
        let trial = Trial::new(&[], &[]);
        assert_eq!(trial.too_slow(&score), None);
        assert_eq!(trial.reclaims_within(2_000).too_slow(&score), None);
        assert_eq!(trial.reclaims_within(800).too_slow(&score).as_deref(), Some("reclaims take longer than 800 ms"));
    }
}
