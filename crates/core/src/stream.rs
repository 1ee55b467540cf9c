//! Streams: the frames an attempt writes while it runs, their public ids, and what a reader gets. Frames live in a
//! log of their attempt; the sequence number and the instant are the log's.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::encoding::{Blob, Document};
use crate::error::{Error, Result};
use crate::id::AttemptIndex;
use crate::index::kind;
use crate::{document, limits, text, vocabulary};

vocabulary! {
    /// Whether a frame is kept.
    pub enum FrameMode {
        /// It is kept, up to the stream's retention.
        Durable "durable",
        /// It is a patch of the attempt's summary as well.
        Summary "summary",
        /// It is for readers that watch now; it may be trimmed any time.
        BestEffort "best_effort",
    }
}

document! {
    /// A frame as it stands in the log.
    pub struct Frame {
        /// The type of the frame, in the worker's own words.
        "t" frame_type: String,
        /// The bytes.
        "p" payload: Blob,
        /// The content type of the bytes; may be empty.
        "c" content_type: String,
        /// The worker's own id for what the frame belongs to; may be empty.
        "r" correlation_id: String,
        /// The worker process that wrote it.
        "s" source: String,
        /// Whether it is kept.
        "m" mode: FrameMode = FrameMode::Durable,
    }
}

impl Document for Frame {
    const KIND: u8 = kind::FRAME;
    crate::encoding::compiled_here!();
}

impl Frame {
    /// The frame in a line of text: its type, and its payload where that is text.
    pub fn in_words(&self) -> String {
        match std::str::from_utf8(&self.payload) {
            Ok(said) if !said.is_empty() && !said.contains(char::is_control) => {
                format!("frame {}: {said}", self.frame_type)
            }
            _ => format!("frame {}", self.frame_type),
        }
    }

    /// Refuses what is out of bounds, by field.
    pub fn validate(&self) -> Result<()> {
        text::label("type", &self.frame_type)?;
        text::optional_content_type("content_type", &self.content_type)?;
        text::optional_label("correlation_id", &self.correlation_id)?;
        text::optional_label("source", &self.source)?;
        if self.payload.len() > limits::FRAME_MAX_BYTES {
            return Err(Error::too_large("payload", self.payload.len(), limits::FRAME_MAX_BYTES));
        }
        Ok(())
    }

    /// The view for readers; the id and the instant come from the log.
    pub fn view(self, id: FrameId, appended_at: i64) -> StreamFrame {
        StreamFrame {
            id,
            frame_type: self.frame_type,
            appended_at,
            payload: self.payload,
            content_type: self.content_type,
            correlation_id: self.correlation_id,
            source: self.source,
            mode: self.mode,
        }
    }
}

/// The public id of a frame: `<attempt>-<sequence>`. Sequences begin at 1, so `0-0` stands before every frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct FrameId {
    /// The attempt that wrote it.
    pub attempt: AttemptIndex,
    /// Its number within the attempt's stream.
    pub sequence: u64,
}

impl FrameId {
    /// Before every frame.
    pub const START: FrameId = FrameId { attempt: AttemptIndex(0), sequence: 0 };

    /// The sequence number after which an attempt's frames follow this id.
    pub fn after_in(self, attempt: AttemptIndex) -> u64 {
        match self.attempt.cmp(&attempt) {
            std::cmp::Ordering::Less => 0,
            std::cmp::Ordering::Equal => self.sequence,
            std::cmp::Ordering::Greater => u64::MAX,
        }
    }
}

impl fmt::Display for FrameId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.attempt, self.sequence)
    }
}

impl fmt::Debug for FrameId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for FrameId {
    type Err = Error;

    fn from_str(id: &str) -> Result<Self> {
        let parse = || {
            let (attempt, sequence) = id.split_once('-')?;
            let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
            if !digits(attempt) || !digits(sequence) {
                return None;
            }
            Some(FrameId { attempt: AttemptIndex(attempt.parse().ok()?), sequence: sequence.parse().ok()? })
        };
        parse().ok_or_else(|| Error::invalid("frame_id", "must be <attempt>-<sequence>, such as 0-17"))
    }
}

