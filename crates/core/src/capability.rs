//! Capabilities: what an execution requires of a worker and what a worker offers. A set has one canonical form,
//! sorted and without duplicates; joined by commas it is the route in the name of a queue.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::{Code, Error, Result};
use crate::limits;
use crate::text;

/// The beginning of the capability that names the build of a worker's program.
const BUILD: &str = "build:";
/// How much of a refused token its error repeats.
const TOKEN_SHOWN_CHARS: usize = 64;

/// A set of capability tokens in canonical form.
///
/// A set that was read from JSON is canonical but not yet checked, so that [`CapabilitySet::check`] can answer with
/// `invalid_capabilities` and the token's name instead of a complaint about JSON. An operation that takes a set from
/// outside checks it before anything else.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CapabilitySet(Vec<String>);

impl CapabilitySet {
    /// The checked set of these tokens.
    pub fn new<T: Into<String>>(tokens: impl IntoIterator<Item = T>) -> Result<Self> {
        let set = Self::canonical(tokens.into_iter().map(Into::into).collect());
        set.check()?;
        Ok(set)
    }

    /// The set behind a route that [`CapabilitySet::route`] made.
    pub fn from_route(route: &str) -> Result<Self> {
        if route.is_empty() { Ok(Self::default()) } else { Self::new(route.split(',')) }
    }

    /// Refuses tokens that break the rules, naming the first, and sets that are too large.
    pub fn check(&self) -> Result<()> {
        for token in &self.0 {
            check_token(token)?;
        }
        let (count, max) = (self.0.len(), limits::CAPABILITIES_MAX_TOKENS);
        if count > max {
            return Err(refusal("too_many", format!("there are {count} capabilities, the limit is {max}")));
        }
        let (size, max) = (self.bytes(), limits::CAPABILITIES_MAX_BYTES);
        if size > max {
            return Err(refusal(
                "too_long",
                format!("the capabilities have {size} bytes together, the limit is {max}"),
            ));
        }
        Ok(())
    }

    /// Checks a set that stands in another field of a request, which a refusal names.
    pub fn check_field(&self, field: &str) -> Result<()> {
        self.check().map_err(|refusal| refusal.with("field", field))
    }

    /// The canonical text: the tokens in order, joined by commas; empty for the empty set.
    pub fn route(&self) -> String {
        self.0.join(",")
    }

    /// Eight hex digits that stand for the set in log lines.
    pub fn digest(&self) -> String {
        let digest = Sha256::digest(self.route().as_bytes());
        digest[..4].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether this set offers everything that `required` asks for.
    pub fn contains_all(&self, required: &CapabilitySet) -> bool {
        required.0.iter().all(|token| self.contains(token))
    }

    /// Whether this set offers everything that a route asks for.
    pub fn serves(&self, route: &str) -> bool {
        route.is_empty() || route.split(',').all(|token| self.contains(token))
    }

    /// The capabilities that this requirement has and `worker` lacks.
    pub fn missing(&self, worker: &CapabilitySet) -> CapabilitySet {
        Self(self.0.iter().filter(|token| !worker.contains(token)).cloned().collect())
    }

    /// Refuses a worker that lacks something this requirement has, naming it.
    pub fn admit(&self, worker: &CapabilitySet) -> Result<()> {
        let missing = self.missing(worker);
        if missing.is_empty() {
            return Ok(());
        }
        let detail = format!("the worker lacks {}", missing.route());
        Err(Error::new(Code::CapabilityMismatch, detail).with("missing", missing))
    }

    /// Whether the set has this token.
    pub fn contains(&self, token: &str) -> bool {
        self.0.binary_search_by(|own| own.as_str().cmp(token)).is_ok()
    }

    /// The build of a worker's program, as its capability `build:ID` names it.
    pub fn build(&self) -> Option<&str> {
        self.tokens().find_map(|token| token.strip_prefix(BUILD))
    }

    /// This set and a build.
    pub fn with_build(&self, build_id: &str) -> Result<Self> {
        Self::new(self.0.iter().cloned().chain([format!("{BUILD}{build_id}")]))
    }

    /// This set without a build.
    pub fn without_build(&self, build_id: &str) -> Self {
        let is_build = |token: &str| token.strip_prefix(BUILD) == Some(build_id);
        Self(self.0.iter().filter(|token| !is_build(token)).cloned().collect())
    }

    /// The tokens in canonical order.
    pub fn tokens(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn canonical(mut tokens: Vec<String>) -> Self {
        tokens.sort_unstable();
        tokens.dedup();
        Self(tokens)
    }

    /// The bytes of all tokens together.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(String::len).sum()
    }
}

fn check_token(token: &str) -> Result<()> {
    let shown: String = token.chars().take(TOKEN_SHOWN_CHARS).collect();
    if token.is_empty() {
        return Err(refusal("empty", "a capability is empty").with("token", shown));
    }
    if let Some(c) = token.chars().find(|&c| c == ',' || !text::printable(c)) {
        let detail = format!("the capability {shown:?} contains {c:?}");
        return Err(refusal("bad_character", detail).with("token", shown));
    }
    match token.strip_prefix(BUILD) {
        Some("") => Err(refusal("empty", "the capability of a build names none").with("token", shown)),
        // An execution leaves so much room for the build that it will be pinned to.
        Some(build) if build.len() > limits::NAME_MAX_BYTES => {
            let detail = format!("the build has {} bytes, the limit is {}", build.len(), limits::NAME_MAX_BYTES);
            Err(refusal("too_long", detail).with("token", shown))
        }
        _ => Ok(()),
    }
}

fn refusal(problem: &str, detail: impl Into<String>) -> Error {
    Error::new(Code::InvalidCapabilities, detail).with("field", "capabilities").with("problem", problem)
}

impl fmt::Display for CapabilitySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.route())
    }
}

