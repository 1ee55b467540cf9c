//! `cargo xtask bench profile`: where the time of submitting, claiming and completing goes, as a flame graph of samples and
//! as counts of instructions, which a busy machine does not change.

mod flame;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::compare::{machine, systems, thousands};

/// Tasks of the shorter of two runs whose instructions are compared; the other one has twice as many.
const COUNTED_TASKS: u64 = 300;
/// A run of throughput submits each task three times (end to end, by itself, in batches) and completes each of them.
const RUNS_OF_A_TASK: u64 = 3;
/// Tasks while samples are taken.
const SAMPLED_TASKS: u64 = 20_000;
/// Functions in the table.
const FUNCTIONS: usize = 40;
/// Samples a second, off the beat of whatever happens a thousand times a second.
const SAMPLES_PER_S: &str = "397";
/// Bytes of the stack that are kept with each sample.
const STACK: &str = "dwarf,16384";

/// Profiles and writes what was found.
pub(crate) fn profile(arguments: &[&str]) -> ExitCode {
    match Options::parse(arguments).and_then(|options| measure(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("cannot profile: {why}");
            eprintln!("usage: cargo xtask bench profile [--store STORE] [--via process|http] [--out FOLDER]");
            ExitCode::FAILURE
        }
    }
}

struct Options {
    store: String,
    via: String,
    folder: PathBuf,
}

impl Options {
    fn parse(arguments: &[&str]) -> Result<Self, String> {
        let mut options = Self { store: "valkey".into(), via: "process".into(), folder: systems::results(false) };
        let mut words = arguments.iter();
        while let Some(&word) = words.next() {
            let mut value = || words.next().copied().ok_or(format!("{word} needs a value"));
            match word {
                "--store" => options.store = value()?.to_owned(),
                "--via" => options.via = value()?.to_owned(),
                "--out" => options.folder = value()?.into(),
                _ => return Err(format!("{word} is no option")),
            }
        }
        Ok(options)
    }

    /// The arguments of a run.
    fn scenario(&self, tasks: u64) -> Vec<String> {
        let tasks = tasks.to_string();
        let words = ["throughput", "--store", &self.store, "--via", &self.via, "--repetitions", "1", "--tasks", &tasks];
        words.map(str::to_owned).to_vec()
    }
}

fn measure(options: &Options) -> Result<(), String> {
    systems::enter_workspace()?;
    let build = ["build", "--profile", "profiling", "--package", "ff-bench", "--bin", "ff-bench"];
    let built = crate::plain(Command::new("cargo").args(build)).status();
    if !built.is_ok_and(|status| status.success()) {
        return Err("ff-bench does not build".into());
    }
    let program = systems::target().join("profiling/ff-bench");
    let scratch = systems::target().join("profile");
    let name = |ending: &str| {
        let date = machine::date()?;
        Ok::<_, String>(options.folder.join(format!("{date}-profile-{}-{}.{ending}", options.store, options.via)))
    };
    let kept = |path: &Path, text: String| {
        let folder = path.parent().unwrap_or(path);
        let done = fs::create_dir_all(folder).and_then(|()| fs::write(path, text));
        done.map_err(|why| format!("cannot write {}: {why}", path.display()))
    };
    fs::create_dir_all(&scratch).map_err(|why| format!("cannot write {}: {why}", scratch.display()))?;
    eprintln!("counting instructions");
    let once = Counts::of(&program, &scratch, options, COUNTED_TASKS)?;
    let twice = Counts::of(&program, &scratch, options, 2 * COUNTED_TASKS)?;
    let page = name("md")?;
    kept(&page, markdown(options, &once, &twice))?;
    eprintln!("wrote {}", page.display());
    eprintln!("sampling");
    let stacks = sample(&program, &scratch, options)?;
    let graph = name("svg")?;
    kept(&graph, flame::draw(&format!("throughput on {} via {}", options.store, options.via), &stacks))?;
    eprintln!("wrote {}", graph.display());
    Ok(())
}

/// Instructions of a run, in all and by function.
struct Counts {
    total: u64,
    by_function: Vec<(u64, String)>,
}

impl Counts {
    fn of(program: &Path, scratch: &Path, options: &Options, tasks: u64) -> Result<Self, String> {
        let out = scratch.join(format!("callgrind.{tasks}"));
        let mut run = Command::new("valgrind");
        run.args(["--tool=callgrind", "--quiet"]).arg(format!("--callgrind-out-file={}", out.display()));
        run.arg(program).args(options.scenario(tasks)).args(["--threads", "1"]).stdout(Stdio::null());
        if !run.status().map_err(|why| format!("valgrind is missing: {why}"))?.success() {
            return Err("the program failed under valgrind".into());
        }
        let annotated = Command::new("callgrind_annotate").args(["--threshold=100", "--auto=no"]).arg(&out).output();
        let annotated = annotated.map_err(|why| format!("callgrind_annotate is missing: {why}"))?;
        Self::read(&String::from_utf8_lossy(&annotated.stdout)).ok_or_else(|| "callgrind said nothing".into())
    }

