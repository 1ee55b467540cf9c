//! Providers: services outside that allow so many requests, tokens and calls at once. One document counts all three.
//!
//! A call is booked before it is made. Bookings are handed out in order, each with the instant at which it may be taken,
//! so that a thousand callers come one after another instead of all at once. A refusal by the provider itself (429) closes
//! it for as long as that says and halves its rate, which then grows back window by window.

mod booking;
mod meter;
mod status;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

use crate::encoding::{Blob, Document};
use crate::error::{Code, Error, Result};
use crate::gate::{Defined, definition_conflict};
use crate::id::LeaseId;
use crate::index::{self, Indexed, kind};
use crate::key::{Entry, Key};
use crate::partition::digest16;
use crate::{document, limits, text};

pub use booking::{Booking, BookingId, BookingState};
pub use meter::Meter;
pub use status::{EffectiveLimits, ProviderStatus};

/// The factor of a provider that has all of its rate.
const WHOLE: u32 = 1_000;

document! {
    /// The definition of a provider, as its creator wrote it; a limit of 0 is none.
    pub api struct ProviderDefinition {
        /// The length of the window.
        "w" window_ms: i64 = limits::PROVIDER_WINDOW_DEFAULT_MS,
        /// Requests within any window.
        "r" max_requests: u64,
        /// Tokens within any window.
        "t" max_tokens: u64,
        /// Calls at once.
        "c" max_concurrent: u32,
    }
}

impl ProviderDefinition {
    /// Refuses what is out of bounds, by field.
    pub fn validate(&self) -> Result<()> {
        text::within("window_ms", self.window_ms, limits::PROVIDER_WINDOW_MIN_MS..=limits::PROVIDER_WINDOW_MAX_MS)?;
        text::within("max_requests", self.max_requests, 0..=limits::PROVIDER_AMOUNT_MAX)?;
        text::within("max_tokens", self.max_tokens, 0..=limits::PROVIDER_AMOUNT_MAX)?;
        text::within("max_concurrent", self.max_concurrent, 0..=limits::QUOTA_CONCURRENT_MAX)
    }

    /// The part of a window that an instant lies in.
    fn part(&self, at: i64) -> i64 {
        (at * limits::PROVIDER_PARTS).div_euclid(self.window_ms)
    }

    /// The first instant of a part.
    fn begins_at(&self, part: i64) -> i64 {
        let parts = part * self.window_ms;
        parts.div_euclid(limits::PROVIDER_PARTS) + i64::from(parts.rem_euclid(limits::PROVIDER_PARTS) != 0)
    }
}

/// A change of a provider's definition; absent fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProviderChange {
    /// The length of the window.
    pub window_ms: Option<i64>,
    /// Requests within any window.
    pub max_requests: Option<u64>,
    /// Tokens within any window.
    pub max_tokens: Option<u64>,
    /// Calls at once.
    pub max_concurrent: Option<u32>,
}

document! {
    /// The cost of a call.
    pub api struct ProviderCost {
        /// Requests.
        "r" requests: u64 = 1,
        /// Tokens.
        "t" tokens: u64,
    }
}

impl ProviderCost {
    /// Refuses what is out of bounds, by field.
    pub fn validate(&self, field: &str) -> Result<()> {
        text::within(&format!("{field}.requests"), self.requests, 0..=limits::PROVIDER_AMOUNT_MAX)?;
        text::within(&format!("{field}.tokens"), self.tokens, 0..=limits::PROVIDER_AMOUNT_MAX)
    }
}

/// A provider's answer to a call that wants to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Acquired {
    /// Whether the call may be made now. Otherwise ask again with the same key when it is ready.
    pub granted: bool,
    /// When to ask again, or since when it may be made, by the provider's clock.
    pub ready_at: i64,
    /// The time from now until then.
    pub wait_ms: i64,
    /// Whether a place in the line is held. It lapses ten seconds after `ready_at`. Past the end of the line none is.
    pub booked: bool,
}

