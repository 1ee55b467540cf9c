//! A waitpoint: the address that signals are sent to. A pending one exists before its execution suspends and buffers
//! what arrives; an active one belongs to a suspension, which does the counting; a closed one takes nothing more.

use crate::condition::SignalFact;
use crate::encoding::Document;
use crate::error::{Code, Error, Result};
use crate::id::{ExecutionId, SignalId, WaitpointId};
use crate::index::{self, Due, Indexed, kind};
use crate::journal::StepIdentity;
use crate::key::{Entry, Key};
use crate::suspension::Suspension;
use crate::{limits, text};

crate::vocabulary! {
    /// Where in its life a waitpoint is.
    #[derive(Default)]
    pub enum WaitpointState {
        /// It belongs to a suspension.
        #[default]
        Active "active",
        /// Its execution has not suspended on it yet; signals are buffered.
        Pending "pending",
        /// It takes no more signals.
        Closed "closed",
    }
}

crate::vocabulary! {
    /// Why a waitpoint was closed.
    #[derive(Default)]
    pub closed enum CloseReason {
        /// It is not closed.
        #[default]
        None "none",
        /// Its suspension's condition was satisfied.
        Satisfied "satisfied",
        /// Its suspension's time was up.
        TimedOut "timed_out",
        /// An operator resumed its execution.
        Resumed "resumed",
        /// An operator or its lease holder closed it.
        Requested "requested",
        /// No execution suspended on it in time.
        Expired "expired",
        /// Its execution ended.
        ExecutionEnded "execution_ended",
    }
}

crate::document! {
    /// Where signals for an execution arrive. It lives in the execution's partition.
    pub struct Waitpoint {
        /// Its id.
        "i" id: WaitpointId,
        /// The execution it belongs to.
        "x" execution: ExecutionId,
        /// The execution's namespace; the token is made from it.
        "n" namespace: String,
        /// A name of the worker's choice; the token is made from it.
        "k" waitpoint_key: String,
        /// Where in its life it is.
        "s" state: WaitpointState,
        /// When it was created; the token is made from it.
        "c" created_at: i64,
        /// When a suspension took it.
        "a" activated_at: Option<i64>,
        /// When it was closed.
        "z" closed_at: Option<i64>,
        /// Why it was closed.
        "y" close_reason: CloseReason,
        /// When it closes if no execution has suspended on it.
        "e" expires_at: Option<i64>,
        /// Signals that arrived while it was pending, in the order they were accepted.
        "f" buffered: Vec<SignalFact>,
        /// Bytes of their payloads.
        "b" buffered_bytes: u64,
        /// It belongs to an entry of this generation's journal: it buffers until the entry ends.
        "jg" generation: Option<u32>,
        /// The entry's name.
        "jn" step_name: String,
        /// The entry's key.
        "jk" step_key: Option<String>,
        /// Which call of the name the entry is, without a key.
        "jo" step_occurrence: u32,
    }
}

impl Document for Waitpoint {
    const KIND: u8 = kind::WAITPOINT;
    crate::encoding::compiled_here!();
}

impl Indexed for Waitpoint {
    fn key(&self) -> Key {
        Self::key_of(&self.id)
    }

    fn index_entries(&self, _lease_until: i64) -> Vec<Entry> {
        let key = self.key();
        let mut entries = vec![Entry {
            index: index::execution_parts(self.execution.uuid),
            member: key.clone(),
            score: self.created_at,
        }];
        if let (WaitpointState::Pending, Some(at)) = (self.state, self.expires_at) {
            entries.push(Due::Timer.entry(&key, at));
        }
        if self.state == WaitpointState::Pending {
            let index = index::pending_waitpoints(self.execution.uuid);
            entries.push(Entry { index, member: key, score: self.created_at });
        }
        entries
    }
}

/// The parts a waitpoint is made from.
#[derive(Debug, Clone)]
pub struct NewWaitpoint {
    /// Its id, in the execution's partition.
    pub id: WaitpointId,
    /// The execution it belongs to.
    pub execution: ExecutionId,
    /// The execution's namespace.
    pub namespace: String,
    /// A name of the worker's choice; empty for `wpk:<id>`.
    pub waitpoint_key: String,
}

