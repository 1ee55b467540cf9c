//! An accepted signal, what it did, and the record that makes its idempotency key take effect once.

use crate::condition::{SignalFact, TIMEOUT_SIGNAL, source};
use crate::encoding::{Blob, Document};
use crate::error::{Error, Result};
use crate::id::{ExecutionId, SignalId, WaitpointId};
use crate::index::{self, Indexed, kind};
use crate::key::{Entry, Key};
use crate::partition::digest16;
use crate::suspension::ResumeSignal;
use crate::{limits, text};

crate::vocabulary! {
    /// The effect of an accepted signal.
    #[derive(Default)]
    pub enum SignalEffect {
        /// Nothing: it matches nothing that is still needed.
        #[default]
        NoOp "no_op",
        /// It counts, and more is needed.
        AppendedToWaitpoint "appended_to_waitpoint",
        /// It resumed its execution.
        ResumeConditionSatisfied "resume_condition_satisfied",
        /// It waits for its execution to suspend.
        Buffered "buffered",
    }
}

/// The parts a signal is made from.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NewSignal {
    /// Its id, minted before the commit or brought by the sender.
    pub id: SignalId,
    /// The execution it is for.
    pub execution: ExecutionId,
    /// Where it arrives.
    pub waitpoint: WaitpointId,
    /// Its name.
    pub name: String,
    /// Its category; may be empty.
    pub category: String,
    /// The kind of sender it comes from; may be empty.
    pub source_type: String,
    /// Which sender it comes from; may be empty.
    pub source_identity: String,
    /// The sender's own id for what the signal belongs to; may be empty.
    pub correlation_id: String,
    /// The type of its payload; may be empty.
    pub content_type: String,
    /// Its payload, if it has one.
    pub payload: Option<Blob>,
    /// When it was created, as the sender says.
    pub created_at: Option<i64>,
    /// The caller that brought it: the name of an API token, or `waitpoint_token`.
    pub delivered_by: String,
    /// The source that counts where the sender is not believed; the one that the sender names counts when absent.
    pub counted_as: Option<String>,
    /// The caller that brought it is believed about the sender.
    pub vouched: bool,
}

impl NewSignal {
    /// Refuses what is malformed or too large.
    pub fn validate(&self) -> Result<()> {
        text::label("name", &self.name)?;
        if self.name == TIMEOUT_SIGNAL {
            return Err(Error::invalid("name", format!("must not be {TIMEOUT_SIGNAL}, which stands for a timeout")));
        }
        text::optional_label("category", &self.category)?;
        text::optional_label("source_type", &self.source_type)?;
        text::optional_label("source_identity", &self.source_identity)?;
        text::optional_label("correlation_id", &self.correlation_id)?;
        text::optional_content_type("content_type", &self.content_type)?;
        if let Some(created_at) = self.created_at {
            text::instant("created_at", created_at)?;
        }
        let size = self.size();
        if size > limits::SIGNAL_PAYLOAD_MAX_BYTES {
            return Err(Error::too_large("payload", size, limits::SIGNAL_PAYLOAD_MAX_BYTES));
        }
        Ok(())
    }

    /// Bytes of its payload.
    pub fn size(&self) -> usize {
        self.payload.as_ref().map_or(0, Blob::len)
    }

    /// Its sender as people see it.
    fn by(&self) -> &str {
        let believed = self.vouched || self.counted_as.is_none();
        if believed && !self.source_identity.is_empty() { &self.source_identity } else { &self.delivered_by }
    }

    /// The part of it that conditions look at, when it is accepted now.
    pub fn fact(&self, now: i64) -> SignalFact {
        SignalFact {
            id: self.id,
            name: self.name.clone(),
            source: self.counted_as.clone().unwrap_or_else(|| source(&self.source_type, &self.source_identity)),
            waitpoint: self.waitpoint,
            at: now,
            by: self.by().to_owned(),
            ..Default::default()
        }
    }
}

