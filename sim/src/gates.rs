//! Budgets, quotas and lanes of a run: actors that make them, charge them, close and open them.

use std::sync::Arc;

use ff_core::op::{
    AcquireProvider, CreateBudget, CreateProvider, CreateQuota, DecideBudget, DeleteBudget, DeleteLane, DeleteProvider,
    DeleteQuota, GetBudget, GetBudgetTree, GetProvider, GetQuota, ListProviders, ListReservations, PauseLane,
    ReleaseSpend, ReportBudgetUsage, ReportUsage, ReserveSpend, ResetBudget, ResumeLane, SetBudgetLimits,
    SettleProvider, SettleSpend, ThrottleProvider, UpdateBudget, UpdateProvider, UpdateQuota, reserve_spend,
};
use ff_core::usage::{self, ReportUsageResult};
use ff_core::{Budget, CommandId, ExecutionId, Key, lease::LeaseFence};
use serde_json::{Value, json};

use crate::checker::TOKENS;
use crate::worker::LANES;
use crate::world::World;

/// The budgets that submissions are charged to.
pub(crate) const BUDGETS: [&str; 3] = ["small", "large", "dry"];
/// The hard limits of each of them.
const HARD: [i64; 3] = [12, 400, 1];
/// The quotas that submissions run under.
pub(crate) const QUOTAS: [&str; 2] = ["slots", "rate"];

/// The provider that holders call.
pub(crate) const PROVIDER: &str = "model";
/// The concurrency keys that some submissions take, and the keys by which some take turns.
pub(crate) const KEYS: [&str; 2] = ["ada", "bob"];

/// Defines everything, then closes and opens things while the storm lasts, and afterwards keeps them open.
pub(crate) async fn run(world: Arc<World>) {
    define(&world).await;
    while world.stormy() {
        let pause = world.between(0, 1_500);
        world.wait(pause).await;
        act(&world).await;
        if world.chance(300) {
            provider(&world).await;
        }
    }
    while !world.over() {
        // An operator defines again what the store forgot: what waits for it could wait for ever.
        if world.profile.forgets() {
            for (name, hard) in BUDGETS.into_iter().zip(HARD) {
                drop(world.insist::<CreateBudget>(&budget(name, hard, false)).await);
            }
            for quota in quotas() {
                drop(world.insist::<CreateQuota>(&quota).await);
            }
        }
        for lane in LANES {
            for namespace in world.profile.namespaces() {
                drop(world.insist::<ResumeLane>(&json!({ "lane": lane, "namespace": namespace })).await);
            }
        }
        for name in BUDGETS {
            drop(world.insist::<ResetBudget>(&json!({ "name": name })).await);
        }
        world.wait(5_000).await;
    }
}

fn budget(name: &str, hard: i64, asks: bool) -> Value {
    let on_hard = if asks { "ask" } else { "block" };
    json!({ "name": name, "dimensions": { TOKENS: { "hard": hard, "soft": hard / 2 } }, "on_hard": on_hard })
}

fn quotas() -> [Value; 2] {
    let [slots, rate] = QUOTAS;
    [json!({ "name": slots, "max_concurrent": 2 }), json!({ "name": rate, "window_seconds": 20, "max_requests": 4 })]
}

async fn define(world: &Arc<World>) {
    let asking = world.chance(400);
    let rolling = world.chance(400);
    for (name, hard) in BUDGETS.into_iter().zip(HARD) {
        let mut budget = budget(name, hard, asking && name == "small");
        budget["rolling_ms"] = json!(if rolling && name != "dry" { 20_000 } else { 0 });
        while !matches!(world.insist::<CreateBudget>(&budget).await, Some(Ok(_))) {}
    }
    let (record, args) = new_report(world, "dry", 1, None);
    world.checker().will_report(record, 1);
    drop(world.insist::<ReportBudgetUsage>(&args).await);
    for quota in quotas() {
        while !matches!(world.insist::<CreateQuota>(&quota).await, Some(Ok(_))) {}
    }
    let provider =
        json!({ "name": PROVIDER, "window_ms": 10_000, "max_requests": 6, "max_tokens": 40, "max_concurrent": 2 });
    while !matches!(world.insist::<CreateProvider>(&provider).await, Some(Ok(_))) {}
}

