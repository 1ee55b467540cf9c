//! A worker: takes work directly or through grants, does something with it, and sometimes stops for longer than it may.

use std::sync::Arc;

use ff_core::lease::{ClaimGrant, GrantKind, LeaseEnd, LeaseFence};
use ff_core::op::parts::RenewalOutcome;
use ff_core::op::view::Task;
use ff_core::op::{
    AppendFrames, CancelExecution, Claim, ClaimFromGrant, ClaimFromReclaimGrant, Complete, CreateExecution,
    CreatePendingWaitpoint, Delay, DeregisterWorker, Exchange, ExchangeEnded, Fail, HeartbeatWorker, Progress,
    RegisterWorker, RenewLeases, ReturnGrant, Suspend, WaitChildren, suspend,
};
use ff_core::{Code, ExecutionId, LeaseId, Partition};
use futures_util::future::{Either, select};
use serde_json::{Value, json};

use crate::checker::{KEY_TAG, Waiter, result_of};
use crate::client::request;
use crate::desk::{OpenWaitpoint, put};
use crate::gates;
use crate::invariant::Invariant;
use crate::journal::{self, Left};
use crate::trouble;
use crate::world::{Reply, World};

/// The lanes work is submitted to.
pub(crate) const LANES: [&str; 3] = ["default", "bulk", "slow"];
/// Capabilities that work may need. The first two workers can do everything, so that nothing waits for ever.
pub(crate) const CAPABILITIES: [&[&str]; 3] = [&["gpu", "eu"], &["gpu"], &[]];
/// In calm a claim is answered this long after its wait is over at the latest, and in a storm this long.
const CALM_PATIENCE_MS: i64 = 1_500;
const STORM_PATIENCE_MS: i64 = 45_000;

/// In calm a task takes this long at the most, well within its lease even when a worker has a few at once.
const CALM_WORK_MS: i64 = 250;

/// Which work a worker takes.
#[derive(Clone)]
struct Terms {
    instance: String,
    namespace: &'static str,
    lanes: &'static [&'static str],
    capabilities: &'static [&'static str],
}

impl Terms {
    fn of(world: &World, number: usize) -> Self {
        let namespaces = world.profile.namespaces();
        let (lanes, capabilities): (&[&str], _) = match number {
            0 | 1 => (&LANES, CAPABILITIES[0]),
            3 => (&LANES[1..2], CAPABILITIES[1]),
            _ => (&LANES, CAPABILITIES[number % CAPABILITIES.len()]),
        };
        Self { instance: format!("w-{number}"), namespace: namespaces[number % namespaces.len()], lanes, capabilities }
    }

    fn waiter(&self, since_ms: i64) -> Waiter {
        let capabilities = serde_json::from_value(json!(self.capabilities)).unwrap_or_default();
        Waiter { namespace: self.namespace.to_owned(), lanes: self.lanes.to_vec(), capabilities, since_ms }
    }
}

/// Works until the world ends.
pub(crate) async fn run(world: Arc<World>, number: usize) {
    let terms = Terms::of(&world, number);
    let instance = terms.instance.clone();
    // Nothing forbids callers to use one lease id for everything: then only the epoch tells their leases apart. A store
    // that forgets takes epochs back, and there only an id that is a worker's own keeps its leases from another's.
    let own = world.mint_lease();
    let shared = !world.profile.forgets();
    let habit = (number % 2 == 1).then_some(if shared { world.habit } else { own });
    register(&world, &terms).await;
    while !world.over() {
        let (mut tasks, grants) = claim(&world, &terms, habit).await;
        // A busy worker ends what it has and takes the next in one call.
        while !tasks.is_empty() && habit.is_none() && world.stormy() && world.chance(300) {
            tasks = exchange(&world, &terms, &tasks).await;
        }
        for task in tasks {
            work(&world, &terms, &task).await;
        }
        for grant in grants {
            use_grant(&world, &terms, &grant).await;
        }
        // Some come and go.
        if world.stormy() && world.chance(30) {
            let args = json!({ "instance_id": instance, "namespace": terms.namespace, "nonce": instance });
            drop(world.insist::<DeregisterWorker>(&args).await);
            register(&world, &terms).await;
        }
    }
}

