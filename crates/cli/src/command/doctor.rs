//! `ff doctor`: examines a store or a server. Changes nothing there.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use flowfabric::op::{GetDeployment, get_deployment};
use flowfabric::{Deployment, PartitionConfig, SdkError};
use serde::Serialize;

use crate::arguments::Targeted;
use crate::failure::{self, Failure, Result};
use crate::output::{Cell, Colour, Fields, Style, one_line};
use crate::session::{Session, is_server};
use crate::span;
use crate::target::Target;

/// Calls that are timed; the middle one is told, and the fastest says most about the clock.
const ROUND_TRIPS: usize = 9;
/// Clocks that differ by more deserve a word.
const CLOCK_OFFSET_MAX_MS: i64 = 1_000;

/// The arguments of `ff doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff doctor                             the server of --server, FF_SERVER or the profile
  ff doctor sqlite://./flowfabric.db
  ff doctor valkey://127.0.0.1:6379
  ff doctor postgres://localhost/flowfabric --strict")]
pub(crate) struct Arguments {
    /// A store or a server [default: the server of --server, FF_SERVER or the profile]
    #[arg(value_name = "URL")]
    address: Option<String>,
    /// Exit code 12 when there are warnings
    #[arg(long)]
    strict: bool,
}

/// The findings about a server.
#[derive(Debug, Serialize)]
struct ServerReport {
    address: String,
    #[serde(flatten)]
    deployment: Deployment,
    /// The middle one of a few calls.
    round_trip_us: u64,
    /// By how much the store's clock is ahead of this machine's.
    clock_offset_ms: i64,
    warnings: Vec<String>,
}

/// Examines.
pub(crate) fn run(command: Targeted<Arguments>) -> ExitCode {
    let Targeted { own, target } = command;
    let target = match own.address {
        Some(address) => target.at(address),
        None => target,
    };
    super::conclude(super::in_runtime(examine(&target, own.strict)), &target)
}

async fn examine(target: &Target, strict: bool) -> Result<()> {
    let out = target.output();
    let address = target.destination()?.server;
    let warnings = if is_server(&address) {
        let report = server(&Session::open(target).await?).await?;
        out.answer(&report, |style| text(&report, style))?;
        report.warnings
    } else {
        let found = ff_stores::examine(&address).await.map_err(|error| SdkError::from(ff_core::Error::from(error)))?;
        out.answer(&found, |style| paint(&found.to_string(), style))?;
        found.warnings
    };
    if strict && !warnings.is_empty() { Err(Failure::silent(failure::WARNINGS)) } else { Ok(()) }
}

/// Warnings stand out.
fn paint(text: &str, style: Style) -> String {
    let line = |line: &str| match line.starts_with("warning") {
        true => style.paint(Colour::Yellow, &one_line(line)),
        false => one_line(line),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

async fn server(session: &Session) -> Result<ServerReport> {
    let mut round_trips: Vec<(Duration, i64)> = Vec::with_capacity(ROUND_TRIPS);
    let mut deployment = session.client.deployment().clone();
    for _ in 0..ROUND_TRIPS {
        let (began, sent) = (Instant::now(), span::now_ms());
        deployment = session.client.call::<GetDeployment>(get_deployment::Args {}).await?;
        let took = began.elapsed();
        // The server looked at its clock about half way.
        let half = i64::try_from(took.as_millis() / 2).unwrap_or(i64::MAX);
        round_trips.push((took, deployment.now.saturating_sub(sent.saturating_add(half))));
    }
    round_trips.sort_unstable();
    let clock_offset_ms = round_trips[0].1;
    Ok(ServerReport {
        address: session.address(),
        warnings: warnings(&deployment, clock_offset_ms),
        deployment,
        round_trip_us: u64::try_from(round_trips[ROUND_TRIPS / 2].0.as_micros()).unwrap_or(u64::MAX),
        clock_offset_ms,
    })
}

fn warnings(deployment: &Deployment, clock_offset_ms: i64) -> Vec<String> {
    let mut warnings = Vec::new();
    let own = env!("CARGO_PKG_VERSION");
    if deployment.version != own {
        warnings.push(format!("the server is version {}, this is {own}: commands may not fit", deployment.version));
    }
    if deployment.store == "memory" {
        warnings.push("the store is in memory: everything ends with the server".into());
    }
    if let Some(last) = deployment.undecodable_entries.last() {
        warnings.push(format!(
            "the server met stored entries that it cannot decode, {} times since its start, and leaves them out; last {}: {}",
            deployment.undecodable, last.key, last.error
        ));
    }
    if clock_offset_ms.abs() > CLOCK_OFFSET_MAX_MS {
        warnings.push(format!(
            "the store's clock differs from this machine's by {clock_offset_ms} ms: times given here may surprise"
        ));
    }
    warnings
}

fn text(report: &ServerReport, style: Style) -> String {
    let PartitionConfig { flow, budget, quota } = report.deployment.partitions;
    let mut fields = Fields::default();
    fields.add("server", Cell::of(&report.address));
    fields.add("version", Cell::of(&report.deployment.version));
    fields
        .add("store", Cell::of(format!("{} {}", report.deployment.store, one_line(&report.deployment.store_version))));
    fields.add("durability", Cell::of(&report.deployment.durability));
    fields.add("partitions", Cell::of(format!("{flow} flow, {budget} budget, {quota} quota")));
    fields.add("round trip", Cell::of(format!("{} us", report.round_trip_us)));
    fields.add("clock", Cell::of(format!("{:+} ms", report.clock_offset_ms)));
    for warning in &report.warnings {
        fields.add("warning", Cell::coloured(warning, Colour::Yellow));
    }
    fields.text(style)
}