impl fmt::Debug for CapabilitySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{}}}", self.route())
    }
}

/// An array in JSON, the joined text in the store.
impl Serialize for CapabilitySet {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            self.0.serialize(serializer)
        } else {
            serializer.serialize_str(&self.route())
        }
    }
}

impl<'de> Deserialize<'de> for CapabilitySet {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return Vec::<String>::deserialize(deserializer).map(Self::canonical);
        }
        let route = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        if route.is_empty() {
            return Ok(Self::default());
        }
        Ok(Self::canonical(route.split(',').map(str::to_owned).collect()))
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for CapabilitySet {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "CapabilitySet".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "array",
            "items": { "type": "string", "minLength": 1, "pattern": "^[^,\\s\\u0000-\\u001f\\u007f-\\u009f]+$" },
            "maxItems": limits::CAPABILITIES_MAX_TOKENS,
            "description": "a set of capability tokens, at most 4096 bytes together"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(tokens: &[&str]) -> CapabilitySet {
        CapabilitySet::new(tokens.iter().copied()).unwrap()
    }

    #[test]
    fn the_same_tokens_make_the_same_route_however_they_are_written() {
        assert_eq!(set(&["gpu", "cuda:12", "gpu"]), set(&["cuda:12", "gpu"]));
        assert_eq!(set(&["b", "a", "B"]).route(), "B,a,b");
        assert_eq!(set(&[]).route(), "");
        for tokens in [&[][..], &["a"], &["b", "a", "日本"]] {
            assert_eq!(CapabilitySet::from_route(&set(tokens).route()).unwrap(), set(tokens));
        }
    }

    #[test]
    fn a_token_that_breaks_the_rules_is_named() {
        for (token, problem) in [
            ("", "empty"),
            ("a,b", "bad_character"),
            ("a b", "bad_character"),
            ("a\u{a0}b", "bad_character"),
            ("a\0", "bad_character"),
            ("a\u{7f}", "bad_character"),
        ] {
            let error = CapabilitySet::new(["fine", token]).unwrap_err();
            assert_eq!(error.code, Code::InvalidCapabilities);
            assert_eq!(error.details["token"], token, "{error}");
            assert_eq!(error.details["problem"], problem);
        }
        set(&["größe", "日本", "a=b;c", "\"q\"", "👩\u{200d}🚀"]);
        assert_eq!(CapabilitySet::from_route("a,,b").unwrap_err().details["problem"], "empty");
    }

    #[test]
    fn a_huge_bad_token_is_not_repeated_in_full() {
        let error = CapabilitySet::new([format!("{} ", "é".repeat(100_000))]).unwrap_err();
        assert_eq!(error.details["token"].as_str().unwrap().chars().count(), TOKEN_SHOWN_CHARS);
    }

    #[test]
    fn the_count_holds_at_the_limit_and_not_one_past_it() {
        let of = |count: usize| CapabilitySet::new((0..count).map(|n| format!("c{n}")));
        assert_eq!(of(limits::CAPABILITIES_MAX_TOKENS).unwrap().len(), limits::CAPABILITIES_MAX_TOKENS);
        let error = of(limits::CAPABILITIES_MAX_TOKENS + 1).unwrap_err();
        assert_eq!((error.code, &error.details["problem"]), (Code::InvalidCapabilities, &"too_many".into()));
        let repeated = std::iter::repeat_n("same", limits::CAPABILITIES_MAX_TOKENS + 1);
        assert_eq!(CapabilitySet::new(repeated).unwrap().len(), 1);
    }

    #[test]
    fn the_bytes_hold_at_the_limit_and_not_one_past_it() {
        let of = |rest: usize| CapabilitySet::new(["a".repeat(2_000), "b".repeat(rest)]);
        let rest = limits::CAPABILITIES_MAX_BYTES - 2_000;
        assert_eq!(of(rest).unwrap().bytes(), limits::CAPABILITIES_MAX_BYTES);
        let error = of(rest + 1).unwrap_err();
        assert_eq!((error.code, &error.details["problem"]), (Code::InvalidCapabilities, &"too_long".into()));
    }

    #[test]
    fn a_worker_serves_what_it_has_and_nothing_else() {
        let worker = set(&["gpu", "cuda:12", "eu"]);
        for (required, missing) in
            [(&[][..], ""), (&["gpu"], ""), (&["gpu", "eu"], ""), (&["GPU", "gpu", "us"], "GPU,us"), (&["gp"], "gp")]
        {
            let required = set(required);
            assert_eq!(required.missing(&worker).route(), missing);
            assert_eq!(worker.contains_all(&required), missing.is_empty());
            assert_eq!(worker.serves(&required.route()), missing.is_empty());
            assert_eq!(required.admit(&worker).is_ok(), missing.is_empty());
        }
        let error = set(&["us", "tpu"]).admit(&worker).unwrap_err();
        assert_eq!(
            (error.code, error.details["missing"].clone()),
            (Code::CapabilityMismatch, serde_json::json!(["tpu", "us"]))
        );
    }

    #[test]
    fn json_is_an_array_and_the_store_has_the_joined_text() {
        let gpu = set(&["gpu", "eu"]);
        assert_eq!(serde_json::to_string(&gpu).unwrap(), r#"["eu","gpu"]"#);
        assert_eq!(serde_json::from_str::<CapabilitySet>(r#"["gpu","eu","gpu"]"#).unwrap(), gpu);
        assert_eq!(rmp_serde::to_vec(&gpu).unwrap(), rmp_serde::to_vec("eu,gpu").unwrap());
        for set in [gpu, CapabilitySet::default()] {
            assert_eq!(rmp_serde::from_slice::<CapabilitySet>(&rmp_serde::to_vec(&set).unwrap()).unwrap(), set);
        }
    }

    #[test]
    fn what_json_brought_is_refused_by_the_check() {
        let read: CapabilitySet = serde_json::from_str(r#"["a,b"]"#).unwrap();
        assert_eq!(read.check().unwrap_err().details["token"], "a,b");
    }

    #[test]
    fn the_digest_is_eight_hex_digits_of_the_route() {
        let digest = set(&["a", "b"]).digest();
        assert!(digest.len() == 8 && digest.bytes().all(|b| b.is_ascii_hexdigit()), "{digest}");
        assert_eq!(digest, set(&["b", "a"]).digest());
        assert_ne!(digest, set(&["a"]).digest());
    }
}