async fn register(world: &Arc<World>, terms: &Terms) {
    let instance = &terms.instance;
    let args = json!({
        "instance_id": instance, "worker_id": instance, "namespace": terms.namespace, "lanes": terms.lanes,
        "capabilities": terms.capabilities, "capacity": 100, "nonce": instance, "lease_ttl_ms": 60_000,
        "tools": [{ "kind": "sum", "description": "Adds up.", "input_schema": { "type": "object" } }],
    });
    drop(world.insist::<RegisterWorker>(&args).await);
}

/// Takes work, repeating the call with the same leases when its reply is lost.
async fn claim(world: &Arc<World>, terms: &Terms, habit: Option<LeaseId>) -> (Vec<Task>, Vec<ClaimGrant>) {
    let instance = terms.instance.as_str();
    let habit = habit.filter(|_| world.chance(700));
    let many = if world.profile.large { 40 } else { 3 };
    let count = if habit.is_some() { 1 } else { world.between(1, many) };
    let ttl_ms = world.between(1_000, 5_000);
    // A few wait for so long that only the end of their server can end them.
    let wait_ms = if world.chance(100) { 25_000 } else { world.between(0, 5_000) };
    let leases: Vec<_> = (0..count).map(|_| habit.unwrap_or_else(|| world.mint_lease())).collect();
    let mut args = json!({
        "instance_id": instance, "namespace": terms.namespace, "lanes": terms.lanes,
        "capabilities": terms.capabilities, "max_tasks": count, "wait_ms": wait_ms, "lease_ttl_ms": ttl_ms,
        "lease_ids": leases,
    });
    if habit.is_none() && world.stormy() && world.chance(200) {
        args["mode"] = json!("grant");
        args["grant_ttl_ms"] = json!(world.between(100, 3_000));
    }
    let generation = world.checker().generation;
    // Now and then the caller does not wait for the answer.
    let patience = if world.stormy() && world.chance(50) { world.between(0, 3_000) } else { i64::MAX / 4 };
    for _ in 0..6 {
        let began = Claiming::begin(world, terms, wait_ms);
        let asking = Box::pin(world.call::<Claim>(&args));
        let heard = match select(asking, world.executor.sleep(patience)).await {
            Either::Left((reply, _)) => Some(reply),
            Either::Right(_) => None,
        };
        began.heard(heard.as_ref());
        drop(began);
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
                world.note(format_args!("{instance} claims: {error}"));
                args["retry"] = Value::Bool(true);
            }
            Some(Reply::Lost) => args["retry"] = Value::Bool(true),
        }
        let pause = world.between(1, 300);
        world.wait(pause).await;
    }
    (Vec::new(), Vec::new())
}

/// Completes tasks and takes as many others, repeating the call with the same leases when its reply is lost.
async fn exchange(world: &Arc<World>, terms: &Terms, tasks: &[Task]) -> Vec<Task> {
    let holders: Vec<Holder> = tasks.iter().map(|task| Holder::of(world, terms, task)).collect();
    let end: Vec<Value> = holders.iter().map(|holder| json!({ "complete": holder.completion() })).collect();
    let leases: Vec<_> = tasks.iter().map(|_| world.mint_lease()).collect();
    let mut args = json!({
        "instance_id": terms.instance, "namespace": terms.namespace, "end": end,
        "claim": {
            "lanes": terms.lanes, "capabilities": terms.capabilities, "max_tasks": leases.len(), "lease_ids": leases,
            "lease_ttl_ms": world.between(1_000, 5_000),
        },
    });
    if world.chance(300) {
        args["renew"] = json!([holders[0].args(json!({}))]);
    }
    let generation = world.checker().generation;
    for _ in 0..6 {
        match world.call::<Exchange>(&args).await {
            Reply::Answer(Ok(outcome)) => {
                for (holder, ended) in holders.iter().zip(&outcome.end) {
                    if matches!(ended, ExchangeEnded::Complete(_)) {
                        holder.acknowledge(generation, LeaseEnd::Completed);
                    }
                }
                let claimed = outcome.claim.unwrap_or_default();
                for task in &claimed.tasks {
                    took(world, &terms.instance, generation, task);
                }
                return claimed.tasks;
            }
            Reply::Answer(Err(error)) => {
                world.note(format_args!("{} exchanges: {}", terms.instance, error.code.as_str()));
            }
            Reply::Lost => {}
        }
        args["claim"]["retry"] = Value::Bool(true);
        let pause = world.between(1, 300);
        world.wait(pause).await;
    }
    Vec::new()
}

/// A claim while it waits, as the checkers see it.
struct Claiming {
    world: Arc<World>,
    number: u64,
    began_ms: i64,
    wait_ms: i64,
    stormy: bool,
    blind: bool,
}

