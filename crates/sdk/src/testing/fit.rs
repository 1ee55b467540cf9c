//! Whether a journal that was recorded by yesterday's code fits today's.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ff_core::PublicState;
use ff_core::journal::{StepIdentity, StepView};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use super::{TestBed, busy};
use crate::durable::{Moment, Watcher};
use crate::error::{Result, SdkError};
use crate::runtime::WorkerRuntime;
use crate::task_error::TaskError;

/// Real time that a function may take that runs no bodies.
const FIT_TIMEOUT: Duration = Duration::from_secs(30);

/// How a function gets on with a journal that it did not write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fit {
    /// Entries that the function asked for and found, in the order in which it asked.
    pub found: Vec<String>,
    /// Entries of the journal that it did not ask for: steps that were removed or renamed, or that come later.
    pub not_visited: Vec<String>,
    /// The first step or wait that the journal does not have. The function was left there, and no body was run.
    pub stopped_at: Option<String>,
    /// Why the function failed. The code and the journal do not go together, unless the recorded run failed as well.
    pub failure: Option<String>,
    /// The result of the function, as JSON, where the journal goes to its end.
    pub result: Option<String>,
}

/// Calls the function of a kind with a recorded journal: what was recorded is found, and nothing is run. The journal is
/// what `ff steps ID -o json` or `GET /v1/executions/ID/steps` gave.
pub async fn fit<S: Send + Sync + 'static>(
    runtime: WorkerRuntime<S>,
    kind: &str,
    input: &(impl Serialize + ?Sized),
    journal: &str,
) -> Result<Fit> {
    let recorded = Arc::new(Recorded { entries: entries(journal)?, ..Recorded::default() });
    let bed = TestBed::start().await?;
    let worker = runtime.watched_by(recorded.clone()).start(bed.client()).await?;
    let execution = bed.client().submit(kind).input(input).max_retries(0).send().await?;
    let ended = async {
        tokio::select! {
            () = recorded.stopped.notified() => Ok(None),
            ended = execution.wait() => ended.map(Some),
        }
    };
    let ended = tokio::time::timeout(FIT_TIMEOUT, ended).await.map_err(|_| busy("the function does not end"))??;
    drop(worker);
    let calls = std::mem::take(&mut *recorded.calls.lock().unwrap_or_else(PoisonError::into_inner));
    let known: BTreeSet<StepIdentity> = recorded.entries.iter().map(StepView::identity).collect();
    let visited: BTreeSet<&StepIdentity> = calls.called.iter().collect();
    let label = |step: &StepIdentity| step.label();
    let mut fit = Fit {
        found: calls.called.iter().filter(|step| known.contains(*step)).map(label).collect(),
        not_visited: known.iter().filter(|step| !visited.contains(step)).map(label).collect(),
        stopped_at: calls.stopped_at,
        failure: calls.asked,
        result: None,
    };
    if let Some(view) = ended {
        match view.public_state {
            PublicState::Completed => fit.result = Some(execution.result::<serde_json::Value>().await?.to_string()),
            state => {
                let words = |failure: ff_core::op::view::FailureView| {
                    format!("{}: {}", failure.category.unwrap_or_default(), failure.reason)
                };
                let reason = view.last_failure.map(words);
                fit.failure = Some(reason.unwrap_or_else(|| state.to_string()));
            }
        }
    }
    Ok(fit)
}

/// Replays the function against the journal, and panics if it fails with this journal or passes over some of it.
pub async fn assert_journal_fits<S: Send + Sync + 'static>(
    runtime: WorkerRuntime<S>,
    kind: &str,
    input: &(impl Serialize + ?Sized),
    journal: &str,
) -> Fit {
    let fit = match fit(runtime, kind, input, journal).await {
        Ok(fit) => fit,
        Err(error) => panic!("the journal could not be tried: {error}"),
    };
    if let Some(failure) = &fit.failure {
        panic!("the function fails with this journal: {failure}");
    }
    assert!(fit.not_visited.is_empty(), "the function passes over what was recorded: {:?}", fit.not_visited);
    fit
}

/// The last record of each entry, in the order of the journal.
fn entries(journal: &str) -> Result<Vec<StepView>> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Journal {
        Page { items: Vec<StepView> },
        Items(Vec<StepView>),
    }
    let journal = serde_json::from_str(journal).map_err(SdkError::payload("journal"))?;
    let (Journal::Page { items } | Journal::Items(items)) = journal;
    let mut last: Vec<StepView> = Vec::new();
    for item in items {
        last.retain(|known| known.identity() != item.identity());
        last.push(item);
    }
    Ok(last)
}

/// Gives a function its journal, and stops it where that ends.
#[derive(Debug, Default)]
struct Recorded {
    entries: Vec<StepView>,
    calls: Mutex<Calls>,
    stopped: Notify,
}

#[derive(Debug, Default)]
struct Calls {
    called: Vec<StepIdentity>,
    stopped_at: Option<String>,
    asked: Option<String>,
}

impl Watcher for Recorded {
    fn journal(&self) -> Option<Vec<StepView>> {
        Some(self.entries.clone())
    }

    fn called(&self, step: &StepIdentity) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).called.push(step.clone());
    }

    fn asked(&self, _: &StepIdentity, why: &str) {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).asked.get_or_insert_with(|| why.to_owned());
        self.stopped.notify_one();
    }

    fn reached<'a>(&'a self, _: Moment, step: &'a StepIdentity) -> BoxFuture<'a, Result<(), TaskError>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).stopped_at.get_or_insert_with(|| step.label());
        self.stopped.notify_one();
        Box::pin(std::future::pending())
    }
}