async fn act(world: &Arc<World>) {
    // The dry one stays used up while the storm lasts.
    let name = world.pick(&BUDGETS[..2]);
    match world.between(0, 10) {
        0 if world.chance(300) => drop(world.call::<ResetBudget>(&json!({ "name": name })).await),
        0 => {
            let command = CommandId::mint(&world.mint());
            drop(world.insist::<ResetBudget>(&json!({ "name": name, "command_id": command })).await);
        }
        1 => {
            let hard = world.between(8, 40);
            let args = json!({ "name": name, "dimensions": { TOKENS: { "hard": hard, "soft": 4 } } });
            drop(world.insist::<SetBudgetLimits>(&args).await);
        }
        10 => change(world, name).await,
        2 if world.chance(200) => drop(world.insist::<GetBudgetTree>(&json!({ "name": name })).await),
        2 if world.chance(300) => drop(world.insist::<ListReservations>(&json!({ "name": name })).await),
        2 => drop(world.insist::<GetBudget>(&json!({ "name": name })).await),
        3 if world.chance(500) => {
            let command = CommandId::mint(&world.mint());
            let mut args =
                json!({ "name": name, "command_id": command, "answer": world.pick(&["grant", "raise", "no"]) });
            if args["answer"] != "no" {
                args["amounts"] = json!({ TOKENS: world.between(1, 40) });
            }
            drop(world.insist::<DecideBudget>(&args).await);
        }
        3 => drop(world.insist::<GetQuota>(&json!({ "name": world.pick(&QUOTAS) })).await),
        4 => drop(world.insist::<PauseLane>(&json!({ "lane": world.pick(&LANES), "reason": "a look" })).await),
        5 | 6 => drop(world.insist::<ResumeLane>(&json!({ "lane": world.pick(&LANES) })).await),
        7 => report_unnamed(world).await,
        _ => report(world, None).await,
    }
}

/// Looks at the provider, throttles it, changes it, and deletes one that no worker calls.
async fn provider(world: &Arc<World>) {
    let named = json!({ "name": PROVIDER });
    match world.between(0, 5) {
        0 => drop(world.insist::<GetProvider>(&named).await),
        1 => drop(world.insist::<ListProviders>(&json!({})).await),
        2 => {
            let command = CommandId::mint(&world.mint());
            let retry_after_ms = world.between(0, 4_000);
            let args = json!({ "name": PROVIDER, "retry_after_ms": retry_after_ms, "command_id": command });
            drop(world.insist::<ThrottleProvider>(&args).await);
        }
        3 => {
            let args = json!({ "name": PROVIDER, "max_concurrent": world.between(1, 4) });
            drop(world.insist::<UpdateProvider>(&args).await);
        }
        4 => drop(world.insist::<CreateProvider>(&json!({ "name": "spare", "max_requests": 1 })).await),
        _ => drop(world.insist::<DeleteProvider>(&json!({ "name": "spare", "force": world.chance(500) })).await),
    }
}

/// Asks the provider for a call, comes again when it is its turn, and settles, says nothing, or never comes back.
pub(crate) async fn call(world: &Arc<World>, id: ExecutionId, fence: LeaseFence) {
    let key = world.pick(&["first", "second"]);
    let cost = json!({ "tokens": world.between(0, 20) });
    let args = json!({ "execution_id": id, "fence": fence, "provider": PROVIDER, "key": key, "cost": cost,
        "ttl_ms": world.between(1_000, 6_000) });
    for _ in 0..world.between(1, 3) {
        let Some(Ok(acquired)) = world.insist::<AcquireProvider>(&args).await else { return };
        if acquired.granted {
            break;
        }
        world.wait(acquired.wait_ms.min(20_000)).await;
    }
    let pause = world.between(0, 4_000);
    world.wait(pause).await;
    if world.chance(700) {
        let actual = json!({ "tokens": world.between(0, 30) });
        let settle = json!({ "execution_id": id, "fence": fence, "provider": PROVIDER, "key": key, "actual": actual });
        drop(world.insist::<SettleProvider>(&settle).await);
    }
}

/// Changes things and deletes those that nothing here uses.
async fn change(world: &Arc<World>, budget: &str) {
    let spare = world.pick(&["spare", "other"]);
    match world.between(0, 6) {
        0 => {
            let on_soft = world.pick(&["warn", "none"]);
            drop(world.insist::<UpdateBudget>(&json!({ "name": budget, "on_soft": on_soft })).await);
        }
        1 => {
            let args = json!({ "name": world.pick(&QUOTAS), "jitter_ms": world.between(0, 200) });
            drop(world.insist::<UpdateQuota>(&args).await);
        }
        2 => {
            let args = json!({ "name": spare, "dimensions": { TOKENS: { "hard": 1 } } });
            drop(world.insist::<CreateBudget>(&args).await);
        }
        3 => drop(world.insist::<DeleteBudget>(&json!({ "name": spare, "force": world.chance(500) })).await),
        4 => drop(world.insist::<CreateQuota>(&json!({ "name": spare, "max_concurrent": 1 })).await),
        5 => drop(world.insist::<DeleteQuota>(&json!({ "name": spare, "force": world.chance(500) })).await),
        _ => drop(world.insist::<DeleteLane>(&json!({ "lane": spare, "force": world.chance(500) })).await),
    }
}