/// The change of the booking's document that follows from an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum BookingChange {
    /// It stays as it is.
    Nothing,
    /// It is written.
    Save(Box<Booking>),
    /// It is removed.
    Remove,
}

/// A call that wants to be made.
#[derive(Debug, Clone, PartialEq)]
pub struct AcquireRequest {
    /// Which call it is.
    pub id: BookingId,
    /// The lease that makes it.
    pub lease: LeaseId,
    /// The expected cost of the call.
    pub cost: ProviderCost,
    /// How long it may take before it counts as over.
    pub ttl_ms: i64,
}

document! {
    /// A provider and everything that is booked and used of it.
    pub struct Provider {
        /// The namespace it belongs to.
        "n" namespace: String,
        /// Unique in the namespace.
        "m" name: String,
        /// Its limits.
        "d" definition: ProviderDefinition,
        /// When it was created.
        "c" created_at: i64,
        /// When it last changed.
        "t" updated_at: i64,
        /// Requests, booked and made.
        "r" requests: Meter,
        /// Tokens, booked and used.
        "k" tokens: Meter,
        /// Requests of the calls that were let through, when they were.
        "mr" made_requests: Meter,
        /// Tokens of the calls that were let through, when they were.
        "mt" made_tokens: Meter,
        /// Calls under way.
        "u" in_use: u32,
        /// Bookings that wait for their instant.
        "b" booked: u32,
        /// The next number in the line.
        "i" next_ticket: u64,
        /// The numbers of those whose instant has come and that wait for a call to end, in order.
        "w" waiting: Vec<u64>,
        /// How long a call takes, on average.
        "h" average_ms: i64,
        /// Nothing is let through before this.
        "x" closed_until: i64,
        /// Thousandths of its limits that it had when that last changed.
        "f" factor: u32 = WHOLE,
        /// When that was.
        "fa" factor_at: i64,
        /// Calls that were let through.
        "ga" granted: u64,
        /// How often it said that it was too much.
        "th" throttled: u64,
        /// When it last did.
        "ta" throttled_at: i64,
        /// A digest of the definition it was created with, once that was changed.
        "o" original: Blob,
    }
}

impl Document for Provider {
    const KIND: u8 = kind::PROVIDER;
    crate::encoding::compiled_here!();
}

impl Indexed for Provider {
    fn key(&self) -> Key {
        Self::key_of(&self.namespace, &self.name)
    }

    fn index_entries(&self, _: i64) -> Vec<Entry> {
        let listing = index::listing(kind::PROVIDER, &self.namespace);
        vec![Entry { index: listing, member: self.key(), score: index::name_score(&self.name) }]
    }
}

impl Provider {
    /// The key of a provider by its name.
    pub fn key_of(namespace: &str, name: &str) -> Key {
        Key::new(kind::PROVIDER, &[&digest16(&[namespace.as_bytes(), name.as_bytes()])])
    }

    /// Defines a provider. The same definition again changes nothing, another one is refused.
    pub fn define(
        existing: Option<&Provider>,
        (namespace, name): (&str, &str),
        definition: ProviderDefinition,
        now: i64,
    ) -> Result<Defined<Provider>> {
        text::name("namespace", namespace)?;
        text::name("name", name)?;
        definition.validate()?;
        match existing {
            None => Ok(Defined::Created(Provider {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                definition,
                created_at: now,
                updated_at: now,
                factor_at: now,
                ..Default::default()
            })),
            Some(existing) if existing.definition == definition => Ok(Defined::AlreadyExists),
            Some(existing) if *existing.original == definition_digest(&definition) => Ok(Defined::AlreadyExists),
            Some(_) => Err(definition_conflict("provider", name)),
        }
    }

