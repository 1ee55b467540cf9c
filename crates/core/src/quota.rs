//! Quotas: how many attempts may start within any window, and how many claims may run at once. The rate is counted in
//! parts of the window and never given back; concurrency is counted in slots, one document for each claim, beside a
//! counter that changes in the same commit.

use serde::{Deserialize, Serialize};

use crate::encoding::{Blob, Document};
use crate::error::Result;
use crate::gate::{Defined, Parked, definition_conflict};
use crate::id::{AttemptIndex, ExecutionId, LeaseId, SlotId};
use crate::index::{self, Indexed, kind};
use crate::key::{Entry, Key};
use crate::partition::digest16;
use crate::slot::Slot;
use crate::{document, limits, text};

/// Bytes of the digest by which an admission is remembered.
const DIGEST_BYTES: usize = 16;

document! {
    /// The definition of a quota, as its creator wrote it; a limit of 0 is none.
    pub api struct QuotaDefinition {
        /// The length of the window.
        "w" window_seconds: u32 = limits::QUOTA_WINDOW_DEFAULT_SECONDS,
        /// Attempts that may start within any window.
        "r" max_requests: u32,
        /// Claims that may run at once.
        "c" max_concurrent: u32,
        /// Parked executions come back spread over this time.
        "j" jitter_ms: i64,
    }
}

impl QuotaDefinition {
    /// Refuses what is out of bounds, by field.
    pub fn validate(&self) -> Result<()> {
        text::within("window_seconds", self.window_seconds, 1..=limits::QUOTA_WINDOW_MAX_SECONDS)?;
        text::within("max_requests", self.max_requests, 0..=limits::QUOTA_REQUESTS_MAX)?;
        text::within("max_concurrent", self.max_concurrent, 0..=limits::QUOTA_CONCURRENT_MAX)?;
        text::within("jitter_ms", self.jitter_ms, 0..=limits::QUOTA_JITTER_MAX_MS)
    }

    fn window_ms(&self) -> i64 {
        i64::from(self.window_seconds) * 1000
    }

    /// The part of a window that an instant lies in.
    fn bucket(&self, at: i64) -> i64 {
        (at * limits::QUOTA_SUB_BUCKETS).div_euclid(self.window_ms())
    }

    /// When no window that ends now or later reaches back into a part any more.
    fn bucket_leaves_at(&self, bucket: i64) -> i64 {
        let parts = (bucket + limits::QUOTA_SUB_BUCKETS + 1) * self.window_ms();
        parts.div_euclid(limits::QUOTA_SUB_BUCKETS) + i64::from(parts.rem_euclid(limits::QUOTA_SUB_BUCKETS) != 0)
    }
}

/// A change of a quota's definition; absent fields stay as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuotaChange {
    /// The length of the window.
    pub window_seconds: Option<u32>,
    /// Attempts that may start within any window.
    pub max_requests: Option<u32>,
    /// Claims that may run at once.
    pub max_concurrent: Option<u32>,
    /// Parked executions come back spread over this time.
    pub jitter_ms: Option<i64>,
}

/// A quota's decision about one claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum QuotaDecision {
    /// It may run; what it takes was recorded.
    Admitted,
    /// It may run; it was recorded before.
    AlreadyAdmitted,
    /// As many attempts as allowed have started within the window.
    RateExceeded {
        /// When the window has room again.
        retry_after_ms: i64,
    },
    /// As many claims as allowed are running.
    ConcurrencyExceeded,
}

impl QuotaDecision {
    /// Whether the claim may go on.
    pub fn admits(self) -> bool {
        matches!(self, QuotaDecision::Admitted | QuotaDecision::AlreadyAdmitted)
    }
}

/// A claim that asks for admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuotaRequest {
    /// The execution.
    pub execution: ExecutionId,
    /// Its attempt.
    pub attempt: AttemptIndex,
    /// The lease it is claimed with.
    pub lease: LeaseId,
    /// The slot it would take: one for each try.
    pub slot: SlotId,
    /// Whether the attempt starts with this claim; a resumed one was counted when it did.
    pub starts: bool,
}

