//! The way from a process to the store: slow, lossy and checked. Every batch that is applied is shown to the checkers
//! with what was there before it.

use std::sync::Arc;

use async_trait::async_trait;
use ff_core::{CommandId, Partition};
use ff_store::memory::{Call, Fault, Faults, Plan};
use ff_store::{Answers, Batch, Hints, Outcome, Query, Result, Store, StoreError, StoreInfo};
use tokio::sync::oneshot;

use crate::checker::Stamp;
use crate::executor::Owner;
use crate::world::{NETWORK, World};
use crate::{defects, newer};

/// How long it takes until a node that is gone has refused a call.
const REFUSAL_MS: i64 = 1;

/// The faults of one call on its way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Weather {
    /// Before it reaches the store.
    pub before_ms: i64,
    /// After it was carried out.
    pub after_ms: i64,
    /// It does not get there, and the caller knows.
    pub unavailable: bool,
    /// It does not get there, and the caller does not know.
    pub lost_request: bool,
    /// Its reply does not come back.
    pub lost_reply: bool,
    /// Another writer comes first.
    pub overtaken: bool,
    /// Its hints are lost.
    pub lose_hints: bool,
}

/// The store as one process sees it.
pub(crate) struct SimStore {
    world: Arc<World>,
    owner: Owner,
    /// The process writes keys that others do not know.
    newer: bool,
}

impl SimStore {
    /// For the process with this owner.
    pub(crate) fn new(world: &Arc<World>, owner: Owner, newer: bool) -> Self {
        Self { world: Arc::clone(world), owner, newer }
    }

    /// A node that is gone refuses after the time that a refusal takes.
    async fn reachable(&self, partition: Partition) -> Result<()> {
        if self.world.out() != Some(partition) {
            return Ok(());
        }
        self.world.wait(REFUSAL_MS).await;
        let now_ms = self.world.executor.now_ms();
        self.world.checker().refused(now_ms, partition);
        Err(StoreError::Unavailable("out of reach".into()))
    }
}

#[async_trait]
impl Store for SimStore {
    fn info(&self) -> StoreInfo {
        self.world.store.info()
    }

    fn clock_of(&self, partition: Partition) -> u64 {
        self.world.store.clock_of(partition)
    }

    async fn read(&self, partition: Partition, queries: Vec<Query>) -> Result<Answers> {
        let weather = self.world.weather();
        self.world.gust(weather.before_ms).await;
        self.reachable(partition).await?;
        if weather.unavailable {
            return Err(StoreError::Unavailable("simulated".into()));
        }
        if weather.lost_request {
            self.world.gust(weather.after_ms).await;
            return Err(StoreError::Unknown("simulated".into()));
        }
        let answers = self
            .world
            .store
            .read(partition, queries)
            .await
            .map(|answers| defects::read(&self.world, partition, answers));
        self.world.gust(weather.after_ms).await;
        if weather.lost_reply { Err(StoreError::Unknown("simulated".into())) } else { answers }
    }

    /// A commit that is on its way arrives even if its sender dies meanwhile.
    async fn commit(&self, partition: Partition, batches: Arc<[Batch]>) -> Result<Vec<Outcome>> {
        batches.iter().try_for_each(Batch::validate)?;
        self.reachable(partition).await?;
        let mut batches = batches.to_vec();
        if self.newer {
            batches.iter_mut().for_each(newer::write);
        }
        let weather = self.world.weather();
        if weather.unavailable {
            self.world.gust(weather.before_ms).await;
            return Err(StoreError::Unavailable("simulated".into()));
        }
        let (reply, answer) = oneshot::channel();
        let (world, owner) = (Arc::clone(&self.world), self.owner);
        let on_its_way = async move {
            world.gust(weather.before_ms).await;
            let mut stamp = None;
            let outcome = if weather.lost_request || world.out() == Some(partition) {
                defects::lost(&world, partition, &batches);
                Err(StoreError::Unknown("simulated".into()))
            } else {
                let outcomes = apply(&world, owner, partition, batches, &weather).await;
                let (at_ms, clock_set) = (world.executor.now_ms(), world.clocks.times_set(partition));
                let applied = outcomes.iter().flatten().any(|outcome| matches!(outcome, Outcome::Applied(_)));
                stamp = (applied && !weather.lost_reply).then_some(Stamp { at_ms, clock_set });
                if weather.lost_reply { Err(StoreError::Unknown("simulated".into())) } else { outcomes }
            };
            world.gust(weather.after_ms).await;
            // When the sender has died, no task waits for the reply any more.
            let _ = reply.send((outcome, stamp));
        };
        self.world.executor.spawn(NETWORK, Box::pin(on_its_way)).detach();
        let lost = |_| (Err(StoreError::Unknown("the network is gone".into())), None);
        let (outcome, stamp) = answer.await.unwrap_or_else(lost);
        if let Some(stamp) = stamp {
            self.world.checker().heard(self.owner, partition, stamp, self.world.executor.now_ms());
        }
        outcome
    }

    fn watch(&self) -> Hints {
        self.world.store.watch()
    }
}

/// Applies batches one by one, with the checkers looking on.
async fn apply(
    world: &Arc<World>,
    owner: Owner,
    partition: Partition,
    batches: Vec<Batch>,
    weather: &Weather,
) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::with_capacity(batches.len());
    for batch in batches {
        let overtaken = weather.overtaken.then(|| {
            let stranger = uuid::Uuid::from_u64_pair(world.executor.entropy(), world.executor.entropy());
            Fault::Overtaken(CommandId(stranger))
        });
        world.next_plan.set(Plan { fault: overtaken, lose_hints: weather.lose_hints, ..Plan::default() });
        let before = world.look_before(partition, &batch);
        let outcome = defects::commit(world, partition, batch.clone()).await?;
        for one in outcome {
            world.look_after(owner, partition, &batch, &before, &one);
            outcomes.push(one);
        }
    }
    Ok(outcomes)
}

/// Hands the memory store the plan of its next commit; everything else about a call is decided outside of it.
#[derive(Debug, Default)]
pub(crate) struct NextPlan(std::sync::Mutex<Plan>);

impl NextPlan {
    fn set(&self, plan: Plan) {
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = plan;
    }
}

impl Faults for NextPlan {
    fn plan(&self, call: Call<'_>) -> Plan {
        match call {
            Call::Read { .. } => Plan::default(),
            Call::Commit { .. } => {
                std::mem::take(&mut *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
            }
        }
    }
}
