//! The systems that are compared: our own scenarios on each store, and the scripts of `bench/peers`. Adding a system:
//! its line in [`all`].

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// A run of one system may take this long, besides being installed.
const RUN_MAX_S: u32 = 900;
/// Installing may mean compiling.
const PREPARE_MAX_S: u32 = 1_800;

const IDLE: &str = "idle";
/// The scenarios that the scripts know beside idling.
const RACES: &str = "limit,throughput,throughput-10k,throughput-100k,throughput-everysec,throughput-replicated,wake,suspend-resume,chain,chains";

/// Our SDKs, as scripts: their workers speak to a server of ours.
const OUR_NODE: &str = "flowfabric-node";
const OUR_PYTHON: &str = "flowfabric-python";
/// Systems whose chain of ten is one function with ten journaled steps: the same figure says what steps cost there.
const CHAINS_ARE_STEPS: [&str; 2] = ["restate", "dbos"];

/// One line of the list of systems.
pub(crate) struct System {
    pub(crate) name: &'static str,
    kind: Kind,
}

enum Kind {
    /// Ours on a store with the meaning of an acknowledgement, in process or through a server.
    Ours { store: &'static str, sync: &'static str, via: &'static str },
    /// Ours on Valkey with other durability, inputs, servers and clusters.
    Varied,
    /// A script that prints lines.
    Peer,
}

/// In the order in which they are run.
pub(crate) fn all() -> Vec<System> {
    let ours = |name, store, sync| System { name, kind: Kind::Ours { store, sync, via: "process" } };
    let served = |name, store, sync| System { name, kind: Kind::Ours { store, sync, via: "http" } };
    let peer = |name| System { name, kind: Kind::Peer };
    vec![
        peer("limit"),
        ours("flowfabric-valkey", "valkey", "async"),
        served("flowfabric-http", "valkey", "async"),
        System { name: "flowfabric-varied", kind: Kind::Varied },
        peer("flowfabric-idle"),
        peer("bullmq"),
        peer(OUR_NODE),
        peer("apalis"),
        peer("celery"),
        peer(OUR_PYTHON),
        ours("flowfabric-sqlite", "sqlite", "full"),
        peer("restate"),
        ours("flowfabric-postgres", "postgres", "default"),
        peer("graphile-worker"),
        peer("pg-boss"),
        peer("dbos"),
    ]
}

/// How much work: the numbers of the scenarios, or few for a short run.
pub(crate) struct Size {
    tasks: u32,
    wakes: u32,
    chains: u32,
    /// Long enough for what happens twice a minute.
    idle_seconds: u32,
    calls: u32,
}

impl Size {
    pub(crate) fn full() -> Self {
        Self { tasks: 10_000, wakes: 200, chains: 50, idle_seconds: 30, calls: 500_000 }
    }

    pub(crate) fn quick() -> Self {
        Self { tasks: 1_000, wakes: 50, chains: 10, idle_seconds: 4, calls: 50_000 }
    }
}

/// Where results go. Figures of a short run are for a look at them, not for keeping.
pub(crate) fn results(quick: bool) -> PathBuf {
    if quick { target().join("compare") } else { PathBuf::from("bench/results") }
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from)
}

/// Our own scenarios.
pub(crate) fn program() -> PathBuf {
    target().join("release/ff-bench")
}

/// The program with an allocator that counts and takes its time.
fn counting() -> PathBuf {
    target().join("release/ff-bench-counting")
}

/// Paths are relative to the workspace, wherever in it one is.
pub(crate) fn enter_workspace() -> Result<(), String> {
    match std::env::var_os("CARGO_MANIFEST_DIR") {
        Some(ours) => {
            std::env::set_current_dir(Path::new(&ours).join("..")).map_err(|why| format!("no workspace: {why}"))
        }
        None => Ok(()),
    }
}

/// Our server, for the workers of our SDKs.
fn server() -> PathBuf {
    target().join("release/ff")
}