impl Serialize for FrameId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FrameId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let id = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        id.parse().map_err(|error: Error| serde::de::Error::custom(error.detail))
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for FrameId {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "FrameId".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^[0-9]+-[0-9]+$" })
    }
}

/// One end of a read: `-` is the first frame, `+` the last, an id is itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameBound {
    /// `-`.
    First,
    /// `+`.
    Last,
    /// An id, included.
    At(FrameId),
}

impl FrameBound {
    /// Reads an end of a range; `field` is named when it is none.
    pub fn parse(field: &str, bound: &str) -> Result<Self> {
        match bound {
            "-" => Ok(FrameBound::First),
            "+" => Ok(FrameBound::Last),
            id => id
                .parse()
                .map(FrameBound::At)
                .map_err(|_| Error::invalid(field, "must be -, + or a frame id such as 0-17")),
        }
    }

    /// The text that a request carries.
    pub fn as_text(self) -> String {
        match self {
            FrameBound::First => "-".to_owned(),
            FrameBound::Last => "+".to_owned(),
            FrameBound::At(id) => id.to_string(),
        }
    }

    /// The sequence numbers of one attempt from here to another end, both included; an empty range if there are none.
    pub fn to(self, end: FrameBound, attempt: AttemptIndex) -> RangeInclusive<u64> {
        let first = match self {
            FrameBound::First => 1,
            FrameBound::Last => u64::MAX,
            FrameBound::At(id) => id.after_in(attempt).max(1),
        };
        let last = match end {
            FrameBound::First => 0,
            FrameBound::Last => u64::MAX,
            FrameBound::At(id) => id.after_in(attempt),
        };
        // No frame ever has the highest number, so it marks a range that begins behind every frame.
        if first == u64::MAX { RangeInclusive::new(1, 0) } else { first..=last }
    }
}

/// Refuses a count that one read may not ask for.
pub fn check_read_count(count: usize) -> Result<()> {
    text::within("limit", count, 1..=limits::STREAM_READ_MAX)
}

/// Refuses a wait that a tail may not ask for; 0 looks once.
pub fn check_tail_wait(wait_ms: i64) -> Result<()> {
    text::within("wait_ms", wait_ms, 0..=limits::TAIL_WAIT_MAX_MS)
}

/// A frame as a reader gets it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StreamFrame {
    /// Its public id.
    pub id: FrameId,
    /// The type of the frame, in the worker's own words.
    #[serde(rename = "type")]
    pub frame_type: String,
    /// When it was appended.
    pub appended_at: i64,
    /// The bytes.
    #[serde(rename = "payload_base64")]
    pub payload: Blob,
    /// The content type of the bytes; may be empty.
    pub content_type: String,
    /// The worker's own id for what the frame belongs to; may be empty.
    pub correlation_id: String,
    /// The worker process that wrote it.
    pub source: String,
    /// Whether it is kept.
    pub mode: FrameMode,
}