    /// Changes what is named and leaves the rest. Under another window what was used counts as if it had been used now.
    pub fn update(&mut self, change: &ProviderChange, now: i64) -> Result<()> {
        let mut definition = self.definition.clone();
        definition.window_ms = change.window_ms.unwrap_or(definition.window_ms);
        definition.max_requests = change.max_requests.unwrap_or(definition.max_requests);
        definition.max_tokens = change.max_tokens.unwrap_or(definition.max_tokens);
        definition.max_concurrent = change.max_concurrent.unwrap_or(definition.max_concurrent);
        definition.validate()?;
        if definition == self.definition {
            return Ok(());
        }
        let now = self.mark_updated(now);
        if self.original.is_empty() {
            self.original = definition_digest(&self.definition).to_vec().into();
        }
        if definition.window_ms != self.definition.window_ms {
            let (old, new) = (self.definition.part(now), definition.part(now));
            let booked = [&mut self.requests, &mut self.tokens];
            for meter in booked.into_iter().chain([&mut self.made_requests, &mut self.made_tokens]) {
                let used = meter.window_sum(old);
                meter.clear();
                meter.add(new, used);
            }
        }
        self.definition = definition;
        Ok(())
    }

    /// Thousandths of its limits that it has now: a window without a refusal by the provider gives a tenth back.
    pub fn factor(&self, now: i64) -> u32 {
        let windows = (now - self.factor_at.max(self.closed_until)).max(0) / self.definition.window_ms.max(1);
        let regained = u32::try_from(windows).unwrap_or(WHOLE).saturating_mul(limits::PROVIDER_INCREASE_THOUSANDTHS);
        self.factor.saturating_add(regained).min(WHOLE)
    }

    /// The limits as they are now.
    pub fn effective(&self, now: i64) -> EffectiveLimits {
        let now = now.max(self.updated_at);
        let factor = self.factor(now);
        let of = |limit: u64| if limit == 0 { 0 } else { (limit * u64::from(factor) / u64::from(WHOLE)).max(1) };
        EffectiveLimits {
            requests: of(self.definition.max_requests),
            tokens: of(self.definition.max_tokens),
            concurrent: u32::try_from(of(u64::from(self.definition.max_concurrent))).unwrap_or(u32::MAX),
            percent: factor / 10,
        }
    }

    /// Decides about a call. `known` is the booking of its key, if there is one.
    pub fn acquire(
        &mut self,
        known: Option<&Booking>,
        request: &AcquireRequest,
        now: i64,
    ) -> Result<(Acquired, BookingChange)> {
        if let Some(call) = known.filter(|booking| booking.was_granted_to(request.lease) && !self.refused(booking)) {
            // The call of this lease was let through: a repeat hears so again, also behind its end, and counts nothing.
            if *call.asked_cost() != request.cost {
                let detail = "this call was let through at another cost; another call takes another key";
                return Err(Error::new(Code::IdempotencyConflict, detail).with("cost", call.asked_cost()));
            }
            return Ok((granted(call.ready_at), BookingChange::Nothing));
        }
        self.check_cost(&request.cost)?;
        let now = self.mark_updated(now);
        self.forget(now);
        let booking = match known.filter(|booking| !booking.is_over(now)) {
            Some(booking) if booking.state == BookingState::Booked && booking.cost == request.cost => booking.clone(),
            other => {
                // A place that another lease has used stays used; one that waits, or is asked for at another cost, is
                // booked anew.
                if let Some(used) = other.or(known) {
                    self.end(&mut used.clone(), Ended::by(used), now);
                }
                match self.book(request, now) {
                    Ok(booking) => booking,
                    Err(ready_at) => {
                        let change = if known.is_some() { BookingChange::Remove } else { BookingChange::Nothing };
                        let answer = Acquired { granted: false, ready_at, wait_ms: ready_at - now, booked: false };
                        return Ok((answer, change));
                    }
                }
            }
        };
        Ok(self.advance(booking, request, now))
    }

