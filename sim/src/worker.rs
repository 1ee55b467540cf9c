//! A worker: takes work directly or through grants, does something with it, and sometimes stops for longer than it may.

use std::sync::Arc;

use ff_core::lease::{ClaimGrant, GrantKind, LeaseEnd, LeaseFence};
use ff_core::op::parts::RenewalOutcome;
use ff_core::op::view::Task;
use ff_core::op::{
    AppendFrames, CancelExecution, Claim, ClaimFromGrant, ClaimFromReclaimGrant, Complete, CreateExecution,
    CreatePendingWaitpoint, Delay, DeregisterWorker, Fail, HeartbeatWorker, Progress, RegisterWorker, RenewLeases,
    ReturnGrant, Suspend, WaitChildren, suspend,
};
use ff_core::{ExecutionId, LeaseId};
use futures_util::future::{Either, select};
use serde_json::{Value, json};

use crate::checker::result_of;
use crate::client::request;
use crate::desk::{OpenWaitpoint, put};
use crate::gates;
use crate::trouble;
use crate::world::{Reply, World};

/// The lanes work is submitted to.
pub(crate) const LANES: [&str; 2] = ["default", "bulk"];

/// Works until the world ends.
pub(crate) async fn run(world: Arc<World>, number: usize) {
    let instance = format!("w-{number}");
    // Nothing forbids callers to use one lease id for everything: then only the epoch tells their leases apart. A store
    // that forgets takes epochs back, and there only an id that is a worker's own keeps its leases from another's.
    let own = world.mint_lease();
    let shared = world.profile.failover_ms == 0;
    let habit = (number % 2 == 1).then_some(if shared { world.habit } else { own });
    register(&world, &instance).await;
    loop {
        let (tasks, grants) = claim(&world, &instance, habit).await;
        for task in tasks {
            work(&world, &instance, &task).await;
        }
        for grant in grants {
            use_grant(&world, &instance, &grant).await;
        }
        // Some come and go.
        if world.stormy() && world.chance(30) {
            let args = json!({ "instance_id": instance, "nonce": instance });
            drop(world.insist::<DeregisterWorker>(&args).await);
            register(&world, &instance).await;
        }
    }
}

async fn register(world: &Arc<World>, instance: &str) {
    let args = json!({
        "instance_id": instance, "worker_id": instance, "lanes": LANES, "capabilities": ["gpu"], "capacity": 100,
        "nonce": instance, "lease_ttl_ms": 60_000,
    });
    drop(world.insist::<RegisterWorker>(&args).await);
}

/// Takes work, repeating the call with the same leases when its reply is lost.
async fn claim(world: &Arc<World>, instance: &str, habit: Option<LeaseId>) -> (Vec<Task>, Vec<ClaimGrant>) {
    let habit = habit.filter(|_| world.chance(700));
    let count = if habit.is_some() { 1 } else { world.between(1, 3) };
    let ttl_ms = world.between(1_000, 5_000);
    let wait_ms = world.between(0, 5_000);
    let leases: Vec<_> = (0..count).map(|_| habit.unwrap_or_else(|| world.mint_lease())).collect();
    let mut args = json!({
        "instance_id": instance, "lanes": LANES, "capabilities": ["gpu"], "max_tasks": count, "wait_ms": wait_ms,
        "lease_ttl_ms": ttl_ms, "lease_ids": leases,
    });
    if habit.is_none() && world.stormy() && world.chance(200) {
        args["mode"] = json!("grant");
        args["grant_ttl_ms"] = json!(world.between(100, 3_000));
    }
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
                return (Vec::new(), Vec::new());
            }
            Some(Reply::Answer(Ok(outcome))) => {
                for task in &outcome.tasks {
                    took(world, instance, generation, task);
                }
                return (outcome.tasks, outcome.grants);
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
    (Vec::new(), Vec::new())
}

fn took(world: &World, instance: &str, generation: u64, task: &Task) {
    world.note(format_args!("{instance} got {} {:?}", task.execution_id, task.fence));
    let mut checker = world.checker();
    if checker.generation == generation {
        checker.acknowledged_lease(task.execution_id, &task.fence, task.lease_expires_at);
    }
}

async fn use_grant(world: &Arc<World>, instance: &str, grant: &ClaimGrant) {
    let pause = world.between(0, 1_500);
    world.wait(pause).await;
    let mut args = json!({ "instance_id": instance, "grant_id": grant.grant_id, "execution_id": grant.execution_id });
    match world.between(0, 9) {
        0 => drop(world.insist::<ReturnGrant>(&args).await),
        1 => {}
        _ => {
            args["capabilities"] = json!(["gpu"]);
            args["lease_ttl_ms"] = json!(world.between(1_000, 5_000));
            let generation = world.checker().generation;
            let taken = if grant.kind == GrantKind::Reclaim && world.chance(500) {
                world.insist::<ClaimFromReclaimGrant>(&args).await
            } else {
                world.insist::<ClaimFromGrant>(&args).await
            };
            if let Some(Ok(outcome)) = taken {
                took(world, instance, generation, &outcome.task);
                work(world, instance, &outcome.task).await;
                // A worker that forgot what it did tries its grant again.
                if world.stormy() && world.chance(300) {
                    drop(world.insist::<ClaimFromGrant>(&args).await);
                }
            }
        }
    }
}

