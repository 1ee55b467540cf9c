//! `cargo xtask bench growth`: how rates change with what is queued, the workers and the partitions, as a page and a chart;
//! and how search, schedules and bulk jobs do with many.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use serde_json::{Value, json};

use crate::compare::chart::{self, Bar, Panel};
use crate::compare::machine::{self, Machine};
use crate::compare::{figure, systems, thousands};

/// A million has to be queued, twice, on every store.
const RUN_MAX_S: u32 = 7_200;
/// A rate may fall this far below that of the shortest queue.
const ALLOWED: f64 = 0.8;
/// The first page of a filter, and counts, may take this long for 95 of 100.
const PAGE_MAX_MS: f64 = 200.0;
const COUNTS_MAX_MS: f64 = 10.0;
/// Runs of schedules that are due at one instant may take this long.
const SCHEDULES_MAX_MS: f64 = 60_000.0;
/// The other scenarios with many, how many those are, and how many in a short run.
const MANY: [(&str, &str, &str); 3] =
    [("search", "1000000", "10000"), ("schedules", "10000", "500"), ("bulk", "100000", "5000")];

/// Measures and writes the report.
pub(crate) fn growth(arguments: &[&str]) -> ExitCode {
    match Options::parse(arguments).and_then(|options| measure(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("cannot measure: {why}");
            eprintln!("usage: cargo xtask bench growth [--store STORE,STORE] [--quick] [--out FOLDER]");
            ExitCode::FAILURE
        }
    }
}

struct Options {
    stores: Vec<String>,
    quick: bool,
    folder: PathBuf,
}

impl Options {
    fn parse(arguments: &[&str]) -> Result<Self, String> {
        let quick = arguments.contains(&"--quick");
        let folder = systems::results(quick);
        let stores = ["sqlite", "valkey", "postgres"].map(str::to_owned).to_vec();
        let mut options = Self { stores, quick, folder };
        let mut words = arguments.iter();
        while let Some(&word) = words.next() {
            let mut value = || words.next().copied().ok_or(format!("{word} needs a value"));
            match word {
                "--quick" => {}
                "--store" => options.stores = value()?.split(',').map(str::to_owned).collect(),
                "--out" => options.folder = value()?.into(),
                _ => return Err(format!("{word} is no option")),
            }
        }
        Ok(options)
    }
}

/// The rates of one store.
struct Grown {
    name: String,
    load: f64,
    lines: Vec<Value>,
}

impl Grown {
    fn cells(&self) -> Vec<Cell> {
        self.lines.iter().filter_map(Cell::read).collect()
    }

    /// The store with its version, as it says itself.
    fn head(&self) -> String {
        let head = self.lines.iter().find(|line| line["type"] == "run");
        let version = head.and_then(|head| head["store_version"].as_str()).unwrap_or_default();
        let durability = head.and_then(|head| head["durability"].as_str()).unwrap_or_default();
        format!("{} {version}: {durability}", self.name)
    }
}

/// One figure of the matrix.
#[derive(Debug, Clone, PartialEq)]
struct Cell {
    partitions: u64,
    queued: u64,
    workers: u64,
    rate: f64,
    of_fewest_queued: f64,
}

impl Cell {
    fn read(line: &Value) -> Option<Self> {
        Some(Self {
            partitions: line["partitions"].as_u64()?,
            queued: line["queued"].as_u64()?,
            workers: line["workers"].as_u64()?,
            rate: line["per_s"].as_f64()?,
            of_fewest_queued: line["of_fewest_queued"].as_f64()?,
        })
    }
}