crate::document! {
    /// An accepted signal. It lives in its execution's partition.
    pub struct AcceptedSignal {
        /// Its id.
        "i" id: SignalId,
        /// The execution it is for.
        "x" execution: ExecutionId,
        /// Where it arrived.
        "w" waitpoint: WaitpointId,
        /// Its name.
        "n" name: String,
        /// Its category.
        "g" category: String,
        /// The kind of sender it came from.
        "st" source_type: String,
        /// Which sender it came from.
        "si" source_identity: String,
        /// The sender's own id for what the signal belongs to.
        "r" correlation_id: String,
        /// The type of its payload.
        "t" content_type: String,
        /// Its payload, where it is small; a large one is a blob under the signal's key.
        "p" payload: Option<Blob>,
        /// Bytes of its payload.
        "z" size: u64,
        /// When it was created, as the sender says.
        "c" created_at: Option<i64>,
        /// When it was accepted.
        "a" accepted_at: i64,
        /// Its effect.
        "e" effect: SignalEffect,
        /// The caller that brought it: the name of an API token, or `waitpoint_token`.
        "db" delivered_by: String,
    }
}

impl Document for AcceptedSignal {
    const KIND: u8 = kind::SIGNAL;
    crate::encoding::compiled_here!();
}

impl Indexed for AcceptedSignal {
    fn key(&self) -> Key {
        Self::key_of(&self.id)
    }

    fn index_entries(&self, _lease_until: i64) -> Vec<Entry> {
        vec![Entry { index: index::execution_parts(self.execution.uuid), member: self.key(), score: self.accepted_at }]
    }
}

impl AcceptedSignal {
    /// Where a signal lives in its partition.
    pub fn key_of(id: &SignalId) -> Key {
        Key::new(kind::SIGNAL, &[id.as_bytes()])
    }

    /// A signal accepted now with what it did; and its payload, where that is too large to live inside and must be
    /// stored as a blob under the same key.
    pub fn accept(new: NewSignal, effect: SignalEffect, now: i64) -> Result<(Self, Option<Blob>)> {
        new.validate()?;
        let size = u64::try_from(new.size()).unwrap_or(u64::MAX);
        let (inside, beside) = match new.payload {
            Some(payload) if payload.len() > limits::INLINE_MAX_BYTES => (None, Some(payload)),
            small => (small, None),
        };
        let signal = Self {
            id: new.id,
            execution: new.execution,
            waitpoint: new.waitpoint,
            name: new.name,
            category: new.category,
            source_type: new.source_type,
            source_identity: new.source_identity,
            correlation_id: new.correlation_id,
            content_type: new.content_type,
            payload: inside,
            size,
            created_at: new.created_at,
            accepted_at: now,
            effect,
            delivered_by: new.delivered_by,
            ..Default::default()
        };
        Ok((signal, beside))
    }

    /// Whether its payload is a blob beside it.
    pub fn has_blob(&self) -> bool {
        self.payload.is_none() && self.size > 0
    }

    /// As the worker reads it after the execution was resumed; a payload beside the signal is brought by the caller.
    pub fn into_resume_signal(self, blob: Option<Blob>) -> ResumeSignal {
        ResumeSignal {
            signal_id: self.id,
            name: self.name,
            category: self.category,
            source_type: self.source_type,
            source_identity: self.source_identity,
            delivered_by: self.delivered_by,
            correlation_id: self.correlation_id,
            accepted_at: self.accepted_at,
            content_type: self.content_type,
            payload: self.payload.or(blob),
        }
    }
}

crate::document! {
    /// The record of an idempotency key of a waitpoint. It expires.
    pub struct SignalRecord {
        /// The digest that is the record's key.
        "k" digest: Blob,
        /// The signal that was accepted under the key.
        "i" signal: SignalId,
        /// Its effect.
        "e" effect: SignalEffect,
        /// When the signal was accepted.
        "a" at: i64,
    }
}

impl Document for SignalRecord {
    const KIND: u8 = kind::RECORD;
    crate::encoding::compiled_here!();
}

impl Indexed for SignalRecord {
    fn key(&self) -> Key {
        Key::new(kind::RECORD, &[&self.digest])
    }

    fn index_entries(&self, _lease_until: i64) -> Vec<Entry> {
        Vec::new()
    }
}

impl SignalRecord {
    /// A record of what a signal to this waitpoint with this idempotency key did.
    pub fn new(waitpoint: &WaitpointId, idempotency_key: &str, signal: &AcceptedSignal) -> Result<Self> {
        Self::under(Self::digest_of(waitpoint, idempotency_key), idempotency_key, signal)
    }