/// Builds our own scenarios.
pub(crate) fn build() -> Result<(), String> {
    eprintln!("building our own scenarios");
    build_package("ff-bench")
}

fn build_package(name: &str) -> Result<(), String> {
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--package", name]);
    let built = crate::plain(&mut build).status();
    if built.is_ok_and(|status| status.success()) { Ok(()) } else { Err(format!("{name} does not build")) }
}

/// Builds and installs everything first: compiling beside a measurement would spoil it.
pub(crate) fn prepare(systems: &[System]) -> Result<(), String> {
    build()?;
    if systems.iter().any(|system| [OUR_NODE, OUR_PYTHON].contains(&system.name)) {
        build_package("ff-cli")?;
    }
    for system in systems.iter().filter(|system| matches!(system.kind, Kind::Peer)) {
        eprintln!("preparing {}", system.name);
        let mut script = peer(system.name);
        script.env("PEER_SCENARIOS", "none");
        // A fault of the script will be said again, and kept, when it is measured.
        run(PREPARE_MAX_S, script);
    }
    Ok(())
}

impl System {
    /// The lines it printed; a failure is a line too. The cost of idling is a count and no race: one round is enough.
    pub(crate) fn run(&self, size: &Size, round: usize) -> Vec<Value> {
        match self.kind {
            Kind::Ours { store, sync, via } => {
                let scenarios = OURS.iter().filter(|ours| round == 1 || ours.scenario != IDLE);
                scenarios.flat_map(|scenario| scenario.run(store, sync, via, size)).collect()
            }
            Kind::Varied => VARIED.iter().flat_map(|(sync, ours)| ours.run("valkey", sync, "process", size)).collect(),
            Kind::Peer => {
                let mut script = peer(self.name);
                if round > 1 {
                    script.env("PEER_SCENARIOS", RACES);
                }
                script
                    .env("PEER_TASKS", size.tasks.to_string())
                    .env("PEER_WAKES", size.wakes.to_string())
                    .env("PEER_CHAINS", size.chains.to_string())
                    .env("PEER_IDLE_SECONDS", size.idle_seconds.to_string())
                    .env("PEER_CALLS", size.calls.to_string())
                    // The script ends its own work first, and can still tidy up.
                    .env("PEER_SECONDS_MAX", (RUN_MAX_S - 60).to_string());
                let mut lines = run(RUN_MAX_S, script);
                if CHAINS_ARE_STEPS.contains(&self.name) {
                    let steps: Vec<Value> = lines.iter().filter_map(as_steps).collect();
                    lines.extend(steps);
                }
                lines
            }
        }
    }
}

/// A line about chains as one about durable steps.
fn as_steps(line: &Value) -> Option<Value> {
    let scenario = match line["scenario"].as_str()? {
        "chain" => "steps",
        "chains" => "steps-at-once",
        _ => return None,
    };
    let mut line = line.clone();
    line["scenario"] = scenario.into();
    Some(line)
}

fn peer(name: &str) -> Command {
    let mut script = Command::new(Path::new("bench/peers").join(format!("{name}.sh")));
    script.arg(target().join("peers"));
    // Some of the scripts measure ourselves.
    for (name, path) in [("PEER_BENCH", program()), ("PEER_FF", server())] {
        script.env(name, std::path::absolute(&path).unwrap_or(path));
    }
    script.env("PEER_OUR_VERSION", env!("CARGO_PKG_VERSION"));
    script
}

/// One of our scenarios and what its line means to the report.
struct Ours {
    scenario: &'static str,
    program: fn() -> PathBuf,
    /// Whether it is measured through a server, too. Other scenarios say the same there, but for what a server adds.
    served: bool,
    /// Beside the number of tasks.
    arguments: fn(&Size) -> Vec<String>,
    note: &'static str,
    read: fn(&Value) -> Vec<Value>,
}

