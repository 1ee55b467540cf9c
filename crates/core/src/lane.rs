//! Lanes: named queues that operators open and close. A lane is active until an operator changes it, so it needs no
//! document before it is used.

use serde::{Deserialize, Serialize};

use crate::encoding::Document;
use crate::error::{Code, Error, Result};
use crate::index::{self, Indexed, kind};
use crate::key::{Entry, Key};
use crate::partition::digest16;
use crate::{document, limits, text, vocabulary};

vocabulary! {
    /// How much a lane lets through.
    pub enum LaneState {
        /// Submissions and claims.
        Active "active",
        /// Submissions; running work goes on, nothing new is claimed.
        Paused "paused",
        /// Claims; what is there is worked off, nothing new comes in.
        Draining "draining",
        /// Neither.
        Disabled "disabled",
    }
}

impl LaneState {
    /// Whether new work may be submitted.
    pub fn admits_submissions(self) -> bool {
        matches!(self, LaneState::Active | LaneState::Paused)
    }

    /// Whether work may be claimed.
    pub fn admits_claims(self) -> bool {
        matches!(self, LaneState::Active | LaneState::Draining)
    }
}

document! {
    /// A lane.
    pub struct Lane {
        /// The namespace it belongs to.
        "n" namespace: String,
        /// Unique in the namespace.
        "m" name: String,
        /// How much it lets through.
        "s" state: LaneState = LaneState::Active,
        /// The name of the caller that last changed the state; empty if it was never changed.
        "b" changed_by: String,
        /// The reason, for people.
        "w" reason: String,
        /// When the state last changed; 0 is never.
        "a" changed_at: i64,
        /// When it was first used.
        "c" created_at: i64,
        /// So much age is worth one step of priority, for work that is submitted from now on; 0 is the default.
        "g" aging_ms: i64,
    }
}

impl Document for Lane {
    const KIND: u8 = kind::LANE;
    crate::encoding::compiled_here!();
}

impl Indexed for Lane {
    fn key(&self) -> Key {
        Self::key_of(&self.namespace, &self.name)
    }

    fn index_entries(&self, _: i64) -> Vec<Entry> {
        let listing = index::listing(kind::LANE, &self.namespace);
        vec![Entry { index: listing, member: self.key(), score: index::name_score(&self.name) }]
    }
}

impl Lane {
    /// The key of a lane by its name.
    pub fn key_of(namespace: &str, name: &str) -> Key {
        Key::new(kind::LANE, &[&digest16(&[namespace.as_bytes(), name.as_bytes()])])
    }

    /// A lane that is used for the first time.
    pub fn open(namespace: &str, name: &str, now: i64) -> Result<Self> {
        text::name("namespace", namespace)?;
        text::name("lane", name)?;
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned(), created_at: now, ..Default::default() })
    }

    /// Changes what the lane lets through; says whether it was something else before. Name, reason and instant stay
    /// those of the change that brought the state about.
    pub fn set_state(&mut self, state: LaneState, who: &str, reason: &str, now: i64) -> Result<bool> {
        text::optional_label("who", who)?;
        text::text("reason", reason)?;
        if self.state == state {
            return Ok(false);
        }
        self.state = state;
        self.changed_by = who.to_owned();
        self.reason = reason.to_owned();
        self.changed_at = self.changed_at.max(now);
        Ok(true)
    }

    /// Says how much age is worth one step of priority; answers whether it was something else before.
    pub fn set_aging(&mut self, aging_ms: i64) -> Result<bool> {
        text::within("aging_ms", aging_ms, 1..=limits::AGING_DEFAULT_MS)?;
        let said = if aging_ms == limits::AGING_DEFAULT_MS { 0 } else { aging_ms };
        Ok(std::mem::replace(&mut self.aging_ms, said) != said)
    }

    /// Whether new work may be submitted.
    pub fn admits_submissions(&self) -> bool {
        self.state.admits_submissions()
    }

    /// Whether work may be claimed.
    pub fn admits_claims(&self) -> bool {
        self.state.admits_claims()
    }

    /// Refuses a submission to a lane that takes none; the refusal names its last changer and the reason.
    pub fn check_submission(&self) -> Result<()> {
        if self.admits_submissions() {
            return Ok(());
        }
        let detail = format!("the lane {} is {} and takes no submissions", self.name, self.state);
        let code = if self.state == LaneState::Draining { Code::LaneDraining } else { Code::LaneDisabled };
        Err(Error::new(code, detail)
            .with("lane", &self.name)
            .with("state", self.state)
            .with("changed_by", &self.changed_by)
            .with("reason", &self.reason))
    }

    /// The view of it for answers.
    pub fn view(&self) -> LaneView {
        let changed = self.changed_at != 0;
        LaneView {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            state: self.state,
            changed_by: changed.then(|| self.changed_by.clone()),
            reason: changed.then(|| self.reason.clone()),
            changed_at: changed.then_some(self.changed_at),
            created_at: self.created_at,
            aging_ms: (self.aging_ms != 0).then_some(self.aging_ms),
        }
    }
}