impl Waitpoint {
    /// Where a waitpoint lives in its partition.
    pub fn key_of(id: &WaitpointId) -> Key {
        Key::new(kind::WAITPOINT, &[id.uuid.as_bytes()])
    }

    /// A waitpoint that takes signals before its execution suspends.
    pub fn pending(new: NewWaitpoint, expires_in_ms: Option<i64>, now: i64) -> Result<Self> {
        let expires_in_ms = expires_in_ms.unwrap_or(limits::WAITPOINT_TTL_DEFAULT_MS);
        text::within("expires_in_ms", expires_in_ms, 1..=limits::DURATION_MAX_MS)?;
        let mut waitpoint = Self::active(new, now)?;
        waitpoint.state = WaitpointState::Pending;
        waitpoint.activated_at = None;
        waitpoint.expires_at = Some(now + expires_in_ms);
        Ok(waitpoint)
    }

    /// A waitpoint of a journal entry: it buffers until the entry ends or its generation does.
    pub fn of_step(execution: ExecutionId, generation: u32, namespace: &str, step: &StepIdentity, now: i64) -> Self {
        let id = step.waitpoint_id(&execution, generation);
        Self {
            id,
            execution,
            namespace: namespace.to_owned(),
            waitpoint_key: step.label(),
            state: WaitpointState::Pending,
            created_at: now,
            generation: Some(generation),
            step_name: step.name.clone(),
            step_key: step.key.clone(),
            step_occurrence: step.occurrence.unwrap_or(0),
            ..Default::default()
        }
    }

    /// Whether it is the waitpoint of an entry of this journal. Its id is no secret, so that a caller may have created
    /// another waitpoint under it.
    pub fn is_of_journal(&self, execution: &ExecutionId, generation: u32) -> bool {
        self.execution == *execution && self.generation == Some(generation)
    }

    /// Takes the first signal out of the buffer and closes: the entry it belongs to has ended.
    pub fn consume(&mut self, now: i64) -> Option<SignalFact> {
        let first = self.buffered.first().cloned()?;
        self.close(CloseReason::Satisfied, now);
        Some(first)
    }

    /// Takes the first signal out of the buffer and stays open: a suspension that is not of the journal has use for it.
    pub fn hand_over(&mut self) -> Option<SignalFact> {
        let first = (!self.buffered.is_empty()).then(|| self.buffered.remove(0))?;
        if self.buffered.is_empty() {
            self.buffered_bytes = 0;
        }
        Some(first)
    }

    /// A waitpoint of a suspension that begins now.
    pub fn active(new: NewWaitpoint, now: i64) -> Result<Self> {
        text::optional_label("waitpoint_key", &new.waitpoint_key)?;
        if new.id.partition != new.execution.partition {
            return Err(Error::invalid("waitpoint_id", "must live in the partition of its execution"));
        }
        let waitpoint_key = match new.waitpoint_key.is_empty() {
            true => format!("wpk:{}", new.id),
            false => new.waitpoint_key,
        };
        Ok(Self {
            id: new.id,
            execution: new.execution,
            namespace: new.namespace,
            waitpoint_key,
            created_at: now,
            activated_at: Some(now),
            ..Default::default()
        })
    }

    /// Keeps a signal until its execution suspends. The same signal again changes nothing.
    pub fn buffer(&mut self, fact: SignalFact, size: usize, now: i64) -> Result<()> {
        self.check_pending(Code::WaitpointClosed, now)?;
        if self.holds(&fact.id) {
            return Ok(());
        }
        let limit = |what: &str, max: usize| {
            Error::new(Code::SignalLimitExceeded, format!("the waitpoint buffers at most {max} {what}"))
                .with("waitpoint_id", self.id)
                .with("max", max)
        };
        if self.buffered.len() >= limits::BUFFERED_SIGNALS_MAX {
            return Err(limit("signals", limits::BUFFERED_SIGNALS_MAX));
        }
        let bytes = self.buffered_bytes.saturating_add(u64::try_from(size).unwrap_or(u64::MAX));
        if bytes > u64::try_from(limits::BUFFERED_SIGNALS_MAX_BYTES).unwrap_or(u64::MAX) {
            return Err(limit("bytes", limits::BUFFERED_SIGNALS_MAX_BYTES));
        }
        self.buffered_bytes = bytes;
        self.buffered.push(fact);
        Ok(())
    }

