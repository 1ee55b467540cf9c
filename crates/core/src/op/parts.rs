//! Small shapes that several operations share, and the checks of them: bytes in requests and answers, pages,
//! renewals, secrets.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::api_token::Role;
use crate::encoding::{Blob, JsonText};
use crate::error::{Code, Error, Result};
use crate::id::{ExecutionId, LeaseId};
use crate::lease::LeaseFence;
use crate::limits;
use crate::suspension::{APPROVE, REJECT};
use crate::text;
use crate::vocabulary;

/// The content type of JSON values.
pub const JSON: &str = "application/json";
/// The content type of bytes whose sender said nothing about them.
pub const OCTETS: &str = "application/octet-stream";
/// The namespace of callers that name none.
pub const DEFAULT_NAMESPACE: &str = "default";
/// The lane of submissions that name none.
pub const DEFAULT_LANE: &str = "default";

/// Bytes with their content type. In JSON they are `payload_base64` and `content_type`, and bytes that are JSON are
/// written a second time, readable, as `payload`. Reading takes the bytes and passes over `payload`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// The bytes, as they were sent.
    pub bytes: Bytes,
    /// Their content type.
    pub content_type: String,
}

impl Content {
    /// The bytes as JSON text, when they say they are JSON, are, and can be read inside of other JSON.
    pub fn json(&self) -> Option<JsonText> {
        if !is_json(&self.content_type) {
            return None;
        }
        let text = std::str::from_utf8(&self.bytes).ok().filter(|text| readable(text).is_ok())?;
        serde_json::from_str::<JsonText>(text).ok()
    }
}

#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Content"))]
struct ContentShape {
    /// The bytes.
    payload_base64: Blob,
    /// Their content type.
    content_type: String,
    /// The payload once more, readable, when the bytes are JSON.
    #[serde(default, skip_serializing_if = "Option::is_none", skip_deserializing)]
    payload: Option<JsonText>,
}

impl Serialize for Content {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let payload = self.json();
        let payload_base64 = Blob(self.bytes.clone());
        ContentShape { payload_base64, content_type: self.content_type.clone(), payload }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let shape = ContentShape::deserialize(deserializer)?;
        Ok(Self { bytes: shape.payload_base64.0, content_type: shape.content_type })
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Content {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        <ContentShape as schemars::JsonSchema>::schema_name()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        <ContentShape as schemars::JsonSchema>::json_schema(generator)
    }
}

/// Bytes as a request may bring them: a JSON value, or base64 with a content type.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent<'a> {
    /// The name of the JSON field; the other is `<field>_base64`.
    pub(crate) field: &'static str,
    /// The JSON value.
    pub(crate) json: Option<&'a JsonText>,
    /// The bytes.
    pub(crate) base64: Option<&'a Blob>,
    /// Their content type.
    pub(crate) content_type: Option<&'a str>,
    /// The most bytes there may be.
    pub(crate) max_bytes: usize,
}

impl Sent<'_> {
    /// The bytes that were sent, if any. A JSON value has one content type only, its own.
    pub(crate) fn content(&self) -> Result<Option<Content>> {
        let field = self.field;
        if let Some(content_type) = self.content_type {
            text::content_type("content_type", content_type)?;
        }
        let content = match (self.json, self.base64) {
            (Some(_), Some(_)) => {
                return Err(Error::invalid(field, format!("and {field}_base64 exclude each other")));
            }
            (None, None) if self.content_type.is_some() => {
                return Err(Error::invalid("content_type", format!("needs {field}_base64")));
            }
            (None, None) => return Ok(None),
            (Some(json), None) => {
                if self.content_type.is_some_and(|content_type| !is_json(content_type)) {
                    return Err(Error::invalid("content_type", format!("must be {JSON} with a JSON value")));
                }
                readable(&json.0).map_err(|why| Error::invalid(field, why))?;
                let content_type = self.content_type.unwrap_or(JSON).to_owned();
                Content { bytes: Bytes::copy_from_slice(json.0.as_bytes()), content_type }
            }
            (None, Some(blob)) => {
                Content { bytes: blob.0.clone(), content_type: self.content_type.unwrap_or(OCTETS).to_owned() }
            }
        };
        if content.bytes.len() > self.max_bytes {
            return Err(Error::too_large(field, content.bytes.len(), self.max_bytes));
        }
        Ok(Some(content))
    }
}

