//! A worker: takes work, does something with it, and sometimes stops for longer than it may.

use std::sync::Arc;

use ff_core::lease::LeaseEnd;
use ff_core::op::view::Task;
use ff_core::op::{Claim, Complete, Delay, Fail};
use futures_util::future::{Either, select};
use serde_json::{Value, json};

use crate::checker::result_of;
use crate::world::{Reply, World};

/// The lanes work is submitted to.
pub(crate) const LANES: [&str; 2] = ["default", "bulk"];

/// Works until the world ends.
pub(crate) async fn run(world: Arc<World>, number: usize) {
    let instance = format!("w-{number}");
    loop {
        let tasks = claim(&world, &instance).await;
        for task in tasks {
            work(&world, &task).await;
        }
    }
}

/// Takes work, repeating the call with the same leases when its reply is lost.
async fn claim(world: &Arc<World>, instance: &str) -> Vec<Task> {
    let count = world.between(1, 3);
    let ttl_ms = world.between(1_000, 5_000);
    let wait_ms = world.between(0, 5_000);
    let leases: Vec<_> = (0..count).map(|_| world.mint_lease()).collect();
    let mut args = json!({
        "instance_id": instance, "lanes": LANES, "capabilities": ["gpu"], "max_tasks": count, "wait_ms": wait_ms,
        "lease_ttl_ms": ttl_ms, "lease_ids": leases,
    });
    let generation = world.checker().generation;
    // Now and then nobody waits for the answer.
    let patience = if world.stormy() && world.chance(50) { world.between(0, 3_000) } else { i64::MAX / 4 };
    for _ in 0..6 {
        let asking = Box::pin(world.call::<Claim>(&args));
        let heard = match select(asking, world.executor.sleep(patience)).await {
            Either::Left((reply, _)) => Some(reply),
            Either::Right(_) => None,
        };
        match heard {
            None => {
                world.note(format_args!("{instance} gives up on a claim"));
                return Vec::new();
            }
            Some(Reply::Answer(Ok(outcome))) => {
                for task in &outcome.tasks {
                    world.note(format_args!("{instance} got {} {:?}", task.execution_id, task.fence));
                    let mut checker = world.checker();
                    if checker.generation == generation {
                        checker.acknowledged_lease(task.execution_id, &task.fence, 0);
                    }
                }
                return outcome.tasks;
            }
            Some(Reply::Answer(Err(error))) => {
                world.note(format_args!("{instance} claims: {}", error.code.as_str()));
                args["retry"] = Value::Bool(true);
            }
            Some(Reply::Lost) => args["retry"] = Value::Bool(true),
        }
        let pause = world.between(1, 300);
        world.wait(pause).await;
    }
    Vec::new()
}

/// Does something with a task.
async fn work(world: &Arc<World>, task: &Task) {
    if !world.stormy() {
        return end(world, task, 0).await;
    }
    let busy = world.between(0, 400);
    world.wait(busy).await;
    if world.chance(world.profile.zombies) {
        let stopped = world.between(900, 12_000);
        world.note(format_args!("the holder of {} stops for {stopped}", task.execution_id));
        world.wait(stopped).await;
    }
    let way = world.between(0, 99);
    end(world, task, way).await;
}

/// Ends the task, or lets go of it, one way in a hundred.
async fn end(world: &Arc<World>, task: &Task, way: i64) {
    let (id, fence) = (task.execution_id, task.fence);
    let generation = world.checker().generation;
    let told = match way {
        0..=59 => {
            let result: Value = serde_json::from_str(&result_of(&fence.lease_id.to_string())).unwrap_or_default();
            let args = json!({ "execution_id": id, "fence": fence, "result": result });
            world.insist::<Complete>(&args).await.map(|answer| answer.map(|_| LeaseEnd::Completed))
        }
        60..=79 => {
            let category = world.pick(&["", "fatal", "network"]);
            let args = json!({ "execution_id": id, "fence": fence, "reason": "it broke", "category": category });
            world.insist::<Fail>(&args).await.map(|answer| answer.map(|_| LeaseEnd::Failed))
        }
        80..=91 => {
            let delay_ms = world.between(0, 5_000);
            let args = json!({ "execution_id": id, "fence": fence, "delay_ms": delay_ms });
            world.insist::<Delay>(&args).await.map(|answer| answer.map(|_| LeaseEnd::Delayed))
        }
        _ => {
            world.note(format_args!("the holder of {id} vanishes"));
            None
        }
    };
    if let Some(Ok(end)) = told {
        let mut checker = world.checker();
        if checker.generation == generation {
            checker.acknowledged_end(id, &fence, end);
        }
    }
}