document! {
    /// A quota policy.
    pub struct QuotaPolicy {
        /// The namespace it belongs to.
        "n" namespace: String,
        /// Unique in the namespace.
        "m" name: String,
        /// Its limits.
        "d" definition: QuotaDefinition,
        /// When it was created.
        "c" created_at: i64,
        /// When it last changed.
        "t" updated_at: i64,
        /// The part of time that the first counter stands for.
        "f" first_bucket: i64,
        /// Attempts that started, by part of the window.
        "k" counters: Vec<u32>,
        /// Digests of the newest admissions, oldest first; never more than the counters have counted, so an
        /// admission is forgotten no later than its count.
        "a" recent: Blob,
        /// How many slot documents there are.
        "u" in_use: u32,
        /// How many were given back so far. Earlier versions see by it whether more may run than they let in.
        "g" given_back: u64,
        /// Where executions wait for it.
        "p" parked_in: Parked,
        /// A digest of the definition it was created with, once that was changed: repeating the create is then still the
        /// same create.
        "o" original: Blob,
    }
}

impl Document for QuotaPolicy {
    const KIND: u8 = kind::QUOTA;
    crate::encoding::compiled_here!();
}

impl Indexed for QuotaPolicy {
    fn key(&self) -> Key {
        Self::key_of(&self.namespace, &self.name)
    }

    fn index_entries(&self, _: i64) -> Vec<Entry> {
        let listing = index::listing(kind::QUOTA, &self.namespace);
        vec![Entry { index: listing, member: self.key(), score: index::name_score(&self.name) }]
    }
}

impl QuotaPolicy {
    /// The key of a quota policy by its name.
    pub fn key_of(namespace: &str, name: &str) -> Key {
        Key::new(kind::QUOTA, &[&digest16(&[namespace.as_bytes(), name.as_bytes()])])
    }

    /// Defines a quota policy. The same definition again changes nothing, another one is refused.
    pub fn define(
        existing: Option<&QuotaPolicy>,
        (namespace, name): (&str, &str),
        definition: QuotaDefinition,
        now: i64,
    ) -> Result<Defined<QuotaPolicy>> {
        text::name("namespace", namespace)?;
        text::name("name", name)?;
        definition.validate()?;
        match existing {
            None => Ok(Defined::Created(QuotaPolicy {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                definition,
                created_at: now,
                updated_at: now,
                ..Default::default()
            })),
            Some(existing) if existing.definition == definition => Ok(Defined::AlreadyExists),
            Some(existing) if *existing.original == definition_digest(&definition) => Ok(Defined::AlreadyExists),
            Some(_) => Err(definition_conflict("quota", name)),
        }
    }

    /// Changes what is named and leaves the rest. Starts of the last window stay counted: under another window they count
    /// as if they had happened now, so that no window ever holds more than the limit.
    pub fn update(&mut self, change: &QuotaChange, now: i64) -> Result<()> {
        let mut definition = self.definition.clone();
        definition.window_seconds = change.window_seconds.unwrap_or(definition.window_seconds);
        definition.max_requests = change.max_requests.unwrap_or(definition.max_requests);
        definition.max_concurrent = change.max_concurrent.unwrap_or(definition.max_concurrent);
        definition.jitter_ms = change.jitter_ms.unwrap_or(definition.jitter_ms);
        definition.validate()?;
        if definition == self.definition {
            return Ok(());
        }
        let now = self.mark_updated(now);
        if self.original.is_empty() {
            self.original = definition_digest(&self.definition).to_vec().into();
        }
        if definition.window_seconds != self.definition.window_seconds {
            let started = self.started(now);
            self.counters = if started == 0 { Vec::new() } else { vec![u32::try_from(started).unwrap_or(u32::MAX)] };
            self.first_bucket = if started == 0 { 0 } else { definition.bucket(now) };
            self.keep_recent(usize::try_from(started).unwrap_or(usize::MAX));
        }
        self.definition = definition;
        Ok(())
    }

