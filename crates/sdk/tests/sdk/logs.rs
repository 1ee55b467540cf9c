//! The lines and spans that a worker writes, as a program that listens to `tracing` sees them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flowfabric::{CapabilitySet, Client, Code, FlowFabricWorker, TaskContext, TaskError, WorkerConfig, WorkerRuntime};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::support::within;

/// Fields by name; `message` is the text of a line.
type Fields = BTreeMap<String, String>;

/// A line or a span of the SDK.
#[derive(Debug, Clone)]
struct Line {
    level: Level,
    /// The name of a span; empty for a line.
    span: &'static str,
    /// The spans it is in, the innermost first.
    within: Vec<&'static str>,
    fields: Fields,
}

/// Everything the SDK said.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<Line>>>);

impl Said {
    fn lines(&self, message: &str) -> Vec<Line> {
        let said = self.0.lock().unwrap();
        said.iter().filter(|line| line.fields.get("message").is_some_and(|text| text == message)).cloned().collect()
    }

    fn spans(&self, name: &str) -> Vec<Line> {
        self.0.lock().unwrap().iter().filter(|line| line.span == name).cloned().collect()
    }
}

struct Read<'a>(&'a mut Fields);

impl Visit for Read<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Said {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        if attributes.metadata().target().starts_with("flowfabric") {
            let mut fields = Fields::new();
            attributes.record(&mut Read(&mut fields));
            let (level, span) = (*attributes.metadata().level(), attributes.metadata().name());
            self.0.lock().unwrap().push(Line { level, span, within: Vec::new(), fields });
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::new();
        event.record(&mut Read(&mut fields));
        let within = context.event_scope(event).into_iter().flatten().map(|span| span.name()).collect();
        self.0.lock().unwrap().push(Line { level: *event.metadata().level(), span: "", within, fields });
    }
}

/// Listens on this thread, where a test's runtime runs everything.
fn listen() -> (Said, tracing::subscriber::DefaultGuard) {
    let said = Said::default();
    let guard = tracing::subscriber::set_default(tracing_subscriber::registry().with(said.clone()));
    (said, guard)
}

#[tokio::test]
async fn every_claim_leaves_one_line_with_the_digest_and_what_was_missing() {
    let (said, _guard) = listen();
    let client = Client::connect("memory://").await.unwrap();
    let config = || WorkerConfig::new("w").claim_wait(Duration::ZERO);
    let able = FlowFabricWorker::connect(&client, config().capabilities(["gpu", "eu"])).await.unwrap();
    let registered = said.lines("the worker is registered");
    assert_eq!(registered.len(), 1, "{registered:?}");
    assert_eq!(registered[0].fields["capabilities"], "eu,gpu");
    let digest = registered[0].fields["digest"].clone();
    assert_eq!(digest.len(), 8);

    assert!(able.claim_next().await.unwrap().is_none());
    let missed = said.lines("a claim found nothing");
    assert_eq!((missed.len(), missed[0].level, &missed[0].fields["digest"]), (1, Level::DEBUG, &digest), "{missed:?}");

    client.submit("k").require(CapabilitySet::new(["gpu"]).unwrap()).send().await.unwrap();
    let task = within(able.claim_next()).await.unwrap().unwrap();
    let found = said.lines("a claim was answered");
    assert_eq!((found.len(), found[0].fields["tasks"].as_str(), &found[0].fields["digest"]), (1, "1", &digest));
    task.delay_execution(Duration::ZERO).await.unwrap();

    // Another process of the same worker, which lacks a capability, may use the worker's grant and is refused.
    let grant = within(able.obtain_grant("default", Duration::from_secs(30))).await.unwrap().unwrap();
    let unable = FlowFabricWorker::connect(&client, config().capabilities(["eu"])).await.unwrap();
    let refused = unable.claim_from_grant(&grant).await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::CapabilityMismatch));
    let failed = said.lines("a claim failed");
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(failed[0].fields["missing"].contains("gpu"), "{failed:?}");
    assert_ne!(failed[0].fields["digest"], digest, "the digest is that of the worker that claimed");
    assert!(failed[0].fields.values().all(|value| !value.contains("eu,gpu")), "the set is told once: {failed:?}");
}

#[tokio::test]
async fn a_task_and_a_renewal_have_spans_of_their_own() {
    let (said, _guard) = listen();
    let client = Client::connect("memory://").await.unwrap();
    let execution = client.submit("speaks").send().await.unwrap();
    let config = WorkerConfig::new("w").lease_ttl(Duration::from_secs(1));
    let runtime = WorkerRuntime::new(config).register("speaks", |context: TaskContext, _: ()| async move {
        context.renew_lease().await?;
        tracing::info!("the handler speaks");
        Ok::<_, TaskError>(())
    });
    let running = runtime.start(&client).await.unwrap();
    within(execution.result::<()>()).await.unwrap();
    let tasks = said.spans("task");
    assert_eq!(tasks.len(), 1, "{tasks:?}");
    let id = execution.id().to_string();
    assert_eq!((&tasks[0].fields["execution"], tasks[0].fields["kind"].as_str()), (&id, "speaks"));
    assert_eq!((tasks[0].fields["attempt"].as_str(), tasks[0].fields["epoch"].as_str()), ("0", "1"));
    assert_eq!(said.lines("the handler speaks")[0].within, ["task"]);
    assert!(!said.spans("renew_lease").is_empty());
    running.stop().await.unwrap();
}