    /// Reads lines such as ` 1,234 (5.67%)  file.rs:crate::function [object]`.
    fn read(text: &str) -> Option<Self> {
        let mut total = None;
        let mut by_function = Vec::new();
        for line in text.lines() {
            let Some((front, rest)) = line.split_once('(') else { continue };
            let Ok(count) = front.trim().replace(',', "").parse::<u64>() else { continue };
            let Some((_, name)) = rest.split_once(')') else { continue };
            let name = name.trim();
            if name.starts_with("PROGRAM TOTALS") {
                total = Some(count);
            } else {
                by_function.push((count, function(name)));
            }
        }
        Some(Self { total: total?, by_function })
    }

    fn of_function(&self, name: &str) -> u64 {
        self.by_function.iter().filter(|(_, known)| known == name).map(|(count, _)| count).sum()
    }
}

/// The name of a function without its file, its object and its hash.
fn function(line: &str) -> String {
    let line = line.split(" [").next().unwrap_or(line);
    let name = line.split_once(':').map_or(line, |(file, name)| if file.contains("::") { line } else { name });
    let name = name.rsplit_once("::h").filter(|(_, hash)| hash.len() == 16).map_or(name, |(name, _)| name);
    name.trim().to_owned()
}

/// What a task costs: the difference between a run and one twice as long, so that starting and stopping count for nothing.
fn markdown(options: &Options, once: &Counts, twice: &Counts) -> String {
    let tasks = COUNTED_TASKS * RUNS_OF_A_TASK;
    let each = |more: u64, less: u64| more.saturating_sub(less) / tasks;
    let all = each(twice.total, once.total);
    let mut names: Vec<&str> = twice.by_function.iter().map(|(_, name)| name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let mut rows: Vec<(u64, &str)> =
        names.into_iter().map(|name| (each(twice.of_function(name), once.of_function(name)), name)).collect();
    rows.sort_by(|one, other| other.cmp(one));
    let mut text = format!("# Instructions of a task: throughput on {} via {}\n\n", options.store, options.via);
    let _ = writeln!(
        text,
        "`cargo xtask bench profile --store {} --via {}`: callgrind's counts of the whole process without the store's\n\
         server, with one thread, of {tasks} tasks (a third of them submitted in batches). {} instructions a task:\n",
        options.store,
        options.via,
        thousands(&all.to_string())
    );
    text.push_str("| instructions | share | function |\n|---|---|---|\n");
    for (count, name) in rows.into_iter().take(FUNCTIONS) {
        let share = 100.0 * count as f64 / all.max(1) as f64;
        let _ = writeln!(text, "| {} | {share:.1} % | `{name}` |", thousands(&count.to_string()));
    }
    text
}

/// Stacks of samples, the outermost function first, and how often each was met.
fn sample(program: &Path, scratch: &Path, options: &Options) -> Result<Vec<(Vec<String>, u64)>, String> {
    let data = scratch.join("perf.data");
    let mut record = Command::new("perf");
    record.args([
        "record",
        "--quiet",
        "--event",
        "cpu-clock",
        "--freq",
        SAMPLES_PER_S,
        "--call-graph",
        STACK,
        "--output",
    ]);
    record.arg(&data).arg("--").arg(program).args(options.scenario(SAMPLED_TASKS)).stdout(Stdio::null());
    if !record.status().map_err(|why| format!("perf is missing: {why}"))?.success() {
        return Err("perf cannot record".into());
    }
    let mut script = Command::new("perf");
    script.args(["script", "--no-inline", "--comm", "ff-bench,tokio-rt-worker", "--fields", "comm,ip,sym", "--input"]);
    let output = script.arg(&data).output().map_err(|why| format!("perf is missing: {why}"))?;
    Ok(flame::collapse(&String::from_utf8_lossy(&output.stdout)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_what_callgrind_says() {
        let text = "Events recorded: Ir\n\
                    1,000 (100.0%)  PROGRAM TOTALS\n\
                    \n  600 (60.00%)  ./malloc/malloc.c:malloc [/usr/lib/libc.so]\n\
                      400 (40.00%)  lib.rs:ff_core::index::difference::h0123456789abcdef [/t/ff-bench]\n";
        let counts = Counts::read(text).unwrap();
        assert_eq!(counts.total, 1_000);
        assert_eq!(counts.of_function("malloc"), 600);
        assert_eq!(counts.of_function("ff_core::index::difference"), 400);
    }
}