    /// Decides about a claim and records what it takes: its start, and the slot to be written in the same commit.
    /// `held` is the slot that this very try already has, if any. A refusal records nothing.
    pub fn admit(&mut self, request: &QuotaRequest, held: Option<&Slot>, now: i64) -> (QuotaDecision, Option<Slot>) {
        if held.is_some() {
            return (QuotaDecision::AlreadyAdmitted, None);
        }
        let slotted = self.definition.max_concurrent != 0;
        if slotted && self.in_use >= self.definition.max_concurrent {
            return (QuotaDecision::ConcurrencyExceeded, None);
        }
        let rate = match request.starts {
            true => self.admit_rate(&request.execution, request.attempt, now),
            false => QuotaDecision::Admitted,
        };
        if !rate.admits() || !slotted {
            return (rate, None);
        }
        let now = self.mark_updated(now);
        self.in_use += 1;
        let slot = Slot {
            namespace: self.namespace.clone(),
            quota: self.name.clone(),
            execution: request.execution,
            id: request.slot,
            lease: request.lease,
            taken_at: now,
            ..Default::default()
        };
        (QuotaDecision::Admitted, Some(slot))
    }

    /// Counts the start of an attempt, once, unless the window is full. Without a limit nothing is recorded.
    pub fn admit_rate(&mut self, execution: &ExecutionId, attempt: AttemptIndex, now: i64) -> QuotaDecision {
        if self.definition.max_requests == 0 {
            return QuotaDecision::Admitted;
        }
        let now = now.max(self.updated_at);
        let bucket = self.definition.bucket(now);
        self.forget_before(bucket - limits::QUOTA_SUB_BUCKETS);
        let digest = admission_digest(execution, attempt);
        if let Some(place) = self.recent.as_chunks::<DIGEST_BYTES>().0.iter().position(|known| *known == digest) {
            self.count_again(place, bucket, now);
            return QuotaDecision::AlreadyAdmitted;
        }
        if let Some(opens_at) = self.full_until(now) {
            return QuotaDecision::RateExceeded { retry_after_ms: opens_at - now };
        }
        self.mark_updated(now);
        self.count(bucket);
        self.remember(digest);
        QuotaDecision::Admitted
    }

    /// Gives back one slot.
    pub fn release(&mut self, now: i64) {
        self.mark_updated(now);
        self.in_use = self.in_use.saturating_sub(1);
        self.given_back += 1;
    }

    /// Corrects the number of slots to what was counted under this document's version; answers the number it
    /// replaced, if that was wrong.
    pub fn recount(&mut self, slots: u32, now: i64) -> Option<u32> {
        if self.in_use == slots {
            return None;
        }
        self.mark_updated(now);
        Some(std::mem::replace(&mut self.in_use, slots))
    }

    /// When the window has room, spread by the jitter; `None` when it has room now.
    pub fn opens_at(&self, now: i64, random: u64) -> Option<i64> {
        let spread = u64::try_from(self.definition.jitter_ms).map_or(1, |jitter| jitter + 1);
        let jitter = i64::try_from(random % spread).unwrap_or(0);
        self.full_until(now.max(self.updated_at)).map(|opens_at| opens_at + jitter)
    }

    /// When the window has room again for work that may wait for a slot; `None` when it has room now. Work that waits for
    /// the window alone has timers of its own.
    pub fn reopens_at(&self, now: i64) -> Option<i64> {
        let has_slots = self.definition.max_concurrent != 0;
        has_slots.then(|| self.full_until(now.max(self.updated_at))).flatten()
    }

    /// How many claims it would admit now: parked work beyond that is not worth waking.
    pub fn release_count(&self, now: i64) -> u64 {
        let left = |limit: u32, used: u64| match limit {
            0 => u64::MAX,
            limit => u64::from(limit).saturating_sub(used),
        };
        let started = self.started(now.max(self.updated_at));
        left(self.definition.max_requests, started).min(left(self.definition.max_concurrent, u64::from(self.in_use)))
    }

    /// The view of it for answers, at an instant.
    pub fn status(&self, now: i64) -> QuotaStatus {
        QuotaStatus {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            definition: self.definition.clone(),
            started_in_window: self.started(now.max(self.updated_at)),
            in_use: self.in_use,
            opens_at: self.opens_at(now, 0),
            created_at: self.created_at,
            updated_at: self.updated_at,
        }
    }

    /// Starts that a window ending now may reach back to.
    fn started(&self, now: i64) -> u64 {
        let oldest = self.definition.bucket(now) - limits::QUOTA_SUB_BUCKETS;
        self.buckets().filter(|(bucket, _)| *bucket >= oldest).map(|(_, count)| u64::from(count)).sum()
    }

