//! Subscriptions: each event is delivered once, to a webhook or to new work. A subscription stands in the system
//! partition. In each partition of executions a cursor says how far it has come in the log of events there; the commit
//! that moves the cursor over an event also creates its delivery, whose id follows from the subscription and the event.
//!
//! A delivery is an execution. That of a webhook is of a kind of the engine's own, in a lane of the engine's own.

use std::collections::BTreeMap;

use crate::encoding::{Blob, Document};
use crate::error::{Error, Result};
use crate::event::{Event, EventKind, EventType};
use crate::gate::definition_conflict;
use crate::id::{ExecutionId, FlowId, Mint, SubscriptionId};
use crate::index::{self, Indexed, kind};
use crate::key::{Entry, Key};
use crate::partition::{Partition, digest16};
use crate::policy::{Backoff, ExponentialBackoff, Policy, RetryPolicy};
use crate::schedule::Note;
use crate::token::Secret;
use crate::{document, limits, text, vocabulary};

/// The lane of the deliveries of webhooks. Only the engine submits to it and claims from it.
pub const DELIVERY_LANE: &str = "ff:deliveries";
/// The kind of the deliveries of webhooks.
pub const WEBHOOK_KIND: &str = "ff:webhook";
/// The type of the message that a test sends.
pub const TEST_TYPE: &str = "test";

/// Failures that no further try would change.
pub const PERMANENT_CATEGORIES: [&str; 3] = ["address_refused", "gone", "subscription_removed"];

document! {
    /// Which events a subscription is about. Apart from the types, an empty field matches every event.
    pub api struct EventFilter {
        /// The types of events; the ends of executions when empty.
        "t" event_types: Vec<EventType>,
        /// The kind of the execution: one of these.
        "k" kinds: Vec<String>,
        /// The execution has all of these tags.
        "g" tags: BTreeMap<String, String>,
        /// The execution is in this flow.
        "f" flow_id: Option<FlowId>,
    }
}

impl EventFilter {
    /// Refuses what no event could have.
    pub fn validate(&self) -> Result<()> {
        let most = limits::FILTER_VALUES_MAX;
        for (field, count) in [("filter.event_types", self.event_types.len()), ("filter.kinds", self.kinds.len())] {
            if count > most {
                return Err(text::too_many(field, count, most));
            }
        }
        self.kinds.iter().try_for_each(|kind| text::kind("filter.kinds", kind))?;
        text::tags("filter.tags", &self.tags)
    }

    /// Whether it asks for the creation of executions, which is told only where a subscription asks for it.
    pub fn asks_for_creation(&self) -> bool {
        self.event_types.contains(&EventType::Created)
    }

    /// Whether an event of the subscription's namespace is meant.
    pub fn matches(&self, event: &Event) -> bool {
        let wanted_type = match self.event_types.is_empty() {
            true => event.event_type.kind() == EventKind::Completion,
            false => self.event_types.contains(&event.event_type),
        };
        wanted_type
            && (self.kinds.is_empty() || self.kinds.contains(&event.execution_kind))
            && self.flow_id.is_none_or(|flow| event.flow_id == Some(flow))
            && self.tags.iter().all(|(key, value)| event.tags.get(key) == Some(value))
    }
}

vocabulary! {
    /// Whether a subscription delivers.
    pub enum SubscriptionState {
        /// It does.
        Active "active",
        /// Events wait until it is resumed, as far back as the log of events reaches.
        Paused "paused",
        /// It is being removed.
        Removing "removing",
    }
}

document! {
    /// The definition of a subscription, as its creator wrote it.
    pub struct SubscriptionDefinition {
        /// Which events.
        "f" filter: EventFilter,
        /// Where a webhook goes; empty where something is created instead.
        "w" url: String,
        /// The template of what is created for each event, as JSON; empty for a webhook.
        "t" template: Blob,
        /// When a webhook that failed is sent again.
        "r" retry: RetryPolicy,
    }
}

impl SubscriptionDefinition {
    /// Refuses what is wrong whatever the state of the system, by field.
    pub fn validate(&self) -> Result<()> {
        self.filter.validate()?;
        if !self.url.is_empty() {
            WebhookUrl::parse("target.webhook.url", &self.url)?;
        }
        self.retry.validate().map_err(|error| error.inside("retry"))
    }
}