    /// Lets a booking through, or says when to come again.
    fn advance(&mut self, mut booking: Booking, request: &AcquireRequest, now: i64) -> (Acquired, BookingChange) {
        booking.lease = request.lease;
        let part = self.definition.part(now);
        // One whose turn came long ago was away, unless it waits for a call to end.
        let late = part - booking.part > limits::PROVIDER_LATE_PARTS && !self.waiting.contains(&booking.ticket);
        let closed = self.closed_until > now && booking.part < self.opens_in();
        // A change of the window has left it somewhere else.
        let astray = booking.part > self.horizon(now) + limits::PROVIDER_PARTS;
        if closed || late || astray || (booking.part <= part && self.is_too_much(&booking, now)) {
            self.place_anew(&mut booking, now);
        }
        if booking.part < part {
            // A call that comes after its turn counts where it is really made. Those that are booked behind it find their
            // windows too full then, and move.
            self.move_to(&mut booking, part);
            if self.would_make_too_much(&booking.cost, now) {
                self.place_anew(&mut booking, now);
            }
        }
        if booking.part > part {
            self.waiting.retain(|ticket| *ticket != booking.ticket);
            booking.wait_until(self.definition.begins_at(booking.part));
            return waits(booking, now);
        }
        if let Some(ready_at) = self.queue_for_a_call(booking.ticket, now) {
            booking.wait_until(ready_at);
            return waits(booking, now);
        }
        self.booked = self.booked.saturating_sub(1);
        self.in_use = self.in_use.saturating_add(1);
        self.granted += 1;
        self.made_requests.add(booking.part, booking.cost.requests);
        self.made_tokens.add(booking.part, booking.cost.tokens);
        booking.state = BookingState::Granted;
        booking.granted_at = now;
        booking.ready_at = now;
        booking.until = now.saturating_add(request.ttl_ms);
        (granted(now), BookingChange::Save(Box::new(booking)))
    }

    /// Gives a booking a place behind those that have one already.
    fn place_anew(&mut self, booking: &mut Booking, now: i64) {
        self.uncount(booking);
        booking.part = self.place(&booking.cost, now);
        self.count(booking);
    }

    fn move_to(&mut self, booking: &mut Booking, part: i64) {
        self.uncount(booking);
        booking.part = part;
        self.count(booking);
    }

    /// Whether the calls that were let through in the window that ends now leave no room for this one. Calls that are only
    /// booked stand behind it.
    fn would_make_too_much(&self, cost: &ProviderCost, now: i64) -> bool {
        let (effective, part) = (self.effective(now), self.definition.part(now));
        let over = |meter: &Meter, limit: u64, own: u64| {
            let made = meter.window_sum(part);
            limit != 0 && own != 0 && made != 0 && made + own > limit
        };
        over(&self.made_requests, effective.requests, cost.requests)
            || over(&self.made_tokens, effective.tokens, cost.tokens)
    }

    /// Whether its window has no room for it: the limits that held when it was booked have shrunk since, or a call that came late
    /// was counted in it.
    fn is_too_much(&self, booking: &Booking, now: i64) -> bool {
        let effective = self.effective(now);
        let over = |meter: &Meter, limit: u64, own: u64| {
            let used = meter.window_sum(booking.part);
            limit != 0 && own != 0 && used > limit && used > own
        };
        over(&self.requests, effective.requests, booking.cost.requests)
            || over(&self.tokens, effective.tokens, booking.cost.tokens)
    }

    /// Whether one of the calls at once is free for this number; otherwise when to ask again. They are handed out in order.
    fn queue_for_a_call(&mut self, ticket: u64, now: i64) -> Option<i64> {
        let most = self.effective(now).concurrent;
        let rank = self.waiting.iter().position(|waiting| *waiting >= ticket).unwrap_or(self.waiting.len());
        let free = usize::try_from(most.saturating_sub(self.in_use)).unwrap_or(usize::MAX);
        if most == 0 || rank < free {
            self.waiting.retain(|waiting| *waiting != ticket);
            return None;
        }
        if self.waiting.get(rank) != Some(&ticket) && self.waiting.len() < limits::PROVIDER_WAITING_MAX {
            self.waiting.insert(rank, ticket);
        }
        let rounds = i64::try_from((rank - free) / usize::try_from(most).unwrap_or(usize::MAX) + 1).unwrap_or(1);
        let average = if self.average_ms == 0 { limits::PROVIDER_CALL_DEFAULT_MS } else { self.average_ms };
        let wait = average.saturating_mul(rounds);
        Some(now + wait.clamp(limits::PROVIDER_CALL_WAIT_MIN_MS, limits::PROVIDER_CALL_WAIT_MAX_MS))
    }