    /// A record for a signal that named no waitpoint. A repeat may mean another one by then, so the key belongs to the
    /// execution.
    pub fn by_name(idempotency_key: &str, signal: &AcceptedSignal) -> Result<Self> {
        Self::under(Self::digest_by_name(&signal.execution, &signal.name, idempotency_key), idempotency_key, signal)
    }

    fn under(digest: [u8; 16], idempotency_key: &str, signal: &AcceptedSignal) -> Result<Self> {
        text::label("idempotency_key", idempotency_key)?;
        let (digest, at) = (digest.to_vec().into(), signal.accepted_at);
        Ok(Self { digest, signal: signal.id, effect: signal.effect, at, ..Default::default() })
    }

    /// Where the record of a key lives, in the waitpoint's partition.
    pub fn key_of(waitpoint: &WaitpointId, idempotency_key: &str) -> Key {
        Key::new(kind::RECORD, &[&Self::digest_of(waitpoint, idempotency_key)])
    }

    /// Where the record of a signal lives that named no waitpoint, in the execution's partition.
    pub fn key_by_name(execution: &ExecutionId, name: &str, idempotency_key: &str) -> Key {
        Key::new(kind::RECORD, &[&Self::digest_by_name(execution, name, idempotency_key)])
    }

    /// From this instant on the key may be used again.
    pub fn expires_at(&self) -> i64 {
        self.at + limits::DEDUP_WINDOW_MS
    }

    /// The answer to a repeat.
    pub fn repeated(&self) -> SignalOutcome {
        SignalOutcome::Duplicate { existing_signal_id: self.signal }
    }

    fn digest_of(waitpoint: &WaitpointId, idempotency_key: &str) -> [u8; 16] {
        digest16(&[b"signal", waitpoint.uuid.as_bytes(), idempotency_key.as_bytes()])
    }

    fn digest_by_name(execution: &ExecutionId, name: &str, idempotency_key: &str) -> [u8; 16] {
        digest16(&[b"signal by name", execution.uuid.as_bytes(), name.as_bytes(), idempotency_key.as_bytes()])
    }
}

/// The answer to a signal.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum SignalOutcome {
    /// It was taken.
    Accepted {
        /// The signal.
        signal_id: SignalId,
        /// Its effect.
        effect: SignalEffect,
    },
    /// It was taken and resumed the execution.
    TriggeredResume {
        /// The signal.
        signal_id: SignalId,
    },
    /// Its idempotency key or its id was used before; nothing changed.
    Duplicate {
        /// The signal that was taken then.
        existing_signal_id: SignalId,
    },
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(SignalOutcome);

