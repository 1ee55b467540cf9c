//! Conditions that a suspension waits for, over the signals that arrive, and which signals counted.
//!
//! A condition is fed with signals in the order they were accepted. Every node counts for itself (one signal may serve
//! several nodes), a node that is satisfied takes nothing more, and a signal that no node takes is a no-op.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::id::{SignalId, WaitpointId};
use crate::limits;
use crate::text;

/// The name of the signal that stands for a timeout. No sender may use it.
pub const TIMEOUT_SIGNAL: &str = "__timeout__";

crate::document! {
    /// A pattern that one signal must match.
    pub api struct ConditionMatcher {
        /// The signal's name; empty accepts any.
        "n" name: String,
    }
}

impl ConditionMatcher {
    /// Accepts signals of one name.
    pub fn named(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Default::default() }
    }

    fn accepts(&self, fact: &SignalFact) -> bool {
        self.name.is_empty() || self.name == fact.name
    }
}

crate::vocabulary! {
    /// How a count tells signals apart.
    #[derive(Default)]
    pub enum Distinct {
        /// Every signal.
        #[default]
        Signals "signals",
        /// Sources: two signals of one source are one.
        Sources "sources",
        /// Waitpoints: two signals on one waitpoint are one.
        Waitpoints "waitpoints",
    }
}

crate::document! {
    /// So many signals, sources or waitpoints.
    pub api struct CountCondition {
        /// How many are needed.
        "n" n: u32,
        /// How signals are told apart.
        "d" distinct: Distinct,
        /// Only signals that one of these accepts count; none means all of them do.
        "m" matchers: Vec<ConditionMatcher>,
    }
}

/// A condition that a suspension waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", rename_all = "snake_case")]
pub enum Condition {
    /// A signal that one of the matchers accepts; without matchers, any signal.
    Any(Vec<ConditionMatcher>),
    /// A signal for each matcher, and one signal for one matcher only; without matchers, any signal.
    All(Vec<ConditionMatcher>),
    /// So many signals, sources or waitpoints.
    Count(CountCondition),
    /// All of these conditions.
    AllOf(Vec<Condition>),
    /// One of these conditions.
    AnyOf(Vec<Condition>),
    /// No signal counts: an operator resumes it, or its timeout ends it.
    OperatorOnly,
    /// No signal counts: its timeout ends it.
    TimeoutOnly,
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(Condition);

/// Any signal.
impl Default for Condition {
    fn default() -> Self {
        Self::Any(Vec::new())
    }
}

crate::document! {
    /// The part of an accepted signal that conditions look at.
    pub struct SignalFact {
        /// The signal.
        "i" id: SignalId,
        /// Its name.
        "n" name: String,
        /// Its sender; see [`source`].
        "s" source: String,
        /// Where it arrived.
        "w" waitpoint: WaitpointId,
        /// When it was accepted.
        "a" at: i64,
        /// Its sender as people see it: a person's name where a believed token names one.
        "b" by: String,
    }
}

/// One text for a source's type and identity. The length in front keeps `a` + `b:c` apart from `a:b` + `c`.
pub fn source(source_type: &str, identity: &str) -> String {
    if source_type.is_empty() && identity.is_empty() {
        return String::new();
    }
    format!("{}:{source_type}:{identity}", source_type.len())
}

/// How far a condition has come.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// Whether nothing more is needed.
    pub satisfied: bool,
    /// The signals that count, in the order they were accepted: when satisfied, exactly those that satisfied it.
    pub contributed: Vec<SignalId>,
}

/// The signals that a condition took of those it was offered.
#[derive(Debug, Default)]
pub(crate) struct Contributions {
    /// The places of the signals that count, among those that were offered.
    pub(crate) counted: BTreeSet<usize>,
    /// How far the condition has come.
    pub(crate) progress: Progress,
}

