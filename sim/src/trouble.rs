//! Whoever makes trouble: kills servers and starts them again, moves the store's clock, and lets the store forget.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ff_engine::{Engine, Options};

use crate::executor::{Owner, SimEnv};
use crate::store::SimStore;
use crate::world::{OUTSIDE, Server, World};

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
            let store = Arc::new(SimStore::new(&starting, owner));
            let env = Arc::new(SimEnv::new(&starting.executor, owner));
            match Engine::start(store, env, options(&starting, number)).await {
                Ok(engine) => {
                    starting.note(format_args!("server {} is up", owner.0));
                    starting.servers()[number].engine = Some(engine);
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

fn options(world: &World, number: usize) -> Options {
    Options {
        partitions: Some(world.profile.partitions),
        waitpoint_secret: Some("00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff".into()),
        // A reconciler repairs what should never have been broken, and would hide it from the checkers.
        reconcile_ms: 0,
        address: format!("server-{number}"),
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
    world.executor.kill(dead);
    drop(engine);
}

async fn crashes(world: Arc<World>) {
    while world.stormy() {
        let pause = world.between(world.profile.crash_ms / 2, world.profile.crash_ms * 3 / 2);
        world.wait(pause).await;
        if !world.stormy() {
            return;
        }
        let number = world.random().below(world.profile.servers);
        kill(&world, number);
        let down = world.between(1, 3_000);
        world.wait(down).await;
        start(&world, number);
    }
}

async fn jumps(world: Arc<World>) {
    while world.stormy() {
        let pause = world.between(world.profile.jump_ms / 2, world.profile.jump_ms * 3 / 2);
        world.wait(pause).await;
        let by = world.between(1, 3_000);
        world.note(format_args!("the store's clock jumps by {by}"));
        world.jumped_ms.fetch_add(by, Ordering::Relaxed);
    }
}

async fn failovers(world: Arc<World>) {
    while world.stormy() {
        let pause = world.between(world.profile.failover_ms / 2, world.profile.failover_ms * 3 / 2);
        world.wait(pause).await;
        if !world.stormy() {
            return;
        }
        let snapshot = world.snapshot();
        let lag = world.between(1, 1_500);
        world.wait(lag).await;
        if world.stormy() {
            world.fail_over(snapshot);
        }
    }
}