    /// Whether a signal is in the buffer.
    pub fn holds(&self, signal: &SignalId) -> bool {
        self.buffered.iter().any(|fact| fact.id == *signal)
    }

    /// A suspension takes the waitpoint, and the signals that arrived meanwhile.
    pub fn activate(&mut self, now: i64) -> Result<Vec<SignalFact>> {
        self.check_pending(Code::WaitpointNotPending, now)?;
        self.state = WaitpointState::Active;
        self.activated_at = Some(now.max(self.created_at));
        self.expires_at = None;
        self.buffered_bytes = 0;
        Ok(std::mem::take(&mut self.buffered))
    }

    /// Takes no more signals; says whether it still did. The first reason stays.
    pub fn close(&mut self, reason: CloseReason, now: i64) -> bool {
        if self.state == WaitpointState::Closed {
            return false;
        }
        self.state = WaitpointState::Closed;
        self.closed_at = Some(now.max(self.created_at));
        self.close_reason = reason;
        self.expires_at = None;
        self.buffered.clear();
        self.buffered_bytes = 0;
        true
    }

    /// Closes it if it is pending and its time is up; says whether it did.
    pub fn expire(&mut self, now: i64) -> bool {
        self.is_expired(now) && self.close(CloseReason::Expired, now)
    }

    /// Refuses a closed waitpoint, and a pending one whose time is up although no timer has fired yet.
    pub fn check_open(&self, now: i64) -> Result<()> {
        if self.state == WaitpointState::Closed || self.is_expired(now) {
            return Err(Error::of(Code::WaitpointClosed).with("waitpoint_id", self.id));
        }
        Ok(())
    }

    fn is_expired(&self, now: i64) -> bool {
        self.state == WaitpointState::Pending && self.expires_at.is_some_and(|at| at <= now)
    }

    fn check_pending(&self, when_closed: Code, now: i64) -> Result<()> {
        if self.check_open(now).is_err() {
            return Err(Error::of(when_closed).with("waitpoint_id", self.id));
        }
        if self.state == WaitpointState::Active {
            return Err(Error::of(Code::WaitpointNotPending).with("waitpoint_id", self.id));
        }
        Ok(())
    }

    /// The view of it that lists show; a closed one is left out. An active one expires with its suspension.
    pub fn info(
        &self,
        suspension: Option<&Suspension>,
        kid: String,
        fingerprint: String,
    ) -> Option<PendingWaitpointInfo> {
        if self.state == WaitpointState::Closed {
            return None;
        }
        let suspension = suspension.filter(|suspension| suspension.waitpoints.contains(&self.id));
        Some(PendingWaitpointInfo {
            waitpoint_id: self.id,
            waitpoint_key: self.waitpoint_key.clone(),
            state: self.state,
            required_names: suspension.map(|suspension| suspension.condition.required_names()).unwrap_or_default(),
            created_at: self.created_at,
            activated_at: self.activated_at,
            expires_at: suspension.map_or(self.expires_at, |suspension| suspension.timeout_at),
            kid,
            fingerprint,
        })
    }
}