/// Charges a budget once, without a key: only the engine can keep such a charge from counting twice.
async fn report_unnamed(world: &Arc<World>) {
    let amount = world.pick(&[3, 5, 7, 11, 13]);
    world.checker().will_report_unnamed("large", amount);
    let args = json!({ "name": "large", "usage": { TOKENS: amount } });
    drop(world.call::<ReportBudgetUsage>(&args).await);
}

/// A report under a key of its own, and the record it will leave.
fn new_report(world: &World, name: &str, amount: i64, holder: Option<&ExecutionId>) -> (Key, Value) {
    let dedup_key = format!("usage-{}", world.executor.entropy());
    let record = record_key(name, holder, &dedup_key);
    (record, json!({ "name": name, "usage": { TOKENS: amount }, "dedup_key": dedup_key }))
}

/// Where a report of this key leaves its evidence.
fn record_key(name: &str, holder: Option<&ExecutionId>, dedup_key: &str) -> Key {
    usage::identity(&Budget::key_of("default", name), holder, dedup_key, 0).key()
}

/// Charges a budget, and sometimes charges it again under the same key.
pub(crate) async fn report(world: &Arc<World>, holder: Option<(ExecutionId, LeaseFence)>) {
    let name = world.pick(&BUDGETS);
    let amount = if name == "dry" { 1 } else { world.between(1, 5) };
    let (record, mut args) = new_report(world, name, amount, holder.as_ref().map(|(id, _)| id));
    world.checker().will_report(record.clone(), amount);
    if let (Some((id, fence)), Value::Object(args)) = (holder, &mut args) {
        args.insert("execution_id".into(), json!(id));
        args.insert("fence".into(), json!(fence));
    }
    for _ in 0..world.between(1, 2) {
        let generation = world.checker().generation;
        let answer = world.insist::<ReportBudgetUsage>(&args).await;
        let counted = matches!(answer, Some(Ok(ref answer)) if !matches!(answer, ReportUsageResult::HardBreach { .. }));
        let mut checker = world.checker();
        if counted && checker.generation == generation {
            checker.acknowledged_report(&record);
        }
    }
}

/// Charges every budget of an execution, as its holder does.
pub(crate) async fn report_as_holder(world: &Arc<World>, id: ExecutionId, fence: LeaseFence) {
    let place = (id.partition(), ff_core::execution::Execution::key_of(&id));
    let budgets = world.checker().facts.executions.get(&place).map(|seen| seen.document.budgets.clone());
    let amount = world.between(1, 3);
    let dedup_key = format!("usage-{}", world.executor.entropy());
    let record = |name: &str| record_key(name, Some(&id), &dedup_key);
    for name in budgets.iter().flatten() {
        world.checker().will_report(record(name), amount);
    }
    let args = json!({ "execution_id": id, "fence": fence, "usage": { TOKENS: amount }, "dedup_key": dedup_key });
    let generation = world.checker().generation;
    let Some(Ok(outcome)) = world.insist::<ReportUsage>(&args).await else { return };
    let mut checker = world.checker();
    for (name, answer) in outcome.budgets {
        if !matches!(answer, ReportUsageResult::HardBreach { .. }) && checker.generation == generation {
            checker.acknowledged_report(&record(&name));
        }
    }
}

/// Reserves, and then settles, releases, or says nothing, sometimes long after the reservation counts as spent. Keys are
/// few, so that they meet each other under one lease.
pub(crate) async fn spend(world: &Arc<World>, id: ExecutionId, fence: LeaseFence) {
    let held = |more: Value| {
        let mut args = json!({ "execution_id": id, "fence": fence });
        if let (Value::Object(args), Value::Object(more)) = (&mut args, more) {
            args.extend(more);
        }
        args
    };
    let key = world.pick(&["draft", "review", "publish"]);
    let amount = world.between(1, 6);
    let ttl_ms = world.between(1_000, 6_000);
    let reserve = held(json!({ "key": key, "amounts": { TOKENS: amount }, "ttl_ms": ttl_ms }));
    let answer = world.insist::<ReserveSpend>(&reserve).await;
    if !matches!(answer, Some(Ok(reserve_spend::Outcome::Reserved { .. }))) && world.chance(800) {
        return;
    }
    let pause = world.between(0, 8_000);
    world.wait(pause).await;
    match world.between(0, 9) {
        0 | 1 => {}
        2 | 3 => drop(world.insist::<ReleaseSpend>(&held(json!({ "key": key }))).await),
        _ => {
            let actual = world.between(0, 8);
            let settle = held(json!({ "key": key, "actual": { TOKENS: actual } }));
            drop(world.insist::<SettleSpend>(&settle).await);
        }
    }
}