/// What a holder shows with every call.
#[derive(Clone)]
struct Holder {
    world: Arc<World>,
    instance: String,
    id: ExecutionId,
    fence: LeaseFence,
}

/// Does something with a task.
async fn work(world: &Arc<World>, instance: &str, task: &Task) {
    let (world, instance) = (Arc::clone(world), instance.to_owned());
    let holder = Holder { world: Arc::clone(&world), instance, id: task.execution_id, fence: task.fence };
    if !world.stormy() {
        return holder.end(0).await;
    }
    let mut next_frame = task.next_frame_sequence;
    for _ in 0..world.between(0, 3) {
        let busy = world.between(0, 300);
        world.wait(busy).await;
        match world.between(0, 9) {
            0..=2 => _ = holder.renew().await,
            3..=5 => next_frame = holder.stream(next_frame).await,
            6 => drop(world.insist::<Progress>(&holder.args(json!({ "pct": 50, "message": "half" }))).await),
            7 => holder.spawn_child().await,
            8 if world.chance(500) => gates::report(&world, Some((holder.id, holder.fence))).await,
            8 => gates::report_as_holder(&world, holder.id, holder.fence).await,
            _ => {}
        }
    }
    if world.chance(120) {
        holder.keep(task.lease_expires_at).await;
    }
    if world.chance(world.profile.zombies) {
        let stopped = world.between(900, 12_000);
        world.note(format_args!("the holder of {} stops for {stopped}", holder.id));
        world.wait(stopped).await;
        if world.chance(300) {
            let _ = holder.renew().await;
            holder.stream(next_frame).await;
        }
    }
    let way = world.between(0, 99);
    holder.end(way).await;
}

impl Holder {
    fn args(&self, more: Value) -> Value {
        let mut args = json!({ "execution_id": self.id, "fence": self.fence });
        if let (Some(args), Value::Object(more)) = (args.as_object_mut(), more) {
            args.extend(more);
        }
        args
    }

    /// Holds on for a while, renewing each time shortly before the end.
    async fn keep(&self, mut until: i64) {
        for _ in 0..self.world.between(1, 3) {
            let early = self.world.between(20, 600);
            let pause = until - self.world.store.now() - early;
            self.world.wait(pause).await;
            match self.renew().await {
                Some(renewed) => until = renewed,
                None => return,
            }
        }
    }

    /// Renews the lease, sometimes for a time of its own; answers until when it holds.
    async fn renew(&self) -> Option<i64> {
        let world = &self.world;
        let mut lease = self.args(json!({}));
        if world.chance(200) {
            lease["lease_ttl_ms"] = json!(world.between(1_000, 8_000));
        }
        let leases = json!([lease]);
        let mut until = None;
        let generation = world.checker().generation;
        let results = if world.chance(500) {
            let args = json!({ "instance_id": self.instance, "nonce": self.instance, "leases": leases });
            world.insist::<HeartbeatWorker>(&args).await.and_then(Result::ok).map(|outcome| outcome.leases)
        } else {
            let args = json!({ "leases": leases });
            world.insist::<RenewLeases>(&args).await.and_then(Result::ok).map(|outcome| outcome.results)
        };
        for result in results.into_iter().flatten() {
            if let RenewalOutcome::Renewed { expires_at, .. } = result {
                until = Some(expires_at);
                let mut checker = world.checker();
                if checker.generation == generation {
                    checker.acknowledged_lease(self.id, &self.fence, expires_at);
                }
            }
        }
        until
    }

    /// Appends a few frames; the one with number n says n.
    async fn stream(&self, first: u64) -> u64 {
        let world = &self.world;
        let count = u64::try_from(world.between(1, 3)).unwrap_or(1);
        let frames: Vec<Value> =
            (first..first + count).map(|number| json!({ "type": "text", "payload": number })).collect();
        let generation = world.checker().generation;
        let args = self.args(json!({ "first_sequence": first, "frames": frames }));
        match world.insist::<AppendFrames>(&args).await {
            Some(Ok(outcome)) => {
                let mut checker = world.checker();
                if checker.generation == generation {
                    checker.acknowledged_frames(self.id, &self.fence, outcome.last_sequence);
                }
                first + count
            }
            _ => first,
        }
    }