/// A lane as people see it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LaneView {
    /// The namespace it belongs to.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// How much it lets through.
    pub state: LaneState,
    /// The name of the caller that last changed the state.
    pub changed_by: Option<String>,
    /// The reason, for people.
    pub reason: Option<String>,
    /// When the state last changed.
    pub changed_at: Option<i64>,
    /// When it was first used.
    pub created_at: i64,
    /// So much age is worth one step of priority; priority decides before age when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aging_ms: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_lets_through_what_it_says() {
        let expected = [(true, true), (true, false), (false, true), (false, false)];
        for (state, admits) in LaneState::ALL.iter().zip(expected) {
            assert_eq!((state.admits_submissions(), state.admits_claims()), admits, "{state}");
        }
    }

    #[test]
    fn a_change_keeps_who_why_and_when_and_a_repeat_changes_nothing() {
        let mut lane = Lane::open("team", "default", 1_000).unwrap();
        assert_eq!(lane.view().changed_at, None);
        assert!(lane.set_state(LaneState::Paused, "ann", "deploy", 2_000).unwrap());
        assert!(!lane.set_state(LaneState::Paused, "bob", "again", 3_000).unwrap());
        assert_eq!((lane.changed_by.as_str(), lane.reason.as_str(), lane.changed_at), ("ann", "deploy", 2_000));
        assert!(lane.set_state(LaneState::Active, "bob", "", 4_000).unwrap());
        assert_eq!(lane.view().changed_by.as_deref(), Some("bob"));
        assert_eq!(Lane::decode(&lane.encode()).unwrap(), lane);
    }

    #[test]
    fn aging_is_kept_within_bounds_and_the_default_leaves_no_trace() {
        let mut lane = Lane::open("team", "default", 1_000).unwrap();
        assert_eq!(lane.view().aging_ms, None);
        assert!(lane.set_aging(60_000).unwrap() && !lane.set_aging(60_000).unwrap());
        assert_eq!(lane.view().aging_ms, Some(60_000));
        assert!(lane.set_aging(0).is_err() && lane.set_aging(limits::AGING_DEFAULT_MS + 1).is_err());
        assert!(lane.set_aging(limits::AGING_DEFAULT_MS).unwrap());
        assert_eq!(lane.aging_ms, 0);
    }

    #[test]
    fn a_closed_lane_says_who_closed_it() {
        let mut lane = Lane::open("team", "default", 1_000).unwrap();
        lane.check_submission().unwrap();
        lane.set_state(LaneState::Disabled, "ann", "retired", 2_000).unwrap();
        let error = lane.check_submission().unwrap_err();
        assert_eq!(error.code, Code::LaneDisabled);
        assert_eq!((&error.details["state"], &error.details["changed_by"]), (&"disabled".into(), &"ann".into()));
    }

    #[test]
    fn bad_names_and_reasons_are_refused_and_change_nothing() {
        assert_eq!(Lane::open("team", "a b", 1).unwrap_err().details["field"], "lane");
        let mut lane = Lane::open("team", "a", 1).unwrap();
        assert!(lane.set_state(LaneState::Paused, "ann", "a\0", 2).is_err());
        assert_eq!(lane.state, LaneState::Active);
    }
}