impl Claiming {
    fn begin(world: &Arc<World>, terms: &Terms, wait_ms: i64) -> Self {
        let began_ms = world.executor.now_ms();
        let number = world.checker().waits(&terms.instance, terms.waiter(began_ms));
        Self {
            world: Arc::clone(world),
            number,
            began_ms,
            wait_ms,
            stormy: world.stormy(),
            blind: nothing_readable(world),
        }
    }

    /// A claim ends when its wait is over, and says so when it could look at nothing.
    fn heard(&self, reply: Option<&Reply<ff_core::op::claim::Outcome>>) {
        let world = &self.world;
        let took_ms = world.executor.now_ms() - self.began_ms;
        let patience_ms = if self.stormy { STORM_PATIENCE_MS } else { CALM_PATIENCE_MS };
        let late = took_ms > self.wait_ms + patience_ms;
        world.checker().expect(!late, Invariant::ClaimsKeepTime, || {
            format!("a claim that may wait {} ms took {took_ms} ms", self.wait_ms)
        });
        let Some(Reply::Answer(Ok(outcome))) = reply else { return };
        let empty = outcome.tasks.is_empty() && outcome.grants.is_empty();
        let blind = self.blind && nothing_readable(world) && world.checker().undisturbed_since(self.began_ms);
        world.checker().expect(!(empty && blind && took_ms > 0), Invariant::ClaimsKeepTime, || {
            "a claim found nothing where it could read nothing".into()
        });
    }
}

impl Drop for Claiming {
    fn drop(&mut self) {
        self.world.checker().waited(self.number);
    }
}

/// Whether the one partition that work lives in is out of reach.
fn nothing_readable(world: &World) -> bool {
    world.profile.partitions.flow == 1 && world.out() == Some(Partition::flow(0))
}

fn took(world: &World, instance: &str, generation: u64, task: &Task) {
    world.note(format_args!("{instance} got {} {:?}", task.execution_id, task.fence));
    let mut checker = world.checker();
    if checker.generation == generation {
        checker.acknowledged_lease(task.execution_id, &task.fence, task.lease_expires_at);
        checker.claimed_journal(task);
    }
}

async fn use_grant(world: &Arc<World>, terms: &Terms, grant: &ClaimGrant) {
    let instance = terms.instance.as_str();
    let pause = world.between(0, 1_500);
    world.wait(pause).await;
    let mut args = json!({ "instance_id": instance, "grant_id": grant.grant_id, "execution_id": grant.execution_id });
    match world.between(0, 9) {
        0 => drop(world.insist::<ReturnGrant>(&args).await),
        1 => {}
        _ => {
            args["capabilities"] = json!(terms.capabilities);
            args["lease_ttl_ms"] = json!(world.between(1_000, 5_000));
            let generation = world.checker().generation;
            let taken = if grant.kind == GrantKind::Reclaim && world.chance(500) {
                world.insist::<ClaimFromReclaimGrant>(&args).await
            } else {
                world.insist::<ClaimFromGrant>(&args).await
            };
            if let Some(Ok(outcome)) = taken {
                took(world, instance, generation, &outcome.task);
                work(world, terms, &outcome.task).await;
                // A worker that forgot what it did tries its grant again.
                if world.stormy() && world.chance(300) {
                    drop(world.insist::<ClaimFromGrant>(&args).await);
                }
            }
        }
    }
}

/// The lease of a holder, which it shows with every call.
#[derive(Clone)]
pub(crate) struct Holder {
    pub(crate) world: Arc<World>,
    instance: String,
    namespace: &'static str,
    pub(crate) id: ExecutionId,
    pub(crate) fence: LeaseFence,
}

