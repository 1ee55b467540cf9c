//! Metrics, in the text format of Prometheus.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ff_core::Result;
use ff_engine::Metrics;
use hyper::{Response, StatusCode};

use crate::app::App;
use crate::http::answer::{self, Body};

/// A scrape does not wait longer than this for the store.
const PATIENCE: Duration = Duration::from_secs(5);

/// Answers a scrape.
pub(crate) async fn response(app: &App) -> Result<Response<Body>> {
    let mut page = page(app);
    queues(&mut page, app).await;
    Ok(answer::whole(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page.text))
}

/// What waits in each lane. A store that does not answer is said, and takes nothing else away from the page.
async fn queues(page: &mut Page, app: &App) {
    let depths = tokio::time::timeout(PATIENCE, app.queues.depths(&app.engine)).await;
    let answered = matches!(depths, Ok(Ok(_)));
    page.family("flowfabric_store_up", "gauge", "Whether the store answers.");
    page.sample("flowfabric_store_up", &[], u64::from(answered));
    let Ok(Ok(depths)) = depths else { return };
    page.family("flowfabric_queue_depth", "gauge", "Executions that may be claimed, by lane.");
    for ((namespace, lane), depth) in &depths {
        page.sample("flowfabric_queue_depth", &[("namespace", namespace), ("lane", lane)], depth.waiting);
    }
    page.family("flowfabric_queue_oldest_seconds", "gauge", "How long the next in line has waited, by lane.");
    for ((namespace, lane), depth) in &depths {
        let labels = [("namespace", namespace.as_str()), ("lane", lane.as_str())];
        page.text_sample("flowfabric_queue_oldest_seconds", &labels, &seconds(depth.oldest_ms.saturating_mul(1_000)));
    }
}

fn page(app: &App) -> Page {
    let mut page = Page::default();
    let metrics = app.engine.metrics();
    let info = app.engine.store().info();
    page.family("flowfabric_build_info", "gauge", "The program and its store.");
    page.sample("flowfabric_build_info", &[("version", env!("CARGO_PKG_VERSION")), ("store", info.kind)], 1);
    page.family("flowfabric_operations_total", "counter", "Operations by name and outcome.");
    for ((name, outcome), count) in metrics.operations() {
        page.sample("flowfabric_operations_total", &[("operation", name), ("outcome", outcome)], count);
    }
    page.family("flowfabric_admission_refusals_total", "counter", "Refused admissions by reason.");
    for (why, count) in metrics.refusals() {
        page.sample("flowfabric_admission_refusals_total", &[("reason", &why)], count);
    }
    counters(&mut page, metrics);
    histograms(&mut page, metrics);
    page.family("flowfabric_http_responses_total", "counter", "Responses by status.");
    for (status, count) in app.counters.responses() {
        page.sample("flowfabric_http_responses_total", &[("status", &status.to_string())], count);
    }
    page.family("flowfabric_open_streams", "gauge", "Places taken in the pools of open calls.");
    page.sample("flowfabric_open_streams", &[("pool", "stream_ops")], app.pools.stream_ops.taken() as u64);
    page.sample("flowfabric_open_streams", &[("pool", "sse")], app.pools.sse.taken() as u64);
    page.family("flowfabric_stream_feeds", "gauge", "Executions whose streams are being viewed.");
    page.sample("flowfabric_stream_feeds", &[], app.feeds.count() as u64);
    page
}

fn counters(page: &mut Page, metrics: &Metrics) {
    for (name, help, counter) in [
        ("flowfabric_commit_conflicts_total", "Commits that met a conflict.", &metrics.conflicts),
        (
            "flowfabric_partitions_passed_over_total",
            "Partitions a claim could not read.",
            &metrics.partitions_passed_over,
        ),
        ("flowfabric_undecodable_total", "Stored entries that could not be decoded.", &metrics.undecodable),
        ("flowfabric_repairs_total", "Things the reconcilers repaired.", &metrics.repairs),
        ("flowfabric_store_reads_total", "Reads sent to the store.", &metrics.reads),
    ] {
        page.family(name, "counter", help);
        page.sample(name, &[], counter.load(Ordering::Relaxed));
    }
}

fn histograms(page: &mut Page, metrics: &Metrics) {
    for (name, help, histogram) in [
        ("flowfabric_commit_seconds", "How long commits took.", &metrics.commits),
        ("flowfabric_timer_lateness_seconds", "How late timers fired.", &metrics.timer_lateness),
        ("flowfabric_claim_seconds", "From a candidate to its lease.", &metrics.claims),
        ("flowfabric_queue_wait_seconds", "From creation to the first claim.", &metrics.queue_wait),
    ] {
        page.family(name, "histogram", help);
        let (counts, sum_us) = histogram.snapshot();
        let mut total = 0;
        let bucket = format!("{name}_bucket");
        for (bound, count) in ff_engine::BUCKETS_US.iter().zip(counts) {
            total += count;
            let bound = if *bound == u64::MAX { "+Inf".to_owned() } else { seconds(*bound) };
            page.sample(&bucket, &[("le", &bound)], total);
        }
        page.text_sample(&format!("{name}_sum"), &[], &seconds(sum_us));
        page.sample(&format!("{name}_count"), &[], total);
    }
}

/// Microseconds as seconds, exactly.
fn seconds(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

/// A page of samples.
#[derive(Default)]
struct Page {
    text: String,
}

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        self.text_sample(name, labels, &value.to_string());
    }

    fn text_sample(&mut self, name: &str, labels: &[(&str, &str)], value: &str) {
        self.text.push_str(name);
        if !labels.is_empty() {
            let pairs: Vec<String> =
                labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape(value))).collect();
            let _ = write!(self.text, "{{{}}}", pairs.join(","));
        }
        let _ = writeln!(self.text, " {value}");
    }
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut page = Page::default();
        page.sample("a", &[("b", "x\"y\\z\n")], 3);
        assert_eq!(page.text, "a{b=\"x\\\"y\\\\z\\n\"} 3\n");
        assert_eq!(seconds(1_500), "0.001500");
    }
}
