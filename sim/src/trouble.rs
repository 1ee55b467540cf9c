//! The troublemaker: kills servers and starts them again, moves the store's clock, and lets the store forget.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ff_core::Partition;
use ff_engine::{Engine, Options};
use futures_util::future::{Either, select};
use tokio::sync::oneshot;

use crate::checker::LAST_GUSTS_MS;
use crate::executor::{Owner, SimEnv};
use crate::invariant::Invariant;
use crate::store::SimStore;
use crate::subscriber;
use crate::world::{OUTSIDE, Server, World};

/// One round of the reconciler takes this long, where it runs.
const RECONCILE_MS: i64 = 10_000;
/// A server that is told to stop has stopped within this time, whatever the weather.
const STOP_MS: i64 = 15_000;
/// And the claims that wait at it are answered within this time: a repeated claim waits for the commit of the first call
/// and then notes in one of its own that it keeps the lease, and the replies to both may be lost for ten seconds each. In
/// calm, where every call is quick, they are answered within the second time.
const LAST_CLAIMS_MS: i64 = 22_000;
const LAST_CLAIMS_IN_CALM_MS: i64 = 1_000;

/// Starts every server, and the tasks that make trouble.
pub(crate) fn begin(world: &Arc<World>) {
    for number in 0..world.profile.servers {
        let owner = Owner(10 + u32::try_from(number).unwrap_or(0));
        world.servers().push(Server { owner, engine: None });
        start(world, number);
    }
    let profile = &world.profile;
    if profile.crash_ms > 0 {
        spawn(world, crashes(Arc::clone(world)));
    }
    if profile.jump_ms > 0 {
        spawn(world, jumps(Arc::clone(world)));
    }
    if profile.failover_ms > 0 {
        spawn(world, failovers(Arc::clone(world)));
    }
    if profile.partition_failover_ms > 0 {
        spawn(world, partition_failovers(Arc::clone(world)));
    }
    if profile.outage_ms > 0 {
        spawn(world, outages(Arc::clone(world)));
    }
}

/// Runs a task of the outside world to its end.
pub(crate) fn spawn(world: &Arc<World>, task: impl Future<Output = ()> + Send + 'static) {
    world.executor.spawn(OUTSIDE, Box::pin(task)).detach();
}

/// Starts a server in its place; it tries until the store lets it.
fn start(world: &Arc<World>, number: usize) {
    let owner = world.servers()[number].owner;
    let starting = Arc::clone(world);
    let task = async move {
        loop {
            let newer = starting.profile.mixed && number == 0;
            let store = Arc::new(SimStore::new(&starting, owner, newer));
            let env = Arc::new(SimEnv::new(&starting.executor, owner));
            match Engine::start(store, env, options(&starting, number)).await {
                Ok(engine) => {
                    starting.note(format_args!("server {} is up", owner.0));
                    starting.servers()[number].engine = Some(engine);
                    let out = starting.out();
                    starting.checker().disturbed(starting.executor.now_ms(), out);
                    return;
                }
                Err(error) => {
                    starting.note(format_args!("server {} cannot start: {error}", owner.0));
                    starting.wait(200).await;
                }
            }
        }
    };
    world.executor.spawn(owner, Box::pin(task)).detach();
}

fn options(world: &Arc<World>, number: usize) -> Options {
    Options {
        partitions: Some(world.profile.partitions),
        waitpoint_secret: Some("00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff".into()),
        // A reconciler repairs what should never have been broken, and would hide it from the checkers: where it runs,
        // it must find nothing.
        reconcile_ms: if world.profile.reconcile { RECONCILE_MS } else { 0 },
        services: number == 0 || !world.profile.lone_services,
        address: format!("server-{number}"),
        chunk_max: world.profile.chunk_max,
        courier: Some(subscriber::courier(world)),
        ..Options::default()
    }
}

/// Kills a server wherever it stands. Its successor is another process.
pub(crate) fn kill(world: &Arc<World>, number: usize) {
    let (dead, engine) = {
        let mut servers = world.servers();
        let server = &mut servers[number];
        let dead = server.owner;
        server.owner = Owner(dead.0 + 10);
        (dead, server.engine.take())
    };
    world.note(format_args!("server {} dies", dead.0));
    if let Some(engine) = &engine {
        check_engine(world, engine);
    }
    world.executor.kill(dead);
    drop(engine);
}

/// Stops a server as a deployment does: it takes no more calls, says goodbye, and is gone.
async fn stop(world: &Arc<World>, number: usize) {
    let (owner, engine) = {
        let mut servers = world.servers();
        (servers[number].owner, servers[number].engine.take())
    };
    if let Some(engine) = engine {
        world.note(format_args!("server {} stops", owner.0));
        let began = world.executor.now_ms();
        let (told, stopped) = oneshot::channel();
        let stopping = engine.clone();
        let goodbye = async move {
            stopping.close().await;
            // When the run is over, no actor listens.
            let _ = told.send(());
        };
        world.executor.spawn(owner, Box::pin(goodbye)).detach();
        let ended = select(stopped, world.executor.sleep(STOP_MS)).await;
        let stopped = matches!(ended, Either::Left(_));
        world.checker().expect(stopped, Invariant::StopsInTime, || {
            format!("server {} was told to stop at {began} and has not after {STOP_MS} ms", owner.0)
        });
        let patience_ms = if world.stormy() { LAST_CLAIMS_MS } else { LAST_CLAIMS_IN_CALM_MS };
        for _ in 0..patience_ms / 100 {
            if world.claims_at(owner) == 0 {
                break;
            }
            world.wait(100).await;
        }
        let claims = world.claims_at(owner);
        world.checker().expect(claims == 0, Invariant::StopsInTime, || {
            format!("{claims} claims still wait at server {}, which has stopped", owner.0)
        });
        check_engine(world, &engine);
    }
    kill(world, number);
}