/// When a webhook is sent again if its subscription says nothing: after 5 s, 20 s, 80 s and so on, for some hours.
pub fn default_retry() -> RetryPolicy {
    let backoff = ExponentialBackoff { initial_ms: 5_000, max_ms: 3_600_000, multiplier: 4.0, ..Default::default() };
    RetryPolicy {
        max_retries: limits::WEBHOOK_RETRIES_DEFAULT,
        backoff: Backoff::Exponential(backoff),
        ..Default::default()
    }
}

document! {
    /// A subscription: events that are delivered, each once.
    pub struct Subscription {
        /// Its identity. One that is made anew under an old name has another one.
        "i" id: SubscriptionId,
        /// The namespace it belongs to; it sees the events of this namespace only.
        "n" namespace: String,
        /// Unique in the namespace.
        "m" name: String,
        /// Its definition, as its creator wrote it.
        "d" definition: SubscriptionDefinition,
        /// The secret that signs its webhooks.
        "s" secret: Secret,
        /// The name of the caller that created it.
        "b" created_by: String,
        /// When it was created.
        "c" created_at: i64,
        /// When it last changed.
        "u" updated_at: i64,
        /// Whether it is paused.
        "p" paused: bool,
        /// The note of the last pause or resumption.
        "nt" note: Option<Note>,
        /// It is being removed: its cursors and its open deliveries go first.
        "x" removing: bool,
    }
}

impl Document for Subscription {
    const KIND: u8 = kind::SUBSCRIPTION;
    crate::encoding::compiled_here!();
}

impl Indexed for Subscription {
    fn key(&self) -> Key {
        Self::key_of(&self.namespace, &self.name)
    }

    fn index_entries(&self, _: i64) -> Vec<Entry> {
        // One listing for people, and one for the servers, which see to all of them.
        let listings = [index::listing(kind::SUBSCRIPTION, &self.namespace), Self::everywhere()];
        let entry = |index| Entry { index, member: self.key(), score: index::name_score(&self.name) };
        listings.into_iter().map(entry).collect()
    }
}

/// The parts a subscription is made from.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSubscription {
    /// Minted before the commit, so that a repeat names the same one.
    pub id: SubscriptionId,
    /// The namespace it belongs to.
    pub namespace: String,
    /// Unique in the namespace.
    pub name: String,
    /// Its definition, as its creator wrote it.
    pub definition: SubscriptionDefinition,
    /// The secret that signs its webhooks.
    pub secret: Secret,
    /// Whether its creator brought the secret.
    pub own_secret: bool,
    /// The name of the caller that creates it.
    pub created_by: String,
}

impl Subscription {
    /// The key of a subscription by its name.
    pub fn key_of(namespace: &str, name: &str) -> Key {
        Key::new(kind::SUBSCRIPTION, &[&digest16(&[namespace.as_bytes(), name.as_bytes()])])
    }

    /// All subscriptions of the deployment.
    pub fn everywhere() -> crate::key::IndexName {
        index::listing(kind::SUBSCRIPTION, "")
    }

    /// A subscription to what happens from now on.
    pub fn create(new: NewSubscription, now: i64) -> Result<Self> {
        text::name("namespace", &new.namespace)?;
        text::name("name", &new.name)?;
        new.definition.validate()?;
        Ok(Self {
            id: new.id,
            namespace: new.namespace,
            name: new.name,
            definition: new.definition,
            secret: new.secret,
            created_by: new.created_by,
            created_at: now,
            updated_at: now,
            ..Default::default()
        })
    }

    /// Creating the same subscription again is fine; with another definition or secret it is not.
    pub fn check_same(&self, new: &NewSubscription) -> Result<()> {
        if self.definition == new.definition && (!new.own_secret || self.secret == new.secret) {
            return Ok(());
        }
        Err(definition_conflict("subscription", &self.name))
    }

    /// Whether its deliveries are webhooks.
    pub fn is_webhook(&self) -> bool {
        !self.definition.url.is_empty()
    }

    /// Whether it delivers.
    pub fn state(&self) -> SubscriptionState {
        match (self.removing, self.paused) {
            (true, _) => SubscriptionState::Removing,
            (false, true) => SubscriptionState::Paused,
            (false, false) => SubscriptionState::Active,
        }
    }

    /// Whether an event is to be delivered. Events about deliveries are not, so that none leads to another.
    pub fn wants(&self, event: &Event) -> bool {
        !event.delivery && event.namespace == self.namespace && self.definition.filter.matches(event)
    }