impl SignalOutcome {
    /// The answer to a signal that did this.
    pub fn of(signal_id: SignalId, effect: SignalEffect) -> Self {
        match effect {
            SignalEffect::ResumeConditionSatisfied => SignalOutcome::TriggeredResume { signal_id },
            _ => SignalOutcome::Accepted { signal_id, effect },
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::error::Code;

    fn new(payload: Option<Vec<u8>>) -> NewSignal {
        NewSignal {
            id: SignalId(Uuid::from_u128(7)),
            execution: ExecutionId { partition: 1, uuid: Uuid::from_u128(1) },
            waitpoint: WaitpointId { partition: 1, uuid: Uuid::from_u128(2) },
            name: "approve".into(),
            category: "human".into(),
            source_type: "user".into(),
            source_identity: "eve".into(),
            content_type: "application/json".into(),
            payload: payload.map(Blob::from),
            ..Default::default()
        }
    }

    #[test]
    fn a_small_payload_lives_inside_and_a_large_one_beside() {
        let size = limits::INLINE_MAX_BYTES;
        let (small, beside) = AcceptedSignal::accept(new(Some(vec![1; size])), SignalEffect::Buffered, 50).unwrap();
        assert_eq!((small.payload.as_ref().map(Blob::len), beside, small.has_blob()), (Some(size), None, false));
        let (large, beside) = AcceptedSignal::accept(new(Some(vec![1; size + 1])), SignalEffect::Buffered, 50).unwrap();
        assert_eq!((large.payload.as_ref(), large.has_blob()), (None, true));
        let resumed = large.into_resume_signal(beside);
        assert_eq!(resumed.payload.map(|payload| payload.len()), Some(size + 1));
    }

    #[test]
    fn no_payload_is_not_an_empty_payload() {
        for payload in [None, Some(vec![])] {
            let (signal, beside) = AcceptedSignal::accept(new(payload.clone()), SignalEffect::NoOp, 50).unwrap();
            assert!(beside.is_none() && !signal.has_blob());
            let stored = AcceptedSignal::decode(&signal.encode()).unwrap();
            assert_eq!(stored, signal);
            assert_eq!(stored.into_resume_signal(None).payload, payload.map(Blob::from));
        }
    }

    #[test]
    fn payloads_hold_at_the_limit_and_not_one_past_it() {
        let max = limits::SIGNAL_PAYLOAD_MAX_BYTES;
        new(Some(vec![0; max])).validate().unwrap();
        let error = new(Some(vec![0; max + 1])).validate().unwrap_err();
        assert_eq!((error.code, &error.details["field"]), (Code::PayloadTooLarge, &"payload".into()));
    }

    #[test]
    fn bad_fields_are_named() {
        let bad = "a\nb".to_owned();
        for (signal, field) in [
            (NewSignal { name: String::new(), ..new(None) }, "name"),
            (NewSignal { name: TIMEOUT_SIGNAL.into(), ..new(None) }, "name"),
            (NewSignal { category: bad.clone(), ..new(None) }, "category"),
            (NewSignal { source_type: bad.clone(), ..new(None) }, "source_type"),
            (NewSignal { source_identity: bad.clone(), ..new(None) }, "source_identity"),
            (NewSignal { correlation_id: bad.clone(), ..new(None) }, "correlation_id"),
            (NewSignal { content_type: bad, ..new(None) }, "content_type"),
            (NewSignal { created_at: Some(-1), ..new(None) }, "created_at"),
        ] {
            let error = AcceptedSignal::accept(signal, SignalEffect::NoOp, 1).unwrap_err();
            assert_eq!(error.details["field"], field, "{error}");
        }
    }

    #[test]
    fn a_signal_belongs_to_its_execution() {
        let (signal, _) = AcceptedSignal::accept(new(None), SignalEffect::NoOp, 50).unwrap();
        let entry = Entry { index: index::execution_parts(Uuid::from_u128(1)), member: signal.key(), score: 50 };
        assert_eq!(signal.index_entries(0), [entry]);
        assert_eq!(new(None).fact(50).source, "4:user:eve");
    }

    #[test]
    fn a_record_is_found_by_its_waitpoint_and_key_alone() {
        let (signal, _) = AcceptedSignal::accept(new(None), SignalEffect::AppendedToWaitpoint, 50).unwrap();
        let record = SignalRecord::new(&signal.waitpoint, "once", &signal).unwrap();
        assert_eq!(record.key(), SignalRecord::key_of(&signal.waitpoint, "once"));
        assert_ne!(record.key(), SignalRecord::key_of(&signal.waitpoint, "twice"));
        assert_ne!(record.key(), SignalRecord::key_of(&WaitpointId::default(), "once"));
        assert_eq!(record.expires_at(), 50 + limits::DEDUP_WINDOW_MS);
        assert_eq!(SignalRecord::decode(&record.encode()).unwrap(), record);
        assert_eq!(record.repeated(), SignalOutcome::Duplicate { existing_signal_id: signal.id });
        assert!(SignalRecord::new(&signal.waitpoint, &"k".repeat(257), &signal).is_err());
        assert!(SignalRecord::new(&signal.waitpoint, "", &signal).is_err());
    }

    #[test]
    fn answers_read_as_documented() {
        let id = SignalId(Uuid::from_u128(7));
        let json = |outcome: &SignalOutcome| serde_json::to_value(outcome).unwrap();
        let appended = json(&SignalOutcome::of(id, SignalEffect::AppendedToWaitpoint));
        assert_eq!((&appended["outcome"], &appended["effect"]), (&"accepted".into(), &"appended_to_waitpoint".into()));
        let resumed = json(&SignalOutcome::of(id, SignalEffect::ResumeConditionSatisfied));
        assert_eq!((&resumed["outcome"], resumed.get("effect")), (&"triggered_resume".into(), None));
        let text = serde_json::to_string(&SignalOutcome::Duplicate { existing_signal_id: id }).unwrap();
        let read: SignalOutcome = serde_json::from_str(&text).unwrap();
        assert_eq!(read, SignalOutcome::Duplicate { existing_signal_id: id });
    }
}
