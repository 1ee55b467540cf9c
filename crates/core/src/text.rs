//! The checks of everything that comes in as text or as a number with a range. Each refusal names its field, and
//! `details.problem` tells an empty value, one that is too long, a character that is not allowed and a number out of
//! range apart.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;

use crate::error::{Error, Result};
use crate::limits;

/// Tags of an execution or a flow.
pub type Tags = BTreeMap<String, String>;

/// A namespace, lane, worker, instance, budget or quota: printable, without spaces.
pub fn name(field: &str, value: &str) -> Result<()> {
    sized(field, value, limits::NAME_MAX_BYTES)?;
    every(field, value, printable)?;
    if matches!(value, "." | "..") {
        // URL parsers resolve these away, even percent-encoded, so nothing could ever address it.
        return Err(bad_character(field, "must not be a path of dots"));
    }
    Ok(())
}

/// The name of a budget: one name, or a path of names `root/child`.
pub fn budget_name(field: &str, value: &str) -> Result<()> {
    sized(field, value, limits::BUDGET_PATH_MAX_BYTES)?;
    let levels = value.split('/').count();
    if levels > limits::BUDGET_LEVELS_MAX {
        return Err(too_many(field, levels, limits::BUDGET_LEVELS_MAX));
    }
    value.split('/').try_for_each(|part| name(field, part))
}

/// The kind of an execution or a flow: printable, without spaces.
pub fn kind(field: &str, value: &str) -> Result<()> {
    sized(field, value, limits::KIND_MAX_BYTES)?;
    every(field, value, printable)
}

/// A key, signal name, frame type or correlation id: one line, spaces allowed.
pub fn label(field: &str, value: &str) -> Result<()> {
    sized(field, value, limits::LABEL_MAX_BYTES)?;
    every(field, value, |c| c == ' ' || printable(c))
}

/// A label that may be left empty, which means there is none.
pub fn optional_label(field: &str, value: &str) -> Result<()> {
    if value.is_empty() { Ok(()) } else { label(field, value) }
}

/// A reason or message that people write: any text without NUL; may be empty.
pub fn text(field: &str, value: &str) -> Result<()> {
    bounded(field, value, limits::TEXT_MAX_BYTES)?;
    every(field, value, |c| c != '\0')
}

/// A media type such as `application/json; charset=utf-8`. It becomes an HTTP header, so it is ASCII on one line.
pub fn content_type(field: &str, value: &str) -> Result<()> {
    sized(field, value, limits::CONTENT_TYPE_MAX_BYTES)?;
    every(field, value, |c| c == ' ' || c.is_ascii_graphic())?;
    let essence = value.split(';').next().unwrap_or(value).trim_end_matches(' ');
    let token = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
    };
    match essence.split_once('/') {
        Some((kind, subtype)) if token(kind) && token(subtype) => Ok(()),
        _ => Err(bad_character(field, "must be a media type such as text/plain")),
    }
}

/// A content type that may be left empty, which means none was given.
pub fn optional_content_type(field: &str, value: &str) -> Result<()> {
    if value.is_empty() { Ok(()) } else { content_type(field, value) }
}

/// Trace context as W3C writes it: visible ASCII; may be empty.
pub fn trace_context(field: &str, value: &str) -> Result<()> {
    bounded(field, value, limits::TRACE_CONTEXT_MAX_BYTES)?;
    every(field, value, |c| c == ' ' || c.is_ascii_graphic())
}

/// All tags: how many, each key and each value.
pub fn tags(field: &str, tags: &Tags) -> Result<()> {
    if tags.len() > limits::TAGS_MAX {
        return Err(too_many(field, tags.len(), limits::TAGS_MAX));
    }
    for (key, value) in tags {
        tag_key(field, key)?;
        tag_value(&format!("{field}.{key}"), value)?;
    }
    Ok(())
}

