//! Creates the execution of a delivery: a webhook to be sent, or the work that its subscription asks for.

use std::collections::BTreeMap;

use ff_core::execution::{Execution, NewExecution};
use ff_core::op::parts::JSON;
use ff_core::op::view::EventMessage;
use ff_core::op::{CreateExecutionArgs, SubscriptionTarget};
use ff_core::payload::Payload;
use ff_core::subscription::{DELIVERY_LANE, Delivery, Subscription, WEBHOOK_KIND};
use ff_core::{Blob, ExecutionId, Result, limits};

use crate::caller::Caller;
use crate::options::Options;
use crate::submission::{Submissions, write_new};
use crate::transaction::Tx;

/// The creator of deliveries.
const CREATOR: &str = "subscription";

/// A delivery in the making.
pub(crate) struct NewDelivery {
    pub(crate) id: ExecutionId,
    pub(crate) event_id: String,
    pub(crate) message: EventMessage,
}

/// Creates the execution of a delivery.
pub(crate) async fn create_delivery(
    tx: &mut Tx<'_>,
    submissions: &Submissions,
    subscription: &Subscription,
    new: NewDelivery,
) -> Result<()> {
    let delivery = Delivery {
        subscription: subscription.id,
        name: subscription.name.clone(),
        event_id: new.event_id,
        event_type: new.message.message_type.clone(),
        ..Default::default()
    };
    let body = new.message.to_json();
    let (request, blob) = match SubscriptionTarget::of(&subscription.definition)? {
        SubscriptionTarget::Webhook(_) => {
            let (input, blob) = Payload::divide(body.into(), JSON);
            (webhook_request(tx.transactor.options(), subscription, new.id, input), blob)
        }
        SubscriptionTarget::Unknown(variant) => return Err(variant.refused("target")),
        SubscriptionTarget::Execution(request) => {
            let args = CreateExecutionArgs {
                execution_id: Some(new.id),
                input_base64: Some(Blob::from(body)),
                content_type: Some(JSON.to_owned()),
                ..*request
            };
            let namespace = Some(subscription.namespace.clone());
            let caller = Caller { name: CREATOR.to_owned(), namespace, ..Caller::system() };
            let submission = submissions.submission(&caller, &args).await?;
            submission.check_new()?;
            (submission.request, submission.blob)
        }
    };
    let mut execution = Execution::create(request, tx.now)?;
    execution.delivery = Some(Box::new(delivery));
    // What happens to a delivery is no event for subscriptions.
    write_new(tx, execution, blob, false);
    Ok(())
}

fn webhook_request(options: &Options, subscription: &Subscription, id: ExecutionId, input: Payload) -> NewExecution {
    let mut policy = subscription.delivery_policy();
    let kept_ms = options.retention_ms;
    policy.retention_ms = Some(kept_ms).filter(|kept_ms| *kept_ms != limits::RETENTION_DEFAULT_MS);
    NewExecution {
        id,
        namespace: subscription.namespace.clone(),
        lane: DELIVERY_LANE.to_owned(),
        kind: WEBHOOK_KIND.to_owned(),
        priority: 0,
        creator: CREATOR.to_owned(),
        submitted_by: String::new(),
        idempotency_key: String::new(),
        tags: BTreeMap::new(),
        policy: policy.into(),
        capabilities: Default::default(),
        budgets: Vec::new(),
        quota: None,
        input,
        delay_until: None,
        deadline_at: None,
        flow: None,
        node: String::new(),
        request_hash: Blob::default(),
        trace_context: String::new(),
        schedule: None,
        sharing: Default::default(),
    }
}
