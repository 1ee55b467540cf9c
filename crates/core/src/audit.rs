//! Audit: one record for every administrative act, written whether it succeeded or not. A record holds names and codes,
//! never tokens, secrets or payloads; the operation that writes it decides what its detail says.

use serde::{Deserialize, Serialize};

use crate::encoding::Document;
use crate::error::{Code, Error};
use crate::index::kind;
use crate::{document, limits};

document! {
    /// An administrative act, as it stands in the log.
    pub struct AuditRecord {
        /// The name of the API token, or of the process that acted by itself.
        "w" who: String,
        /// The operation.
        "o" what: String,
        /// The namespace it touched; empty for the deployment.
        "n" namespace: String,
        /// The target of the act: an id or a name.
        "t" target: String,
        /// The code of the refusal; empty when it was done.
        "e" refusal: String,
        /// When the act happened.
        "a" at: i64,
        /// More about it, for people.
        "d" detail: String,
    }
}

impl Document for AuditRecord {
    const KIND: u8 = kind::AUDIT;
    crate::encoding::compiled_here!();
}

impl AuditRecord {
    /// The record of an act that was done.
    pub fn done(who: &str, what: &str, target: &str, at: i64) -> Self {
        let whole = |text: &str| shortened(text, limits::LABEL_MAX_BYTES);
        Self { who: whole(who), what: whole(what), target: whole(target), at, ..Default::default() }
    }

    /// The same act, refused.
    #[must_use]
    pub fn refused(self, error: &Error) -> Self {
        let detail = shortened(&error.detail, limits::TEXT_MAX_BYTES);
        Self { refusal: error.code.as_str().to_owned(), detail, ..self }
    }

    /// The namespace it touched.
    #[must_use]
    pub fn in_namespace(self, namespace: &str) -> Self {
        Self { namespace: shortened(namespace, limits::LABEL_MAX_BYTES), ..self }
    }

    /// More about it.
    #[must_use]
    pub fn with_detail(self, detail: &str) -> Self {
        Self { detail: shortened(detail, limits::TEXT_MAX_BYTES), ..self }
    }

    /// `ok`, or the code of the refusal.
    pub fn outcome(&self) -> &str {
        if self.refusal.is_empty() { "ok" } else { &self.refusal }
    }

    /// Whether it was done.
    pub fn succeeded(&self) -> bool {
        self.refusal.is_empty()
    }

    /// The code of the refusal, unless a newer version invented it.
    pub fn code(&self) -> Option<Code> {
        Code::parse(&self.refusal)
    }

    /// The view of the record; the sequence number is its place in the log.
    pub fn view(&self, sequence: u64) -> AuditView {
        AuditView {
            sequence,
            who: self.who.clone(),
            what: self.what.clone(),
            namespace: self.namespace.clone(),
            target: self.target.clone(),
            outcome: self.outcome().to_owned(),
            at: self.at,
            detail: self.detail.clone(),
        }
    }
}

/// An audit record as people see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct AuditView {
    /// Its place in the log.
    pub sequence: u64,
    /// The name of the caller that acted.
    pub who: String,
    /// The operation.
    pub what: String,
    /// The namespace it touched; empty for the deployment.
    pub namespace: String,
    /// The target of the act.
    pub target: String,
    /// `ok`, or the code of the refusal.
    pub outcome: String,
    /// When the act happened.
    pub at: i64,
    /// More about it.
    pub detail: String,
}

/// A record must be written even when what was asked for is absurd, so text is cut instead of refused.
fn shortened(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let end = (0..=max - '…'.len_utf8()).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_says_who_did_what_to_whom_and_how_it_went() {
        let done = AuditRecord::done("ops", "pause_lane", "default", 7).in_namespace("team").with_detail("deploy");
        assert_eq!((done.outcome(), done.succeeded(), done.code()), ("ok", true, None));
        let refused = done.clone().refused(&Error::new(Code::LaneNotFound, "no such lane"));
        assert_eq!((refused.outcome(), refused.code()), ("lane_not_found", Some(Code::LaneNotFound)));
        assert_eq!(refused.detail, "no such lane");
        for record in [done, refused] {
            assert_eq!(AuditRecord::decode(&record.encode()).unwrap(), record);
            let view = serde_json::to_value(record.view(3)).unwrap();
            assert_eq!(
                (&view["sequence"], &view["who"], &view["namespace"]),
                (&3.into(), &"ops".into(), &"team".into())
            );
        }
    }

    #[test]
    fn text_is_whole_at_the_limit_and_cut_one_past_it() {
        let at_limit = "a".repeat(limits::TEXT_MAX_BYTES);
        let record = AuditRecord::done("ops", "x", "y", 1);
        assert_eq!(record.clone().with_detail(&at_limit).detail, at_limit);
        let cut = record.with_detail(&format!("{at_limit}a")).detail;
        assert!(cut.len() <= limits::TEXT_MAX_BYTES && cut.ends_with('…'));
        let target = AuditRecord::done("ops", "x", &"é".repeat(limits::LABEL_MAX_BYTES), 1).target;
        assert!(target.len() <= limits::LABEL_MAX_BYTES && target.ends_with("é…"));
    }
}
