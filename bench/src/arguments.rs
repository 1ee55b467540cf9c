//! The arguments of a benchmark.

use clap::{Args, ValueEnum};
use ff_core::PartitionConfig;

use crate::subject::Via;

/// The scenario, the store it runs on, and its size.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Arguments {
    /// The scenario to measure
    #[arg(value_enum)]
    pub scenario: Scenario,
    /// The address of a store, or a kind that is made anew: sqlite, memory, and for `ff-bench` valkey and postgres
    #[arg(long, value_name = "STORE", default_value = "sqlite")]
    // Read later: a complaint about an argument would repeat it, with the password that may be in it.
    pub store: String,
    /// The meaning of an acknowledgement: full or normal; async, everysec or replicated [default: the store's first]
    #[arg(long)]
    pub sync: Option<String>,
    /// The way to the engine
    #[arg(long, value_enum, default_value = "process")]
    pub via: Via,
    /// How often; the median and the spread are told [default: 3, or 1 where one takes long]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub repetitions: Option<usize>,
    /// Threads of this program's runtime [default: one less than there are cores, which is left to the store]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub threads: Option<usize>,
    /// How many tasks; frames or leases where the scenario is about those
    #[arg(long, value_name = "N", default_value = "10000", value_parser = positive)]
    pub tasks: usize,
    /// How many workers; `growth` takes several numbers [default: the scenario's]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = positive)]
    pub workers: Vec<usize>,
    /// How many submitters at once
    #[arg(long, value_name = "N", default_value = "64", value_parser = positive)]
    pub submitters: usize,
    /// For how long, where the scenario has a duration [default: 60, or 6 for `store`]; each part of `dashboard`
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: Option<u32>,
    /// Flow partitions of a new store, with an eighth as many for budgets and for quotas; `growth` takes several numbers
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub partitions: Vec<u32>,
    /// How many are queued, for `growth`: several numbers
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1000,100000,1000000", value_parser = positive)]
    pub queued: Vec<usize>,
    /// A new Valkey as a cluster of so many primaries, for `ff-bench`
    #[arg(long, value_name = "N", value_parser = positive)]
    pub primaries: Option<usize>,
    /// How many look at one stream, for `stream`
    #[arg(long, value_name = "N", default_value = "1000", value_parser = positive)]
    pub viewers: usize,
    /// How many servers on one store, for `idle` and `throughput`
    #[arg(long, value_name = "N", default_value = "1", value_parser = positive)]
    pub servers: usize,
    /// How a worker ends a task and takes the next, for `throughput` and `chain`
    #[arg(long, value_enum, default_value = "worker")]
    pub calls: Calls,
    /// How large the input of each task is, for `footprint` and `throughput`
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub input_bytes: usize,
    /// One JSON object a line instead of text
    #[arg(long)]
    pub json: bool,
}

/// How a worker ends a task and takes the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Calls {
    /// By one worker of the SDK that has `--workers` tasks at once and gathers their ends; in `chain`, as `exchange`
    Worker,
    /// In one call for each task, by `--workers` workers with one task at a time
    Exchange,
    /// In two, as a loop does that claims and completes by itself
    Separate,
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "not a number from 1".into())
}

impl Arguments {
    /// The number of workers, or the scenario's own.
    pub(crate) fn workers_or(&self, default: usize) -> usize {
        self.workers.first().copied().unwrap_or(default)
    }

    /// The duration in seconds, or the scenario's own.
    pub(crate) fn seconds_or(&self, default: u32) -> u32 {
        self.seconds.unwrap_or(default)
    }

    /// How often the scenario is run.
    pub(crate) fn repetitions(&self) -> usize {
        self.repetitions.unwrap_or(self.scenario.repetitions())
    }
}

/// So many flow partitions, with fewer for the rest.
pub(crate) fn partitions(flow: u32) -> PartitionConfig {
    let others = (flow / 8).max(1);
    PartitionConfig { flow, budget: others, quota: others }
}

