//! The scenarios, one file for each subject. Adding one: its function here, its line in
//! [`Scenario`], its words in `docs/benchmarks.md`.

mod bloat;
mod blocked;
mod budget;
mod bulk;
mod ceiling;
mod dashboard;
mod fair;
mod flow;
mod footprint;
mod growth;
mod idle;
mod population;
mod renew;
mod routed;
mod schedules;
mod search;
mod steady;
mod steps;
mod store;
mod stream;
mod suspend;
mod throughput;
mod wake;

use crate::arguments::Scenario;
use crate::error::Result;
use crate::run::Run;

/// One repetition.
pub(crate) async fn run(run: &Run<'_>) -> Result<()> {
    match run.arguments.scenario {
        Scenario::Throughput => throughput::throughput(run).await,
        Scenario::Wake => wake::wake(run).await,
        Scenario::SuspendResume => suspend::suspend_resume(run).await,
        Scenario::Steady => steady::steady(run).await,
        Scenario::Steps => steps::steps(run).await,
        Scenario::Chain => flow::chain(run).await,
        Scenario::Fan => flow::fan(run).await,
        Scenario::Routed => routed::routed(run).await,
        Scenario::QuorumCancel => flow::quorum_cancel(run).await,
        Scenario::Idle => idle::idle(run).await,
        Scenario::Stream => stream::stream(run).await,
        Scenario::Budget => budget::budget(run).await,
        Scenario::Ceiling => ceiling::ceiling(run).await,
        Scenario::Growth => growth::growth(run).await,
        Scenario::Renew => renew::renew(run).await,
        Scenario::Fair => fair::fair(run).await,
        Scenario::Blocked => blocked::blocked(run).await,
        Scenario::Footprint => footprint::footprint(run).await,
        Scenario::Bloat => bloat::bloat(run).await,
        Scenario::Store => store::store(run).await,
        Scenario::Dashboard => dashboard::dashboard(run).await,
        Scenario::Search => search::search(run).await,
        Scenario::Schedules => schedules::schedules(run).await,
        Scenario::Bulk => bulk::bulk(run).await,
    }
}