impl Condition {
    /// Refuses what is too deep, too large, out of range or can never be satisfied.
    pub fn validate(&self) -> Result<()> {
        let mut size = Size::default();
        self.measure("condition", 1, &mut size)?;
        if size.nodes > limits::CONDITION_NODES_MAX {
            let max = limits::CONDITION_NODES_MAX;
            return Err(Error::invalid(
                "condition",
                format!("has {} matchers and nodes, the limit is {max}", size.nodes),
            ));
        }
        if size.counted > u64::from(limits::CONDITION_COUNT_MAX) {
            let max = limits::CONDITION_COUNT_MAX;
            return Err(Error::invalid("condition", format!("counts {} signals, the limit is {max}", size.counted)));
        }
        Ok(())
    }

    fn measure(&self, field: &str, depth: usize, size: &mut Size) -> Result<()> {
        if depth > limits::CONDITION_DEPTH_MAX {
            let max = limits::CONDITION_DEPTH_MAX;
            return Err(Error::invalid(field, format!("is nested too deeply, the limit is {max} levels")));
        }
        match self {
            Condition::Any(matchers) => size.add_matchers(&format!("{field}.any"), matchers),
            Condition::All(matchers) => size.add_matchers(&format!("{field}.all"), matchers),
            Condition::Count(count) => {
                if count.n == 0 || count.n > limits::CONDITION_COUNT_MAX {
                    let max = limits::CONDITION_COUNT_MAX;
                    let field = format!("{field}.count.n");
                    return Err(Error::invalid(&field, format!("must be between 1 and {max}, not {}", count.n)));
                }
                size.counted += u64::from(count.n);
                size.add_matchers(&format!("{field}.count.matchers"), &count.matchers)
            }
            Condition::AllOf(children) => size.add_children(&format!("{field}.all_of"), depth, children),
            Condition::AnyOf(children) => size.add_children(&format!("{field}.any_of"), depth, children),
            Condition::OperatorOnly | Condition::TimeoutOnly => Ok(()),
            Condition::Unknown(variant) => Err(variant.refused(field)),
        }
    }