/// Refuses a JSON text that its grammar allows and many readers do not. It is passed on inside of other JSON, where
/// one value that a worker cannot read would keep it from everything else in the same answer.
fn readable(json: &str) -> Result<(), String> {
    let bytes = json.as_bytes();
    let (mut depth, mut at, mut quoted) = (0, 0, false);
    while let Some(byte) = bytes.get(at) {
        match (byte, quoted) {
            (b'"', _) => quoted = !quoted,
            (b'\\', true) => at += escape(&bytes[at..])? - 1,
            (b'[' | b'{', false) => {
                depth += 1;
                if depth > limits::JSON_DEPTH_MAX {
                    return Err(format!("is nested deeper than {} levels", limits::JSON_DEPTH_MAX));
                }
            }
            (b']' | b'}', false) => depth -= 1,
            _ => {}
        }
        at += 1;
    }
    Ok(())
}

/// How many bytes an escape has; halves of a character beyond the first 65,536 must come in pairs.
fn escape(bytes: &[u8]) -> Result<usize, String> {
    let unit = |from: usize| {
        let digits = bytes.get(from..from + 6).filter(|digits| digits.starts_with(b"\\u"))?;
        u16::from_str_radix(std::str::from_utf8(&digits[2..]).ok()?, 16).ok()
    };
    match unit(0) {
        None => Ok(2),
        Some(0xD800..=0xDBFF) if matches!(unit(6), Some(0xDC00..=0xDFFF)) => Ok(12),
        Some(0xD800..=0xDFFF) => Err("has half of a character as an escape".to_owned()),
        Some(_) => Ok(6),
    }
}

fn is_json(content_type: &str) -> bool {
    content_type.split(';').next().is_some_and(|essence| essence.trim().eq_ignore_ascii_case(JSON))
}

/// How many bytes of HTTP body an operation needs whose payload may have this many: base64 and the other fields.
pub(crate) const fn body_for(payload_bytes: usize) -> usize {
    payload_bytes.div_ceil(3) * 4 + limits::BODY_MAX_BYTES
}

/// A text that must not appear in logs. Debug shows its length only.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

/// The answer of operations that only succeed or are refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Done {}

/// Refuses a page that is empty or too large.
pub(crate) fn page(limit: Option<usize>) -> Result<()> {
    limit.map_or(Ok(()), |limit| text::within("limit", limit, 1..=limits::PAGE_MAX))
}

/// Checks what is there.
pub(crate) fn optional(value: Option<&str>, field: &str, check: fn(&str, &str) -> Result<()>) -> Result<()> {
    value.map_or(Ok(()), |value| check(field, value))
}

/// Checks a number that is there.
pub(crate) fn optional_number(value: Option<i64>, field: &str, check: fn(&str, i64) -> Result<()>) -> Result<()> {
    value.map_or(Ok(()), |value| check(field, value))
}

/// Checks every item of a list. A refusal names its field by the whole way to it, such as `entries[3].name`.
pub(crate) fn items<T>(field: &str, items: &[T], mut check: impl FnMut(&T) -> Result<()>) -> Result<()> {
    for (place, item) in items.iter().enumerate() {
        check(item).map_err(|error| error.inside(&format!("{field}[{place}]")))?;
    }
    Ok(())
}

/// The result of checking an object in a field. A refusal names its field by the whole way to it, such as `filter.state`.
pub(crate) fn object(field: &str, checked: Result<()>) -> Result<()> {
    checked.map_err(|error| error.inside(field))
}

/// Refuses a list with more entries than it may have.
pub(crate) fn at_most(field: &str, count: usize, max: usize) -> Result<()> {
    if count > max { Err(text::too_many(field, count, max)) } else { Ok(()) }
}

/// Refuses an empty list, and one with more entries than it may have.
pub(crate) fn some_at_most(field: &str, count: usize, max: usize) -> Result<()> {
    if count == 0 {
        return Err(Error::invalid(field, "must not be empty"));
    }
    at_most(field, count, max)
}

/// Checks each of several values, and that there are not too many of them.
pub(crate) fn each(field: &str, values: &[String], check: fn(&str, &str) -> Result<()>) -> Result<()> {
    at_most(field, values.len(), limits::FILTER_VALUES_MAX)?;
    values.iter().try_for_each(|value| check(field, value))
}