/// The key of a tag: lower-case words joined by dots, the first of them starting with a letter.
pub fn tag_key(field: &str, key: &str) -> Result<()> {
    if key.is_empty() {
        return Err(problem(field, "empty", "must not have an empty key"));
    }
    if key.len() > limits::TAG_KEY_MAX_BYTES {
        let (size, max) = (key.len(), limits::TAG_KEY_MAX_BYTES);
        return Err(problem(field, "too_long", format!("has a key of {size} bytes, the limit is {max}")));
    }
    let word = |word: &str| {
        !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    if key.starts_with(|c: char| c.is_ascii_lowercase()) && key.split('.').all(word) {
        return Ok(());
    }
    let rule = "keys are words of a-z, 0-9 and _ joined by dots, starting with a letter";
    Err(bad_character(field, format!("has the key {key:?}; {rule}")).with("key", key))
}

/// The value of a tag: any text without NUL; may be empty.
pub fn tag_value(field: &str, value: &str) -> Result<()> {
    bounded(field, value, limits::TAG_VALUE_MAX_BYTES)?;
    every(field, value, |c| c != '\0')
}

/// A number in a range.
pub fn within<T: PartialOrd + fmt::Display>(field: &str, value: T, range: RangeInclusive<T>) -> Result<()> {
    if range.contains(&value) {
        return Ok(());
    }
    let rule = format!("must be between {} and {}, not {value}", range.start(), range.end());
    Err(problem(field, "out_of_range", rule))
}

/// A duration in milliseconds; 0 is one.
pub fn duration_ms(field: &str, value: i64) -> Result<()> {
    within(field, value, 0..=limits::DURATION_MAX_MS)
}

/// An instant in milliseconds since the epoch that an index can hold as a score.
pub fn instant(field: &str, value: i64) -> Result<()> {
    within(field, value, 0..=limits::SCORE_MAX)
}

/// The TTL of a lease.
pub fn lease_ttl(field: &str, value: i64) -> Result<()> {
    within(field, value, limits::LEASE_TTL_MIN_MS..=limits::LEASE_TTL_MAX_MS)
}

/// The TTL of a grant.
pub fn grant_ttl(field: &str, value: i64) -> Result<()> {
    within(field, value, 1..=limits::GRANT_TTL_MAX_MS)
}

/// A list with more entries than it may have.
pub fn too_many(field: &str, count: usize, max: usize) -> Error {
    problem(field, "too_many", format!("has {count} entries, the limit is {max}"))
}

/// Whether a character can be seen and takes no other effect. Joiners are allowed, because scripts and emoji need
/// them; what is invisible or turns the direction of text would let two names look alike.
#[inline]
pub(crate) fn printable(c: char) -> bool {
    // Nearly every character of a name is one of these, and names are checked with every call.
    if c.is_ascii() { c.is_ascii_graphic() } else { printable_beyond_ascii(c) }
}

fn printable_beyond_ascii(c: char) -> bool {
    let hidden = matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}');
    !c.is_control() && !c.is_whitespace() && !hidden
}

fn sized(field: &str, value: &str, max: usize) -> Result<()> {
    if value.is_empty() {
        return Err(problem(field, "empty", "must not be empty"));
    }
    bounded(field, value, max)
}

fn bounded(field: &str, value: &str, max: usize) -> Result<()> {
    if value.len() <= max {
        return Ok(());
    }
    Err(problem(field, "too_long", format!("has {} bytes, the limit is {max}", value.len())))
}

fn every(field: &str, value: &str, allowed: impl Fn(char) -> bool) -> Result<()> {
    match value.char_indices().find(|&(_, c)| !allowed(c)) {
        None => Ok(()),
        Some((at, c)) => Err(bad_character(field, format!("must not contain {c:?} (byte {at})"))),
    }
}

fn bad_character(field: &str, detail: impl fmt::Display) -> Error {
    problem(field, "bad_character", detail)
}