/// Topics that an engine may keep at rest for the few callers that are still there.
const KEPT_MAX: usize = 10;
/// Documents that an engine may have locked at rest: those of operations that have just begun.
const LOCKED_MAX: usize = 3;

/// Checks what an engine did behind the scenes, before it is gone.
fn check_engine(world: &World, engine: &Engine) {
    let repairs = engine.metrics().repairs.load(Ordering::Relaxed);
    let mut checker = world.checker();
    let forgot = checker.generation > 0;
    checker.expect(forgot || repairs == 0, Invariant::NothingToRepair, || {
        format!("{} repaired {repairs} things in a store that forgot nothing", engine.options().address)
    });
}

/// Checks every engine that lives, when everything has come to rest: then it keeps next to nothing.
pub(crate) fn check_engines_at_rest(world: &World) {
    let engines: Vec<Engine> = world.servers().iter().filter_map(|server| server.engine.clone()).collect();
    for engine in engines {
        check_engine(world, &engine);
        for (what, count) in engine.kept_for_calls() {
            let most = if what == "locks" { LOCKED_MAX } else { KEPT_MAX };
            world.checker().expect(count <= most, Invariant::MemoryBounded, || {
                format!("{} keeps {count} {what} at rest", engine.options().address)
            });
        }
    }
}

/// A deployment in calm: one server is stopped and started again.
pub(crate) async fn deploy(world: Arc<World>) {
    let pause = world.between(LAST_GUSTS_MS + 3_000, LAST_GUSTS_MS + 4_500);
    world.wait(pause).await;
    let number = world.random().below(world.profile.servers);
    let out = world.out();
    world.checker().disturbed(world.executor.now_ms(), out);
    stop(&world, number).await;
    world.wait(200).await;
    start(&world, number);
}

async fn crashes(world: Arc<World>) {
    while world.stormy() {
        let pause = world.between(world.profile.crash_ms / 2, world.profile.crash_ms * 3 / 2);
        world.wait(pause).await;
        if !world.stormy() {
            return;
        }
        let number = world.random().below(world.profile.servers);
        if world.chance(world.profile.stops) {
            stop(&world, number).await;
        } else {
            kill(&world, number);
        }
        let down = world.between(1, 3_000);
        world.wait(down).await;
        start(&world, number);
    }
}

/// The clocks step, together or one alone, and sometimes back.
async fn jumps(world: Arc<World>) {
    while world.stormy() {
        let pause = world.between(world.profile.jump_ms / 2, world.profile.jump_ms * 3 / 2);
        world.wait(pause).await;
        let by = if world.chance(300) { -world.between(1, 2_000) } else { world.between(1, 3_000) };
        if world.profile.skew_ms > 0 && world.chance(500) {
            let partition = any_partition(&world);
            // The clocks stay within what the profile allows them to differ by.
            let offset = by.clamp(-world.profile.skew_ms, world.profile.skew_ms);
            world.note(format_args!("the clock of {partition} is set to {offset}"));
            world.clocks.set(partition, offset);
        } else {
            world.note(format_args!("the store's clocks step by {by}"));
            world.clocks.step_all(by);
        }
    }
}

fn any_partition(world: &World) -> Partition {
    let all: Vec<Partition> = world.profile.partitions.all().collect();
    world.pick(&all)
}

/// One partition cannot be reached for a while.
async fn outages(world: Arc<World>) {
    while world.stormy() {
        let pause = world.between(world.profile.outage_ms / 2, world.profile.outage_ms * 3 / 2);
        world.wait(pause).await;
        if !world.stormy() {
            return;
        }
        let partition = any_partition(&world);
        world.set_out(Some(partition));
        let down = world.between(500, 15_000);
        world.wait(down).await;
        if world.stormy() {
            world.set_out(None);
        }
    }
}

/// One partition forgets alone.
async fn partition_failovers(world: Arc<World>) {
    while world.stormy() {
        let pause = world.between(world.profile.partition_failover_ms / 2, world.profile.partition_failover_ms * 3 / 2);
        world.wait(pause).await;
        if !world.stormy() {
            return;
        }
        let partition = any_partition(&world);
        let (snapshot, generation) = (world.snapshot(), world.checker().generation);
        let lag = world.between(1, 1_500);
        world.wait(lag).await;
        // A snapshot from before another failover knows things that never happened.
        if world.stormy() && world.checker().generation == generation {
            world.fail_over_partition(partition, snapshot);
        }
    }
}

async fn failovers(world: Arc<World>) {
    while world.stormy() {
        let pause = world.between(world.profile.failover_ms / 2, world.profile.failover_ms * 3 / 2);
        world.wait(pause).await;
        if !world.stormy() {
            return;
        }
        let (snapshot, generation) = (world.snapshot(), world.checker().generation);
        let lag = world.between(1, 1_500);
        world.wait(lag).await;
        if world.stormy() && world.checker().generation == generation {
            world.fail_over(snapshot);
        }
    }
}
