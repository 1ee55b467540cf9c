//! Watchers: viewers of streams, subscribers of events, and people who page through lists. What they are shown is
//! compared with what was committed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ff_core::op::{ListEvents, ListExecutions, ReadStream, TailStream};
use ff_core::{ExecutionId, PublicState};
use serde_json::json;

use crate::checker::frames_log;
use crate::world::World;

/// Pages of one walk through a list.
const PAGES_MAX: usize = 200;

/// Watches streams until the weather is calm.
pub(crate) async fn watch_streams(world: Arc<World>) {
    while world.stormy() {
        let pause = world.between(0, 500);
        world.wait(pause).await;
        let executions = world.desk().executions.clone();
        if executions.is_empty() {
            continue;
        }
        let id = world.pick(&executions);
        let attempt = world.between(0, 2);
        if world.chance(700) { tail(&world, id, attempt).await } else { read(&world, id, attempt).await }
    }
}

/// Follows one attempt's stream from its start: every frame once and in order, and all of them at the end.
async fn tail(world: &Arc<World>, id: ExecutionId, attempt: i64) {
    let generation = world.checker().generation;
    let mut last = 0u64;
    for _ in 0..world.between(1, 8) {
        let count = world.between(1, 4);
        let mut args = json!({
            "execution_id": id, "attempt": attempt, "block_ms": world.between(0, 2_000), "count": count,
        });
        if last > 0 {
            args["after"] = json!(format!("{attempt}-{last}"));
        }
        let Some(Ok(page)) = world.insist::<TailStream>(&args).await else { return };
        let mut checker = world.checker();
        if checker.generation != generation {
            return;
        }
        let full = page.frames.len() == usize::try_from(count).unwrap_or(usize::MAX);
        let ended = page.closed_at.is_some() && !full;
        last = checker.saw_frames(id, attempt, last, &page.frames, ended);
        if ended {
            return;
        }
    }
}

async fn read(world: &Arc<World>, id: ExecutionId, attempt: i64) {
    let args = json!({ "execution_id": id, "attempt": attempt, "from": "-", "to": "+" });
    let generation = world.checker().generation;
    let Some(Ok(page)) = world.insist::<ReadStream>(&args).await else { return };
    let mut checker = world.checker();
    if checker.generation == generation {
        checker.saw_frames(id, attempt, 0, &page.frames, page.closed_at.is_some());
    }
}

/// Follows all events from the first on, for as long as the world lasts.
pub(crate) async fn subscribe(world: Arc<World>) {
    let mut cursor: Option<String> = None;
    let mut read: BTreeMap<u16, u64> = BTreeMap::new();
    let mut generation = world.checker().generation;
    while !world.over() {
        let mut args = json!({ "limit": world.between(1, 60), "wait_ms": world.between(0, 3_000) });
        if let Some(cursor) = &cursor {
            args["cursor"] = json!(cursor);
        }
        let answer = world.insist::<ListEvents>(&args).await;
        let pause = world.between(1, 1_000);
        {
            let mut checker = world.checker();
            if checker.generation != generation {
                // The events that were read may never have happened; a subscriber of a store that forgets begins again.
                generation = checker.generation;
                (cursor, read) = (None, BTreeMap::new());
            } else if let Some(Ok(page)) = answer {
                checker.saw_events(&mut read, &page);
                cursor = Some(page.next_cursor);
            }
            checker.facts.events_read.clone_from(&read);
        }
        world.wait(pause).await;
    }
}

/// Pages through the list of executions while it changes.
pub(crate) async fn browse(world: &Arc<World>) {
    let state = world.chance(300).then(|| world.pick(PublicState::ALL));
    let namespace = world.pick(world.profile.namespaces());
    let (generation, expected) = {
        let checker = world.checker();
        let all = checker.facts.executions.values().filter(|seen| seen.document.namespace == namespace);
        (checker.generation, all.map(|seen| seen.document.id).collect::<BTreeSet<_>>())
    };
    let mut seen: Vec<(i64, ExecutionId)> = Vec::new();
    let mut args = json!({ "limit": world.between(1, 30), "namespace": namespace });
    if let Some(state) = state {
        args["state"] = json!(state);
    }
    for _ in 0..PAGES_MAX {
        let Some(Ok(page)) = world.insist::<ListExecutions>(&args).await else { return };
        seen.extend(page.items.iter().map(|item| (item.created_at, item.execution_id)));
        match page.next_cursor {
            Some(cursor) => args["cursor"] = json!(cursor),
            None => {
                let mut checker = world.checker();
                if checker.generation == generation {
                    checker.saw_list(&expected, &seen, state.is_none());
                }
                return;
            }
        }
    }
}

/// Whether everything that was appended to a stream was shown; used by the checkers.
pub(crate) fn stream_of(id: ExecutionId, attempt: i64) -> crate::checker::Place {
    (id.partition(), frames_log(id, u32::try_from(attempt).unwrap_or(0)))
}