fn nothing_more(_: &Size) -> Vec<String> {
    Vec::new()
}

const OURS: [Ours; 10] = [
    Ours {
        scenario: "throughput",
        program,
        served: true,
        arguments: nothing_more,
        note: "empty tasks, 64 submits at once, one worker with 16 tasks at once: from the first submit to the last completion",
        read: |line| {
            let mut figures = vec![rate("throughput", "tasks/s", &line["end_to_end_per_s"])];
            figures.push(rate("calls-per-task", "calls", &line["function_calls_per_task"]));
            figures.push(rate("server-time-per-task", "µs", &line["server_us_per_task"]));
            figures.push(rate("own-time-per-task", "µs", &line["own_us_per_task"]));
            // A store in the process is in our own time.
            let server = line["server_us_per_task"].as_f64().unwrap_or_default();
            if let (Some(own), "sqlite" | "valkey") =
                (line["own_us_per_task"].as_f64(), line["store"].as_str().unwrap_or_default())
            {
                figures.push(rate("tasks-per-core", "tasks/s", &json!(1e6 / (own + server))));
            }
            if let (Some(reads), Some(commits)) = (line["reads_per_task"].as_f64(), line["commits_per_task"].as_f64()) {
                figures.push(rate("round-trips-per-task", "round trips", &json!(reads + commits)));
            }
            figures
        },
    },
    Ours {
        scenario: "throughput",
        program: counting,
        served: false,
        arguments: nothing_more,
        note: "by this process, for an empty task: client, engine and store",
        read: |line| {
            vec![
                rate("allocations-per-task", "allocations", &line["allocations_per_task"]),
                rate("allocated-bytes-per-task", "bytes", &line["allocated_bytes_per_task"]),
            ]
        },
    },
    Ours {
        scenario: "wake",
        program,
        served: true,
        arguments: nothing_more,
        note: "from the call of submit to the return of the claim of one idle worker",
        read: |line| vec![latency("wake", line)],
    },
    Ours {
        scenario: "chain",
        program,
        served: true,
        arguments: nothing_more,
        note: "a flow of ten executions, each with its own lease, from its creation to the completion of the last",
        read: |line| vec![latency("chain", line), rate("chains", "flows/s", &line["flows_per_s"])],
    },
    Ours {
        scenario: "steps",
        program,
        served: true,
        arguments: nothing_more,
        note: "one function whose steps are recorded one after another, by the SDK's worker: from the call of submit to its result",
        read: |line| match (line["steps"].as_u64(), line["at_once"].as_u64()) {
            (Some(1), Some(1)) => vec![latency("steps-1", line)],
            (Some(3), Some(1)) => vec![latency("steps-3", line)],
            (Some(9), Some(1)) => vec![latency("steps-9", line)],
            (Some(10), Some(1)) => vec![latency("steps", line)],
            (Some(10), Some(_)) => vec![rate("steps-at-once", "functions/s", &line["functions_per_second"])],
            _ => Vec::new(),
        },
    },
    Ours {
        scenario: "suspend-resume",
        program,
        served: true,
        arguments: nothing_more,
        note: "from the call of signal to the return of the claim that resumes",
        read: |line| {
            if line["at_once"].as_u64().unwrap_or(1) == 1 { vec![latency("suspend-resume", line)] } else { Vec::new() }
        },
    },
    Ours {
        scenario: "routed",
        program,
        served: false,
        arguments: nothing_more,
        note: "100 workers with ten sets of capabilities, each task asks for one, behind one that nobody can run",
        read: |line| vec![rate("routed", "tasks/s", &line["end_to_end_per_s"])],
    },
    Ours {
        scenario: "quorum-cancel",
        program,
        served: false,
        arguments: nothing_more,
        note: "from the completion of one of n siblings until the last of the others is cancelled",
        read: |line| match line["siblings"].as_u64() {
            Some(10) => vec![latency("quorum-cancel-10", line)],
            Some(100) => vec![latency("quorum-cancel-100", line)],
            Some(1_000) => vec![latency("quorum-cancel-1000", line)],
            _ => Vec::new(),
        },
    },
    Ours {
        scenario: "footprint",
        program,
        served: false,
        arguments: |size| {
            ["--tasks", &(5 * size.tasks).to_string(), "--input-bytes", "100"].map(str::to_owned).to_vec()
        },
        note: "the growth of what the store takes by many executions with an input of 100 bytes, for each of them",
        read: |line| {
            let scenario = if line["state"] == "waiting" { "bytes-waiting" } else { "bytes-completed" };
            vec![rate(scenario, "bytes", &line["bytes_each"])]
        },
    },
    Ours {
        scenario: IDLE,
        program,
        served: false,
        arguments: |size| ["--seconds", &size.idle_seconds.to_string()].map(str::to_owned).to_vec(),
        note: "16 workers that wait: commands Valkey carried out, transactions of the PostgreSQL database, reads and commits of SQLite",
        read: |line| {
            let asked = [&line["commands_per_s"], &line["database_transactions_per_s"], &line["reads_per_s"]];
            let first = asked.into_iter().find(|value| value.is_number());
            first.map(|value| rate("idle-store", "a second", value)).into_iter().collect()
        },
    },
];

