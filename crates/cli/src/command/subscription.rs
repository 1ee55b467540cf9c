//! `ff subscription`: events that are delivered, each once.

use flowfabric::op::{CreateSubscription, SubscriptionTarget, WebhookTarget, create_subscription, list_subscriptions};
use flowfabric::policy::RetryPolicy;
use flowfabric::subscription::{EventFilter, default_retry};
use flowfabric::{DeliveryView, EventType, FlowId, Secret, SubscriptionState, SubscriptionSummary, SubscriptionView};

use crate::failure::Result;
use crate::input::{self, Source, one_of};
use crate::output::{Cell, Colour, Style, Table, public_state};
use crate::session::Session;
use crate::span;

/// The arguments of `ff subscription`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff subscription create alarms --url https://example.com/hook --event failed --tag team=billing
  ff subscription test alarms
  ff subscription get alarms
  ff subscription pause alarms --note 'the receiver is moved'")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Create a subscription; the same definition again is the same subscription
    #[command(after_help = "\
Examples:
  ff subscription create alarms --url https://example.com/hook --event failed --event expired
  ff subscription create audit --url https://example.com/hook --secret-file secret.txt --retries 20
  ff subscription create clean-up --create tidy --lane chores --kind build

A secret that the server makes is shown this once. It verifies the header webhook-signature.")]
    Create(Box<Create>),
    /// List subscriptions
    #[command(after_help = "Examples:\n  ff subscription ls\n  ff subscription ls -o json | jq -r '.items[].name'")]
    Ls,
    /// Show a subscription and its last deliveries
    #[command(
        after_help = "Examples:\n  ff subscription get alarms\n  ff subscription get alarms -o json | jq '.deliveries[] | select(.public_state == \"failed\")'"
    )]
    Get {
        /// The subscription
        name: String,
    },
    /// Deliver nothing until it is resumed; events wait
    #[command(after_help = "Examples:\n  ff subscription pause alarms --note 'the receiver is moved'")]
    Pause(Noted),
    /// Go on where it stopped
    #[command(after_help = "Examples:\n  ff subscription resume alarms")]
    Resume(Noted),
    /// Deliver a message of the type test
    #[command(after_help = "Examples:\n  ff subscription test alarms\n  ff wait $(ff subscription test alarms)")]
    Test {
        /// The subscription
        name: String,
    },
    /// Remove a subscription; webhooks that have not arrived are cancelled
    #[command(after_help = "Examples:\n  ff subscription rm alarms")]
    Rm {
        /// The subscription
        name: String,
    },
}

#[derive(Debug, clap::Args)]
struct Create {
    /// Its name, unique in the namespace
    name: String,
    /// Where each event is sent to
    #[arg(long, required_unless_present = "create", conflicts_with = "create")]
    url: Option<String>,
    /// A file with the secret that requests are signed with, whsec_ and base64, or - for standard input [default: a random one]
    #[arg(long, value_name = "FILE", value_parser = Source::file, requires = "url")]
    secret_file: Option<Source>,
    /// For each event, create an execution of this kind, whose input is the event
    #[arg(long, value_name = "KIND")]
    create: Option<String>,
    /// The lane of these executions [default: default]
    #[arg(long, requires = "create")]
    lane: Option<String>,
    /// The types of events; may be repeated [default: the ends of executions]
    #[arg(long = "event", value_name = "TYPE", value_parser = one_of!(EventType))]
    events: Vec<EventType>,
    /// Only executions of this kind; may be repeated
    #[arg(long = "kind")]
    kinds: Vec<String>,
    /// Only executions with this tag; may be repeated
    #[arg(long = "tag", value_name = "KEY=VALUE", value_parser = input::pair)]
    tags: Vec<(String, String)>,
    /// Only members of this flow
    #[arg(long, value_name = "ID")]
    flow: Option<FlowId>,
    /// Times a webhook that failed is sent again [default: 10]
    #[arg(long, value_name = "COUNT", requires = "url")]
    retries: Option<u32>,
}

#[derive(Debug, clap::Args)]
struct Noted {
    /// The subscription
    name: String,
    /// Why; kept and shown
    #[arg(long)]
    note: Option<String>,
}

/// Does what the verb says.
pub(crate) async fn run(session: Session, arguments: Arguments) -> Result<()> {
    let client = &session.client;
    let changed = match arguments.verb {
        Verb::Create(subscription) => return create(&session, *subscription).await,
        Verb::Ls => {
            let items = client.list_subscriptions().await?;
            let answer = list_subscriptions::Outcome { items, next_cursor: None };
            return session.out.answer(&answer, |style| table(&answer.items, style));
        }
        Verb::Get { name } => {
            let subscription = client.get_subscription(&name).await?;
            return session.out.answer(&subscription, |style| details(&subscription, style));
        }
        Verb::Test { name } => {
            let execution_id = client.test_subscription(&name).await?;
            let answer = flowfabric::op::test_subscription::Outcome { execution_id };
            return session.out.answer(&answer, |_| execution_id.to_string());
        }
        Verb::Rm { name } => {
            let answer = client.delete_subscription(&name).await?;
            return session.out.answer(&answer, |_| format!("{name} is removed"));
        }
        Verb::Pause(change) => client.pause_subscription(&change.name, change.note.as_deref()).await?,
        Verb::Resume(change) => client.resume_subscription(&change.name, change.note.as_deref()).await?,
    };
    session.out.answer(&changed, |style| table(std::slice::from_ref(&changed), style))
}

