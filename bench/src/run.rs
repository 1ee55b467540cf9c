//! One run: the scenario as often as it is repeated, and what it found on standard output.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::Duration;

use ff_core::PartitionConfig;
use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use crate::arguments::{Arguments, partitions};
use crate::error::{Error, Result};
use crate::figures::{Figures, Repeated, join};
use crate::machine::Machine;
use crate::open::{Choice, Opened, Places, open};
use crate::scenario;
use crate::subject::Subject;

/// Measures and prints. An interrupt ends it early, with everything taken away that was made for it.
pub fn measure(arguments: &Arguments, places: &dyn Places) -> Result<()> {
    let arguments = &Arguments { via: arguments.scenario.via(arguments.via), ..arguments.clone() };
    let threads = arguments.threads.unwrap_or_else(ff_server::default_threads);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    runtime.block_on(async {
        // Listened to before anything is made: a signal that comes first would end us and leave what was made.
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let run = Run::new(arguments, places)?;
        tokio::select! {
            ended = run.all() => ended,
            _ = interrupt.recv() => Err(Error::Interrupted),
            _ = terminate.recv() => Err(Error::Interrupted),
        }
    })
}

/// The parts that a scenario works with.
pub(crate) struct Run<'a> {
    pub(crate) arguments: &'a Arguments,
    pub(crate) store: Choice,
    places: &'a dyn Places,
    repetitions: usize,
    machine: Machine,
    /// Work is done in namespaces of this name, so that a store in use keeps its queues to itself.
    namespace: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Stores that were opened: each gets a namespace of its own.
    opened: usize,
    /// Lines that wait for the other repetitions.
    lines: Vec<Figures>,
}

impl<'a> Run<'a> {
    fn new(arguments: &'a Arguments, places: &'a dyn Places) -> Result<Self> {
        let unique = Uuid::new_v4().simple().to_string();
        Ok(Self {
            arguments,
            store: arguments.store.parse()?,
            places,
            repetitions: arguments.repetitions(),
            machine: Machine::now(),
            namespace: format!("bench-{}", &unique[..8]),
            state: Mutex::default(),
        })
    }

    async fn all(&self) -> Result<()> {
        for repetition in 1..=self.repetitions {
            if self.repetitions > 1 {
                self.progress(&format!("{}: {repetition} of {}", self.arguments.scenario.as_str(), self.repetitions));
            }
            scenario::run(self).await?;
        }
        self.progress("");
        let lines = std::mem::take(&mut self.state().lines);
        join(lines).iter().try_for_each(|line| self.print(line))
    }

    /// Opens the store and starts what is measured on it.
    pub(crate) async fn start(&self) -> Result<Subject> {
        self.start_with(self.arguments.partitions.first().copied().map(partitions)).await
    }

    /// Starts with so many partitions.
    pub(crate) async fn start_with(&self, partitions: Option<PartitionConfig>) -> Result<Subject> {
        let opened = self.open(self.arguments.sync.as_deref()).await?;
        self.subject(opened, partitions).await
    }

    /// One more server on a store that serves several.
    pub(crate) async fn join(&self, opened: &Opened) -> Result<Subject> {
        let Some(url) = opened.url.clone() else {
            return Err(Error::Usage(format!("{} serves one process", opened.kind.as_str())));
        };
        let there = Choice::At(opened.kind, url);
        let another = open(&there, self.arguments.sync.as_deref(), self.places).await?;
        self.subject(another, self.arguments.partitions.first().copied().map(partitions)).await
    }

    async fn subject(&self, opened: Opened, partitions: Option<PartitionConfig>) -> Result<Subject> {
        let number = self.state().opened;
        let namespace = format!("{}-{number}", self.namespace);
        Subject::start(opened, partitions, self.arguments.via, &namespace, self.places.allocations()).await
    }

