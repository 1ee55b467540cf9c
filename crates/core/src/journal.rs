//! The journal: the record of the steps that an execution's function has done, so that calling the function again from
//! its first line is harmless. An entry is known by its name and key, never by its position in the code.
//!
//! A journal is a log of one generation of the execution. Its records are appended under the fence of the lease alone;
//! the log gives each its number and its instant. Several records may speak of one entry (`begun`, then `completed`):
//! the last one holds.

mod identity;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::encoding::{Blob, Document, JsonText};
use crate::error::{Code, Error, Result};
use crate::execution::StepRef;
use crate::id::{AttemptIndex, ExecutionId, LeaseId, SignalId};
use crate::index::kind;
use crate::lease::LeaseFence;
use crate::op::parts::{self, Content};
use crate::partition::digest16;
use crate::payload::Payload;
use crate::{document, limits, text, vocabulary};

pub use identity::StepIdentity;

vocabulary! {
    /// The kind of an entry.
    #[derive(Default)]
    pub enum StepKind {
        /// A piece of code with a result.
        #[default]
        Step "step",
        /// A wait for an instant.
        Sleep "sleep",
        /// A wait for a signal.
        Signal "signal",
        /// A child execution.
        Child "child",
        /// The time, read once.
        Now "now",
    }
}

vocabulary! {
    /// How far an entry is.
    #[derive(Default)]
    pub enum StepState {
        /// Its body runs, or ran under a lease that was lost.
        Begun "begun",
        /// It failed and is tried again at an instant.
        Retrying "retrying",
        /// It has a result.
        #[default]
        Completed "completed",
        /// It failed for good.
        Failed "failed",
    }
}

impl StepState {
    /// Whether the entry has its final state, so that its body does not run again.
    pub const fn is_ended(self) -> bool {
        matches!(self, StepState::Completed | StepState::Failed)
    }
}

document! {
    /// A record of the journal as it stands in the log.
    pub struct StepRecord {
        /// Its name in the program.
        "n" name: String,
        /// The caller's key; without one, calls of the name are counted.
        "k" key: Option<String>,
        /// Which call of the name it is, when it has no key.
        "o" occurrence: u32,
        /// The kind of the entry.
        "t" kind: StepKind,
        /// How far it is.
        "s" state: StepState,
        /// Its result.
        "r" result: Option<Payload>,
        /// The category of the failure.
        "c" category: String,
        /// The message of the failure.
        "m" message: String,
        /// The attempt that wrote it.
        "a" attempt: AttemptIndex,
        /// The lease that wrote it.
        "l" lease: LeaseId,
        /// How often its body ran.
        "x" tries: u32,
        /// When it is tried again, or the wait ends; 0 for never.
        "na" next_at: i64,
        /// How long its body took.
        "d" took_ms: i64,
        /// Tells a changed input from the recorded one; may be empty.
        "h" input_hash: String,
        /// The signal that ended it.
        "sg" signal: Option<SignalId>,
        /// Bytes of the journal up to and with this record.
        "z" total_bytes: u64,
        /// It was copied from the execution this one was forked from.
        "i" inherited: bool,
        /// The child that it is about, whose result is the entry's.
        "ch" child: Option<ExecutionId>,
        /// The entry that its body undoes.
        "cp" compensates: Option<StepRef>,
        /// A digest of a result that is kept beside the journal, for a policy that compares results.
        "rd" result_digest: Blob,
    }
}

impl Document for StepRecord {
    const KIND: u8 = kind::STEP;
    crate::encoding::compiled_here!();
}

impl StepRecord {
    /// Whether both records speak of the same entry.
    pub fn is_about(&self, other: &StepRecord) -> bool {
        (&self.name, &self.key, self.occurrence) == (&other.name, &other.key, other.occurrence)
    }
}