/// A waitpoint that takes signals, as lists show it. Never its token: the fingerprint tells tokens apart.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", default, deny_unknown_fields)]
pub struct PendingWaitpointInfo {
    /// The waitpoint.
    pub waitpoint_id: WaitpointId,
    /// Its name.
    pub waitpoint_key: String,
    /// Pending or active.
    pub state: WaitpointState,
    /// The signal names its suspension asks for; empty when any will do.
    pub required_names: Vec<String>,
    /// When it was created.
    pub created_at: i64,
    /// When a suspension took it.
    pub activated_at: Option<i64>,
    /// When it ends by itself.
    pub expires_at: Option<i64>,
    /// The secret its token is signed with now.
    pub kid: String,
    /// The first eight hex digits of the token's SHA-256.
    pub fingerprint: String,
}
crate::newer::open_struct!(PendingWaitpointInfo);

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::condition::{Condition, ConditionMatcher};

    fn new(waitpoint_key: &str) -> NewWaitpoint {
        NewWaitpoint {
            id: WaitpointId { partition: 3, uuid: Uuid::from_u128(1) },
            execution: ExecutionId { partition: 3, uuid: Uuid::from_u128(2) },
            namespace: "default".into(),
            waitpoint_key: waitpoint_key.into(),
        }
    }

    fn pending() -> Waitpoint {
        Waitpoint::pending(new("gate"), Some(1_000), 100).unwrap()
    }

    fn fact(id: usize) -> SignalFact {
        SignalFact { id: SignalId(Uuid::from_u128(u128::try_from(id).unwrap())), ..Default::default() }
    }

    fn due(waitpoint: &Waitpoint) -> Vec<i64> {
        let entries = waitpoint.index_entries(0);
        assert_eq!(entries[0].index, index::execution_parts(waitpoint.execution.uuid));
        let listed = entries.iter().any(|entry| entry.index == index::pending_waitpoints(waitpoint.execution.uuid));
        assert_eq!(listed, waitpoint.state == WaitpointState::Pending);
        entries.iter().filter(|entry| entry.index == index::due()).map(|entry| entry.score).collect()
    }

    #[test]
    fn a_key_is_made_up_where_none_was_given() {
        let waitpoint = Waitpoint::active(new(""), 5).unwrap();
        assert_eq!(waitpoint.waitpoint_key, format!("wpk:{}", waitpoint.id));
        assert_eq!(Waitpoint::active(new("gate"), 5).unwrap().waitpoint_key, "gate");
    }

    #[test]
    fn only_a_pending_waitpoint_has_a_timer() {
        let mut waitpoint = pending();
        assert_eq!(due(&waitpoint), [1_100]);
        waitpoint.activate(200).unwrap();
        assert!(due(&waitpoint).is_empty());
        assert!(due(&Waitpoint::active(new(""), 5).unwrap()).is_empty());
        let default = Waitpoint::pending(new(""), None, 0).unwrap();
        assert_eq!(due(&default), [limits::WAITPOINT_TTL_DEFAULT_MS]);
    }

    #[test]
    fn activation_hands_over_what_was_buffered_once() {
        let mut waitpoint = pending();
        waitpoint.buffer(fact(1), 10, 150).unwrap();
        waitpoint.buffer(fact(2), 10, 160).unwrap();
        waitpoint.buffer(fact(1), 10, 170).unwrap();
        assert_eq!((waitpoint.buffered.len(), waitpoint.buffered_bytes), (2, 20));
        assert_eq!(waitpoint.activate(200).unwrap(), [fact(1), fact(2)]);
        assert_eq!((waitpoint.state, waitpoint.buffered_bytes), (WaitpointState::Active, 0));
        assert_eq!(waitpoint.activate(201).unwrap_err().code, Code::WaitpointNotPending);
        assert_eq!(waitpoint.buffer(fact(3), 1, 202).unwrap_err().code, Code::WaitpointNotPending);
    }

    #[test]
    fn an_unused_waitpoint_expires_at_its_instant() {
        let mut waitpoint = pending();
        assert!(!waitpoint.expire(1_099));
        waitpoint.check_open(1_099).unwrap();
        assert_eq!(waitpoint.clone().activate(1_100).unwrap_err().code, Code::WaitpointNotPending);
        assert_eq!(waitpoint.clone().buffer(fact(1), 0, 1_100).unwrap_err().code, Code::WaitpointClosed);
        assert!(waitpoint.expire(1_100));
        assert_eq!((waitpoint.close_reason, waitpoint.closed_at), (CloseReason::Expired, Some(1_100)));
        let mut active = Waitpoint::active(new(""), 0).unwrap();
        assert!(!active.expire(i64::MAX));
    }

    #[test]
    fn closing_is_final_and_the_first_reason_stays() {
        let mut waitpoint = pending();
        waitpoint.buffer(fact(1), 10, 150).unwrap();
        assert!(waitpoint.close(CloseReason::Requested, 200));
        assert!(!waitpoint.close(CloseReason::ExecutionEnded, 300));
        assert_eq!((waitpoint.close_reason, waitpoint.closed_at), (CloseReason::Requested, Some(200)));
        assert!(waitpoint.buffered.is_empty());
        assert_eq!(waitpoint.buffer(fact(2), 1, 301).unwrap_err().code, Code::WaitpointClosed);
        assert_eq!(waitpoint.activate(301).unwrap_err().code, Code::WaitpointNotPending);
        assert_eq!(waitpoint.info(None, "k1".into(), "00".into()), None);
    }

    #[test]
    fn the_buffer_holds_as_many_signals_as_its_limit() {
        let mut waitpoint = pending();
        for id in 0..limits::BUFFERED_SIGNALS_MAX {
            waitpoint.buffer(fact(id), 0, 150).unwrap();
        }
        let before = waitpoint.clone();
        let error = waitpoint.buffer(fact(limits::BUFFERED_SIGNALS_MAX), 0, 150).unwrap_err();
        assert_eq!(error.code, Code::SignalLimitExceeded);
        assert_eq!(waitpoint, before);
    }

    #[test]
    fn the_buffer_holds_as_many_bytes_as_its_limit() {
        let mut waitpoint = pending();
        waitpoint.buffer(fact(1), limits::BUFFERED_SIGNALS_MAX_BYTES, 150).unwrap();
        assert_eq!(waitpoint.buffer(fact(2), 1, 150).unwrap_err().code, Code::SignalLimitExceeded);
        waitpoint.buffer(fact(2), 0, 150).unwrap();
    }

    #[test]
    fn bad_requests_name_their_field() {
        let field = |result: Result<Waitpoint>| result.unwrap_err().details["field"].clone();
        assert_eq!(field(Waitpoint::pending(new("a\nb"), None, 0)), "waitpoint_key");
        assert_eq!(field(Waitpoint::pending(new(""), Some(0), 0)), "expires_in_ms");
        assert_eq!(field(Waitpoint::pending(new(""), Some(limits::DURATION_MAX_MS + 1), 0)), "expires_in_ms");
        let mut foreign = new("");
        foreign.id.partition = 4;
        assert_eq!(field(Waitpoint::active(foreign, 0)), "waitpoint_id");
    }

    #[test]
    fn a_list_shows_the_names_and_the_time_of_its_suspension() {
        let mut waitpoint = pending();
        let shown = waitpoint.info(None, "k1".into(), "abcd".into()).unwrap();
        assert_eq!((shown.state, shown.expires_at), (WaitpointState::Pending, Some(1_100)));
        waitpoint.activate(200).unwrap();
        let suspension = Suspension {
            waitpoints: vec![waitpoint.id],
            condition: Condition::Any(vec![ConditionMatcher::named("approve")]),
            timeout_at: Some(900),
            ..Default::default()
        };
        let shown = waitpoint.info(Some(&suspension), "k1".into(), "abcd".into()).unwrap();
        assert_eq!((shown.required_names, shown.expires_at), (vec!["approve".to_owned()], Some(900)));
        assert_eq!((shown.state, shown.activated_at), (WaitpointState::Active, Some(200)));
    }

    #[test]
    fn a_waitpoint_survives_the_store() {
        let mut waitpoint = pending();
        waitpoint.buffer(fact(1), 10, 150).unwrap();
        assert_eq!(Waitpoint::decode(&waitpoint.encode()).unwrap(), waitpoint);
    }
}