/// The scenarios.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// Empty tasks a second through the engine: submit, claim, complete; and submitted in batches
    Throughput,
    /// From submit to the task in the hand of an idle worker
    Wake,
    /// From a signal to the suspended task back in hand, at 1 and at 64 at a time
    SuspendResume,
    /// How long tasks wait while they come steadily, at 20, 50 and 80 % of the rate of `throughput`
    Steady,
    /// Functions of 1, 3, 9 and 10 durable steps, alone and a hundred at once; and the claim of a long journal
    Steps,
    /// Chains of ten: one at a time, and a hundred at once
    Chain,
    /// A flow of one, then many (`--tasks`, as far as one graph may be large), then one
    Fan,
    /// Workers with ten sets of capabilities, behind a task that no worker can run
    Routed,
    /// One success cancels 9, 99 and 999 others
    QuorumCancel,
    /// The cost of idle workers for the store
    Idle,
    /// Frames a second to streams, and how soon many viewers of one see them
    Stream,
    /// Usage reports a second on one budget, and what admission by a budget and a quota costs
    Budget,
    /// Agents that race for one limit; on Valkey beside a limiter that looks first and charges afterwards
    Ceiling,
    /// Rates with few and many queued, workers and partitions
    Growth,
    /// The cost of keeping many (`--tasks`) leases
    Renew,
    /// Turns by key: tenants with ten each behind one with many (`--tasks`), and what keys cost
    Fair,
    /// How many (`--tasks`) behind a budget that is used up delay the one that may run
    Blocked,
    /// Bytes in the store for each waiting and each completed execution
    Footprint,
    /// Sizes of Postgres tables before and after many (`--tasks`) tasks, and after a vacuum
    Bloat,
    /// Commits a second of an empty store, for one committer and for many
    Store,
    /// The calls of each screen of the dashboard over many (`--tasks`) executions, and what ten open ones cost
    Dashboard,
    /// The first page of every filter over many (`--tasks`) executions, and counts
    Search,
    /// How soon after an instant many (`--tasks`) schedules that are due then have run
    Schedules,
    /// One job cancels many (`--tasks`) executions
    Bulk,
}

impl Scenario {
    /// As on the command line and in results.
    pub fn as_str(self) -> &'static str {
        match self {
            Scenario::Throughput => "throughput",
            Scenario::Wake => "wake",
            Scenario::SuspendResume => "suspend-resume",
            Scenario::Steady => "steady",
            Scenario::Steps => "steps",
            Scenario::Chain => "chain",
            Scenario::Fan => "fan",
            Scenario::Routed => "routed",
            Scenario::QuorumCancel => "quorum-cancel",
            Scenario::Idle => "idle",
            Scenario::Stream => "stream",
            Scenario::Budget => "budget",
            Scenario::Ceiling => "ceiling",
            Scenario::Growth => "growth",
            Scenario::Renew => "renew",
            Scenario::Fair => "fair",
            Scenario::Blocked => "blocked",
            Scenario::Footprint => "footprint",
            Scenario::Bloat => "bloat",
            Scenario::Store => "store",
            Scenario::Dashboard => "dashboard",
            Scenario::Search => "search",
            Scenario::Schedules => "schedules",
            Scenario::Bulk => "bulk",
        }
    }

    /// The way to the engine: a browser has one alone.
    pub(crate) fn via(self, wanted: Via) -> Via {
        if self == Scenario::Dashboard { Via::Http } else { wanted }
    }

    /// Long ones run once, and `store` takes turns by itself.
    fn repetitions(self) -> usize {
        match self {
            Scenario::Steady | Scenario::Idle | Scenario::Growth | Scenario::Renew => 1,
            Scenario::Footprint | Scenario::Bloat | Scenario::Store | Scenario::Dashboard => 1,
            Scenario::Search | Scenario::Schedules | Scenario::Bulk => 1,
            _ => 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_call_a_scenario_as_the_command_line_does() {
        for scenario in Scenario::value_variants() {
            let name = scenario.to_possible_value().expect("none is hidden");
            assert_eq!(scenario.as_str(), name.get_name());
        }
    }
}
