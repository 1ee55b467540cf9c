//! Metrics: what the engine and the server count, as values for embedders and in the text format of Prometheus.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use ff_core::Result;
use ff_engine::{Caller, Family, FamilyKind, SampleValue};
use hyper::{Response, StatusCode};

use crate::answer::{self, Body};
use crate::app::App;

/// The label of a lane.
const LANE: &str = "lane";
/// A scrape does not wait longer than this for the store.
const QUEUES_TIMEOUT: Duration = Duration::from_secs(5);

/// The counters of a server, for a program that runs it and has a registry of its own.
#[derive(Clone)]
pub struct Observer(pub(crate) Arc<App>);

impl Observer {
    /// All metrics, as they are now.
    pub async fn families(&self) -> Vec<Family> {
        families(&self.0, &Caller::system()).await
    }
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Observer")
    }
}

/// Answers a scrape with what the caller may see.
pub(crate) async fn response(app: &App, caller: &Caller) -> Result<Response<Body>> {
    let text = render(&families(app, caller).await);
    Ok(answer::whole(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text))
}

async fn families(app: &App, caller: &Caller) -> Vec<Family> {
    let info = app.engine.store().info();
    let version = [("version", env!("CARGO_PKG_VERSION")), ("store", info.kind)];
    let build = gauge("flowfabric_build_info", "The program and its store.").number(&version, 1);
    let mut families = vec![build];
    // The engine's counters by lane do not name a namespace: a caller that reaches one namespace sees none of them.
    let scoped = caller.namespace.is_some() || !caller.lanes.is_empty();
    let by_lane = |(name, _): &(&str, String)| *name == LANE;
    let of_all = |family: &Family| !family.samples.iter().any(|sample| sample.labels.iter().any(by_lane));
    families.extend(app.engine.metrics().families().into_iter().filter(|family| !scoped || of_all(family)));
    let help = "Responses by status.";
    let mut responses = Family::new("flowfabric_http_responses_total", FamilyKind::Counter, help);
    for (status, count) in app.counters.responses() {
        responses = responses.number(&[("status", &status.to_string())], count);
    }
    families.push(responses);
    let help = "Connections that were closed because their address had its share.";
    let refused = Family::new("flowfabric_connections_refused_total", FamilyKind::Counter, help);
    families.push(refused.number(&[], app.counters.refused_connections()));
    let streams = gauge("flowfabric_open_streams", "Places taken in the pools of open calls.");
    let streams = streams.number(&[("pool", "stream_ops")], app.pools.stream_ops.taken() as u64);
    families.push(streams.number(&[("pool", "sse")], app.pools.sse.taken() as u64));
    let feeds = gauge("flowfabric_stream_feeds", "Executions whose streams are being viewed.");
    families.push(feeds.number(&[], app.feeds.count() as u64));
    if let Some(tracer) = &app.tracer {
        let help = "Spans that were lost: the collector did not take them in time.";
        let lost = Family::new("flowfabric_spans_lost_total", FamilyKind::Counter, help);
        families.push(lost.number(&[], tracer.lost()));
    }
    queues(&mut families, app, caller).await;
    families
}

/// How much waits in each lane that the caller sees. A store that does not answer is said, and takes nothing else away
/// from the page.
async fn queues(families: &mut Vec<Family>, app: &App, caller: &Caller) {
    let depths = tokio::time::timeout(QUEUES_TIMEOUT, app.queues.depths(&app.engine)).await;
    let answered = matches!(depths, Ok(Ok(_)));
    families.push(gauge("flowfabric_store_up", "Whether the store answers.").number(&[], u64::from(answered)));
    let Ok(Ok(depths)) = depths else { return };
    let mut depth_of = gauge("flowfabric_queue_depth", "Executions that may be claimed, by lane.");
    let mut oldest = gauge("flowfabric_queue_oldest_seconds", "How long the next in line has waited, by lane.");
    let seen = depths.iter().filter(|((namespace, lane), _)| caller.sees(namespace) && caller.reaches(lane));
    for ((namespace, lane), depth) in seen {
        let labels = [("namespace", namespace.as_str()), (LANE, lane.as_str())];
        depth_of = depth_of.number(&labels, depth.waiting);
        oldest = oldest.with(&labels, SampleValue::Time(depth.oldest_ms.saturating_mul(1_000)));
    }
    families.extend([depth_of, oldest]);
}

fn gauge(name: &'static str, help: &'static str) -> Family {
    Family::new(name, FamilyKind::Gauge, help)
}

/// Families in the text format of Prometheus.
pub fn render(families: &[Family]) -> String {
    let mut page = String::new();
    for Family { name, help, kind, samples } in families {
        // Writing to a string does not fail.
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {}", kind.as_str());
        for one in samples {
            let labels: Vec<(&str, &str)> = one.labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
            match &one.value {
                SampleValue::Number(number) => sample(&mut page, name, &labels, &number.to_string()),
                SampleValue::Time(us) => sample(&mut page, name, &labels, &seconds(*us)),
                SampleValue::Histogram { buckets, sum_us } => histogram(&mut page, name, &labels, buckets, *sum_us),
            }
        }
    }
    page
}

fn histogram(page: &mut String, name: &str, labels: &[(&str, &str)], buckets: &[(u64, u64)], sum_us: u64) {
    let bucket = format!("{name}_bucket");
    for (bound, total) in buckets {
        let bound = if *bound == u64::MAX { "+Inf".to_owned() } else { seconds(*bound) };
        let labels = [labels, &[("le", bound.as_str())]].concat();
        sample(page, &bucket, &labels, &total.to_string());
    }
    sample(page, &format!("{name}_sum"), labels, &seconds(sum_us));
    let all = buckets.last().map_or(0, |(_, total)| *total);
    sample(page, &format!("{name}_count"), labels, &all.to_string());
}

/// Microseconds as seconds, exactly.
fn seconds(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

fn sample(page: &mut String, name: &str, labels: &[(&str, &str)], value: &str) {
    page.push_str(name);
    if !labels.is_empty() {
        let pairs: Vec<String> = labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape(value))).collect();
        let _ = write!(page, "{{{}}}", pairs.join(","));
    }
    let _ = writeln!(page, " {value}");
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_times_are_exact() {
        let family = gauge("a", "Help.").number(&[("b", "x\"y\\z\n")], 3).with(&[], SampleValue::Time(1_500));
        let text = render(&[family]);
        assert_eq!(text, "# HELP a Help.\n# TYPE a gauge\na{b=\"x\\\"y\\\\z\\n\"} 3\na 0.001500\n");
    }

    #[test]
    fn a_histogram_ends_with_all_of_it() {
        let value = SampleValue::Histogram { buckets: vec![(1_000, 1), (u64::MAX, 3)], sum_us: 5 };
        let text = render(&[Family::new("h", FamilyKind::Histogram, "Help.").with(&[("lane", "l")], value)]);
        let expected = "h_bucket{lane=\"l\",le=\"0.001000\"} 1\nh_bucket{lane=\"l\",le=\"+Inf\"} 3\n\
                        h_sum{lane=\"l\"} 0.000005\nh_count{lane=\"l\"} 3\n";
        assert!(text.ends_with(expected), "{text}");
    }
}
