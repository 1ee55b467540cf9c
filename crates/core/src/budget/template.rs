//! Children by tag: a budget with `per: tag:customer` has a child for each value of the tag, made from its template by the
//! first charge with that value. A child leaves again when it is idle and nothing is counted in it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::{Budget, BudgetDefinition, CalendarWindow, Enforcement, HardAction, Limits, SoftAction};
use crate::document;
use crate::error::{Error, Result};
use crate::limits;
use crate::partition::digest16;
use crate::text::{self, Tags};

/// How `per` begins: children are told apart by a tag.
const TAG: &str = "tag:";
/// Hexadecimal digits of the digest that ends a segment which is too long to be written out.
const DIGEST_DIGITS: usize = 16;

document! {
    /// The definition that the children of a budget are made with.
    pub api struct BudgetTemplate {
        /// The dimensions that usage is reported in, with their limits.
        "d" dimensions: BTreeMap<String, Limits>,
        /// Whether limits bind.
        "e" enforcement: Enforcement = Enforcement::Enforce,
        /// What happens at a hard limit.
        "h" on_hard: HardAction = HardAction::Block,
        /// What happens past a soft limit.
        "s" on_soft: SoftAction = SoftAction::Warn,
        /// Usage returns to nothing this often; 0 is never.
        "r" reset_interval_ms: i64,
        /// Usage returns to nothing with each day or month of the calendar; instead of an interval.
        "c" calendar: Option<CalendarWindow>,
        /// Usage counts for so long after it was spent and leaves bit by bit; 0: it does not. Instead of an interval.
        "w" rolling_ms: i64,
    }
}

impl BudgetTemplate {
    /// The definition of the child for a value of a tag.
    fn definition(&self, tag: &str, value: &str) -> BudgetDefinition {
        let shown = text::optional_label("scope_id", value).is_ok();
        BudgetDefinition {
            scope_type: tag.to_owned(),
            scope_id: if shown { value.to_owned() } else { segment_of(value) },
            dimensions: self.dimensions.clone(),
            enforcement: self.enforcement,
            on_hard: self.on_hard,
            on_soft: self.on_soft,
            reset_interval_ms: self.reset_interval_ms,
            calendar: self.calendar.clone(),
            rolling_ms: self.rolling_ms,
            ..Default::default()
        }
    }
}

impl BudgetDefinition {
    /// The tag whose values have a child each.
    pub fn tag(&self) -> Option<&str> {
        self.per.as_deref()?.strip_prefix(TAG)
    }

    /// Refuses a template without a tag, a tag without a template, and what is out of bounds in either.
    pub(super) fn validate_template(&self) -> Result<()> {
        let (per, template) = match (&self.per, &self.template) {
            (None, None) => return Ok(()),
            (Some(_), None) => return Err(Error::invalid("template", "must say the limits of the children")),
            (None, Some(_)) => return Err(Error::invalid("per", "must say what there is a child for: tag:NAME")),
            (Some(per), Some(template)) => (per, template),
        };
        let tag = per.strip_prefix(TAG).ok_or_else(|| Error::invalid("per", "must be tag:NAME"))?;
        text::tag_key("per", tag)?;
        template.definition(tag, "").validate().map_err(within_template)
    }

    /// Refuses a name whose children would have none.
    pub(super) fn validate_name_of_parent(&self, name: &str) -> Result<()> {
        let longest = limits::BUDGET_PATH_MAX_BYTES - limits::NAME_MAX_BYTES - 1;
        if self.per.is_some() && (name.len() > longest || name.split('/').count() >= limits::BUDGET_LEVELS_MAX) {
            let levels = limits::BUDGET_LEVELS_MAX - 1;
            let detail =
                format!("leaves no room for the names of children: at most {longest} bytes in {levels} levels");
            return Err(Error::invalid("name", detail));
        }
        Ok(())
    }
}

fn within_template(error: Error) -> Error {
    let field = error.details.get("field").and_then(|field| field.as_str()).unwrap_or_default();
    let field = format!("template.{field}");
    error.with("field", field)
}

impl Budget {
    /// The name of the child that counts what is spent under these tags as well; none without such a tag.
    pub fn child_for(&self, tags: &Tags) -> Option<String> {
        let value = tags.get(self.definition.tag()?)?;
        Some(format!("{}/{}", self.name, segment_of(value)))
    }

    /// The child for these tags, as its first use makes it.
    pub fn make_child(&self, tags: &Tags, now: i64) -> Option<Budget> {
        let name = self.child_for(tags)?;
        let (tag, template) = (self.definition.tag()?, self.definition.template.as_ref()?);
        Some(self.new_child(name, template.definition(tag, tags.get(tag)?), now))
    }