/// An entry as a lease holder records it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct StepEntry {
    /// Its name in the program, 1 to 128 bytes.
    pub name: String,
    /// The caller's key; without one, `occurrence` counts the calls of the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Which call of the name it is, from 0, when it has no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub occurrence: Option<u32>,
    /// The kind of the entry; `step` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<StepKind>,
    /// How far it is.
    pub state: StepState,
    /// The result of a completed entry. As any JSON value.
    #[serde(default, deserialize_with = "crate::encoding::present_json", skip_serializing_if = "Option::is_none")]
    pub result: Option<JsonText>,
    /// The result as bytes; not beside `result`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_base64: Option<Blob>,
    /// The content type of the bytes; `application/octet-stream` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// The category of the failure, for a failed or retrying entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// The message of the failure, for a failed or retrying entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// How often its body ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tries: Option<u32>,
    /// When a retrying entry is tried again, or a begun wait ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<i64>,
    /// How long its body took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<i64>,
    /// The signal that ended it; only the engine says so.
    #[serde(skip)]
    pub signal: Option<SignalId>,
    /// The child that it is about; only the engine says so.
    #[serde(skip)]
    pub child: Option<ExecutionId>,
    /// The entry that its body undoes. When both have completed, a retry of the attempt runs both again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensates: Option<StepIdentity>,
    /// A digest of the entry's input, at most 64 bytes of text; a different one later means that the code has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_hash: Option<String>,
}
crate::newer::open_struct!(StepEntry);

impl StepEntry {
    /// The bytes of the result, if any.
    pub fn content(&self) -> Result<Option<Content>> {
        parts::Sent {
            field: "result",
            json: self.result.as_ref(),
            base64: self.result_base64.as_ref(),
            content_type: self.content_type.as_deref(),
            max_bytes: limits::STEP_RESULT_MAX_BYTES,
        }
        .content()
    }

    /// Refuses values that are out of bounds or contradict each other, and names the field.
    pub fn validate(&self) -> Result<()> {
        step_name(&self.name)?;
        parts::optional(self.key.as_deref(), "key", text::label)?;
        if self.key.is_some() && self.occurrence.is_some() {
            return Err(Error::invalid("occurrence", "counts calls without a key; it goes with none"));
        }
        if self.content()?.is_some() && self.state != StepState::Completed {
            return Err(Error::invalid("result", "belongs to a completed entry only"));
        }
        let went_wrong = matches!(self.state, StepState::Failed | StepState::Retrying);
        if !went_wrong && (self.category.is_some() || self.message.is_some()) {
            return Err(Error::invalid("message", "belongs to a failed or retrying entry only"));
        }
        parts::optional(self.category.as_deref(), "category", text::label)?;
        parts::optional(self.message.as_deref(), "message", text::text)?;
        match (self.state, self.next_at) {
            (StepState::Retrying, None) => {
                return Err(Error::invalid("next_at", "must say when the entry is tried again"));
            }
            (StepState::Completed | StepState::Failed, Some(_)) => {
                return Err(Error::invalid("next_at", "belongs to a begun or retrying entry only"));
            }
            (_, Some(at)) => text::instant("next_at", at)?,
            (_, None) => {}
        }
        parts::optional_number(self.took_ms, "took_ms", text::duration_ms)?;
        self.compensates.as_ref().map_or(Ok(()), |step| parts::object("compensates", step.validate()))?;
        input_hash(self.input_hash.as_deref())
    }

    /// The record of this entry, and the bytes of the result when they are too large for the record. The caller fills
    /// in the running total, because only it knows the journal.
    pub fn record(&self, fence: &LeaseFence) -> Result<(StepRecord, Option<Bytes>)> {
        let (result, beside) = match self.content()? {
            Some(content) => {
                let (payload, beside) =
                    Payload::divide_at(content.bytes, &content.content_type, limits::STEP_INLINE_MAX_BYTES);
                (Some(payload), beside)
            }
            None => (None, None),
        };
        let record = StepRecord {
            name: self.name.clone(),
            key: self.key.clone(),
            occurrence: self.occurrence.unwrap_or(0),
            kind: self.kind.unwrap_or_default(),
            state: self.state,
            result,
            category: self.category.clone().unwrap_or_default(),
            message: self.message.clone().unwrap_or_default(),
            attempt: fence.attempt,
            lease: fence.lease_id,
            tries: self.tries.unwrap_or(0),
            next_at: self.next_at.unwrap_or(0),
            took_ms: self.took_ms.unwrap_or(0),
            input_hash: self.input_hash.clone().unwrap_or_default(),
            signal: self.signal,
            child: self.child,
            compensates: self.compensates.as_ref().map(StepRef::from),
            ..Default::default()
        };
        Ok((record, beside))
    }
}

/// Refuses a digest of an input that is too long to be one.
pub(crate) fn input_hash(hash: Option<&str>) -> Result<()> {
    match hash {
        Some(hash) if hash.len() > limits::STEP_INPUT_HASH_MAX_BYTES => {
            Err(Error::too_large("input_hash", hash.len(), limits::STEP_INPUT_HASH_MAX_BYTES))
        }
        Some(hash) => text::label("input_hash", hash),
        None => Ok(()),
    }
}

