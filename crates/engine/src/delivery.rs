//! Sends webhooks: deliveries are claimed from a lane of the engine's own, signed, handed to a courier, and completed
//! or failed like any other task. Retries, backoff and the end after too many of them are those of executions.
//!
//! The engine has no network: a program brings the [`Courier`]. Without one, deliveries wait for a server that has one.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use ff_core::op::view::Task;
use ff_core::op::{Complete, CompleteArgs, Delay, DelayArgs, Fail, FailArgs, Operation, SubscriptionTarget};
use ff_core::subscription::{DELIVERY_LANE, Subscription};
use ff_core::{Code, Error, JsonText, LeaseId, Partition, Result, limits, signature};
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::Semaphore;

use crate::caller::Caller;
use crate::courier::{Courier, Undelivered, Webhook};
use crate::env::{self, BoxFuture};
use crate::op::Handle;
use crate::scheduler::Ask;
use crate::scheduler::ready::{Criteria, Skills};
use crate::services::Services;

/// Webhooks that one server sends at the same time.
const SENDING_MAX: usize = 64;
/// Of these, webhooks of one namespace.
const SENDING_PER_NAMESPACE: usize = 16;
/// The lease of a delivery. It outlasts the longest sending and the telling of its end, so that none has to be renewed; when a
/// server dies, its deliveries wait that long for another one.
const LEASE_MS: i64 = 30_000;
/// How long one claim waits.
const CLAIM_WAIT_MS: i64 = 20_000;
/// A delivery of a paused subscription is looked at again after this time, or when the subscription goes on.
const PAUSED_MS: i64 = 30_000;
/// The pause after a claim that failed, and between two tries to tell how a delivery ended.
const RETRY_MS: i64 = 1_000;
/// How often its end is tried to be told; then the lease runs out, and it is sent again under the same id.
const ENDINGS_MAX: u32 = 10;

/// Sends webhooks.
pub(crate) struct Deliveries {
    services: Services,
}

impl Deliveries {
    pub(crate) fn new(services: Services) -> Self {
        Self { services }
    }

    /// Sends webhooks of every namespace that has some.
    pub(crate) async fn run(self) {
        let Some(courier) = self.services.transactor.options().courier.clone() else { return };
        let places = Arc::new(Semaphore::new(SENDING_MAX));
        let mut served = BTreeSet::new();
        let mut serving = FuturesUnordered::new();
        loop {
            for namespace in self.services.shared.subscriptions.state.webhook_namespaces() {
                if served.insert(namespace.clone()) {
                    serving.push(self.deliver_in(namespace, courier.clone(), places.clone()));
                }
            }
            let listed = Box::pin(self.services.shared.subscriptions.state.listed.notified());
            if serving.is_empty() {
                listed.await;
            } else if let Either::Right((Some(namespace), _)) = select(listed, serving.next()).await {
                served.remove(&namespace);
            }
        }
    }

    /// Sends the webhooks of one namespace, until it has no subscription that sends any.
    async fn deliver_in(&self, namespace: String, courier: Arc<dyn Courier>, places: Arc<Semaphore>) -> String {
        let mut sending = FuturesUnordered::new();
        let mut claiming: Option<BoxFuture<'_, Result<Vec<Task>>>> = None;
        loop {
            let wanted = self.services.shared.subscriptions.state.webhook_namespaces().contains(&namespace);
            if !wanted && sending.is_empty() {
                return namespace.clone();
            }
            // A delivery that is claimed is sent at once: its lease does not allow for a long wait for its place.
            let free = SENDING_PER_NAMESPACE.saturating_sub(sending.len()).min(places.available_permits());
            if claiming.is_none() && wanted && free == 0 && sending.is_empty() {
                drop(places.acquire().await);
                continue;
            }
            if claiming.is_none() && wanted && free > 0 {
                claiming = Some(Box::pin(self.claim_deliveries(&namespace, free)));
            }
            let claimed = match (claiming.as_mut(), sending.is_empty()) {
                (Some(claim), true) => Some(claim.await),
                (Some(claim), false) => match select(claim, sending.next()).await {
                    Either::Left((claimed, _)) => Some(claimed),
                    Either::Right(_) => None,
                },
                (None, _) => {
                    sending.next().await;
                    None
                }
            };
            let Some(claimed) = claimed else { continue };
            claiming = None;
            match claimed {
                Ok(tasks) => {
                    if tasks.is_empty() {
                        self.services.shared.subscriptions.state.found_nothing(&namespace);
                    }
                    sending.extend(tasks.into_iter().map(|task| self.carry(task, courier.clone(), places.clone())));
                }
                Err(error) => {
                    if error.code != Code::ShuttingDown
                        && let Some(suppressed) = self.services.transactor.may_log("deliveries cannot be claimed")
                    {
                        tracing::warn!(%error, suppressed, "deliveries cannot be claimed; trying again soon");
                    }
                    self.services.transactor.env().sleep(RETRY_MS).await;
                }
            }
        }
    }

    async fn claim_deliveries(&self, namespace: &str, most: usize) -> Result<Vec<Task>> {
        let mint = || LeaseId::mint(&env::mint(self.services.transactor.env(), self.services.transactor.now()));
        let ask = Ask {
            criteria: Arc::new(Criteria {
                namespace: namespace.to_owned(),
                lanes: [DELIVERY_LANE.to_owned()].into_iter().collect(),
                skills: Arc::new(Skills::default()),
            }),
            worker_id: OnceLock::new(),
            instance_id: format!("{DELIVERY_LANE}:{}", self.services.transactor.origin()),
            lease_ids: std::iter::repeat_with(mint).take(most).collect(),
            chosen_ids: 0,
            ttl_ms: LEASE_MS,
            wait_ms: CLAIM_WAIT_MS,
            grant_ttl_ms: None,
            gone: Default::default(),
            tries_more: Default::default(),
        };
        self.services.transactor.contain("deliveries", self.services.claim_own(ask)).await
    }