async fn create(session: &Session, new: Create) -> Result<()> {
    let target = match (new.url, new.create) {
        (Some(url), _) => {
            let secret = new.secret_file.as_ref().map(Source::read_text).transpose()?;
            let secret = secret.map(|secret| Secret(secret.trim().to_owned()));
            SubscriptionTarget::Webhook(WebhookTarget { url, secret })
        }
        (None, kind) => SubscriptionTarget::Execution(Box::new(flowfabric::op::create_execution::Args {
            kind: kind.unwrap_or_default(),
            lane: new.lane,
            ..Default::default()
        })),
    };
    let filter = EventFilter {
        event_types: new.events,
        kinds: new.kinds,
        tags: new.tags.into_iter().collect(),
        flow_id: new.flow,
        ..Default::default()
    };
    let retry = new.retries.map(|max_retries| RetryPolicy { max_retries, ..default_retry() });
    let args =
        create_subscription::Args { name: new.name.clone(), namespace: None, filter: Some(filter), target, retry };
    let answer = session.client.call::<CreateSubscription>(args).await?;
    if let create_subscription::Outcome::Created { secret: Some(_), .. } = &answer {
        session.out.note("The secret is shown this once:");
    }
    session.out.answer(&answer, |_| match &answer {
        create_subscription::Outcome::Created { secret: Some(secret), .. } => secret.0.clone(),
        create_subscription::Outcome::Created { .. } => format!("{} is created", new.name),
        create_subscription::Outcome::AlreadyExists { .. } => format!("{} was there before, just so", new.name),
        create_subscription::Outcome::Unknown(variant) => variant.json().to_owned(),
    })
}

fn table(subscriptions: &[SubscriptionSummary], style: Style) -> String {
    let mut table = Table::new(["SUBSCRIPTION", "STATE", "EVENTS", "TARGET", "CREATED", "NOTE"]);
    for one in subscriptions {
        let created = one.kind.as_ref().map(|kind| format!("creates {kind}"));
        table.row([
            Cell::of(&one.name),
            state(one.state),
            Cell::of(events(&one.filter)),
            Cell::maybe(one.url.clone().or(created)),
            Cell::at(one.created_at),
            Cell::maybe(one.note.as_ref().map(|note| &note.text).filter(|text| !text.is_empty())),
        ]);
    }
    table.text(style, "There are no subscriptions.")
}

fn details(subscription: &SubscriptionView, style: Style) -> String {
    let target = match &subscription.target {
        SubscriptionTarget::Webhook(webhook) => webhook.url.clone(),
        SubscriptionTarget::Execution(request) => format!("creates {}", request.kind),
        SubscriptionTarget::Unknown(variant) => variant.json().to_owned(),
    };
    let mut table = Table::new(["SUBSCRIPTION", "STATE", "EVENTS", "TARGET", "DELIVERIES", "REFUSED", "GAPS", "NOTE"]);
    table.row([
        Cell::of(&subscription.name),
        state(subscription.state),
        Cell::of(events(&subscription.filter)),
        Cell::of(target),
        Cell::of(subscription.delivery_count),
        Cell::of(subscription.refused_count),
        Cell::of(subscription.gaps),
        Cell::maybe(subscription.note.as_ref().map(|note| &note.text).filter(|text| !text.is_empty())),
    ]);
    let mut deliveries = Table::new(["DELIVERY", "EVENT", "STATE", "ATTEMPTS", "CREATED", "FAILURE"]);
    for one in &subscription.deliveries {
        deliveries.row(delivery(one));
    }
    [table.text(style, ""), deliveries.text(style, "Nothing was delivered yet.")].join("\n\n")
}

fn delivery(delivery: &DeliveryView) -> [Cell; 6] {
    [
        Cell::of(delivery.execution_id),
        Cell::of(&delivery.event_type),
        Cell::coloured(delivery.public_state, public_state(delivery.public_state)),
        Cell::of(delivery.attempts),
        Cell::of(span::instant(delivery.created_at)),
        Cell::maybe(delivery.failure.as_ref()),
    ]
}

fn events(filter: &EventFilter) -> String {
    let mut parts: Vec<String> = match filter.event_types.is_empty() {
        true => vec!["ends".to_owned()],
        false => vec![filter.event_types.iter().map(|one| one.as_str()).collect::<Vec<_>>().join(",")],
    };
    parts.extend(filter.kinds.iter().map(|kind| format!("kind={kind}")));
    parts.extend(filter.tags.iter().map(|(key, value)| format!("{key}={value}")));
    parts.extend(filter.flow_id.iter().map(|flow| format!("flow={flow}")));
    parts.join(" ")
}

fn state(state: SubscriptionState) -> Cell {
    let colour = if state == SubscriptionState::Active { Colour::Green } else { Colour::Yellow };
    Cell::coloured(state, colour)
}