/// Refuses a name that an entry cannot have.
pub fn step_name(name: &str) -> Result<()> {
    if name.len() > limits::STEP_NAME_MAX_BYTES {
        let detail = format!("has {} bytes, the limit is {}", name.len(), limits::STEP_NAME_MAX_BYTES);
        return Err(Error::invalid("name", detail));
    }
    text::label("name", name)
}

/// The entries that a call brings along, with the number of the first of them.
#[derive(Debug, Clone, Copy)]
pub struct NewEntries<'a> {
    /// The number of the first entry; the others follow. 0 when there are none.
    pub first_number: u64,
    /// The entries.
    pub entries: &'a [StepEntry],
}

impl<'a> NewEntries<'a> {
    /// No entries.
    pub const NONE: NewEntries<'static> = NewEntries { first_number: 0, entries: &[] };

    /// The entries that a call brings: `first_number` is needed exactly when there are any.
    pub fn of(first_number: Option<u64>, entries: &'a [StepEntry]) -> Result<Self> {
        if entries.len() > limits::STEPS_PER_RECORD_MAX {
            return Err(text::too_many("entries", entries.len(), limits::STEPS_PER_RECORD_MAX));
        }
        match first_number {
            None if !entries.is_empty() => {
                return Err(Error::invalid("first_number", "must be the number of the first entry"));
            }
            Some(first) => text::within("first_number", first, 1..=limits::SCORE_MAX.unsigned_abs())?,
            None => {}
        }
        parts::items("entries", entries, StepEntry::validate)?;
        Ok(Self { first_number: first_number.unwrap_or(0), entries })
    }

    /// Whether the call brings none.
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The records to append, each with the bytes of its result where these are stored beside the journal.
    /// `total_bytes` is the journal's size so far.
    pub fn records(&self, fence: &LeaseFence, total_bytes: u64) -> Result<Vec<NewRecord>> {
        self.records_within(fence, total_bytes, limits::JOURNAL_ENTRIES_MAX, limits::JOURNAL_MAX_BYTES)
    }

    /// The records that the engine appends by itself. They may use a reserve beyond the journal's limits, so that a
    /// person's decision is recorded even if the function has filled the journal.
    pub fn decided_records(&self, fence: &LeaseFence, total_bytes: u64) -> Result<Vec<NewRecord>> {
        let entries = limits::JOURNAL_ENTRIES_MAX + limits::JOURNAL_RESERVE_ENTRIES;
        self.records_within(fence, total_bytes, entries, limits::JOURNAL_MAX_BYTES + limits::JOURNAL_RESERVE_BYTES)
    }

    fn records_within(&self, fence: &LeaseFence, total_bytes: u64, max: u64, max_bytes: u64) -> Result<Vec<NewRecord>> {
        let last = self.first_number + (self.entries.len() as u64) - 1;
        if last > max {
            return Err(Error::new(Code::JournalFull, format!("a journal has at most {max} entries")).with("max", max));
        }
        let mut total_bytes = total_bytes;
        let mut records = Vec::with_capacity(self.entries.len());
        for (number, entry) in (self.first_number..).zip(self.entries) {
            let (mut record, beside) = entry.record(fence)?;
            total_bytes += record.encode().len() as u64 + beside.as_ref().map_or(0, |bytes| bytes.len() as u64);
            if total_bytes > max_bytes {
                let detail = format!("a journal has at most {max_bytes} bytes");
                return Err(Error::new(Code::JournalFull, detail).with("max_bytes", max_bytes));
            }
            record.total_bytes = total_bytes;
            records.push(NewRecord { number, record, beside });
        }
        Ok(records)
    }
}

/// Findings of the holder about its journal while the function ran, sent with an ending.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct RunNotes {
    /// Entries of the journal that the run never asked for: the program no longer has these steps. At most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps_not_visited: Vec<StepIdentity>,
    /// Entries with a key that stand although the program gave them another input. At most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps_changed: Vec<StepIdentity>,
}
crate::newer::open_struct!(RunNotes);

impl RunNotes {
    /// Refuses too many steps, and names that no step can have.
    pub fn validate(&self) -> Result<()> {
        for (field, steps) in [("steps_not_visited", &self.steps_not_visited), ("steps_changed", &self.steps_changed)] {
            parts::at_most(field, steps.len(), limits::STEPS_NAMED_MAX)?;
            parts::items(field, steps, StepIdentity::validate)?;
        }
        Ok(())
    }
}