    /// Sends one delivery and tells how that ended.
    async fn carry(&self, task: Task, courier: Arc<dyn Courier>, places: Arc<Semaphore>) {
        let Ok(_place) = places.acquire().await else { return };
        let ending =
            match self.services.transactor.contain("deliveries", self.try_delivery(&task, courier.as_ref())).await {
                Ok(ending) => ending,
                Err(error) => Ending::Failed(Undelivered {
                    reason: format!("the delivery could not be prepared: {error}"),
                    category: "engine",
                    retry_after_ms: None,
                }),
            };
        for _ in 0..ENDINGS_MAX {
            match self.end_delivery(&task, &ending).await {
                Err(error) if error.code.retryable() => self.services.transactor.env().sleep(RETRY_MS).await,
                Err(error) => {
                    // It was cancelled meanwhile, as a rule.
                    return tracing::debug!(execution = %task.execution_id, %error, "a delivery ended otherwise");
                }
                Ok(()) => return,
            }
        }
    }

    async fn try_delivery(&self, task: &Task, courier: &dyn Courier) -> Result<Ending> {
        let (execution, _) = self.services.transactor.visible_execution(&Caller::system(), &task.execution_id).await?;
        let delivery = execution.delivery.as_ref();
        let delivery =
            delivery.ok_or_else(|| Error::new(Code::Internal, "an execution in this lane is no delivery"))?;
        let key = Subscription::key_of(&execution.namespace, &delivery.name);
        let found = self.services.shared.system.system_document::<Subscription>(&key).await?;
        let Some(subscription) = found.filter(|one| one.id == delivery.subscription && !one.removing) else {
            return Ok(Ending::Failed(Undelivered {
                reason: "the subscription was removed".into(),
                category: "subscription_removed",
                retry_after_ms: None,
            }));
        };
        // The copy may be a second old, and a delivery that is put off misses the moment at which its subscription goes on.
        if subscription.paused && !delivery.is_test() {
            let now = self.services.transactor.find::<Subscription>(Partition::SYSTEM, key).await?;
            if now.is_some_and(|one| one.paused) {
                return Ok(Ending::Later);
            }
        }
        let SubscriptionTarget::Webhook(target) = SubscriptionTarget::of(&subscription.definition)? else {
            return Err(Error::new(Code::Internal, "an execution in this lane is no webhook"));
        };
        let body = task.input.as_ref().map(|input| input.bytes.clone()).unwrap_or_default();
        let id = task.execution_id.to_string();
        let timestamp_s = self.services.transactor.now_in(task.execution_id.partition()) / 1_000;
        let signature = signature::sign(&subscription.secret, &id, timestamp_s, &body);
        let headers = vec![
            (signature::ID_HEADER, id),
            (signature::TIMESTAMP_HEADER, timestamp_s.to_string()),
            (signature::SIGNATURE_HEADER, signature),
        ];
        let began = self.services.transactor.env().now_ms();
        Ok(match courier.send(Webhook { url: target.url, headers, body }).await {
            Ok(status) => Ending::Arrived { status, took_ms: self.services.transactor.env().now_ms() - began },
            Err(undelivered) => Ending::Failed(undelivered),
        })
    }

    async fn end_delivery(&self, task: &Task, ending: &Ending) -> Result<()> {
        let (execution_id, fence) = (task.execution_id, task.fence);
        match ending {
            Ending::Arrived { status, took_ms } => {
                let result = JsonText::of(&serde_json::json!({ "status": status, "took_ms": took_ms }))?;
                let args = CompleteArgs {
                    execution_id,
                    fence,
                    result: Some(result),
                    result_base64: None,
                    content_type: None,
                    entries: Vec::new(),
                    first_number: None,
                    run: None,
                };
                self.end::<Complete>(args).await
            }
            Ending::Failed(undelivered) => {
                let args = FailArgs {
                    execution_id,
                    fence,
                    reason: undelivered.reason.clone(),
                    category: Some(undelivered.category.to_owned()),
                    retry_after_ms: undelivered.retry_after_ms.map(|ms| ms.clamp(0, limits::DURATION_MAX_MS)),
                    cause: None,
                    undone: Vec::new(),
                    entries: Vec::new(),
                    first_number: None,
                    run: None,
                };
                self.end::<Fail>(args).await
            }
            Ending::Later => {
                let delay_ms = Some(PAUSED_MS);
                let args =
                    DelayArgs { execution_id, fence, until: None, delay_ms, entries: Vec::new(), first_number: None };
                self.end::<Delay>(args).await
            }
        }
    }

    async fn end<O: Operation>(&self, args: O::Args) -> Result<()>
    where
        Services: Handle<O>,
    {
        self.services.perform::<O>(&Caller::system(), args).await.map(drop)
    }
}

/// How one try of a delivery ended.
enum Ending {
    /// The receiver has it.
    Arrived { status: u16, took_ms: i64 },
    /// It did not arrive.
    Failed(Undelivered),
    /// Its subscription is paused.
    Later,
}
