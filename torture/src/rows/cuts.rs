//! Connections that are cut at every byte of a request and of its answer. The caller repeats its call; it has one effect.

use std::sync::Arc;
use std::time::Instant;

use ff_testkit::proxy::{Trouble, Way};
use serde_json::{Value, json};

use super::card::{Count, Line, Verdict};
use crate::caller::Caller;
use crate::campaign::Campaign;
use crate::fleet::{Fleet, FleetOptions};
use crate::history::Recorder;
use crate::http::{Client, request};
use crate::outcome::list;
use crate::store::Store;

/// A request has about so many bytes, and so has an answer.
const BYTES: usize = 320;

/// What came of the calls.
#[derive(Debug, Default)]
struct Cuts {
    calls: usize,
    cut: u64,
    /// Calls that were cut and had taken effect all the same.
    found: u64,
    /// Calls whose repetition answered with another execution.
    differing: u64,
    /// Executions that are there at the end.
    made: usize,
}

/// Cuts for as long as the campaign lasts, one after another, or until there are so many.
pub(super) fn run(campaign: &Campaign, asked: Option<u64>) -> Line {
    let by = format!("cuts on {}", campaign.kind.name());
    let cuts = match cut(campaign, asked) {
        Ok(cuts) => cuts,
        Err(why) => return Line::new(Verdict::Failed, by, why),
    };
    let Cuts { calls, cut, found, differing, made } = cuts;
    let verdict = match asked {
        _ if calls != made || cut == 0 || differing > 0 => Verdict::Failed,
        Some(asked) if cut < asked => Verdict::Short,
        _ => Verdict::Passed,
    };
    let figures =
        format!("{calls} calls, {cut} cut, {found} of those had taken effect, {made} executions, {differing} differ");
    let mut line = Line::new(verdict, by, figures);
    line.count = asked.map(|asked| Count { what: "cuts".to_owned(), asked, reached: cut });
    line
}

fn cut(campaign: &Campaign, asked: Option<u64>) -> Result<Cuts, String> {
    std::fs::create_dir_all(&campaign.folder).map_err(|why| why.to_string())?;
    let store = Store::start(campaign.kind, &campaign.folder, &[])?;
    let fleet = Fleet::start(FleetOptions {
        program: campaign.program.clone(),
        older: None,
        store: store.url(),
        servers: 1,
        folder: campaign.folder.clone(),
        clocks: false,
        variables: Vec::new(),
    })?;
    let front = fleet.fronts().remove(0);
    let end = Instant::now() + campaign.time;
    let mut cuts = Cuts::default();
    while Instant::now() < end && asked.is_none_or(|asked| cuts.cut < asked) {
        let number = cuts.calls;
        let way = if number.is_multiple_of(2) { Way::Request } else { Way::Reply };
        fleet.disturb(Trouble::CutOnceAt(way, number / 2 % BYTES), true);
        let body = json!({ "kind": "cut", "lane": "cut", "idempotency_key": format!("cut-{number}") });
        // A fresh connection each time, so that bytes are counted from its beginning.
        let first = Client::default().request(&front, "POST /v1/executions", &body);
        fleet.disturb(Trouble::None, true);
        let again = request(&front, "POST /v1/executions", &body).ok_or("a server that runs does not answer")?;
        let again: Value = serde_json::from_str(&again.1).map_err(|why| why.to_string())?;
        match first {
            None => {
                cuts.cut += 1;
                cuts.found += u64::from(again["duplicate"] == true);
            }
            Some((_, text)) => {
                let first: Value = serde_json::from_str(&text).unwrap_or_default();
                cuts.differing += u64::from(first["execution_id"] != again["execution_id"]);
            }
        }
        cuts.calls += 1;
    }
    let recorder = Arc::new(Recorder::open(&campaign.folder, "clients")?);
    cuts.made = list(&mut Caller::new(&[front], &recorder, 0), "lane=cut").len();
    Ok(cuts)
}