impl NewRecord {
    /// Keeps a digest of a result that is stored beside the journal, so that it can be compared without being read.
    pub fn digest_result(&mut self) {
        if let Some(bytes) = &self.beside {
            self.record.result_digest = digest16(&[bytes]).to_vec().into();
        }
    }
}

/// A record about to be appended.
#[derive(Debug, Clone, PartialEq)]
pub struct NewRecord {
    /// Its number in the journal.
    pub number: u64,
    /// The record.
    pub record: StepRecord,
    /// The bytes of its result, when they are too large for it.
    pub beside: Option<Bytes>,
}

impl NewRecord {
    /// Whether a record that is stored under its number is the same entry. Which lease wrote it is no part of an entry. The
    /// running total is none either: it may have been counted from what another engine remembers.
    pub fn is_same_as(&self, stored: &StepRecord) -> bool {
        let StepRecord { lease, attempt, total_bytes, .. } = self.record;
        StepRecord { lease, attempt, total_bytes, ..stored.clone() } == self.record
    }
}

/// An entry as readers and resumed workers get it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StepView {
    /// Its number in the journal.
    pub number: u64,
    /// Its name in the program.
    pub name: String,
    /// The caller's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// Which call of the name it is, when it has no key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub occurrence: Option<u32>,
    /// The kind of the entry.
    pub kind: StepKind,
    /// How far it is.
    pub state: StepState,
    /// The bytes of the result, unless they were left out for their size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Content>,
    /// How many bytes the result has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_size: Option<u64>,
    /// The category of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// The message of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The attempt that recorded it.
    pub attempt: AttemptIndex,
    /// The lease that recorded it; absent where the engine did. Lists show it to operators only.
    #[serde(default, skip_serializing_if = "LeaseId::is_nil")]
    pub lease_id: LeaseId,
    /// When it was recorded.
    pub recorded_at: i64,
    /// How often its body ran.
    pub tries: u32,
    /// When it is tried again, or the wait ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_at: Option<i64>,
    /// How long its body took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<i64>,
    /// The digest of its input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_hash: Option<String>,
    /// The signal that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal_id: Option<SignalId>,
    /// The child that it is about, whose result is the entry's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child_id: Option<ExecutionId>,
    /// The entry that its body undoes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compensates: Option<StepIdentity>,
    /// It was copied from the execution this one was forked from.
    #[serde(default)]
    pub inherited: bool,
}

impl StepView {
    /// Which entry it speaks of.
    pub fn identity(&self) -> StepIdentity {
        StepIdentity { name: self.name.clone(), key: self.key.clone(), occurrence: self.occurrence }
    }
}

impl StepRecord {
    /// The entry in a line of text.
    pub fn in_words(&self) -> String {
        let key = self.key.as_ref().map_or(String::new(), |key| format!("[{key}]"));
        let why = if self.message.is_empty() { String::new() } else { format!(": {}", self.message) };
        format!("{} {}{key} {}{why}", self.kind, self.name, self.state)
    }

    /// The view for readers; number and instant come from the log, the result's bytes from where they are kept.
    pub fn view(self, number: u64, recorded_at: i64, result: Option<Content>) -> StepView {
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        StepView {
            number,
            occurrence: self.key.is_none().then_some(self.occurrence),
            name: self.name,
            key: self.key,
            kind: self.kind,
            state: self.state,
            result,
            result_size: self.result.map(|payload| payload.size),
            category: some(self.category),
            message: some(self.message),
            attempt: self.attempt,
            lease_id: self.lease,
            recorded_at,
            tries: self.tries,
            next_at: Some(self.next_at).filter(|at| *at != 0),
            took_ms: Some(self.took_ms).filter(|ms| *ms != 0),
            input_hash: some(self.input_hash),
            signal_id: self.signal,
            child_id: self.child,
            compensates: self.compensates.as_ref().map(StepRef::identity),
            inherited: self.inherited,
        }
    }
}

