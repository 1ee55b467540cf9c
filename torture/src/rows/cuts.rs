//! Connections that are cut at every byte of a request and of its answer. The caller repeats its call; it has one effect.

use std::time::Instant;

use ff_testkit::proxy::{Trouble, Way};
use serde_json::{Value, json};

use super::card::{Line, Verdict};
use crate::campaign::Campaign;
use crate::fleet::{Fleet, FleetOptions};
use crate::http::{Client, request};
use crate::store::Store;

/// A request has about so many bytes, and so has an answer.
const BYTES: usize = 320;

/// A count is exact up to this many.
const CALLS_MAX: usize = 9_000;

/// Cuts for as long as the campaign lasts, one after another.
pub(super) fn run(campaign: &Campaign) -> Line {
    let by = format!("cuts on {}", campaign.kind.name());
    match cut(campaign) {
        Ok((true, figures)) => Line::new(Verdict::Passed, by, figures),
        Ok((false, figures)) => Line::new(Verdict::Failed, by, figures),
        Err(why) => Line::new(Verdict::Failed, by, why),
    }
}

fn cut(campaign: &Campaign) -> Result<(bool, String), String> {
    std::fs::create_dir_all(&campaign.folder).map_err(|why| why.to_string())?;
    let store = Store::start(campaign.kind, &campaign.folder)?;
    let fleet = Fleet::start(FleetOptions {
        program: campaign.program.clone(),
        store: store.url(),
        servers: 1,
        folder: campaign.folder.clone(),
        clocks: false,
        variables: Vec::new(),
    })?;
    let front = fleet.fronts().remove(0);
    let end = Instant::now() + campaign.time;
    let (mut cuts, mut found, mut differing, mut number) = (0_u64, 0_u64, 0_u64, 0_usize);
    while Instant::now() < end && number < CALLS_MAX {
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
                cuts += 1;
                found += u64::from(again["duplicate"] == true);
            }
            Some((_, text)) => {
                let first: Value = serde_json::from_str(&text).unwrap_or_default();
                differing += u64::from(first["execution_id"] != again["execution_id"]);
            }
        }
        number += 1;
    }
    let (_, page) = request(&front, "GET /v1/counts", &Value::Null).ok_or("no counts")?;
    let counts: Value = serde_json::from_str(&page).map_err(|why| why.to_string())?;
    let states = counts["states"].as_object().into_iter().flat_map(|all| all.values());
    let made: u64 = states.filter_map(|count| count["value"].as_u64()).sum();
    let once = u64::try_from(number).is_ok_and(|number| number == made);
    let figures =
        format!("{number} calls, {cuts} cut, {found} of those had taken effect, {made} executions, {differing} differ");
    Ok((once && cuts > 0 && differing == 0, figures))
}