    /// A call was made, or will not be: what it really cost counts, and another one may be made in its stead.
    pub fn settle(&mut self, booking: &mut Booking, actual: &ProviderCost, now: i64) {
        let now = self.mark_updated(now);
        self.forget(now);
        if booking.state == BookingState::Granted {
            let took = (now - booking.granted_at).max(1);
            self.average_ms = if self.average_ms == 0 { took } else { (3 * self.average_ms + took) / 4 };
        }
        if booking.state != BookingState::Booked {
            self.made_requests.take(booking.part, booking.cost.requests);
            self.made_tokens.take(booking.part, booking.cost.tokens);
        }
        self.end(booking, Ended::Used, now);
        self.uncount(booking);
        booking.asked.get_or_insert_with(|| booking.cost.clone());
        booking.cost = actual.clone();
        self.count(booking);
        self.made_requests.add(booking.part, booking.cost.requests);
        self.made_tokens.add(booking.part, booking.cost.tokens);
    }

    /// The time of a booking is up: one that was never taken is given back, one that was taken counts as used.
    pub fn lapse(&mut self, booking: &mut Booking, now: i64) {
        let now = self.mark_updated(now);
        let how = Ended::by(booking);
        self.end(booking, how, now);
    }

    fn end(&mut self, booking: &mut Booking, how: Ended, now: i64) {
        match booking.state {
            BookingState::Booked => {
                self.booked = self.booked.saturating_sub(1);
                self.waiting.retain(|ticket| *ticket != booking.ticket);
            }
            BookingState::Granted => self.in_use = self.in_use.saturating_sub(1),
            BookingState::Settled => return,
        }
        if how == Ended::Unused {
            self.uncount(booking);
            booking.cost = ProviderCost { requests: 0, ..Default::default() };
        }
        booking.state = BookingState::Settled;
        booking.until = now.saturating_add(limits::PROVIDER_REMEMBERED_MS);
    }

    /// The provider said that it was too much. It is closed until then, and has half of its rate, once for all calls that
    /// it refused together.
    pub fn throttle(&mut self, retry_after_ms: Option<i64>, now: i64) {
        let now = self.mark_updated(now);
        self.throttled += 1;
        self.throttled_at = now;
        let lowered_for_this = self.factor < WHOLE && now - self.factor_at < self.average_ms;
        if self.closed_until <= now && !lowered_for_this {
            self.factor = (self.factor(now) / 2).max(limits::PROVIDER_FACTOR_MIN_THOUSANDTHS);
            self.factor_at = now;
        }
        let wait = retry_after_ms.unwrap_or(limits::PROVIDER_CLOSED_DEFAULT_MS);
        self.closed_until = self.closed_until.max(now.saturating_add(wait));
    }

    /// Whether the provider refused calls while this one was made: its key then asks for the next turn of the same call.
    fn refused(&self, booking: &Booking) -> bool {
        booking.settled_at().is_some_and(|settled_at| (booking.granted_at..=settled_at).contains(&self.throttled_at))
    }

    fn check_cost(&self, cost: &ProviderCost) -> Result<()> {
        for (field, cost, most) in [
            ("cost.requests", cost.requests, self.definition.max_requests),
            ("cost.tokens", cost.tokens, self.definition.max_tokens),
        ] {
            if most != 0 && cost > most {
                let detail = format!("is more than the {most} that {} allows in a window", self.name);
                return Err(Error::invalid(field, detail));
            }
        }
        Ok(())
    }