    fn new_child(&self, name: String, definition: BudgetDefinition, now: i64) -> Budget {
        let mut child = Budget {
            namespace: self.namespace.clone(),
            name,
            definition,
            created_at: now,
            updated_at: now,
            from_template: true,
            used_at: now,
            ..Default::default()
        };
        child.next_reset_at = child.reset_after(now);
        child
    }

    /// A child follows its template, unless a person has changed it. A child that is older than its parent was made for an
    /// earlier budget of the parent's name, and counts nothing for this one.
    pub fn follow(&mut self, parent: &Budget, now: i64) {
        let Some(template) = parent.definition.template.as_ref().filter(|_| self.from_template) else { return };
        let wanted = BudgetDefinition {
            scope_type: self.definition.scope_type.clone(),
            scope_id: self.definition.scope_id.clone(),
            ..template.definition("", "")
        };
        if self.created_at < parent.created_at {
            let parked_in = std::mem::take(&mut self.parked_in);
            *self = Budget { parked_in, ..parent.new_child(std::mem::take(&mut self.name), wanted, now) };
        } else if wanted != self.definition {
            self.redefine(wanted, now);
        }
    }

    /// Whether nothing is counted, held or waited for, so that one made anew would be the same.
    pub fn is_empty(&self) -> bool {
        let counted = self.usage.is_empty() && self.reserved.is_empty() && self.overrun.is_empty();
        let said = !self.declined && self.granted.is_empty() && !self.question.is_open();
        counted && said && self.previous.reserved.is_empty() && self.exhausted.is_empty() && self.parked_in.is_empty()
    }

    /// When a child that nothing is counted in leaves. It stays for as long as it owes events.
    pub fn idle_at(&self) -> Option<i64> {
        let empty = self.from_template && self.is_empty() && self.breaches.owed.is_empty();
        empty.then(|| self.used_at.saturating_add(limits::BUDGET_CHILD_IDLE_MS))
    }
}

/// The segment of a path that stands for a value of a tag. Different values have different segments: characters that a
/// name cannot have are written as `%` and two digits for each byte, an empty value as `%`, and one that is too long as its
/// beginning, `~` and a digest.
pub fn segment_of(value: &str) -> String {
    if value.is_empty() {
        return "%".to_owned();
    }
    let pieces = value.chars().map(|c| match c {
        '/' | '%' | '~' => escaped(c),
        '.' if matches!(value, "." | "..") => escaped(c),
        c if text::printable(c) => Cow::Owned(c.to_string()),
        c => escaped(c),
    });
    let mut segment = String::new();
    let mut kept = 0;
    for piece in pieces {
        segment.push_str(&piece);
        if segment.len() + 1 + DIGEST_DIGITS <= limits::NAME_MAX_BYTES {
            kept = segment.len();
        }
    }
    if segment.len() > limits::NAME_MAX_BYTES {
        segment.truncate(kept);
        segment.push('~');
        let digest = digest16(&[value.as_bytes()]);
        digest[..DIGEST_DIGITS / 2].iter().for_each(|byte| segment.push_str(&format!("{byte:02x}")));
    }
    segment
}

