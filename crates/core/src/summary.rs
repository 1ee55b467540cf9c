//! The summary of a stream: one JSON document that frames of mode `summary` patch (RFC 7396), readable at any time.
//!
//! Merging works on the text. Only the objects a patch reaches into are taken apart; everything else is copied as it
//! was written, so that numbers keep all their digits and members their order.

use std::collections::BTreeMap;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::encoding::{Document, JsonText};
use crate::error::{Error, Result};
use crate::id::{AttemptIndex, ExecutionId};
use crate::index::{Indexed, kind};
use crate::key::{Entry, Key};
use crate::{document, limits};

document! {
    /// The merged summary of one attempt.
    pub struct Summary {
        /// The execution.
        "x" execution: ExecutionId,
        /// The attempt.
        "a" attempt: AttemptIndex,
        /// The document as it is now.
        "v" value: JsonText = JsonText("{}".to_owned()),
        /// The number of the last frame that was merged.
        "s" sequence: u64,
        /// When that was.
        "t" updated_at: i64,
    }
}

impl Document for Summary {
    const KIND: u8 = kind::SUMMARY;
    crate::encoding::compiled_here!();
}

impl Indexed for Summary {
    fn key(&self) -> Key {
        Self::key_of(&self.execution, self.attempt)
    }

    fn index_entries(&self, _: i64) -> Vec<Entry> {
        Vec::new()
    }
}

impl Summary {
    /// The key of an attempt's summary.
    pub fn key_of(execution: &ExecutionId, attempt: AttemptIndex) -> Key {
        Key::new(kind::SUMMARY, &[execution.uuid.as_bytes(), &attempt.0.to_be_bytes()])
    }

    /// The summary of an attempt that has written none: an empty object.
    pub fn empty(execution: ExecutionId, attempt: AttemptIndex) -> Self {
        Self { execution, attempt, ..Default::default() }
    }

    /// Merges the patch of a frame; says whether it was new. A frame that was merged before changes nothing.
    pub fn apply(&mut self, sequence: u64, patch: &[u8], now: i64) -> Result<bool> {
        if sequence <= self.sequence {
            return Ok(false);
        }
        let patch =
            std::str::from_utf8(patch).map_err(|error| Error::invalid("payload", format!("is not UTF-8: {error}")))?;
        let merged = merge_patch(&self.value.0, patch)?;
        if merged.len() > limits::SUMMARY_MAX_BYTES {
            return Err(Error::too_large("summary", merged.len(), limits::SUMMARY_MAX_BYTES));
        }
        self.value = JsonText(merged);
        self.sequence = sequence;
        self.updated_at = self.updated_at.max(now);
        Ok(true)
    }
}

/// The JSON text that RFC 7396 makes of a target and a patch. The target must be JSON that this function wrote or
/// accepted before; the patch is checked.
pub fn merge_patch(target: &str, patch: &str) -> Result<String> {
    if nesting(patch) > limits::SUMMARY_DEPTH_MAX {
        let detail = format!("is nested deeper than {} levels", limits::SUMMARY_DEPTH_MAX);
        return Err(Error::invalid("payload", detail).with("problem", "too_deep"));
    }
    // Copied text is never looked at again, so what a reader could not parse is refused here.
    serde_json::from_str::<serde_json::Value>(patch).map_err(not_json)?;
    let mut merged = String::with_capacity(target.len() + patch.len());
    merge(Some(target.trim()), patch.trim(), &mut merged).map_err(not_json)?;
    Ok(merged)
}

fn not_json(error: serde_json::Error) -> Error {
    Error::invalid("payload", format!("is not a JSON merge patch: {error}")).with("problem", "not_json")
}

/// Goes as deep as the patch, whose nesting is bounded.
fn merge(target: Option<&str>, patch: &str, out: &mut String) -> serde_json::Result<()> {
    if !patch.starts_with('{') {
        out.push_str(patch);
        return Ok(());
    }
    let before = match target {
        Some(target) if target.starts_with('{') => serde_json::from_str::<Members<'_>>(target)?.0,
        _ => Vec::new(),
    };
    let patch: Members<'_> = serde_json::from_str(patch)?;
    let changes: BTreeMap<&str, &str> = patch.0.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let mut first = true;
    out.push('{');
    for (name, value) in &before {
        match changes.get(name.as_str()) {
            Some(&"null") => {}
            Some(change) => write_member(&mut first, name, out, |out| merge(Some(value), change, out))?,
            None => write_member(&mut first, name, out, |out| {
                out.push_str(value);
                Ok(())
            })?,
        }
    }
    let known: std::collections::BTreeSet<&str> = before.iter().map(|(name, _)| name.as_str()).collect();
    for (name, change) in &patch.0 {
        if *change != "null" && !known.contains(name.as_str()) {
            write_member(&mut first, name, out, |out| merge(None, change, out))?;
        }
    }
    out.push('}');
    Ok(())
}