/// The journal as a claim brings it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Journal {
    /// Its records, oldest first; all of them unless `complete` is false.
    pub entries: Vec<StepView>,
    /// The number the next entry gets.
    pub next_number: u64,
    /// Whether these are all records with all results; the rest is paged with `list_steps`.
    pub complete: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::LeaseEpoch;

    fn entry(name: &str) -> StepEntry {
        StepEntry { name: name.into(), state: StepState::Completed, ..Default::default() }
    }

    fn fence() -> LeaseFence {
        LeaseFence { attempt: AttemptIndex(2), lease_id: LeaseId::default(), epoch: LeaseEpoch(3) }
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut StepEntry), field: &str) {
        let mut entry = entry("fetch");
        change(&mut entry);
        let error = entry.validate().unwrap_err();
        assert_eq!(error.details["field"], field, "{error:?}");
    }

    #[test]
    fn a_name_has_one_to_128_bytes() {
        for length in [1, limits::STEP_NAME_MAX_BYTES] {
            entry(&"n".repeat(length)).validate().unwrap();
        }
        for length in [0, limits::STEP_NAME_MAX_BYTES + 1] {
            let error = entry(&"n".repeat(length)).validate().unwrap_err();
            assert_eq!(error.details["field"], "name");
        }
    }

    #[test]
    fn what_does_not_go_together_names_its_field() {
        refused(|entry| (entry.key, entry.occurrence) = (Some("a".into()), Some(0)), "occurrence");
        refused(|entry| (entry.state, entry.result) = (StepState::Begun, Some(JsonText("1".into()))), "result");
        refused(|entry| entry.message = Some("bad".into()), "message");
        refused(|entry| entry.state = StepState::Retrying, "next_at");
        refused(|entry| entry.next_at = Some(5), "next_at");
        refused(|entry| entry.took_ms = Some(-1), "took_ms");
        refused(|entry| entry.input_hash = Some("h".repeat(65)), "input_hash");
        refused(|entry| entry.key = Some(String::new()), "key");
    }

    #[test]
    fn entries_need_the_number_of_the_first() {
        let entries = [entry("a")];
        assert_eq!(NewEntries::of(None, &entries).unwrap_err().details["field"], "first_number");
        assert_eq!(NewEntries::of(Some(0), &entries).unwrap_err().details["field"], "first_number");
        assert!(NewEntries::of(None, &[]).unwrap().is_empty());
        let many = vec![entry("a"); limits::STEPS_PER_RECORD_MAX + 1];
        assert_eq!(NewEntries::of(Some(1), &many).unwrap_err().details["field"], "entries");
    }

    #[test]
    fn a_journal_is_full_at_its_last_entry_and_at_its_last_byte() {
        let entries = [entry("a")];
        let at = |first| NewEntries::of(Some(first), &entries).unwrap();
        at(limits::JOURNAL_ENTRIES_MAX).records(&fence(), 0).unwrap();
        let error = at(limits::JOURNAL_ENTRIES_MAX + 1).records(&fence(), 0).unwrap_err();
        assert_eq!(error.code, Code::JournalFull);
        let size = at(1).records(&fence(), 0).unwrap()[0].record.total_bytes;
        at(1).records(&fence(), limits::JOURNAL_MAX_BYTES - size).unwrap();
        let error = at(1).records(&fence(), limits::JOURNAL_MAX_BYTES - size + 1).unwrap_err();
        assert_eq!(error.code, Code::JournalFull);
    }

    #[test]
    fn a_large_result_goes_beside_the_journal() {
        let result = |bytes: usize| StepEntry { result_base64: Some(vec![7; bytes].into()), ..entry("a") };
        let (record, beside) = result(limits::STEP_INLINE_MAX_BYTES).record(&fence()).unwrap();
        assert!(beside.is_none() && !record.result.unwrap().external);
        let (record, beside) = result(limits::STEP_INLINE_MAX_BYTES + 1).record(&fence()).unwrap();
        assert_eq!(beside.unwrap().len(), limits::STEP_INLINE_MAX_BYTES + 1);
        assert!(record.result.unwrap().external);
        let error = result(limits::STEP_RESULT_MAX_BYTES + 1).validate().unwrap_err();
        assert_eq!(error.code, Code::PayloadTooLarge);
    }

    #[test]
    fn a_record_survives_the_log_and_shows_what_was_recorded() {
        let sent =
            StepEntry { key: Some("page-7".into()), result: Some(JsonText("{\"a\":1}".into())), ..entry("fetch") };
        let (record, _) = sent.record(&fence()).unwrap();
        let record = StepRecord::decode(&record.encode()).unwrap();
        let shown = record.view(4, 77, None);
        assert_eq!((shown.number, shown.recorded_at, shown.attempt), (4, 77, AttemptIndex(2)));
        assert_eq!((shown.key.as_deref(), shown.occurrence, shown.result_size), (Some("page-7"), None, Some(7)));
    }
}