    /// Gives a call a place at the end of the line; if that is too far away, says when to come again.
    fn book(&mut self, request: &AcquireRequest, now: i64) -> Result<Booking, i64> {
        let part = self.place(&request.cost, now);
        let horizon = self.horizon(now);
        if part > horizon {
            return Err(self.definition.begins_at(horizon));
        }
        let BookingId { namespace, provider, execution, key } = request.id.clone();
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.booked += 1;
        let (lease, cost) = (request.lease, request.cost.clone());
        let booking = Booking { namespace, provider, execution, key, lease, cost, part, ticket, ..Default::default() };
        self.count(&booking);
        Ok(booking)
    }

    /// The last part of time for which calls are booked.
    fn horizon(&self, now: i64) -> i64 {
        self.definition.part(now) + limits::PROVIDER_HORIZON_WINDOWS * limits::PROVIDER_PARTS
    }

    /// The first part of time with room for a call, behind everything that is booked.
    fn place(&self, cost: &ProviderCost, now: i64) -> i64 {
        let effective = self.effective(now);
        let mut part = self.definition.part(now).max(self.opens_in());
        part = part.max(self.requests.last().unwrap_or(part)).max(self.tokens.last().unwrap_or(part));
        // While the rate grows back, each part takes a share: what waited while it was closed does not come at once.
        let paced = self.factor(now) < WHOLE;
        let fits = |meter: &Meter, limit: u64, cost: u64, part: i64| {
            let (used, here) = (meter.window_sum(part), meter.at(part));
            let share = (limit / u64::try_from(limits::PROVIDER_PARTS).unwrap_or(1) * 2).max(1);
            limit == 0
                || cost == 0
                || used == 0
                || (used + cost <= limit && !(paced && here > 0 && here + cost > share))
        };
        // Behind the last that is booked every window is empty after as many parts as it has.
        while !fits(&self.requests, effective.requests, cost.requests, part)
            || !fits(&self.tokens, effective.tokens, cost.tokens, part)
        {
            part += 1;
        }
        part
    }

    /// The first part of time that lies wholly behind the end of a closure.
    fn opens_in(&self) -> i64 {
        let part = self.definition.part(self.closed_until);
        if self.definition.begins_at(part) < self.closed_until { part + 1 } else { part }
    }

    fn count(&mut self, booking: &Booking) {
        self.requests.add(booking.part, booking.cost.requests);
        self.tokens.add(booking.part, booking.cost.tokens);
    }

    fn uncount(&mut self, booking: &Booking) {
        self.requests.take(booking.part, booking.cost.requests);
        self.tokens.take(booking.part, booking.cost.tokens);
    }

    fn forget(&mut self, now: i64) {
        let part = self.definition.part(now);
        let booked = [&mut self.requests, &mut self.tokens];
        let made = [&mut self.made_requests, &mut self.made_tokens];
        booked.into_iter().chain(made).for_each(|meter| meter.forget_before(part));
    }

    /// Time never goes back within a document.
    fn mark_updated(&mut self, now: i64) -> i64 {
        self.updated_at = self.updated_at.max(now);
        self.updated_at
    }
}

/// Whether what a booking holds was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Used,
    Unused,
}

impl Ended {
    fn by(booking: &Booking) -> Self {
        if booking.state == BookingState::Booked { Ended::Unused } else { Ended::Used }
    }
}

fn granted(ready_at: i64) -> Acquired {
    Acquired { granted: true, ready_at, wait_ms: 0, booked: true }
}

fn waits(booking: Booking, now: i64) -> (Acquired, BookingChange) {
    let ready_at = booking.ready_at;
    let answer = Acquired { granted: false, ready_at, wait_ms: (ready_at - now).max(1), booked: true };
    (answer, BookingChange::Save(Box::new(booking)))
}

fn definition_digest(definition: &ProviderDefinition) -> [u8; 16] {
    let bytes = rmp_serde::to_vec(definition).expect("definitions hold only types that msgpack can express");
    digest16(&[&bytes])
}