    /// Pauses it or lets it go on; says whether that changed anything.
    pub fn set_paused(&mut self, paused: bool, note: &str, by: &str, now: i64) -> Result<bool> {
        text::text("note", note)?;
        if self.paused == paused {
            return Ok(false);
        }
        self.paused = paused;
        self.updated_at = self.updated_at.max(now);
        let at = self.updated_at;
        self.note = Some(Note { text: note.to_owned(), by: by.to_owned(), at, ..Default::default() });
        Ok(true)
    }

    /// The policy of the execution that delivers a webhook.
    pub fn delivery_policy(&self) -> Policy {
        let mut retry = self.definition.retry.clone();
        for category in PERMANENT_CATEGORIES {
            if !retry.non_retryable_categories.iter().any(|known| known == category) {
                retry.non_retryable_categories.push(category.to_owned());
            }
        }
        Policy { retry, ..Default::default() }
    }

    /// The id of the delivery of an event: the same for the same subscription and event, ordered by the event's instant.
    pub fn delivery_id(&self, partition: Partition, event_id: &str, happened_at: i64) -> ExecutionId {
        let digest = digest16(&[b"delivery", self.id.as_bytes(), event_id.as_bytes()]);
        let mut random = [0; 10];
        random.copy_from_slice(&digest[..10]);
        ExecutionId::in_partition(partition, &Mint { now_ms: happened_at, random })
    }
}

document! {
    /// How many subscriptions of a namespace ask for the creation of executions. A submission reads it together with
    /// its lane. It changes in the commits that create and remove subscriptions, and is gone where none asks.
    pub struct CreationWatch {
        /// The namespace.
        "n" namespace: String,
        /// Subscriptions that ask.
        "c" subscriptions: u64,
    }
}

impl Document for CreationWatch {
    const KIND: u8 = kind::CREATION_WATCH;
    crate::encoding::compiled_here!();
}

impl Indexed for CreationWatch {
    fn key(&self) -> Key {
        Self::key_of(&self.namespace)
    }

    fn index_entries(&self, _: i64) -> Vec<Entry> {
        Vec::new()
    }
}

impl CreationWatch {
    /// The key of a namespace's watch.
    pub fn key_of(namespace: &str) -> Key {
        Key::new(kind::CREATION_WATCH, &[namespace.as_bytes()])
    }
}

document! {
    /// The subscription that made an execution, and the event it delivers.
    pub struct Delivery {
        /// The subscription.
        "i" subscription: SubscriptionId,
        /// Its name.
        "n" name: String,
        /// The event.
        "e" event_id: String,
        /// The type of the event.
        "t" event_type: String,
    }
}

impl Delivery {
    /// Whether it was asked for, and is sent while its subscription is paused, too.
    pub fn is_test(&self) -> bool {
        self.event_type == TEST_TYPE
    }
}

document! {
    /// How far a subscription has come in the events of one partition.
    pub struct SubscriptionCursor {
        /// The subscription.
        "i" subscription: SubscriptionId,
        /// Every event up to this number was delivered or passed over.
        "p" position: u64,
        /// Deliveries created here.
        "d" deliveries: u64,
        /// Events whose delivery was refused, such as by a lane that takes nothing.
        "r" refused: u64,
        /// Times that the log no longer reached back to the cursor.
        "g" gaps: u64,
        /// The subscription is gone; a server that has not heard of it yet must not begin again.
        "x" removed: bool,
    }
}

impl Document for SubscriptionCursor {
    const KIND: u8 = kind::CURSOR;
    crate::encoding::compiled_here!();
}

impl Indexed for SubscriptionCursor {
    fn key(&self) -> Key {
        Self::key_of(&self.subscription)
    }

    fn index_entries(&self, _: i64) -> Vec<Entry> {
        // The background work finds cursors by it whose subscription the store has forgotten.
        let entry = Entry { index: index::cursors(), member: self.key(), score: 0 };
        if self.removed { Vec::new() } else { vec![entry] }
    }
}

impl SubscriptionCursor {
    /// The key of a subscription's cursor.
    pub fn key_of(subscription: &SubscriptionId) -> Key {
        Key::new(kind::CURSOR, &[subscription.as_bytes()])
    }

    /// A cursor behind everything that has happened.
    pub fn at_end(subscription: SubscriptionId, next: u64) -> Self {
        Self { subscription, position: next.saturating_sub(1), ..Default::default() }
    }
}