/// Throughput on Valkey in other circumstances, each with the meaning of an acknowledgement.
const VARIED: [(&str, Ours); 10] = [
    ("everysec", varied(nothing_more, |line| end_to_end("throughput-everysec", line))),
    ("replicated", varied(nothing_more, |line| end_to_end("throughput-replicated", line))),
    ("async", varied(|_| words("--input-bytes", "10240"), |line| end_to_end("throughput-10k", line))),
    ("async", varied(|_| words("--input-bytes", "102400"), |line| end_to_end("throughput-100k", line))),
    ("async", varied(|_| words("--servers", "2"), |line| spread_over("two servers", line))),
    ("async", varied(|_| words("--servers", "4"), |line| spread_over("four servers", line))),
    ("async", varied(|_| words("--primaries", "1"), |line| spread_over("cluster of one primary", line))),
    ("async", varied(|_| words("--primaries", "3"), |line| spread_over("cluster of three primaries", line))),
    ("async", varied(|_| words("--primaries", "6"), |line| spread_over("cluster of six primaries", line))),
    (
        "async",
        Ours {
            scenario: "budget",
            note: "64 workers on one budget, each reservation is settled; then tasks with a budget and a quota",
            ..varied(nothing_more, |line| {
                let mut figures = vec![rate("reserve-settle", "spends/s", &line["reserve_and_settle_per_s"])];
                figures.push(rate("governed", "of the rate without", &line["of_rate_without"]));
                figures
            })
        },
    ),
];

const fn varied(arguments: fn(&Size) -> Vec<String>, read: fn(&Value) -> Vec<Value>) -> Ours {
    Ours { scenario: "throughput", program, served: false, arguments, note: "as S1", read }
}

fn words(name: &str, value: &str) -> Vec<String> {
    vec![name.to_owned(), value.to_owned()]
}

fn end_to_end(scenario: &str, line: &Value) -> Vec<Value> {
    vec![rate(scenario, "tasks/s", &line["end_to_end_per_s"])]
}

/// The rate, the time inside of Valkey and our own, of a work that several processes share on one machine.
fn spread_over(variant: &str, line: &Value) -> Vec<Value> {
    let mut figures = end_to_end("throughput-spread", line);
    figures.push(rate("server-time-per-task", "µs", &line["server_us_per_task"]));
    figures.push(rate("own-time-per-task", "µs", &line["own_us_per_task"]));
    for figure in &mut figures {
        figure["variant"] = variant.into();
    }
    figures
}

fn rate(scenario: &str, unit: &str, value: &Value) -> Value {
    json!({ "scenario": scenario, "unit": unit, "rate": value })
}

