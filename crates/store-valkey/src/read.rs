//! Encodes queries as a read-only function call, and decodes its answer.

use bytes::Bytes;
use ff_core::{CommandId, IndexName, Key, Partition, limits};
use ff_store::{
    Answer, Answers, IndexEntry, LogPage, LogRecord, LogStart, Query, Result, Scan, ScanPage, StoreError,
    StoredDocument,
};
use uuid::Uuid;

use crate::answer::parse_fence;
use crate::library;
use crate::packing::{Keys, Packed, Space, Tag, function_call};
use crate::resp::Frame;
use crate::route::Follow;

/// More than any page holds; a larger limit means "all".
const LIMIT_MAX: usize = 1 << 31;
/// The length of a document's header.
const HEADER: usize = 56;

/// Whether the function may read keys that the call does not name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// It may: a list of index names contains only indexes that are not empty.
    Whole,
    /// It may not: a list of index names contains all that are listed, empty or not.
    NamedKeys,
}

/// Writes the queries down as one function call.
pub(crate) fn encode(partition: Partition, queries: &[Query], style: Style) -> Bytes {
    let mut keys = PartitionKeys { tag: Tag::of(partition), keys: Keys::new() };
    let mut p = Packed::new();
    p.count(queries.len());
    for query in queries {
        encode_query(&mut p, &mut keys, query, style);
    }
    function_call("FCALL_RO", library::READ, &keys.keys, &mut p)
}

/// The keys of a read, which are all of one partition.
struct PartitionKeys {
    tag: Tag,
    keys: Keys,
}

impl PartitionKeys {
    fn document(&mut self, key: &Key) -> usize {
        self.keys.document(&self.tag, key)
    }

    fn blob(&mut self, key: &Key) -> usize {
        self.keys.blob(&self.tag, key)
    }

    fn index(&mut self, index: &IndexName) -> usize {
        self.keys.index(&self.tag, index)
    }

    fn log(&mut self, log: &Key) -> usize {
        self.keys.log(&self.tag, log)
    }

    fn registry(&mut self) -> usize {
        self.keys.registry(&self.tag)
    }
}

/// A query for non-empty indexes reads the indexes themselves, which the call cannot name, so its call must not follow
/// its keys.
pub(crate) fn follow(queries: &[Query]) -> Follow {
    let lists = queries.iter().any(|query| matches!(query, Query::Indexes { .. }));
    if lists { Follow::Nothing } else { Follow::Keys }
}

fn encode_query(p: &mut Packed, keys: &mut PartitionKeys, query: &Query, style: Style) {
    match query {
        Query::Documents(names) => {
            p.number(1).count(names.len());
            for name in names {
                p.count(keys.document(name));
            }
        }
        Query::Blobs(names) => {
            p.number(1).count(names.len());
            for name in names {
                p.count(keys.blob(name));
            }
        }
        Query::Scan(scan) => encode_scan(p, keys, scan),
        Query::Count { index, min, max, .. } => {
            p.number(3).count(keys.index(index)).string(&bound(*min)).string(&bound(*max));
        }
        Query::Indexes { prefix, after, limit } => {
            let (mut from, to) = lexical_range(prefix);
            if let Some(after) = after.as_ref().map(IndexName::as_bytes).filter(|after| *after >= &prefix[..]) {
                from = [b"(", after].concat();
            }
            p.number(4).count(keys.registry()).string(&from).string(&to).count((*limit).min(LIMIT_MAX));
            p.number((style == Style::NamedKeys).into());
        }
        Query::Log { log, start, limit } => {
            p.number(5).count(keys.log(log));
            match start {
                LogStart::After(number) => p.number(0).string(number.saturating_add(1).to_string().as_bytes()),
                LogStart::Since(at) => p.number(1).number((*at).clamp(0, limits::SCORE_MAX)),
                LogStart::Before(number) => p.number(2).string(number.saturating_sub(1).to_string().as_bytes()),
            };
            p.count((*limit).min(LIMIT_MAX));
        }
    }
}

fn encode_scan(p: &mut Packed, keys: &mut PartitionKeys, scan: &Scan) {
    let position = Position::of(scan);
    let limit = if position == Position::Nowhere { 0 } else { scan.limit.min(LIMIT_MAX) };
    p.number(2).count(keys.index(&scan.index)).string(&bound(scan.min)).string(&bound(scan.max));
    p.number(scan.descending.into()).count(limit);
    match (&scan.after, position) {
        (Some((score, member)), Position::Behind) => p.decimal(*score).string(member.as_bytes()),
        _ => p.string(b"").string(b""),
    };
    if scan.documents {
        p.string(&keys.tag.name(Space::Document, b""));
    } else {
        p.string(b"");
    }
}