/// Reads a filter that takes several values: a list, or one value alone. Words that contain no comma may also be written
/// in one text, with commas between them.
pub(crate) fn one_or_several<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    T: Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    struct Values<T>(std::marker::PhantomData<T>);
    impl<'de, T: Deserialize<'de>> serde::de::Visitor<'de> for Values<T> {
        type Value = Vec<T>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a text or a list of texts")
        }
        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Vec<T>, E> {
            let word = |word: &str| T::deserialize(serde::de::value::StringDeserializer::new(word.to_owned()));
            word(text).map(|only| vec![only]).or_else(|whole| match text.contains(',') {
                true => text.split(',').map(|one| word(one.trim())).collect(),
                false => Err(whole),
            })
        }
        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let mut values = Vec::new();
            while let Some(text) = items.next_element::<String>()? {
                values.extend(Values::<T>(std::marker::PhantomData).visit_str(&text)?);
            }
            Ok(values)
        }
        fn visit_unit<E>(self) -> Result<Vec<T>, E> {
            Ok(Vec::new())
        }
    }
    deserializer.deserialize_any(Values(std::marker::PhantomData))
}

/// Whether a signal of this name is a decision.
pub(crate) fn is_decision(name: &str) -> bool {
    name == APPROVE || name == REJECT
}

/// The least role for a signal: none with a waitpoint's token, an approver's for a decision, an operator's otherwise.
pub(crate) fn signal_role(has_token: bool, name: &str) -> Role {
    match (has_token, is_decision(name)) {
        (true, _) => Role::Reader,
        (false, true) => Role::Approver,
        (false, false) => Role::Operator,
    }
}

/// A tag filter, written `key=value`, as its key and value.
pub(crate) fn tag_filter(tag: Option<&str>) -> Result<Option<(&str, &str)>> {
    let Some(tag) = tag else { return Ok(None) };
    let Some((key, value)) = tag.split_once('=') else {
        let refusal = Error::new(Code::InvalidFilter, "tag must be key=value");
        return Err(refusal.with("field", "tag").with("valid", "key=value"));
    };
    text::tag_key("tag", key)?;
    text::tag_value("tag", value)?;
    Ok(Some((key, value)))
}

/// Refuses empty usage reports and amounts out of range.
pub(crate) fn usage(usage: &BTreeMap<String, i64>) -> Result<()> {
    amounts("usage", usage)
}

/// Amounts by dimension, of which there is at least one.
pub(crate) fn amounts(field: &str, amounts: &BTreeMap<String, i64>) -> Result<()> {
    some_at_most(field, amounts.len(), limits::BUDGET_DIMENSIONS_MAX)?;
    for (dimension, &amount) in amounts {
        text::name(field, dimension)?;
        text::within(&format!("{field}.{dimension}"), amount, 0..=limits::USAGE_MAX)?;
    }
    Ok(())
}

/// One lease to renew.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct Renewal {
    /// The execution it is a lease of.
    pub execution_id: ExecutionId,
    /// The lease.
    pub fence: LeaseFence,
    /// How long it is to last from now; as long as before when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ttl_ms: Option<i64>,
}
crate::newer::open_struct!(Renewal);

/// Refuses too many renewals, and TTLs out of range.
pub(crate) fn renewals(field: &str, renewals: &[Renewal]) -> Result<()> {
    at_most(field, renewals.len(), limits::RENEWALS_MAX)?;
    items(field, renewals, |renewal| optional_number(renewal.lease_ttl_ms, "lease_ttl_ms", text::lease_ttl))
}

vocabulary! {
    /// Why a lease is lost for good.
    pub enum LeaseLoss {
        /// It ran out.
        Expired "expired",
        /// An operator took it away.
        Revoked "revoked",
        /// The execution was cancelled.
        Cancelled "cancelled",
        /// The holder ended it, or another lease holds the execution.
        Stale "stale",
        /// The execution is gone.
        NotFound "not_found",
    }
}