    /// Opens the store alone. The first time, the head of the run is printed: by then the store has said what it is.
    pub(crate) async fn open(&self, sync: Option<&str>) -> Result<Opened> {
        let opened = open(&self.store, sync, self.places).await?;
        let first = {
            let mut state = self.state();
            state.opened += 1;
            state.opened == 1
        };
        if first {
            self.print_head(&opened)?;
        }
        Ok(opened)
    }

    /// Takes a line. With one repetition it is printed as it comes.
    pub(crate) fn report(&self, figures: Figures) -> Result<()> {
        if self.repetitions > 1 {
            self.state().lines.push(figures);
            return Ok(());
        }
        self.progress("");
        join(vec![figures]).iter().try_for_each(|line| self.print(line))
    }

    /// Shows what is going on, on a terminal only: one line that is written over. An empty text clears it.
    pub(crate) fn progress(&self, text: &str) {
        let mut errors = std::io::stderr();
        if errors.is_terminal() {
            // A line of progress that could not be written is no loss.
            let _ = write!(errors, "\r\x1b[K{text}").and_then(|()| errors.flush());
        }
    }

    /// Lets seconds pass in which nothing is done, and says how many have.
    pub(crate) async fn pass(&self, what: &str, seconds: u32) {
        for second in 0..seconds {
            self.progress(&format!("{what} for {second} of {seconds} s"));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// The meaning of an acknowledgement, where that is not left to the address.
    fn sync(&self) -> Option<&str> {
        let given = self.arguments.sync.as_deref();
        match &self.store {
            Choice::New(kind) => given.or(kind.syncs().first().copied()),
            Choice::At(..) => given,
        }
    }

    fn print_head(&self, opened: &Opened) -> Result<()> {
        let (info, machine, scenario) = (opened.store.info(), self.machine, self.arguments.scenario.as_str());
        let version = env!("CARGO_PKG_VERSION");
        if self.arguments.json {
            let head = json!({
                "type": "run", "scenario": scenario, "flowfabric_version": version,
                "store": opened.kind.as_str(), "store_version": info.version, "durability": info.durability,
                "sync": self.sync(), "via": self.arguments.via.as_str(), "namespace": self.namespace,
                "cores": machine.cores, "threads": tokio::runtime::Handle::current().metrics().num_workers(), "memory_gib": machine.memory_gib, "load_before": machine.load,
                "repetitions": self.repetitions,
            });
            return write(&format!("{head}\n"));
        }
        let known = |value: Option<String>| value.unwrap_or_else(|| "unknown".into());
        let times = match self.repetitions {
            1 => "once".to_owned(),
            times => format!("{times} times: the median (and the least to the most)"),
        };
        write(&format!(
            "{scenario} of FlowFabric {version}, via {}, {times}\n\
             store       {} {}\n\
             durability  {}\n\
             machine     {} cores, {} threads of ours, {} GiB, load {} before\n\
             namespace   {}\n",
            self.arguments.via.as_str(),
            opened.kind.as_str(),
            info.version,
            info.durability,
            machine.cores,
            tokio::runtime::Handle::current().metrics().num_workers(),
            known(machine.memory_gib.map(|gib| gib.to_string())),
            known(machine.load.map(|load| load.to_string())),
            self.namespace,
        ))
    }

    fn print(&self, line: &Repeated) -> Result<()> {
        if !self.arguments.json {
            return write(&format!("\n{}", line.text()));
        }
        let mut object = Map::new();
        object.insert("type".into(), json!("figures"));
        object.insert("scenario".into(), json!(self.arguments.scenario.as_str()));
        object.insert("via".into(), json!(self.arguments.via.as_str()));
        object.insert("store".into(), json!(self.store.kind().as_str()));
        object.insert("sync".into(), json!(self.sync()));
        // The settings of a scenario's own line are stronger: `store` measures several settings in one run.
        object.extend(line.json());
        write(&format!("{}\n", Value::Object(object)))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("no holder of this lock panics")
    }
}

fn write(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::Output)
}