/// Where a page begins within its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    Start,
    Behind,
    Nowhere,
}

impl Position {
    fn of(scan: &Scan) -> Self {
        let Some((score, _)) = scan.after else { return Position::Start };
        // No score stands outside of these, so a page can neither begin nor end there.
        let (min, max) = (scan.min.max(-limits::SCORE_MAX), scan.max.min(limits::SCORE_MAX));
        let (before, beyond) = (score < min, score > max);
        match (before, beyond, scan.descending) {
            (true, _, false) | (_, true, true) => Position::Start,
            (true, _, true) | (_, true, false) => Position::Nowhere,
            (false, false, _) => Position::Behind,
        }
    }
}

/// A score as a bound of a range; infinite where no score can lie beyond.
fn bound(score: i64) -> Vec<u8> {
    match score {
        score if score > limits::SCORE_MAX => b"+inf".to_vec(),
        score if score < -limits::SCORE_MAX => b"-inf".to_vec(),
        score => score.to_string().into_bytes(),
    }
}

/// All names that begin with the prefix.
fn lexical_range(prefix: &[u8]) -> (Vec<u8>, Vec<u8>) {
    if prefix.is_empty() {
        return (b"-".to_vec(), b"+".to_vec());
    }
    let from = [b"[", prefix].concat();
    let mut end = prefix.to_vec();
    while end.last() == Some(&u8::MAX) {
        end.pop();
    }
    match end.last_mut() {
        Some(last) => {
            *last += 1;
            (from, [b"(", &end[..]].concat())
        }
        None => (from, b"+".to_vec()),
    }
}

/// The answers in the function's reply, and the names of listed indexes that are empty.
pub(crate) fn decode(queries: Vec<Query>, frame: Frame) -> Result<(Answers, Vec<IndexName>)> {
    let odd = || StoreError::Corrupt("the read function gave an answer of another shape".into());
    let mut items = frame.into_array().ok_or_else(odd)?.into_iter();
    let at = items.next().and_then(|frame| frame.integer()).ok_or_else(odd)?;
    let mut answers = Vec::with_capacity(queries.len());
    let mut empty = Vec::new();
    for query in queries {
        let mut item = items.next().ok_or_else(odd)?;
        if matches!(query, Query::Indexes { .. }) {
            let mut lists = item.into_array().ok_or_else(odd)?.into_iter();
            item = lists.next().ok_or_else(odd)?;
            empty.extend(lists.next().and_then(parse_names).ok_or_else(odd)?);
        }
        answers.push(decode_answer(query, item, at)?);
    }
    Ok((Answers { at, answers }, empty))
}

fn decode_answer(query: Query, frame: Frame, at: i64) -> Result<Answer> {
    let odd = || StoreError::Corrupt("the read function gave an answer of another shape".into());
    Ok(match query {
        Query::Documents(keys) => {
            let values = frame.into_array().filter(|values| values.len() == keys.len()).ok_or_else(odd)?;
            let documents = keys.into_iter().zip(values).map(|(key, value)| decode_document(key, value, at));
            Answer::Documents(documents.collect::<Result<_>>()?)
        }
        Query::Blobs(_) => {
            Answer::Blobs(frame.into_array().ok_or_else(odd)?.into_iter().map(Frame::into_bulk).collect())
        }
        Query::Scan(scan) => Answer::Scan(decode_scan(&scan, frame, at)?),
        Query::Count { at_most, .. } => {
            let count = frame.integer().and_then(|count| u64::try_from(count).ok()).ok_or_else(odd)?;
            Answer::Count(count.min(at_most))
        }
        Query::Indexes { .. } => Answer::Indexes(parse_names(frame).ok_or_else(odd)?),
        Query::Log { .. } => Answer::Log(decode_log(frame).ok_or_else(odd)?),
    })
}

/// A list of index names.
pub(crate) fn parse_names(frame: Frame) -> Option<Vec<IndexName>> {
    let names = frame.into_array()?.into_iter();
    names.map(|name| name.into_bulk().map(|name| IndexName::from_bytes(&name[..]))).collect()
}