fn measure(options: &Options) -> Result<(), String> {
    systems::enter_workspace()?;
    systems::build()?;
    let date = machine::date()?;
    let mut all = Vec::new();
    for store in &options.stores {
        let load = machine::load();
        let name = store.split("://").next().unwrap_or(store).to_owned();
        eprintln!("growth on {name} (load {load})");
        let mut bench = Command::new(systems::program());
        bench.args(["growth", "--store", store, "--json"]);
        if options.quick {
            bench.args(["--queued", "1000,10000"]);
        }
        let mut lines = systems::run(RUN_MAX_S, bench);
        for (scenario, many, few) in MANY {
            eprintln!("{scenario} on {name}");
            let mut bench = Command::new(systems::program());
            bench.args([scenario, "--store", store, "--json", "--tasks", if options.quick { few } else { many }]);
            lines.extend(systems::run(RUN_MAX_S, bench));
        }
        all.push(Grown { name, load, lines });
        // A session takes long; what is done so far is kept.
        write(options, &date, &all)?;
    }
    eprintln!("wrote {}", options.folder.join(format!("{date}-growth.md")).display());
    Ok(())
}

fn write(options: &Options, date: &str, all: &[Grown]) -> Result<(), String> {
    let put = |ending: &str, text: String| {
        let path = options.folder.join(format!("{date}-growth.{ending}"));
        fs::create_dir_all(&options.folder)
            .and_then(|()| fs::write(&path, text))
            .map_err(|why| format!("cannot write {}: {why}", path.display()))
    };
    put("svg", chart::draw(&all.iter().flat_map(panels).collect::<Vec<_>>()))?;
    put("md", markdown(options.quick, date, all))?;
    let stores: Vec<Value> = all
        .iter()
        .map(|grown| json!({ "store": grown.name, "load_before": grown.load, "lines": grown.lines }))
        .collect();
    put("json", format!("{:#}\n", json!({ "date": date, "quick": options.quick, "stores": stores })))
}

/// A panel for every number of workers: only what is queued and the partitions should not matter.
fn panels(grown: &Grown) -> Vec<Panel> {
    let cells = grown.cells();
    let workers: BTreeSet<u64> = cells.iter().map(|cell| cell.workers).collect();
    workers
        .into_iter()
        .map(|workers| Panel {
            title: format!("S12: {}, {workers} worker(s): claims and completions a second", grown.name),
            more_is_better: true,
            bars: cells
                .iter()
                .filter(|cell| cell.workers == workers)
                .map(|cell| Bar {
                    label: format!("{} queued, {} partitions", thousands(&cell.queued.to_string()), cell.partitions),
                    value: cell.rate,
                    ours: cell.of_fewest_queued >= ALLOWED,
                })
                .collect(),
        })
        .collect()
}

fn markdown(quick: bool, date: &str, all: &[Grown]) -> String {
    let machine = Machine::describe();
    let short = if quick { " A short run: for a look, not for quoting." } else { "" };
    let mut page = format!(
        "# Growth, {date}\n\nClaims and completions a second while so many are queued, on one machine ({} cores, {} GiB, {}).{short} A rate is of at \
         least 2,000 tasks and 1 s, or of 2 s; the share is of the rate with the fewest queued, and grey bars are below {ALLOWED}.\n\n\
         ![bar chart]({date}-growth.svg)\n\n",
        machine.cores, machine.memory_gib, machine.kernel
    );
    for grown in all {
        let _ = writeln!(page, "## {}\n\nLoad before: {}.\n", grown.head(), grown.load);
        page.push_str("| partitions | workers | queued | per second | share |\n|---|---|---|---|---|\n");
        let mut cells = grown.cells();
        cells.sort_by_key(|cell| (cell.partitions, cell.workers, cell.queued));
        for Cell { partitions, queued, workers, rate, of_fewest_queued } in cells {
            let _ = writeln!(
                page,
                "| {partitions} | {workers} | {} | {} | {of_fewest_queued:.2} |",
                thousands(&queued.to_string()),
                figure(rate)
            );
        }
        page.push_str(&many(&grown.lines));
        for why in grown.lines.iter().filter_map(|line| line["failed"].as_str()) {
            let _ = writeln!(page, "\nfailed: {why}");
        }
        page.push('\n');
    }
    page.push_str("Made by `cargo xtask bench growth`.\n");
    page
}