    async fn spawn_child(&self) {
        let world = &self.world;
        let mut args = request(world);
        let id = ExecutionId::in_partition(self.id.partition(), &world.mint());
        args["execution_id"] = json!(id);
        args["parent"] = self.args(json!({}));
        let generation = world.checker().generation;
        if let Some(Ok(_)) = world.insist::<CreateExecution>(&args).await {
            let mut checker = world.checker();
            if checker.generation == generation {
                checker.acknowledged_create(id);
            }
        }
    }

    /// Suspends, on a fresh waitpoint or on one that was announced before.
    async fn suspend(&self) -> Option<LeaseEnd> {
        let world = &self.world;
        let mut more =
            json!({ "reason": "signal", "condition": condition(world), "timeout_ms": world.between(500, 20_000) });
        more["timeout_behavior"] = json!(world.pick(&["fail", "cancel", "expire", "auto_resume", "escalate"]));
        more["idempotency_key"] = json!(format!("suspend-{}", self.fence.lease_id));
        if world.chance(400) {
            let args = self.args(json!({ "waitpoint_key": "early", "expires_in_ms": world.between(1_000, 20_000) }));
            let pending = world.insist::<CreatePendingWaitpoint>(&args).await?.ok()?;
            self.announce(pending.waitpoint_id, pending.token.0);
            let pause = world.between(0, 1_000);
            world.wait(pause).await;
            more["waitpoint_ids"] = json!([pending.waitpoint_id]);
        }
        match world.insist::<Suspend>(&self.args(more)).await?.ok()? {
            suspend::Outcome::Suspended { waitpoint_id, token, .. } => {
                self.announce(waitpoint_id, token.0);
                Some(LeaseEnd::Suspended)
            }
            // The lease is kept; the holder simply goes away.
            suspend::Outcome::AlreadySatisfied { .. } => None,
        }
    }

    fn announce(&self, waitpoint: ff_core::WaitpointId, token: String) {
        put(&mut self.world.desk().waitpoints, OpenWaitpoint { execution: self.id, waitpoint, token });
    }

    /// Ends the task, or lets go of it, one way in a hundred.
    async fn end(&self, way: i64) {
        let (world, id) = (&self.world, self.id);
        let generation = world.checker().generation;
        let told = match way {
            0..=44 => self.complete().await,
            45..=59 => {
                let category = world.pick(&["", "fatal", "network"]);
                let args = self.args(json!({ "reason": "it broke", "category": category }));
                world.insist::<Fail>(&args).await.and_then(Result::ok).map(|_| LeaseEnd::Failed)
            }
            60..=69 => {
                let args = self.args(json!({ "delay_ms": world.between(0, 5_000) }));
                world.insist::<Delay>(&args).await.and_then(Result::ok).map(|_| LeaseEnd::Delayed)
            }
            70..=84 => self.suspend().await,
            85..=89 => {
                let args = self.args(json!({}));
                world.insist::<WaitChildren>(&args).await.and_then(Result::ok).map(|_| LeaseEnd::WaitingChildren)
            }
            90..=92 => {
                drop(world.insist::<CancelExecution>(&self.args(json!({ "reason": "enough" }))).await);
                None
            }
            _ => {
                world.note(format_args!("the holder of {id} vanishes"));
                None
            }
        };
        let Some(end) = told else { return };
        self.acknowledge(generation, end);
        // A holder that forgot that it let go, while its worker takes other work.
        if end != LeaseEnd::Completed && world.stormy() && world.chance(400) {
            let confused = self.clone();
            trouble::spawn(world, async move { confused.act_again().await });
        }
    }

    async fn act_again(&self) {
        let pause = self.world.between(0, 6_000);
        self.world.wait(pause).await;
        let generation = self.world.checker().generation;
        if let Some(end) = self.complete().await {
            self.acknowledge(generation, end);
        }
    }

    async fn complete(&self) -> Option<LeaseEnd> {
        let result: Value = serde_json::from_str(&result_of(self.fence.lease_id, self.fence.epoch)).unwrap_or_default();
        let args = self.args(json!({ "result": result }));
        self.world.insist::<Complete>(&args).await.and_then(Result::ok).map(|_| LeaseEnd::Completed)
    }

    fn acknowledge(&self, generation: u64, end: LeaseEnd) {
        let mut checker = self.world.checker();
        if checker.generation == generation {
            checker.acknowledged_end(self.id, &self.fence, end);
        }
    }
}

fn condition(world: &World) -> Value {
    match world.between(0, 4) {
        0 => json!({ "any": [] }),
        1 => json!({ "any": [{ "name": "approve" }] }),
        2 => json!({ "all": [{ "name": "approve" }, { "name": "note" }] }),
        3 => json!({ "count": { "n": 2, "distinct": "sources" } }),
        _ => json!({ "count": { "n": 2 } }),
    }
}