fn escaped(c: char) -> Cow<'static, str> {
    let mut buffer = [0; 4];
    Cow::Owned(c.encode_utf8(&mut buffer).bytes().map(|byte| format!("%{byte:02X}")).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::budget::tests::{dimensions, tokens};
    use crate::encoding::Document;
    use crate::index::{Due, Indexed};

    fn parent(name: &str, hard: i64) -> Result<Budget> {
        let dimensions = |hard| dimensions(&[("tokens", hard, 0)]);
        let template = BudgetTemplate { dimensions: dimensions(hard), reset_interval_ms: 1_000, ..Default::default() };
        let definition = BudgetDefinition {
            dimensions: dimensions(100),
            per: Some("tag:customer".into()),
            template: Some(template),
            ..Default::default()
        };
        Ok(Budget::define(None, ("team", name), definition, 1_000)?.created())
    }

    fn tagged(value: &str) -> Tags {
        Tags::from([("customer".to_owned(), value.to_owned())])
    }

    #[test]
    fn every_value_has_a_segment_of_its_own_that_is_a_name() {
        let long = "x".repeat(256);
        let odd = "ü/".repeat(80);
        let values = [
            "",
            "%",
            "~",
            ".",
            "..",
            "...",
            "a",
            "A",
            "a b",
            "a/b",
            "a%2Fb",
            "a\nb",
            "müller",
            "\u{200b}",
            "a~b",
            &long,
            &long[..255],
            &long[..64],
            &long[..65],
            &odd,
            &odd[..odd.len() - 1],
        ];
        let segments: BTreeSet<String> = values.iter().map(|value| segment_of(value)).collect();
        assert_eq!(segments.len(), values.len());
        for segment in &segments {
            text::name("segment", segment).unwrap();
            assert!(!segment.contains('/'), "{segment}");
        }
        assert_eq!((segment_of("a b/ü"), segment_of("..")), ("a%20b%2Fü".to_owned(), "%2E%2E".to_owned()));
        assert_eq!(segment_of(&long[..64]), long[..64], "a name of 64 bytes is written out");
        assert!(segment_of(&long).len() == 64 && segment_of(&long).starts_with(&format!("{}~", &long[..47])));
    }

    #[test]
    fn a_child_is_made_as_its_template_says_and_follows_it() {
        let mut acme = parent("acme", 10).unwrap();
        assert_eq!(acme.child_for(&Tags::new()), None);
        let mut child = acme.make_child(&tagged("x"), 2_000).unwrap();
        assert_eq!((child.name.as_str(), child.left("tokens"), child.next_reset_at), ("acme/x", Some(10), 3_000));
        assert_eq!((child.definition.scope_type.as_str(), child.definition.scope_id.as_str()), ("customer", "x"));
        child.report(&tokens(10), 2_001).unwrap();
        acme = parent("acme", 15).unwrap();
        let before = child.clone();
        child.follow(&acme, 2_002);
        assert!(child.opened_since(&before) && child.left("tokens") == Some(5));
        let limits = BTreeMap::from([("tokens".to_owned(), Limits { hard: 99, ..Default::default() })]);
        child.set_limits(&limits, 2_003).unwrap();
        child.follow(&acme, 2_004);
        assert_eq!((child.left("tokens"), child.idle_at()), (Some(89), None), "a person's word counts more");
        assert_eq!(Budget::decode(&child.encode()).unwrap(), child);
    }

    #[test]
    fn a_child_of_an_earlier_budget_of_the_same_name_counts_nothing() {
        let mut child = parent("acme", 10).unwrap().make_child(&tagged("x"), 2_000).unwrap();
        child.report(&tokens(9), 2_001).unwrap();
        let mut anew = parent("acme", 10).unwrap();
        child.follow(&anew, 2_002);
        assert_eq!(child.left("tokens"), Some(1), "it is younger than this one");
        anew.created_at = 5_000;
        child.parked_in.add(3);
        child.follow(&anew, 5_001);
        assert_eq!((child.left("tokens"), child.created_at, child.parked_in.is_empty()), (Some(10), 5_001, false));
    }

    #[test]
    fn a_child_leaves_when_it_is_idle_and_empty_and_not_before() {
        let acme = parent("acme", 10).unwrap();
        let mut child = acme.make_child(&tagged("x"), 2_000).unwrap();
        child.report(&tokens(1), 2_500).unwrap();
        assert_eq!((child.idle_at(), child.due_at()), (None, Some(3_000)));
        assert!(child.come_due(3_000));
        let idle_at = 2_500 + limits::BUDGET_CHILD_IDLE_MS;
        assert_eq!((child.idle_at(), child.due_at()), (Some(idle_at), Some(4_000)));
        child.next_reset_at = 0;
        assert!(child.index_entries(0).contains(&Due::Timer.entry(&child.key(), idle_at)));
        child.parked_in.add(3);
        assert_eq!(child.idle_at(), None, "something waits for it");
    }

    #[test]
    fn a_template_that_cannot_be_followed_is_refused_by_field() {
        let good = parent("acme", 10).unwrap().definition;
        let field = |definition: BudgetDefinition| definition.validate().unwrap_err().details["field"].clone();
        assert_eq!(field(BudgetDefinition { per: None, ..good.clone() }), "per");
        assert_eq!(field(BudgetDefinition { template: None, ..good.clone() }), "template");
        for per in ["customer", "tag:", "tag:A", "label:x"] {
            assert_eq!(field(BudgetDefinition { per: Some(per.into()), ..good.clone() }), "per");
        }
        let empty = BudgetTemplate::default();
        assert_eq!(field(BudgetDefinition { template: Some(empty), ..good.clone() }), "template.dimensions");
        assert_eq!(parent("a/b/c/d/e", 1).unwrap_err().details["field"], "name");
        parent("a/b/c/d", 1).unwrap();
        let long = ["n".repeat(64), "n".repeat(64), "n".repeat(61)].join("/");
        parent(&long, 1).unwrap();
        assert_eq!(parent(&format!("{long}n"), 1).unwrap_err().details["field"], "name");
    }

    #[test]
    fn a_person_may_define_a_child_that_is_there() {
        let acme = parent("acme", 10).unwrap();
        let mut child = acme.make_child(&tagged("x"), 2_000).unwrap();
        child.report(&tokens(7), 2_001).unwrap();
        let limits = Limits { hard: 50, ..Default::default() };
        let own = BudgetDefinition { dimensions: BTreeMap::from([("tokens".into(), limits)]), ..Default::default() };
        let own = Budget::define(Some(&child), ("team", "acme/x"), own, 2_002).unwrap().created();
        assert_eq!((own.used("tokens"), own.left("tokens"), own.from_template), (7, Some(43), false));
    }
}