/// The rows of search, schedules and bulk jobs. A figure past its bound is in bold.
fn many(lines: &[Value]) -> String {
    let of = |scenario: &'static str| {
        lines.iter().filter(move |line| line["type"] == "figures" && line["scenario"] == scenario)
    };
    let number = |line: &Value, name: &str| line[name].as_f64().unwrap_or(0.0);
    let bounded = |value: f64, bound: f64| {
        if value > bound { format!("**{}**", figure(value)) } else { figure(value) }
    };
    let mut page = String::new();
    for (place, line) in of("search").enumerate() {
        if place == 0 {
            let executions = thousands(&line["executions"].to_string());
            let _ = writeln!(page, "\nThe first page of 100 over {executions} executions:\n");
            page.push_str("| filter | found | p50 ms | p95 ms |\n|---|---|---|---|\n");
        }
        let bound = if line["filter"] == "counts" { COUNTS_MAX_MS } else { PAGE_MAX_MS };
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} |",
            line["filter"].as_str().unwrap_or_default(),
            line["found"].as_u64().map(|found| found.to_string()).unwrap_or_default(),
            figure(number(line, "p50_ms")),
            bounded(number(line, "p95_ms"), bound)
        );
    }
    for line in of("schedules") {
        let _ = writeln!(
            page,
            "\n{} schedules that were due at one instant had all run within {} ms: {} a second.",
            thousands(&line["schedules"].to_string()),
            bounded(number(line, "all_ran_within_ms"), SCHEDULES_MAX_MS),
            figure(number(line, "per_s"))
        );
    }
    for line in of("bulk") {
        let _ = writeln!(
            page,
            "\nOne bulk job ({}) over {} executions: {} a second.",
            line["action"].as_str().unwrap_or_default(),
            thousands(&line["executions"].to_string()),
            figure(number(line, "per_s"))
        );
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_stands_out_among_the_rows_of_search() {
        let line = |filter: &str, p95: f64| {
            json!({ "type": "figures", "scenario": "search", "executions": 1000, "filter": filter, "found": 7,
                "p50_ms": 1.0, "p95_ms": p95 })
        };
        let schedules = json!({ "type": "figures", "scenario": "schedules", "schedules": 10, "all_ran_within_ms": 5.0,
            "per_s": 2000.0 });
        let page = many(&[line("a kind", 201.0), line("a tag", 150.0), line("counts", 11.0), schedules]);
        assert!(page.contains("over 1,000 executions") && page.contains("| a kind | 7 | 1.00 | **201** |"), "{page}");
        assert!(page.contains("| 150 |") && page.contains("| **11.0** |"), "{page}");
        assert!(page.contains("10 schedules that were due"), "{page}");
    }

    fn grown() -> Grown {
        let line = |workers: u64, queued: u64, rate: f64, share: f64| {
            json!({ "type": "figures", "partitions": 16, "workers": workers, "queued": queued, "per_s": rate,
                "of_fewest_queued": share, "of_fewest_workers": 1.0, "of_fewest_partitions": 1.0 })
        };
        let head = json!({ "type": "run", "store_version": "8.0", "durability": "nothing" });
        let lines = vec![head, line(1, 1000, 100.0, 1.0), line(1, 1_000_000, 70.0, 0.7), line(16, 1000, 900.0, 1.0)];
        Grown { name: "valkey".into(), load: 0.5, lines }
    }

    #[test]
    fn a_rate_that_fell_too_far_stands_out() {
        let panels = panels(&grown());
        assert_eq!(panels.len(), 2, "one for each number of workers");
        let bars: Vec<_> = panels[0].bars.iter().map(|bar| (bar.label.as_str(), bar.ours)).collect();
        assert_eq!(bars, [("1,000 queued, 16 partitions", true), ("1,000,000 queued, 16 partitions", false)]);
    }

    #[test]
    fn the_page_has_every_figure_and_every_failure() {
        let mut grown = grown();
        grown.lines.push(json!({ "failed": "no disk" }));
        let page = markdown(false, "2026-01-01", &[grown]);
        assert!(page.contains("## valkey 8.0: nothing"), "{page}");
        assert!(page.contains("| 16 | 1 | 1,000,000 | 70.0 | 0.70 |"), "{page}");
        assert!(page.contains("failed: no disk"), "{page}");
    }
}
