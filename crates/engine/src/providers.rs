//! Calls to providers, booked and settled in the provider's document. Requests to one provider that arrive while a commit
//! is under way share the next one, in the order in which they came.

use std::collections::BTreeMap;
use std::sync::Arc;

use ff_core::op::SettleProviderOutcome;
use ff_core::provider::{
    AcquireRequest, Acquired, Booking, BookingChange, BookingId, BookingState, Provider, ProviderCost, ProviderStatus,
};
use ff_core::{Code, Error, Indexed, Key, LeaseId, Result};

use crate::groups::{self, Groups, Name};
use crate::transaction::{Command, Transactor, Tx};

/// A request to a provider.
#[derive(Debug, Clone)]
pub(crate) enum ProviderAsk {
    /// May this call be made?
    Acquire(AcquireRequest),
    /// A call that this lease made has ended.
    Settle { id: BookingId, lease: LeaseId, actual: Option<ProviderCost> },
    /// The time of a booking is up.
    Lapse(BookingId),
}

/// The answer of a provider.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ProviderAnswer {
    Acquired(Acquired),
    Settled(SettleProviderOutcome),
    Lapsed,
}

/// Asks providers on behalf of workers that call them.
#[derive(Clone)]
pub(crate) struct Providers {
    transactor: Transactor,
    /// Requests on their way.
    groups: Arc<Groups<ProviderAsk, ProviderAnswer>>,
}

impl ProviderAsk {
    fn booking_key(&self) -> Key {
        match self {
            ProviderAsk::Acquire(request) => request.id.document_key(),
            ProviderAsk::Settle { id, .. } | ProviderAsk::Lapse(id) => id.document_key(),
        }
    }
}

impl Providers {
    pub(crate) fn new(transactor: Transactor) -> Self {
        Self { transactor, groups: Arc::default() }
    }

    /// Asks a provider.
    pub(crate) async fn ask_provider(&self, namespace: &str, name: &str, ask: ProviderAsk) -> Result<ProviderAnswer> {
        let serve = |provider| {
            let providers = self.clone();
            self.transactor.spawn_short(async move { providers.serve_provider(provider).await });
        };
        self.groups.ask((namespace.to_owned(), name.to_owned()), ask, serve).await
    }

    async fn serve_provider(&self, provider: Name) {
        let (namespace, name) = (&provider.0, &provider.1);
        let partition = self.transactor.partitions().quota_partition(namespace, name);
        while let Some((asks, callers)) = self.groups.next(&provider).await {
            let verb = AskProvider { key: Provider::key_of(namespace, name), name, asks: &asks };
            let outcome = self.transactor.transact_in_turn(partition, verb.key.clone(), &verb).await;
            let answers = outcome.map(|(answers, status)| {
                if let Some(status) = status {
                    self.transactor.metrics().provider_changed(&status);
                }
                answers
            });
            groups::answer(callers, answers);
        }
    }
}

/// All requests to a provider that share a commit.
struct AskProvider<'a> {
    key: Key,
    name: &'a str,
    asks: &'a [ProviderAsk],
}

impl Command for AskProvider<'_> {
    type Outcome = (Vec<Result<ProviderAnswer>>, Option<ProviderStatus>);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Outcome> {
        let mut keys: Vec<Key> = self.asks.iter().map(ProviderAsk::booking_key).collect();
        keys.sort_unstable();
        keys.dedup();
        let provider = tx.load::<Provider>(self.key.clone()).await?.map(|loaded| loaded.document);
        let found = tx.load_many::<Booking>(keys).await?;
        let found = found.into_iter().flatten().map(|loaded| (loaded.document.key(), loaded.document));
        let mut ledger = Ledger { provider, bookings: found.collect(), changed: Vec::new(), name: self.name };
        let before = ledger.provider.clone();
        let told = self.asks.iter().map(|ask| ledger.serve(ask, tx.now)).collect();
        ledger.save(tx);
        let provider = ledger.provider.filter(|provider| Some(provider) != before.as_ref());
        if let Some(provider) = &provider {
            tx.save(provider);
        }
        Ok((told, provider.map(|provider| provider.status(tx.now))))
    }
}

/// A provider and the bookings that a number of requests are about.
struct Ledger<'a> {
    /// `None`: there is no such provider.
    provider: Option<Provider>,
    bookings: BTreeMap<Key, Booking>,
    changed: Vec<Key>,
    name: &'a str,
}

impl Ledger<'_> {
    fn serve(&mut self, ask: &ProviderAsk, now: i64) -> Result<ProviderAnswer> {
        let key = ask.booking_key();
        let missing = || Error::of(Code::ProviderNotFound).with("name", self.name);
        match ask {
            ProviderAsk::Acquire(request) => {
                let provider = self.provider.as_mut().ok_or_else(missing)?;
                let (acquired, change) = provider.acquire(self.bookings.get(&key), request, now)?;
                match change {
                    BookingChange::Nothing => return Ok(ProviderAnswer::Acquired(acquired)),
                    BookingChange::Save(booking) => drop(self.bookings.insert(key.clone(), *booking)),
                    BookingChange::Remove => drop(self.bookings.remove(&key)),
                }
                self.changed.push(key);
                Ok(ProviderAnswer::Acquired(acquired))
            }
            ProviderAsk::Settle { lease, actual, .. } => {
                let provider = self.provider.as_mut().ok_or_else(missing)?;
                let booking = self.bookings.get_mut(&key).filter(|booking| booking.lease == *lease);
                let booking = booking.ok_or_else(|| Error::of(Code::BookingNotFound).with("provider", self.name))?;
                let before = booking.clone();
                let actual = actual.clone().unwrap_or_else(|| booking.cost.clone());
                provider.settle(booking, &actual, now);
                if *booking != before {
                    self.changed.push(key);
                }
                Ok(ProviderAnswer::Settled(SettleProviderOutcome { counted: actual }))
            }
            ProviderAsk::Lapse(_) => {
                let Some(booking) = self.bookings.get_mut(&key).filter(|booking| booking.is_over(now)) else {
                    return Ok(ProviderAnswer::Lapsed);
                };
                match &mut self.provider {
                    Some(provider) => provider.lapse(booking, now),
                    // Its provider was deleted, and with it everything that counted the booking.
                    None => drop(self.bookings.remove(&key)),
                }
                self.changed.push(key);
                Ok(ProviderAnswer::Lapsed)
            }
        }
    }

    fn save(&mut self, tx: &mut Tx<'_>) {
        self.changed.sort_unstable();
        self.changed.dedup();
        for key in &self.changed {
            match self.bookings.get(key) {
                Some(ended) if ended.state == BookingState::Settled => tx.save_until(ended, ended.until),
                Some(booking) => tx.save(booking),
                None => tx.delete(key),
            }
        }
    }
}