fn latency(scenario: &str, line: &Value) -> Value {
    json!({ "scenario": scenario, "unit": "ms", "p50": line["p50_ms"], "p95": line["p95_ms"], "p99": line["p99_ms"] })
}

impl Ours {
    fn run(&self, store: &str, sync: &str, via: &str, size: &Size) -> Vec<Value> {
        if via == "http" && !self.served {
            return Vec::new();
        }
        let system = if via == "http" { "FlowFabric over HTTP" } else { "FlowFabric" };
        let known = Command::new((self.program)()).args([self.scenario, "--help"]).output();
        if !known.is_ok_and(|output| output.status.success()) {
            return vec![
                json!({ "system": system, "scenario": self.scenario, "skipped": "ff-bench has no such scenario" }),
            ];
        }
        let mut bench = Command::new((self.program)());
        bench.args([self.scenario, "--store", store, "--sync", sync, "--via", via, "--json"]);
        // Rounds are made here, in turn with the others.
        bench.args(["--repetitions", "1"]);
        let more = (self.arguments)(size);
        if !more.iter().any(|word| word == "--tasks") {
            bench.args(["--tasks", &size.tasks.to_string()]);
        }
        bench.args(more);
        eprintln!("{system} on {store}: {}", self.scenario);
        let (store, durability) = match store {
            "valkey" if sync == "everysec" => ("Valkey", "append-only file, synced every second"),
            "valkey" if sync == "replicated" => ("Valkey", "waits for the replica"),
            "valkey" => ("Valkey", "none, persistence off"),
            "sqlite" => ("SQLite", "fsync for every commit, shared by those at once"),
            _ => ("PostgreSQL", "fsync for every commit"),
        };
        let head = json!({ "system": system, "version": env!("CARGO_PKG_VERSION"), "store": store,
            "durability": durability, "note": self.note });
        let with_head = |mut line: Value| {
            if let (Some(line), Some(head)) = (line.as_object_mut(), head.as_object()) {
                line.extend(head.clone());
            }
            line
        };
        let mut lines = Vec::new();
        for line in run(RUN_MAX_S, bench) {
            if line.get("failed").is_some() {
                lines.push(with_head(json!({ "scenario": self.scenario, "failed": line["failed"] })));
            } else {
                // A line without the figure belongs to another part of the scenario.
                let figures = (self.read)(&line).into_iter();
                lines.extend(
                    figures.filter(|figure| figure["rate"].is_number() || figure["p50"].is_number()).map(with_head),
                );
            }
        }
        lines
    }
}

/// Runs a program for at most so long and gives the JSON lines it printed, with one that says so if it failed.
pub(crate) fn run(seconds: u32, command: Command) -> Vec<Value> {
    let mut bounded = Command::new("timeout");
    // In the foreground: an interrupt from the keyboard has to reach the scripts, which then stop their servers.
    bounded
        .args(["--foreground", "--kill-after=30", &seconds.to_string()])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            bounded.env(name, value);
        }
    }
    let failed = |why: String| json!({ "failed": why });
    let output = match bounded.stdin(Stdio::null()).stderr(Stdio::inherit()).output() {
        Ok(output) => output,
        Err(why) => return vec![failed(format!("it cannot be run: {why}"))],
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines: Vec<Value> = Vec::new();
    for line in text.lines() {
        match serde_json::from_str(line) {
            Ok(value) => lines.push(value),
            Err(_) => eprintln!("{line}"),
        }
    }
    let said = lines.iter().any(|line| line.get("failed").is_some() || line.get("skipped").is_some());
    if !output.status.success() && !said {
        lines.push(failed(match output.status.code() {
            Some(124 | 137) => format!("it did not end within {seconds} seconds"),
            Some(code) => format!("it ended with code {code}"),
            None => "it was killed".into(),
        }));
    }
    lines
}