    fn full_until(&self, now: i64) -> Option<i64> {
        let max = u64::from(self.definition.max_requests);
        let mut started = self.started(now);
        if max == 0 || started < max {
            return None;
        }
        let oldest = self.definition.bucket(now) - limits::QUOTA_SUB_BUCKETS;
        for (bucket, count) in self.buckets().filter(|(bucket, _)| *bucket >= oldest) {
            started -= u64::from(count);
            if started < max {
                return Some(self.definition.bucket_leaves_at(bucket));
            }
        }
        None
    }

    fn buckets(&self) -> impl Iterator<Item = (i64, u32)> {
        (self.first_bucket..).zip(self.counters.iter().copied())
    }

    fn forget_before(&mut self, oldest: i64) {
        let gone = usize::try_from(oldest - self.first_bucket).unwrap_or(0).min(self.counters.len());
        let idle = self.counters.iter().skip(gone).take_while(|count| **count == 0).count();
        self.counters.drain(..gone + idle);
        if self.counters.is_empty() {
            self.first_bucket = 0;
        } else {
            self.first_bucket += i64::try_from(gone + idle).expect("there are at most 65 counters");
        }
        let counted = self.counters.iter().map(|count| *count as usize).sum::<usize>();
        self.keep_recent(counted);
    }

    fn count(&mut self, bucket: i64) {
        if self.counters.is_empty() {
            self.first_bucket = bucket;
        }
        let at = usize::try_from(bucket - self.first_bucket).expect("time never goes back within the document");
        if self.counters.len() <= at {
            self.counters.resize(at + 1, 0);
        }
        self.counters[at] += 1;
    }

    /// An attempt that was admitted before starts now: it counts once, in the part of the window in which it does. The
    /// digests stand in the order of their counts, so the place of one tells where it was counted.
    fn count_again(&mut self, place: usize, bucket: i64, now: i64) {
        let mut newer = self.recent.len() / DIGEST_BYTES - 1 - place;
        let counted = self.counters.iter().rposition(|count| {
            let here = usize::try_from(*count).unwrap_or(usize::MAX);
            let found = newer < here;
            newer = newer.saturating_sub(here);
            found
        });
        let now_at = usize::try_from(bucket - self.first_bucket).unwrap_or(0);
        let Some(counted) = counted.filter(|counted| *counted < now_at) else { return };
        self.counters[counted] -= 1;
        self.mark_updated(now);
        self.count(bucket);
        let (before, rest) = self.recent.split_at(place * DIGEST_BYTES);
        let (digest, after) = rest.split_at(DIGEST_BYTES);
        self.recent = [before, after, digest].concat().into();
    }

    fn remember(&mut self, digest: [u8; DIGEST_BYTES]) {
        let mut recent = Vec::from(std::mem::take(&mut self.recent).0);
        recent.extend_from_slice(&digest);
        let surplus = recent.len().saturating_sub(limits::QUOTA_RECENT_KEPT * DIGEST_BYTES);
        recent.drain(..surplus);
        self.recent = recent.into();
    }

    fn keep_recent(&mut self, most: usize) {
        let surplus = self.recent.len().saturating_sub(most.saturating_mul(DIGEST_BYTES));
        if surplus > 0 {
            self.recent = self.recent[surplus..].to_vec().into();
        }
    }

    /// Time never goes back within a document.
    fn mark_updated(&mut self, now: i64) -> i64 {
        self.updated_at = self.updated_at.max(now);
        self.updated_at
    }
}

fn definition_digest(definition: &QuotaDefinition) -> [u8; 16] {
    let bytes = rmp_serde::to_vec(definition).expect("definitions hold only types that msgpack can express");
    digest16(&[&bytes])
}

fn admission_digest(execution: &ExecutionId, attempt: AttemptIndex) -> [u8; DIGEST_BYTES] {
    digest16(&[execution.uuid.as_bytes(), &attempt.0.to_be_bytes()])
}

/// A quota as people see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QuotaStatus {
    /// The namespace it belongs to.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its limits.
    pub definition: QuotaDefinition,
    /// Attempts that count against the window now.
    pub started_in_window: u64,
    /// Claims that hold a slot now.
    pub in_use: u32,
    /// When a full window has room again.
    pub opens_at: Option<i64>,
    /// When it was created.
    pub created_at: i64,
    /// When it last changed.
    pub updated_at: i64,
}

#[cfg(test)]
mod tests;