fn write_member(
    first: &mut bool,
    name: &str,
    out: &mut String,
    value: impl FnOnce(&mut String) -> serde_json::Result<()>,
) -> serde_json::Result<()> {
    if !std::mem::take(first) {
        out.push(',');
    }
    out.push_str(&serde_json::to_string(name)?);
    out.push(':');
    value(out)
}

/// The members of an object with the text of their values, in order. Of a repeated name the last value counts.
struct Members<'a>(Vec<(String, &'a str)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members: Vec<(String, &'de str)> = Vec::new();
                let mut places = BTreeMap::new();
                while let Some((name, value)) = map.next_entry::<String, &'de RawValue>()? {
                    let place = *places.entry(name.clone()).or_insert(members.len());
                    if place == members.len() {
                        members.push((name, value.get()));
                    } else {
                        members[place].1 = value.get();
                    }
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// How deep objects and arrays are nested, whether or not the rest is JSON.
fn nesting(json: &str) -> usize {
    let (mut depth, mut deepest, mut quoted, mut escaped) = (0usize, 0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' | b'[' if !quoted => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::error::Code;

    fn merged(target: &str, patch: &str) -> Value {
        serde_json::from_str(&merge_patch(target, patch).unwrap()).unwrap()
    }

    #[test]
    fn the_cases_of_the_standard_hold() {
        for (target, patch, result) in [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"a":null}"#, r#"{}"#),
            (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"c"}"#, r#"{"a":["b"]}"#, r#"{"a":["b"]}"#),
            (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
            (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
            (r#"["a","b"]"#, r#"["c","d"]"#, r#"["c","d"]"#),
            (r#"{"a":"b"}"#, r#"["c"]"#, r#"["c"]"#),
            (r#"{"a":"foo"}"#, "null", "null"),
            (r#"{"a":"foo"}"#, r#""bar""#, r#""bar""#),
            (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"e":null,"a":1}"#),
            (r#"[1,2]"#, r#"{"a":"b","c":null}"#, r#"{"a":"b"}"#),
            (r#"{}"#, r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
        ] {
            assert_eq!(merge_patch(target, patch).unwrap(), result, "{target} with {patch}");
        }
    }

    #[test]
    fn what_is_not_touched_is_kept_to_the_letter() {
        let target = r#"{"big":12345678901234567890123,"z":1.0,"list":[1, 2,null],"a":"\u00e9"}"#;
        let result = merge_patch(target, r#" { "n" : 0.10 } "#).unwrap();
        assert_eq!(result, r#"{"big":12345678901234567890123,"z":1.0,"list":[1, 2,null],"a":"\u00e9","n":0.10}"#);
    }

    #[test]
    fn names_are_compared_by_what_they_mean_and_the_last_of_two_counts() {
        assert_eq!(merged(r#"{"a":1}"#, r#"{"\u0061":null}"#), json!({}));
        assert_eq!(merged(r#"{}"#, r#"{"a":1,"a":2}"#), json!({ "a": 2 }));
        assert_eq!(merged(r#"{"a":1}"#, r#"{"a":2,"a":null}"#), json!({}));
        assert_eq!(merged(r#"{}"#, r#"{"a\"\n":{"b":1}}"#), json!({ "a\"\n": { "b": 1 } }));
    }

    #[test]
    fn what_is_no_json_is_refused() {
        for bad in
            ["", "{", "{a:1}", "{\"a\":}", "{} {}", "nul", r#"{"a":"\ud800"}"#, "{\"a\":\"\u{1}\"}", "{\"a\":01}"]
        {
            let error = merge_patch("{}", bad).unwrap_err();
            assert_eq!((error.code, &error.details["field"]), (Code::Invalid, &"payload".into()), "{bad:?}");
        }
        let mut summary = Summary::default();
        assert_eq!(summary.apply(1, &[b'"', 0xff, b'"'], 1).unwrap_err().code, Code::Invalid);
        assert_eq!(summary, Summary::default());
    }

    #[test]
    fn nesting_holds_at_the_limit_and_not_one_past_it() {
        let nested = |depth: usize, open: &str, close: &str| format!("{}1{}", open.repeat(depth), close.repeat(depth));
        for (open, close) in [("{\"a\":", "}"), ("[", "]")] {
            let deepest = nested(limits::SUMMARY_DEPTH_MAX, open, close);
            assert_eq!(merge_patch("{}", &deepest).unwrap(), deepest);
            let error = merge_patch("{}", &nested(limits::SUMMARY_DEPTH_MAX + 1, open, close)).unwrap_err();
            assert_eq!(error.details["problem"], "too_deep");
        }
        assert!(merge_patch("{}", &"[".repeat(1_000_000)).is_err());
        let brackets = format!(r#"{{"a":"\"{}"}}"#, "[".repeat(1_000));
        assert_eq!(merge_patch("{}", &brackets).unwrap(), brackets);
    }

    #[test]
    fn a_summary_holds_at_its_size_limit_and_not_one_byte_past_it() {
        let mut summary = Summary::default();
        let around = r#"{"a":""}"#.len();
        let fill = |size: usize| format!(r#"{{"a":"{}"}}"#, "x".repeat(size - around));
        assert!(summary.apply(1, fill(limits::SUMMARY_MAX_BYTES).as_bytes(), 5).unwrap());
        let before = summary.clone();
        let error = summary.apply(2, fill(limits::SUMMARY_MAX_BYTES + 1).as_bytes(), 6).unwrap_err();
        assert_eq!((error.code, &summary), (Code::PayloadTooLarge, &before));
        assert_eq!(summary.apply(2, br#"{"b":1}"#, 6).unwrap_err().code, Code::PayloadTooLarge);
        assert!(summary.apply(2, br#"{"a":null,"b":1}"#, 6).unwrap());
        assert_eq!(summary.value.0, r#"{"b":1}"#);
    }

    #[test]
    fn a_frame_is_merged_once() {
        let mut summary = Summary::empty(ExecutionId::default(), AttemptIndex(2));
        assert!(summary.apply(3, br#"{"n":1}"#, 10).unwrap());
        assert!(!summary.apply(3, br#"{"n":2}"#, 11).unwrap());
        assert!(!summary.apply(2, br#"{"n":3}"#, 12).unwrap());
        assert_eq!((summary.value.0.as_str(), summary.sequence, summary.updated_at), (r#"{"n":1}"#, 3, 10));
        assert_eq!(Summary::decode(&summary.encode()).unwrap(), summary);
        assert_ne!(summary.key(), Summary::key_of(&ExecutionId::default(), AttemptIndex(1)));
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            2 => Just(Value::Null),
            1 => any::<bool>().prop_map(Value::from),
            1 => any::<i64>().prop_map(Value::from),
            1 => any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                1 => prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                3 => prop::collection::btree_map("[abc]{1,2}", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    /// The algorithm as the standard writes it, on values.
    fn by_the_book(target: Value, patch: &Value) -> Value {
        let Value::Object(changes) = patch else { return patch.clone() };
        let mut members = match target {
            Value::Object(members) => members,
            _ => serde_json::Map::new(),
        };
        for (name, change) in changes {
            if change.is_null() {
                members.remove(name);
            } else {
                let before = members.remove(name).unwrap_or(Value::Null);
                members.insert(name.clone(), by_the_book(before, change));
            }
        }
        Value::Object(members)
    }

    proptest! {
        #[test]
        fn merging_text_is_merging_values(target in any_json(), patch in any_json()) {
            prop_assert_eq!(merged(&target.to_string(), &patch.to_string()), by_the_book(target, &patch));
        }

        #[test]
        fn a_patch_is_taken_exactly_when_it_is_json(patch in "[{}\\[\\]\"\\\\:,a1n ]{0,12}|\\PC*") {
            prop_assert_eq!(merge_patch("{}", &patch).is_ok(), serde_json::from_str::<Value>(&patch).is_ok());
        }
    }
}
