//! How an execution shares a lane and keys with others: concurrency keys, whose turn it is, and keys that stand for one
//! execution at a time.

use crate::encoding::Document;
use crate::error::{Error, Result};
use crate::gate::Gate;
use crate::id::ExecutionId;
use crate::index::{Indexed, kind};
use crate::key::{Entry, Key};
use crate::partition::digest16;
use crate::{document, limits, text, vocabulary};

document! {
    /// How an execution shares its lane, and keys, with others; most have nothing of it.
    pub struct Sharing {
        /// Keys of which it takes a slot while it runs, in the order of their names.
        "c" concurrency: Vec<ConcurrencyLimit>,
        /// Work of different keys takes turns in its lane.
        "k" fair_key: String,
        /// So many turns of its key count as one; 0 is one.
        "w" fair_weight: u32,
        /// So many milliseconds of age are worth one step of priority, as its lane said when it was created; 0 is the
        /// default.
        "a" aging_ms: i64,
        /// The key that it stands for, or stood for.
        "s" single: Option<SingleKey>,
    }
}

document! {
    /// At most so many executions with this key run at once, as far as the one that says so is concerned.
    pub api struct ConcurrencyLimit {
        /// The key; it belongs to the namespace.
        "k" key: String,
        /// It is claimed only while fewer than this many others hold the key.
        "l" limit: u32,
    }
}

vocabulary! {
    /// The purpose of a key that stands for one execution.
    #[derive(Default)]
    pub closed enum SingleUse {
        /// While the execution has not ended, submissions answer with it.
        #[default]
        Singleton "singleton",
        /// While the execution has not started, the next submission takes its place.
        Debounce "debounce",
    }
}

document! {
    /// A key that stands for one execution.
    pub struct SingleKey {
        /// The purpose of the key.
        "u" usage: SingleUse,
        /// The key.
        "k" key: String,
        /// The key stands for this execution: its end frees the key.
        "h" held: bool,
    }
}

impl ConcurrencyLimit {
    /// The gate of this key under this limit.
    pub fn gate(&self) -> Gate<'_> {
        Gate::Key { limit: self.limit, key: &self.key }
    }
}

impl Sharing {
    /// Refuses what is out of bounds, by field.
    pub fn validate(&self) -> Result<()> {
        check_concurrency(&self.concurrency)?;
        text::optional_label("fair_key", &self.fair_key)?;
        text::within("fair_weight", self.fair_weight, 0..=limits::FAIR_WEIGHT_MAX)?;
        text::within("aging_ms", self.aging_ms, 0..=limits::AGING_DEFAULT_MS)
    }

    /// The limits with their keys in the order in which they are taken.
    pub fn sorted(mut self) -> Self {
        self.concurrency.sort_by(|one, other| one.key.cmp(&other.key));
        self
    }
}

/// Refuses too many keys, a key twice, and limits that admit no execution.
pub fn check_concurrency(limits_of: &[ConcurrencyLimit]) -> Result<()> {
    let most = limits::CONCURRENCY_KEYS_MAX;
    if limits_of.len() > most {
        return Err(text::too_many("concurrency", limits_of.len(), most));
    }
    for (place, one) in limits_of.iter().enumerate() {
        let within = |error: Error| error.inside(&format!("concurrency[{place}]"));
        text::label("key", &one.key).map_err(within)?;
        text::within("limit", one.limit, 1..=limits::CONCURRENCY_LIMIT_MAX).map_err(within)?;
        if limits_of[..place].iter().any(|other| other.key == one.key) {
            return Err(Error::invalid("concurrency", format!("names the key {} twice", one.key)));
        }
    }
    Ok(())
}

document! {
    /// Which execution a key stands for. It lives in the partition of the key, as the execution does, and goes with the
    /// execution's end.
    pub struct KeyHolder {
        /// Scope of the key.
        "n" namespace: String,
        /// The purpose of the key.
        "u" usage: SingleUse,
        /// The key.
        "k" key: String,
        /// The execution.
        "x" execution: ExecutionId,
        /// When the first of the submissions came that took each other's place.
        "b" began_at: i64,
    }
}

impl KeyHolder {
    /// Where the holder of a key is written down.
    pub fn key_of(namespace: &str, usage: SingleUse, key: &str) -> Key {
        let parts = [namespace, usage.as_str(), key].map(str::as_bytes);
        Key::new(kind::KEY_HOLDER, &[&digest16(&parts)])
    }
}

impl Document for KeyHolder {
    const KIND: u8 = kind::KEY_HOLDER;
    crate::encoding::compiled_here!();
}

impl Indexed for KeyHolder {
    fn key(&self) -> Key {
        Self::key_of(&self.namespace, self.usage, &self.key)
    }

    /// None: the end of the execution removes the document without having read it.
    fn index_entries(&self, _: i64) -> Vec<Entry> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(key: &str, limit: u32) -> ConcurrencyLimit {
        ConcurrencyLimit { key: key.into(), limit, ..Default::default() }
    }

    #[test]
    fn a_gate_leads_back_to_its_key_and_limit() {
        for one in [limit("a", 1), limit("tenant:7,b:x", 10_000), limit("c:1:a", 2)] {
            assert_eq!(Gate::parse(&one.gate().to_string()), Some(one.gate()));
        }
    }

    #[test]
    fn keys_are_few_different_and_admit_somebody() {
        let refused = |limits: &[ConcurrencyLimit]| {
            let error = check_concurrency(limits).unwrap_err();
            error.details["field"].as_str().unwrap_or_default().to_owned()
        };
        check_concurrency(&[limit("a", 1), limit("b", 10_000)]).unwrap();
        assert_eq!(refused(&[limit("a", 1), limit("a", 2)]), "concurrency");
        assert_eq!(refused(&[limit("a", 0)]), "concurrency[0].limit");
        assert_eq!(refused(&[limit("", 1)]), "concurrency[0].key");
        let five: Vec<_> = (0..5).map(|number| limit(&number.to_string(), 1)).collect();
        assert_eq!(refused(&five), "concurrency");
    }

    #[test]
    fn uses_of_one_key_do_not_meet() {
        let single = KeyHolder::key_of("n", SingleUse::Singleton, "k");
        assert_ne!(single, KeyHolder::key_of("n", SingleUse::Debounce, "k"));
        assert_ne!(single, KeyHolder::key_of("m", SingleUse::Singleton, "k"));
        let holder = KeyHolder { namespace: "n".into(), key: "k".into(), began_at: 5, ..Default::default() };
        assert_eq!(holder.key(), single);
        assert_eq!(KeyHolder::decode(&holder.encode()).unwrap(), holder);
    }
}