/// The outcome of one renewal; each is decided on its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum RenewalOutcome {
    /// The lease holds.
    Renewed {
        /// The execution.
        execution_id: ExecutionId,
        /// The lease.
        lease_id: LeaseId,
        /// Until when, in the store's time.
        expires_at: i64,
    },
    /// The lease is lost; the holder stops working.
    Lost {
        /// The execution.
        execution_id: ExecutionId,
        /// The lease.
        lease_id: LeaseId,
        /// The reason, for people.
        reason: LeaseLoss,
        /// The refusal a single call would have got.
        error: Error,
    },
    /// Nothing is known; the holder tries again.
    Failed {
        /// The execution.
        execution_id: ExecutionId,
        /// The lease.
        lease_id: LeaseId,
        /// The refusal.
        error: Error,
    },
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(RenewalOutcome);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_json_value_that_readers_choke_on_is_refused() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(readable(&nested(limits::JSON_DEPTH_MAX)).is_ok());
        assert!(readable(&nested(limits::JSON_DEPTH_MAX + 1)).unwrap_err().contains("nested"));
        for fine in [r#""[[\"[\\""#, r#""\ud83d\ude00 \u00e9 \n""#, r#"{"a":["\u0000"]}"#, "1", "\"\u{1F600}\""] {
            assert!(readable(fine).is_ok(), "{fine}");
        }
        for half in [r#""\ud800""#, r#""\udc00""#, r#""\ud800\u0041""#, r#"["\uDBFF x"]"#] {
            assert!(readable(half).unwrap_err().contains("half"), "{half}");
        }
    }

    fn sent<'a>(json: Option<&'a JsonText>, base64: Option<&'a Blob>, content_type: Option<&'a str>) -> Sent<'a> {
        Sent { field: "input", json, base64, content_type, max_bytes: 8 }
    }

    #[test]
    fn json_and_bytes_exclude_each_other() {
        let (json, blob) = (JsonText("1".into()), Blob::from("x"));
        let error = sent(Some(&json), Some(&blob), None).content().unwrap_err();
        assert_eq!((error.code, &error.details["field"]), (Code::Invalid, &"input".into()));
        assert_eq!(sent(None, None, None).content().unwrap(), None);
        assert!(sent(None, None, Some("text/plain")).content().is_err());
        assert!(sent(Some(&json), None, Some("text/plain")).content().is_err());
    }

    #[test]
    fn bytes_hold_at_the_limit_and_not_one_past_it() {
        let content = sent(None, Some(&Blob::from("12345678")), None).content().unwrap().unwrap();
        assert_eq!((&content.bytes[..], content.content_type.as_str()), (&b"12345678"[..], OCTETS));
        let error = sent(None, Some(&Blob::from("123456789")), None).content().unwrap_err();
        assert_eq!(error.code, Code::PayloadTooLarge);
    }

    #[test]
    fn content_that_is_json_can_also_be_read_as_json() {
        let json = JsonText(r#"{"a": 1.0}"#.into());
        let content = Sent { max_bytes: 100, ..sent(Some(&json), None, None) }.content().unwrap().unwrap();
        let text = serde_json::to_string(&content).unwrap();
        assert!(text.ends_with(r#""payload":{"a": 1.0}}"#), "{text}");
        assert_eq!(serde_json::from_str::<Content>(&text).unwrap(), content);
    }

    #[test]
    fn json_in_bytes_is_shown_as_json_up_to_the_depth_that_readers_take() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        for (depth, shown) in [(limits::JSON_DEPTH_MAX, true), (limits::JSON_DEPTH_MAX + 1, false)] {
            let content = Content { bytes: nested(depth).into(), content_type: JSON.into() };
            let text = serde_json::to_string(&content).unwrap();
            assert_eq!(text.contains("\"payload\""), shown, "{depth}");
            assert_eq!(serde_json::from_str::<Content>(&text).unwrap(), content);
        }
    }

    #[test]
    fn bytes_that_only_claim_to_be_json_come_back_unchanged() {
        let content = Content { bytes: Bytes::from_static(b"\xff{"), content_type: JSON.into() };
        let text = serde_json::to_string(&content).unwrap();
        assert!(!text.contains("\"payload\""), "{text}");
        assert_eq!(serde_json::from_str::<Content>(&text).unwrap(), content);
    }

    #[test]
    fn a_secret_does_not_show() {
        assert_eq!(format!("{:?}", Secret("hunter2".into())), "Secret(7 bytes)");
    }
}

/// A lane whose state changes, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LaneChange {
    /// The lane.
    pub lane: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl LaneChange {
    /// Refuses bad names and reasons that are too long.
    pub fn validate(&self) -> Result<()> {
        text::name("lane", &self.lane)?;
        optional(self.namespace.as_deref(), "namespace", text::name)?;
        optional(self.reason.as_deref(), "reason", text::text)
    }
}

/// A budget or quota that is to be deleted.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NamedRemoval {
    /// Its name.
    pub name: String,
    /// Where it belongs; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Also while executions that have not ended use it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
}

impl NamedRemoval {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        // A budget's name may be a path, which is longer than other names.
        text::name("name", &self.name).or_else(|_| text::budget_name("name", &self.name))?;
        optional(self.namespace.as_deref(), "namespace", text::name)
    }
}

/// The outcome of a removal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum Removed {
    /// It reads as gone. Its data goes with it, in the background where there is much of it.
    Removed,
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(Removed);

/// A page of what a namespace has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NamespacePage {
    /// The namespace; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How many; 100 when absent, at most 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
}

impl NamespacePage {
    /// Refuses bad names and pages that are too large.
    pub fn validate(&self) -> Result<()> {
        optional(self.namespace.as_deref(), "namespace", text::name)?;
        page(self.limit)
    }
}