/// Does something with a task.
async fn work(world: &Arc<World>, terms: &Terms, task: &Task) {
    let holder = Holder::of(world, terms, task);
    if !world.stormy() {
        let busy = if world.profile.large { 0 } else { world.between(0, CALM_WORK_MS) };
        world.wait(busy).await;
        return holder.end(0).await;
    }
    let mut next_frame = task.next_frame_sequence;
    for _ in 0..world.between(0, 3) {
        let busy = world.between(0, 300);
        world.wait(busy).await;
        match world.between(0, 9) {
            0..=2 => _ = holder.renew().await,
            3..=5 => next_frame = holder.stream(next_frame).await,
            6 | 7 if world.profile.charged => gates::spend(world, holder.id, holder.fence).await,
            6 => drop(world.insist::<Progress>(&holder.args(json!({ "pct": 50, "message": "half" }))).await),
            7 => holder.spawn_child().await,
            8 if world.chance(400) => gates::spend(world, holder.id, holder.fence).await,
            8 if world.chance(400) => gates::call(world, holder.id, holder.fence).await,
            8 if world.chance(500) => gates::report(world, Some((holder.id, holder.fence))).await,
            8 => gates::report_as_holder(world, holder.id, holder.fence).await,
            _ => {}
        }
    }
    let begun = task.journal.as_ref().is_some_and(|journal| !journal.entries.is_empty());
    if (begun || world.chance(200)) && matches!(journal::run(&holder, task).await, Left::Nothing) {
        return;
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
    fn of(world: &Arc<World>, terms: &Terms, task: &Task) -> Self {
        let (world, instance, namespace) = (Arc::clone(world), terms.instance.clone(), terms.namespace);
        Self { world, instance, namespace, id: task.execution_id, fence: task.fence }
    }

    /// The arguments of a completion.
    fn completion(&self) -> Value {
        let result: Value = serde_json::from_str(&result_of(self.fence.lease_id, self.fence.epoch)).unwrap_or_default();
        self.args(json!({ "result": result }))
    }

    pub(crate) fn args(&self, more: Value) -> Value {
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
            let pause = until - self.world.store.now_in(self.id.partition()) - early;
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
            let namespace = self.namespace;
            let args = json!({
                "instance_id": self.instance, "namespace": namespace, "nonce": self.instance, "leases": leases,
            });
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
        // A later lease of the same execution spawns what an earlier one did, as code that runs again does.
        let earlier = world.desk().children.get(&self.id).cloned();
        let (id, mut args) = match earlier.filter(|_| world.chance(600)) {
            Some(earlier) => earlier,
            None => self.new_child(),
        };
        world.desk().children.insert(self.id, (id, args.clone()));
        args["parent"] = self.args(json!({}));
        let generation = world.checker().generation;
        let answer = world.insist::<CreateExecution>(&args).await;
        let mut checker = world.checker();
        match answer {
            Some(Ok(_)) if checker.generation == generation => checker.acknowledged_create(id),
            Some(Err(error)) if error.code == Code::IdempotencyConflict => {
                checker.violate(Invariant::OneEffect, format!("child {id} of {} cannot be spawned again", self.id));
            }
            _ => {}
        }
    }

    fn new_child(&self) -> (ExecutionId, Value) {
        let world = &self.world;
        let mut args = request(world);
        let id = ExecutionId::in_partition(self.id.partition(), &world.mint());
        args["execution_id"] = json!(id);
        // Otherwise it would take over its parent's, and pass for a second effect of the same submission.
        args["tags"] = json!({ KEY_TAG: id });
        let place = (id.partition(), ff_core::execution::Execution::key_of(&self.id));
        let namespace = world.checker().facts.executions.get(&place).map(|seen| seen.document.namespace.clone());
        if let (Some(namespace), Some(args)) = (namespace.filter(|name| name != "default"), args.as_object_mut()) {
            // Budgets and quotas are those of the other namespace.
            args.remove("budget_ids");
            args.remove("quota_policy_id");
            args.insert("namespace".into(), json!(namespace));
        }
        (id, args)
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
            suspend::Outcome::AlreadySatisfied { .. } | suspend::Outcome::Unknown(_) => None,
        }
    }

    pub(crate) fn announce(&self, waitpoint: ff_core::WaitpointId, token: String) {
        put(&mut self.world.desk().waitpoints, OpenWaitpoint { execution: self.id, waitpoint, token });
    }

    /// Ends the task, or lets go of it, one way in a hundred.
    async fn end(&self, way: i64) {
        let (world, id) = (&self.world, self.id);
        let generation = world.checker().generation;
        let told = match way {
            0..=44 => self.complete().await,
            45..=59 => {
                let mut args = self.args(json!({ "reason": "it broke" }));
                if let Some(category) = world.pick(&[None, Some("fatal"), Some("network")]) {
                    args["category"] = json!(category);
                }
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
        self.world.insist::<Complete>(&self.completion()).await.and_then(Result::ok).map(|_| LeaseEnd::Completed)
    }

    pub(crate) fn acknowledge(&self, generation: u64, end: LeaseEnd) {
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