fn decode_document(key: Key, value: Frame, at: i64) -> Result<Option<StoredDocument>> {
    let Some(bytes) = value.into_bulk() else { return Ok(None) };
    let corrupt = || StoreError::Corrupt(format!("the document {key:?} is shorter than its header"));
    let header = bytes.get(..HEADER).ok_or_else(corrupt)?;
    let instant = |from: usize| {
        let bytes = header[from..from + 8].try_into().expect("the header has 56 bytes");
        i64::from_be_bytes(bytes)
    };
    let expires_at = instant(48);
    if expires_at != 0 && expires_at <= at {
        return Ok(None);
    }
    let version = CommandId(Uuid::from_slice(&header[..16]).map_err(|_| corrupt())?);
    let fence = parse_fence(&header[16..40]).ok_or_else(corrupt)?;
    Ok(Some(StoredDocument { body: bytes.slice(HEADER..), version, fence, lease_until: instant(40), key }))
}

fn decode_scan(scan: &Scan, frame: Frame, at: i64) -> Result<ScanPage> {
    let odd = || StoreError::Corrupt(format!("the index {:?} gave an answer of another shape", scan.index));
    let mut parts = frame.into_array().ok_or_else(odd)?.into_iter();
    let mut flat = parts.next().and_then(Frame::into_array).ok_or_else(odd)?.into_iter();
    let mut documents = parts.next().and_then(Frame::into_array).unwrap_or_default().into_iter();
    let mut entries = Vec::with_capacity(flat.len() / 2);
    while let Some(member) = flat.next() {
        let member = Key::from_bytes(&member.into_bulk().ok_or_else(odd)?[..]);
        let score = flat.next().as_ref().and_then(Frame::text).and_then(parse_score).ok_or_else(odd)?;
        let document = match documents.next() {
            Some(value) => decode_document(member.clone(), value, at)?,
            None => None,
        };
        entries.push(IndexEntry { member, score, document });
    }
    if Position::of(scan) == Position::Behind {
        // After an entry the function reads on by rank and ignores the bounds, so they are applied here.
        entries.retain(|entry| (scan.min..=scan.max).contains(&entry.score));
        if scan.descending {
            entries.reverse();
        }
    }
    Ok(ScanPage { entries })
}

/// A score as the server writes it: an integer, perhaps in scientific notation.
fn parse_score(text: &str) -> Option<i64> {
    text.parse().ok().or_else(|| format!("{:.0}", text.parse::<f64>().ok()?).parse().ok())
}

fn decode_log(frame: Frame) -> Option<LogPage> {
    let mut items = frame.into_array()?.into_iter();
    let mut number = || u64::try_from(items.next()?.integer()?).ok();
    let (first, next) = (number()?, number()?);
    let mut records = Vec::with_capacity(items.len() / 2);
    while let Some(id) = items.next() {
        let (sequence, at) = id.text()?.split_once('-')?;
        let record = items.next()?.into_bulk()?;
        records.push(LogRecord { sequence: sequence.parse().ok()?, at: at.parse().ok()?, record });
    }
    Some(LogPage { records, first, removed_up_to: first.saturating_sub(1), next })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_covers_what_begins_with_it_and_no_more() {
        assert_eq!(lexical_range(b"q"), (b"[q".to_vec(), b"(r".to_vec()));
        assert_eq!(lexical_range(b"q\xff"), (b"[q\xff".to_vec(), b"(r".to_vec()));
        assert_eq!(lexical_range(b"\xff"), (b"[\xff".to_vec(), b"+".to_vec()));
        assert_eq!(lexical_range(b""), (b"-".to_vec(), b"+".to_vec()));
    }

    #[test]
    fn scores_are_read_in_any_notation() {
        assert_eq!(parse_score("-17"), Some(-17));
        assert_eq!(parse_score("9.007199254740991e+15"), Some(limits::SCORE_MAX));
        assert_eq!(parse_score("-9e+15"), Some(-9_000_000_000_000_000));
        assert_eq!(parse_score("inf"), None);
    }

    #[test]
    fn a_page_behind_an_entry_outside_of_its_range_begins_or_ends_at_once() {
        let scan = |after: i64, descending: bool| Scan {
            min: 10,
            max: 20,
            after: Some((after, Key::from_bytes(*b"m"))),
            descending,
            ..Scan::first(IndexName::from_bytes(*b"i"), 5)
        };
        assert_eq!(Position::of(&scan(5, false)), Position::Start);
        assert_eq!(Position::of(&scan(15, false)), Position::Behind);
        assert_eq!(Position::of(&scan(25, false)), Position::Nowhere);
        assert_eq!(Position::of(&scan(25, true)), Position::Start);
        assert_eq!(Position::of(&scan(5, true)), Position::Nowhere);
    }
}