/// The answer to a read or a tail. A stream that was never written looks open.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StreamFrames {
    /// The frames, in order.
    pub frames: Vec<StreamFrame>,
    /// When the stream was closed, if it was.
    pub closed_at: Option<i64>,
    /// The reason, for people.
    pub closed_reason: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    fn frame(size: usize) -> Frame {
        Frame { frame_type: "token".into(), payload: vec![0xff; size].into(), ..Default::default() }
    }

    #[test]
    fn a_frame_holds_at_the_limit_and_not_one_byte_past_it() {
        frame(0).validate().unwrap();
        frame(limits::FRAME_MAX_BYTES).validate().unwrap();
        let error = frame(limits::FRAME_MAX_BYTES + 1).validate().unwrap_err();
        assert_eq!((error.code, &error.details["field"]), (Code::PayloadTooLarge, &"payload".into()));
    }

    #[test]
    fn fields_of_a_frame_are_checked_by_name() {
        let check = |change: fn(&mut Frame)| {
            let mut frame = frame(1);
            change(&mut frame);
            frame.validate().unwrap_err().details["field"].as_str().unwrap().to_owned()
        };
        assert_eq!(check(|frame| frame.frame_type.clear()), "type");
        assert_eq!(check(|frame| frame.content_type = "json".into()), "content_type");
        assert_eq!(check(|frame| frame.correlation_id = "a\nb".into()), "correlation_id");
    }

    #[test]
    fn a_plain_frame_costs_its_type_and_payload_and_survives_the_log() {
        let frame = Frame { frame_type: "t".into(), payload: vec![0, 255].into(), ..Default::default() };
        let bytes = frame.encode();
        assert_eq!(bytes, [crate::encoding::SCHEMA, 0x82, 0xa1, b't', 0xa1, b't', 0xa1, b'p', 0xc4, 2, 0, 255]);
        assert_eq!(Frame::decode(&bytes).unwrap(), frame);
        let view = frame.view("2-9".parse().unwrap(), 77);
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!((&json["id"], &json["type"], &json["mode"]), (&"2-9".into(), &"t".into(), &"durable".into()));
        assert_eq!(serde_json::from_value::<StreamFrame>(json).unwrap(), view);
    }

    #[test]
    fn frame_ids_come_back_and_sort_across_attempts() {
        let ids = ["0-0", "0-2", "0-10", "1-1", "4294967295-18446744073709551615"];
        let parsed: Vec<FrameId> = ids.iter().map(|id| id.parse().unwrap()).collect();
        assert!(parsed.is_sorted() && parsed[0] == FrameId::START);
        for (id, text) in parsed.iter().zip(ids) {
            assert_eq!(id.to_string(), text);
        }
        for bad in ["", "-", "1", "1-", "-1", "1-2-3", "+1-2", "a-b", "1- 2", "4294967296-1", "0-18446744073709551616"]
        {
            assert!(bad.parse::<FrameId>().is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn ranges_include_both_ends_and_stay_within_their_attempt() {
        let range = |from: &str, to: &str, attempt: u32| {
            let (from, to) = (FrameBound::parse("from", from).unwrap(), FrameBound::parse("to", to).unwrap());
            from.to(to, AttemptIndex(attempt))
        };
        assert_eq!(range("-", "+", 3), 1..=u64::MAX);
        assert_eq!(range("1-2", "1-5", 1), 2..=5);
        assert_eq!(range("0-0", "1-5", 1), 1..=5);
        assert_eq!(range("0-7", "2-1", 1), 1..=u64::MAX);
        assert!(range("-", "0-9", 1).is_empty());
        assert!(range("1-5", "1-4", 1).is_empty());
        assert!(range("+", "-", 1).is_empty());
        assert!(range("2-1", "1-9", 1).is_empty());
        assert!(range("2-1", "+", 1).is_empty());
        for bound in ["-", "+", "3-7"] {
            assert_eq!(FrameBound::parse("from", bound).unwrap().as_text(), bound);
        }
        let error = FrameBound::parse("from", "first").unwrap_err();
        assert_eq!((error.code, &error.details["field"]), (Code::Invalid, &"from".into()));
    }

    #[test]
    fn a_tail_goes_on_after_its_last_frame_and_into_the_next_attempt() {
        let last: FrameId = "1-4".parse().unwrap();
        assert_eq!([0, 1, 2].map(|attempt| last.after_in(AttemptIndex(attempt))), [u64::MAX, 4, 0]);
        assert_eq!(FrameId::START.after_in(AttemptIndex(0)), 0);
    }

    #[test]
    fn counts_and_waits_hold_at_their_ends_and_not_one_past_them() {
        for count in [1, limits::STREAM_READ_MAX] {
            check_read_count(count).unwrap();
        }
        for count in [0, limits::STREAM_READ_MAX + 1] {
            assert_eq!(check_read_count(count).unwrap_err().details["field"], "limit");
        }
        for wait in [0, limits::TAIL_WAIT_MAX_MS] {
            check_tail_wait(wait).unwrap();
        }
        for wait in [-1, limits::TAIL_WAIT_MAX_MS + 1] {
            assert_eq!(check_tail_wait(wait).unwrap_err().details["field"], "wait_ms");
        }
    }
}