fn problem(field: &str, problem: &str, detail: impl fmt::Display) -> Error {
    Error::invalid(field, detail).with("problem", problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    fn refused(result: Result<()>, field: &str, problem: &str) {
        let error = result.unwrap_err();
        assert_eq!(error.code, Code::Invalid);
        assert_eq!((&error.details["field"], &error.details["problem"]), (&field.into(), &problem.into()), "{error}");
        assert!(error.detail.starts_with(field), "{error}");
    }

    #[test]
    fn lengths_hold_at_the_limit_and_not_one_past_it() {
        type Check = fn(&str, &str) -> Result<()>;
        let checks: [(Check, usize); 6] = [
            (name, limits::NAME_MAX_BYTES),
            (kind, limits::KIND_MAX_BYTES),
            (label, limits::LABEL_MAX_BYTES),
            (text, limits::TEXT_MAX_BYTES),
            (tag_value, limits::TAG_VALUE_MAX_BYTES),
            (trace_context, limits::TRACE_CONTEXT_MAX_BYTES),
        ];
        for (check, max) in checks {
            check("f", &"a".repeat(max)).unwrap();
            refused(check("f", &"a".repeat(max + 1)), "f", "too_long");
        }
        let long = |size: usize| format!("text/{}", "a".repeat(size - 5));
        content_type("f", &long(limits::CONTENT_TYPE_MAX_BYTES)).unwrap();
        refused(content_type("f", &long(limits::CONTENT_TYPE_MAX_BYTES + 1)), "f", "too_long");
        tag_key("f", &"a".repeat(limits::TAG_KEY_MAX_BYTES)).unwrap();
        refused(tag_key("f", &"a".repeat(limits::TAG_KEY_MAX_BYTES + 1)), "f", "too_long");
    }

    #[test]
    fn the_limit_counts_bytes_not_characters() {
        name("lane", &"é".repeat(32)).unwrap();
        refused(name("lane", &format!("{}a", "é".repeat(32))), "lane", "too_long");
    }

    #[test]
    fn empty_is_told_apart() {
        refused(name("lane", ""), "lane", "empty");
        refused(kind("kind", ""), "kind", "empty");
        refused(label("key", ""), "key", "empty");
        refused(content_type("type", ""), "type", "empty");
        refused(tag_key("tags", ""), "tags", "empty");
        text("reason", "").unwrap();
        tag_value("tags.a", "").unwrap();
        optional_label("key", "").unwrap();
        optional_content_type("type", "").unwrap();
    }

    #[test]
    fn names_are_any_printable_text_without_spaces() {
        for good in ["default", "équipe-ß", "チーム", "a/b:c", "👩\u{200d}🚀", "..."] {
            name("lane", good).unwrap();
        }
        for bad in [" ", "a b", "a\0", "a\nb", "\u{7f}", "a\u{a0}b", "a\u{202e}b", "a\u{200b}", ".", ".."] {
            refused(name("lane", bad), "lane", "bad_character");
        }
    }

    #[test]
    fn labels_are_one_line_and_texts_are_not() {
        label("name", "approved by finance").unwrap();
        for bad in ["a\nb", "a\tb", "a\0b"] {
            refused(label("name", bad), "name", "bad_character");
        }
        text("reason", "line one\n\tline two\u{202e}").unwrap();
        refused(text("reason", "a\0b"), "reason", "bad_character");
        refused(tag_value("tags.a", "a\0b"), "tags.a", "bad_character");
    }

    #[test]
    fn content_types_can_stand_in_a_header() {
        for good in ["text/plain", "application/json; charset=utf-8", "application/vnd.x+json"] {
            content_type("content_type", good).unwrap();
        }
        for bad in ["json", "/", "a/", "text/pl ain", "text/plain\r\nX: y", "text/é", "a/b/c"] {
            refused(content_type("content_type", bad), "content_type", "bad_character");
        }
    }

    #[test]
    fn tag_keys_follow_their_pattern() {
        for good in ["a", "team", "a1_b", "a.b", "cost.center_2", "a.1", "a._"] {
            tag_key("tags", good).unwrap();
        }
        for bad in ["A", "1a", "_a", ".a", "a.", "a..b", "a-b", "a b", "é"] {
            refused(tag_key("tags", bad), "tags", "bad_character");
        }
    }

    #[test]
    fn tags_hold_as_many_as_the_limit_and_not_one_more() {
        let of = |count: usize| (0..count).map(|n| (format!("k{n}"), String::new())).collect::<Tags>();
        tags("tags", &of(limits::TAGS_MAX)).unwrap();
        refused(tags("tags", &of(limits::TAGS_MAX + 1)), "tags", "too_many");
        let long = Tags::from([("a".into(), "v".repeat(limits::TAG_VALUE_MAX_BYTES + 1))]);
        refused(tags("tags", &long), "tags.a", "too_long");
    }

    #[test]
    fn numbers_hold_at_both_ends_and_not_one_past_them() {
        type Check = fn(&str, i64) -> Result<()>;
        let checks: [(Check, i64, i64); 4] = [
            (duration_ms, 0, limits::DURATION_MAX_MS),
            (instant, 0, limits::SCORE_MAX),
            (lease_ttl, limits::LEASE_TTL_MIN_MS, limits::LEASE_TTL_MAX_MS),
            (grant_ttl, 1, limits::GRANT_TTL_MAX_MS),
        ];
        for (check, least, most) in checks {
            check("f", least).unwrap();
            check("f", most).unwrap();
            refused(check("f", least - 1), "f", "out_of_range");
            refused(check("f", most + 1), "f", "out_of_range");
        }
    }
}