/// The address of a webhook, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookUrl {
    /// Over TLS.
    pub https: bool,
    /// The name or address of the host; an IPv6 address without its brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The host and the port as they stand in the address.
    pub authority: String,
    /// Path and query.
    pub path: String,
}

impl WebhookUrl {
    /// Takes an address apart; refuses all but plain `http` and `https` ones.
    pub fn parse(field: &str, url: &str) -> Result<Self> {
        let refuse = |why: &str| Err(Error::invalid(field, why));
        if url.len() > limits::WEBHOOK_URL_MAX_BYTES {
            return Err(Error::too_large(field, url.len(), limits::WEBHOOK_URL_MAX_BYTES));
        }
        if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
            return refuse("must be printable ASCII without spaces");
        }
        let (https, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return refuse("must begin with https:// or http://"),
        };
        let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains('@') {
            return refuse("must not carry a user name or a password");
        }
        if path.contains('#') || path.contains('\\') {
            return refuse("must have neither a fragment nor a backslash");
        }
        let default = if https { 443 } else { 80 };
        let (host, port) = match authority.strip_prefix('[') {
            Some(bracketed) => match bracketed.split_once(']') {
                Some((host, port)) => (host, port.strip_prefix(':').or(port.is_empty().then_some(""))),
                None => return refuse("has a bracket that is not closed"),
            },
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, Some("")),
            },
        };
        let port = match port {
            Some("") => Some(default),
            Some(port) => port.parse().ok().filter(|port| *port != 0),
            None => None,
        };
        let (Some(port), false) = (port, host.is_empty()) else { return refuse("must name a host, and a port if any") };
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { https, host: host.to_owned(), port, authority: authority.to_owned(), path })
    }
}

/// An address as it is shown to callers that are no administrators: paths and queries of webhooks are secrets as a
/// rule.
pub fn redacted_url(url: &str) -> String {
    match WebhookUrl::parse("url", url) {
        Ok(parsed) => {
            let scheme = if parsed.https { "https" } else { "http" };
            format!("{scheme}://{}/…", parsed.authority)
        }
        Err(_) => "…".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_apart_and_odd_ones_refused() {
        let parse = |url: &str| WebhookUrl::parse("url", url);
        let parsed = parse("https://example.com/a?b=c").unwrap();
        assert_eq!((parsed.https, parsed.host.as_str(), parsed.port), (true, "example.com", 443));
        assert_eq!((parsed.authority.as_str(), parsed.path.as_str()), ("example.com", "/a?b=c"));
        let parsed = parse("http://[::1]:8080").unwrap();
        assert_eq!((parsed.host.as_str(), parsed.port, parsed.path.as_str()), ("::1", 8080, "/"));
        assert_eq!(parse("http://h?x").unwrap().path, "/?x");
        for odd in [
            "ftp://h/",
            "https://",
            "https://u:p@h/",
            "https://h:0/",
            "https://h:99999/",
            "https://h/ x",
            "https://h/#f",
            "https://[::1",
            "https://[::1]x/",
            "https://good\\@evil/",
            "//h",
        ] {
            assert_eq!(parse(odd).unwrap_err().details["field"], "url", "{odd}");
        }
        assert_eq!(redacted_url("https://hooks.example.com/T0/B1?secret=2"), "https://hooks.example.com/…");
    }

    #[test]
    fn an_event_is_delivered_if_all_of_the_filter_fits_and_never_that_of_a_delivery() {
        let event = Event {
            event_type: EventType::Completed,
            namespace: "n".into(),
            execution_kind: "k".into(),
            tags: [("a".to_owned(), "1".to_owned())].into(),
            ..Default::default()
        };
        let mut subscription = Subscription { namespace: "n".into(), ..Default::default() };
        assert!(subscription.wants(&event));
        assert!(!subscription.wants(&Event { event_type: EventType::LeaseAcquired, ..event.clone() }));
        assert!(!subscription.wants(&Event { namespace: "other".into(), ..event.clone() }));
        assert!(!subscription.wants(&Event { delivery: true, ..event.clone() }));
        let filter = &mut subscription.definition.filter;
        filter.event_types = vec![EventType::Completed, EventType::LeaseExpired];
        filter.kinds = vec!["k".into()];
        filter.tags = event.tags.clone();
        assert!(subscription.wants(&event));
        assert!(!subscription.wants(&Event { tags: Default::default(), ..event.clone() }));
        assert!(!subscription.wants(&Event { execution_kind: "other".into(), ..event }));
    }
}