    /// The signal names it asks for, each once, in the order they are written.
    pub fn required_names(&self) -> Vec<String> {
        fn collect<'a>(condition: &'a Condition, names: &mut Vec<&'a str>) {
            let matchers = match condition {
                Condition::Any(matchers) | Condition::All(matchers) => matchers,
                Condition::Count(count) => &count.matchers,
                Condition::AllOf(children) | Condition::AnyOf(children) => {
                    children.iter().for_each(|child| collect(child, names));
                    return;
                }
                Condition::OperatorOnly | Condition::TimeoutOnly | Condition::Unknown(_) => return,
            };
            for matcher in matchers {
                if !matcher.name.is_empty() && !names.contains(&matcher.name.as_str()) {
                    names.push(&matcher.name);
                }
            }
        }
        let mut names = Vec::new();
        collect(self, &mut names);
        names.into_iter().map(str::to_owned).collect()
    }

    /// The signal names that it cannot do without, each once, in the order they are written. Names among which it lets
    /// senders choose are not here.
    pub fn mandatory_names(&self) -> Vec<String> {
        fn collect<'a>(condition: &'a Condition, names: &mut Vec<&'a str>) {
            let matchers = match condition {
                Condition::All(matchers) => matchers.as_slice(),
                Condition::Any(matchers) if matchers.len() == 1 => matchers,
                Condition::Count(count) if count.matchers.len() == 1 => &count.matchers,
                Condition::AllOf(children) => {
                    children.iter().for_each(|child| collect(child, names));
                    return;
                }
                _ => return,
            };
            for matcher in matchers {
                if !matcher.name.is_empty() && !names.contains(&matcher.name.as_str()) {
                    names.push(&matcher.name);
                }
            }
        }
        let mut names = Vec::new();
        collect(self, &mut names);
        names.into_iter().map(str::to_owned).collect()
    }

    /// Whether signals can satisfy it at all when they may arrive on so many waitpoints.
    pub(crate) fn satisfiable(&self, waitpoints: usize) -> bool {
        match self {
            Condition::Any(_) | Condition::All(_) => true,
            Condition::Count(count) => {
                count.distinct != Distinct::Waitpoints || usize::try_from(count.n).is_ok_and(|n| n <= waitpoints)
            }
            Condition::AllOf(children) => children.iter().all(|child| child.satisfiable(waitpoints)),
            Condition::AnyOf(children) => children.iter().any(|child| child.satisfiable(waitpoints)),
            Condition::OperatorOnly | Condition::TimeoutOnly | Condition::Unknown(_) => false,
        }
    }

    /// How many distinct waitpoints it counts at the most.
    pub fn waitpoints_counted(&self) -> usize {
        match self {
            Condition::Count(count) if count.distinct == Distinct::Waitpoints => {
                usize::try_from(count.n).unwrap_or(usize::MAX)
            }
            Condition::AllOf(children) | Condition::AnyOf(children) => {
                children.iter().map(Condition::waitpoints_counted).max().unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// How far these signals, in the order they were accepted, bring the condition.
    pub fn evaluate(&self, facts: &[SignalFact]) -> Progress {
        let mut node = Node::of(self);
        let mut seen = BTreeSet::new();
        for (position, fact) in facts.iter().enumerate() {
            if seen.insert(fact.id) {
                node.feed(position, fact);
            }
        }
        node.progress(|position| facts.get(position))
    }

    /// Feeds further signals after those that count already, in one pass and up to the one that satisfies the
    /// condition.
    pub(crate) fn take_in_order(&self, facts: &[SignalFact], further: &[SignalFact]) -> Contributions {
        let mut node = Node::of(self);
        let mut seen = BTreeSet::new();
        for (position, fact) in facts.iter().enumerate() {
            seen.insert(fact.id);
            node.feed(position, fact);
        }
        let mut counted = BTreeSet::new();
        for (place, fact) in further.iter().enumerate() {
            if node.satisfied {
                break;
            }
            if !seen.contains(&fact.id) && node.feed(facts.len() + place, fact) {
                seen.insert(fact.id);
                counted.insert(place);
            }
        }
        let progress =
            node.progress(|position| facts.get(position).or_else(|| further.get(position.checked_sub(facts.len())?)));
        Contributions { counted, progress }
    }

    /// Whether a further signal would count after these.
    pub fn would_contribute(&self, facts: &[SignalFact], new: &SignalFact) -> bool {
        let mut node = Node::of(self);
        let mut known = false;
        for (position, fact) in facts.iter().enumerate() {
            known |= fact.id == new.id;
            node.feed(position, fact);
        }
        !known && node.feed(facts.len(), new)
    }
}

/// The totals that validation adds up over all levels.
#[derive(Default)]
struct Size {
    nodes: usize,
    counted: u64,
}

impl Size {
    fn add_matchers(&mut self, field: &str, matchers: &[ConditionMatcher]) -> Result<()> {
        self.nodes += matchers.len();
        for (position, matcher) in matchers.iter().enumerate().take(limits::CONDITION_NODES_MAX) {
            let field = format!("{field}[{position}].name");
            text::optional_label(&field, &matcher.name)?;
            if matcher.name == TIMEOUT_SIGNAL {
                return Err(Error::invalid(&field, format!("must not be {TIMEOUT_SIGNAL}, which no sender may use")));
            }
        }
        Ok(())
    }

    fn add_children(&mut self, field: &str, depth: usize, children: &[Condition]) -> Result<()> {
        if children.is_empty() {
            return Err(Error::invalid(field, "must name at least one condition"));
        }
        self.nodes += children.len();
        for (position, child) in children.iter().enumerate().take(limits::CONDITION_NODES_MAX) {
            child.measure(&format!("{field}[{position}]"), depth + 1, self)?;
        }
        Ok(())
    }
}

/// A condition while it is fed.
struct Node<'a> {
    satisfied: bool,
    /// Positions of the signals this very node took.
    taken: Vec<usize>,
    shape: Shape<'a>,
}

enum Shape<'a> {
    /// Names that are still open, empty for any; satisfied when `needed` were taken.
    Matchers {
        open: Vec<&'a str>,
        needed: usize,
    },
    Count {
        count: &'a CountCondition,
        seen: BTreeSet<Counted<'a>>,
    },
    AllOf(Vec<Node<'a>>),
    AnyOf(Vec<Node<'a>>),
    Never,
}

/// The identity by which a count takes two signals for one.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Counted<'a> {
    Signal(SignalId),
    Source(&'a str),
    Waitpoint(WaitpointId),
}

impl<'a> Node<'a> {
    fn of(condition: &'a Condition) -> Self {
        let names = |matchers: &'a [ConditionMatcher]| -> Vec<&'a str> {
            if matchers.is_empty() { vec![""] } else { matchers.iter().map(|matcher| matcher.name.as_str()).collect() }
        };
        let shape = match condition {
            Condition::Any(matchers) => Shape::Matchers { open: names(matchers), needed: 1 },
            Condition::All(matchers) => Shape::Matchers { open: names(matchers), needed: matchers.len().max(1) },
            Condition::Count(count) => Shape::Count { count, seen: BTreeSet::new() },
            Condition::AllOf(children) => Shape::AllOf(children.iter().map(Node::of).collect()),
            Condition::AnyOf(children) => Shape::AnyOf(children.iter().map(Node::of).collect()),
            Condition::OperatorOnly | Condition::TimeoutOnly | Condition::Unknown(_) => Shape::Never,
        };
        Self { satisfied: false, taken: Vec::new(), shape }
    }

    /// Offers a signal; says whether any node took it.
    fn feed(&mut self, position: usize, fact: &'a SignalFact) -> bool {
        if self.satisfied {
            return false;
        }
        match &mut self.shape {
            Shape::Matchers { open, needed } => {
                // A matcher asks for one name or for any, so taking the narrow one first is a maximum matching: a
                // signal sits on a wildcard only when the matchers of its own name are all taken, and moving it
                // could never free anything.
                let place = open.iter().position(|name| !name.is_empty() && *name == fact.name);
                let Some(place) = place.or_else(|| open.iter().position(|name| name.is_empty())) else {
                    return false;
                };
                open.swap_remove(place);
                self.taken.push(position);
                self.satisfied = self.taken.len() >= *needed;
                true
            }
            Shape::Count { count, seen } => {
                if !count.matchers.is_empty() && !count.matchers.iter().any(|matcher| matcher.accepts(fact)) {
                    return false;
                }
                let new = seen.insert(match count.distinct {
                    Distinct::Signals => Counted::Signal(fact.id),
                    Distinct::Sources => Counted::Source(&fact.source),
                    Distinct::Waitpoints => Counted::Waitpoint(fact.waitpoint),
                    Distinct::Unknown(_) => return false,
                });
                if new {
                    self.taken.push(position);
                    self.satisfied = u32::try_from(self.taken.len()).is_ok_and(|taken| taken >= count.n);
                }
                new
            }
            Shape::AllOf(children) => {
                let took = children.iter_mut().fold(false, |took, child| child.feed(position, fact) | took);
                self.satisfied = !children.is_empty() && children.iter().all(|child| child.satisfied);
                took
            }
            Shape::AnyOf(children) => {
                let mut took = false;
                for child in children {
                    took |= child.feed(position, fact);
                    // The first child that is satisfied decides, so that the answer names its signals alone.
                    if child.satisfied {
                        self.satisfied = true;
                        break;
                    }
                }
                took
            }
            Shape::Never => false,
        }
    }

    /// How far it has come; `fact_at` finds the signal of a position.
    fn progress<'f>(&self, fact_at: impl Fn(usize) -> Option<&'f SignalFact>) -> Progress {
        let mut positions = BTreeSet::new();
        self.collect(&mut positions);
        let contributed = positions.into_iter().filter_map(fact_at).map(|fact| fact.id).collect();
        Progress { satisfied: self.satisfied, contributed }
    }

    /// The positions of the signals that count.
    fn collect(&self, positions: &mut BTreeSet<usize>) {
        positions.extend(&self.taken);
        match &self.shape {
            Shape::AllOf(children) => children.iter().for_each(|child| child.collect(positions)),
            Shape::AnyOf(children) => {
                for child in children.iter().filter(|child| child.satisfied || !self.satisfied) {
                    child.collect(positions);
                }
            }
            Shape::Matchers { .. } | Shape::Count { .. } | Shape::Never => {}
        }
    }
}

#[cfg(test)]
mod tests;
