//! Reads. Each query is one statement, and the statements of a call go out together. Every statement begins with the
//! time, so that it answers even when it finds nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use deadpool_postgres::{Object, Pool};
use ff_core::{CommandId, IndexName, Key, LeaseEpoch, LeaseId, Partition};
use ff_store::{
    Answer, Answers, Fence, IndexEntry, LogPage, LogRecord, LogStart, Query, Result, Scan, ScanPage, StoreError,
    StoredDocument,
};
use futures_util::future::{try_join, try_join_all};
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, ToSql};

use crate::clock::Clock;
use crate::connect;
use crate::error;
use crate::locks::{Locks, Protects};
use crate::maintain::Maintenance;
use crate::names;

/// Long names with the same beginning that a page of names may meet twice.
const LONG_NAMES_ALIKE: usize = 64;
/// Logs whose settled numbers are remembered.
const SETTLED_MAX: usize = 10_000;

/// The parts that reads share.
pub(crate) struct Reader {
    pub(crate) pool: Pool,
    pub(crate) locks: Locks,
    pub(crate) clock: Arc<Clock>,
    pub(crate) answer_timeout: Duration,
    maintenance: Maintenance,
    /// Up to these numbers nothing will appear any more in a log.
    settled: Mutex<HashMap<(Partition, Key), i64>>,
}

/// Judges a document by the time of the statement.
const PRESENT: &str = "(d.expires_at IS NULL OR d.expires_at > c.now)";
const TIME: &str = "(SELECT ff_now($1) AS now OFFSET 0) c";

impl Reader {
    pub(crate) fn new(
        pool: Pool,
        locks: Locks,
        clock: Arc<Clock>,
        answer_timeout: Duration,
        maintenance: Maintenance,
    ) -> Self {
        Self { pool, locks, clock, answer_timeout, maintenance, settled: Mutex::default() }
    }

    /// Answers all queries on one connection.
    pub(crate) async fn read(&self, partition: Partition, queries: Vec<Query>) -> Result<Answers> {
        let client = connect::take(&self.pool).await?;
        let all = async {
            let answered = self.answer_all(&client, partition, &queries).await?;
            let at = match answered.iter().map(|(now, _)| *now).min() {
                Some(at) => at,
                None => {
                    let rows = query(&client, &format!("SELECT c.now FROM {TIME}"), &[&self.floor()]).await?;
                    get(rows.first().ok_or_else(nothing)?, 0)?
                }
            };
            Ok((at, answered))
        };
        let done = connect::within(self.answer_timeout, all).await;
        let (at, answered) = connect::give_back(client, done)?;
        self.clock.observe(at);
        Ok(Answers { at, answers: answered.into_iter().map(|(_, answer)| answer).collect() })
    }

    fn floor(&self) -> i64 {
        self.clock.floor()
    }

    async fn answer_all(&self, client: &Object, partition: Partition, queries: &[Query]) -> Result<Vec<(i64, Answer)>> {
        let this = i32::try_from(partition.ordinal()).expect("ordinals stay below four times 65,536");
        let others = try_join_all(queries.iter().map(|query| self.answer(client, partition, this, query)));
        let (others, counts) = try_join(others, self.counts(client, this, queries)).await?;
        let mut counts = counts.into_iter();
        others.into_iter().map(|answered| answered.or_else(|| counts.next()).ok_or_else(nothing)).collect()
    }

    /// The answer to one query, unless it counts: all counts are answered together.
    async fn answer(
        &self,
        client: &Object,
        partition: Partition,
        this: i32,
        query: &Query,
    ) -> Result<Option<(i64, Answer)>> {
        let answered = match query {
            Query::Documents(keys) => self.documents(client, this, keys).await,
            Query::Blobs(keys) => self.blobs(client, this, keys).await,
            Query::Scan(scan) => self.scan(client, partition, this, scan).await,
            Query::Count { .. } => return Ok(None),
            Query::Indexes { prefix, after, limit } => {
                self.indexes(client, this, (prefix, after.as_ref()), *limit).await
            }
            Query::Log { log, start, limit } => self.log(client, partition, this, log, *start, *limit).await,
        };
        answered.map(Some)
    }

    /// The answers to those queries that count, in one statement: whoever counts asks for many counts at once.
    async fn counts(&self, client: &Object, this: i32, queries: &[Query]) -> Result<Vec<(i64, Answer)>> {
        let (mut indexes, mut lowest, mut highest, mut limits) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for query in queries {
            if let Query::Count { index, min, max, at_most } = query {
                indexes.push(names::stored(index));
                lowest.push(*min);
                highest.push(*max);
                limits.push(i64::try_from(*at_most).unwrap_or(i64::MAX));
            }
        }
        if indexes.is_empty() {
            return Ok(Vec::new());
        }
        // Most counts are of whole indexes, and comparing scores is a quarter of what it costs to walk through one.
        let whole = lowest.iter().all(|min| *min == i64::MIN) && highest.iter().all(|max| *max == i64::MAX);
        let range = if whole { "" } else { "AND score BETWEEN k.min AND k.max" };
        let statement = format!(
            "SELECT c.now, (SELECT count(*) FROM (SELECT 1 FROM entries WHERE partition = $2 AND name = k.name
               {range} LIMIT k.at_most) AS counted)
             FROM {TIME} CROSS JOIN unnest($3::bytea[], $4::bigint[], $5::bigint[], $6::bigint[])
               WITH ORDINALITY AS k(name, min, max, at_most, place) ORDER BY k.place"
        );
        let rows = query(client, &statement, &[&self.floor(), &this, &indexes, &lowest, &highest, &limits]).await?;
        rows.iter().map(|row| Ok((get(row, 0)?, Answer::Count(number(get(row, 1)?)?)))).collect()
    }

    async fn documents(&self, client: &Object, this: i32, keys: &[Key]) -> Result<(i64, Answer)> {
        let statement = format!(
            "SELECT c.now, k.place, d.body, d.version, d.epoch, d.lease_id, d.lease_until
             FROM {TIME} LEFT JOIN (unnest($3::bytea[]) WITH ORDINALITY AS k(key, place)
               CROSS JOIN LATERAL (SELECT * FROM documents d
                 WHERE d.partition = $2 AND d.key = k.key LIMIT 1) d) ON {PRESENT}"
        );
        let names: Vec<&[u8]> = keys.iter().map(Key::as_bytes).collect();
        let rows = query(client, &statement, &[&self.floor(), &this, &names]).await?;
        let mut documents = vec![None; keys.len()];
        for row in &rows {
            let Some(place) = get::<Option<i64>>(row, 1)? else { continue };
            let place = usize::try_from(place - 1).map_err(|_| nothing())?;
            documents[place] = Some(document(keys[place].clone(), row, 2)?);
        }
        Ok((get(rows.first().ok_or_else(nothing)?, 0)?, Answer::Documents(documents)))
    }

    async fn blobs(&self, client: &Object, this: i32, keys: &[Key]) -> Result<(i64, Answer)> {
        let statement = format!(
            "SELECT c.now, k.place, b.bytes
             FROM {TIME} LEFT JOIN (unnest($3::bytea[]) WITH ORDINALITY AS k(key, place)
               CROSS JOIN LATERAL (SELECT b.bytes FROM blobs b
                 WHERE b.partition = $2 AND b.key = k.key LIMIT 1) b) ON true"
        );
        let names: Vec<&[u8]> = keys.iter().map(Key::as_bytes).collect();
        let rows = query(client, &statement, &[&self.floor(), &this, &names]).await?;
        let mut blobs = vec![None; keys.len()];
        for row in &rows {
            let Some(place) = get::<Option<i64>>(row, 1)? else { continue };
            let place = usize::try_from(place - 1).map_err(|_| nothing())?;
            blobs[place] = Some(Bytes::copy_from_slice(get(row, 2)?));
        }
        Ok((get(rows.first().ok_or_else(nothing)?, 0)?, Answer::Blobs(blobs)))
    }

    async fn scan(&self, client: &Object, partition: Partition, this: i32, scan: &Scan) -> Result<(i64, Answer)> {
        if scan.min == i64::MIN && scan.after.is_none() && !scan.descending {
            self.maintenance.scanned(partition, &scan.index);
        }
        let (order, behind) = if scan.descending { ("DESC", "<") } else { ("ASC", ">") };
        let after = match scan.after {
            Some(_) => format!("AND (score, member) {behind} ($7, $8)"),
            None => String::new(),
        };
        let (columns, join) = if scan.documents {
            (
                ", d.body, d.version, d.epoch, d.lease_id, d.lease_until",
                format!(
                    "LEFT JOIN LATERAL (SELECT * FROM documents d
                       WHERE d.partition = $2 AND d.key = e.member AND {PRESENT} LIMIT 1) d ON true"
                ),
            )
        } else {
            ("", String::new())
        };
        let statement = format!(
            "SELECT c.now, e.member, e.score{columns} FROM {TIME}
             LEFT JOIN LATERAL (SELECT member, score FROM entries
               WHERE partition = $2 AND name = $3 AND score <= $5 {after} AND score >= greatest($4,
                 (SELECT d.below FROM drained d WHERE d.partition = $2 AND d.name = $3))
               ORDER BY score {order}, member {order} LIMIT $6) e ON true
             {join} ORDER BY e.score {order}, e.member {order}"
        );
        let (floor, name, limit) = (self.floor(), names::stored(&scan.index), limited(scan.limit));
        let mut arguments: Vec<&(dyn ToSql + Sync)> = vec![&floor, &this, &name, &scan.min, &scan.max, &limit];
        let member = scan.after.as_ref().map(|(_, member)| member.as_bytes());
        if let (Some((score, _)), Some(member)) = (&scan.after, &member) {
            arguments.push(score);
            arguments.push(member);
        }
        let rows = query(client, &statement, &arguments).await?;
        let mut entries = Vec::with_capacity(rows.len());
        for row in &rows {
            let Some(member) = get::<Option<&[u8]>>(row, 1)? else { continue };
            let member = Key::from_bytes(member);
            let found = scan.documents && get::<Option<&[u8]>>(row, 3)?.is_some();
            let document = if found { Some(document(member.clone(), row, 3)?) } else { None };
            entries.push(IndexEntry { member, score: get(row, 2)?, document });
        }
        Ok((get(rows.first().ok_or_else(nothing)?, 0)?, Answer::Scan(ScanPage { entries })))
    }

    /// Jumps from name to name, whatever the number of entries between them.
    async fn indexes(
        &self,
        client: &Object,
        this: i32,
        (prefix, after): (&[u8], Option<&IndexName>),
        limit: usize,
    ) -> Result<(i64, Answer)> {
        let statement = format!(
            "WITH RECURSIVE names(name) AS (
               (SELECT name FROM entries WHERE partition = $2 AND name >= $6::bytea ORDER BY name LIMIT 1)
               UNION ALL
               SELECT (SELECT e.name FROM entries e WHERE e.partition = $2 AND e.name > n.name ORDER BY e.name LIMIT 1)
               FROM names n WHERE n.name IS NOT NULL AND substring(n.name FROM 1 FOR length($3::bytea)) = $3::bytea
             )
             SELECT c.now, coalesce(l.name, f.name) FROM {TIME}
             LEFT JOIN LATERAL (SELECT n.name FROM names n
               WHERE n.name IS NOT NULL AND substring(n.name FROM 1 FOR length($3::bytea)) = $3::bytea LIMIT $4) f ON true
             LEFT JOIN LATERAL (SELECT l.name FROM long_names l
               WHERE l.partition = $2 AND l.short = f.name AND length(f.name) > $5 LIMIT 1) l ON true"
        );
        // Past this length only the full names tell prefixes apart.
        let seen = &prefix[..prefix.len().min(names::SHORT_MAX_BYTES)];
        // Long names that begin alike stand in the order of their digests: the page begins with the first of them again.
        let begins_long = after.is_some_and(|after| names::is_long(after.as_bytes()));
        let from = match after.map(IndexName::as_bytes).filter(|after| *after >= prefix) {
            Some(after) if begins_long => after[..names::SHORT_MAX_BYTES].to_vec(),
            Some(after) => [after, &[0]].concat(),
            None => seen.to_vec(),
        };
        let alike = if begins_long { LONG_NAMES_ALIKE } else { 0 };
        let (floor, wanted) = (self.floor(), limited(limit.saturating_add(alike)));
        let long = i32::try_from(names::SHORT_MAX_BYTES).expect("a constant far below 2^31");
        let arguments: [&(dyn ToSql + Sync); 6] = [&floor, &this, &seen, &wanted, &long, &from];
        let rows = query(client, &statement, &arguments).await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            if let Some(name) = get::<Option<&[u8]>>(row, 1)?
                && name.starts_with(prefix)
                && after.is_none_or(|after| name > after.as_bytes())
            {
                found.push(IndexName::from_bytes(name));
            }
        }
        found.sort();
        found.truncate(limit);
        Ok((get(rows.first().ok_or_else(nothing)?, 0)?, Answer::Indexes(found)))
    }

    async fn log(
        &self,
        client: &Object,
        partition: Partition,
        this: i32,
        log: &Key,
        start: LogStart,
        limit: usize,
    ) -> Result<(i64, Answer)> {
        let settled = self.settled(partition, log);
        let (now, page, held_back) = self.log_page(client, this, log, start, limit, settled).await?;
        // A full page is read on from its end, and what is held back lies behind that.
        let is_full = page.records.len() >= limit && !matches!(start, LogStart::Before(_));
        if !held_back || is_full {
            return Ok((now, Answer::Log(page)));
        }
        // A transaction that may append here is let finish, and no other: so a reader that was told of a record sees it,
        // whatever else runs in the server for however long.
        let (whole, lock) =
            (self.locks.partition(partition), self.locks.named(partition, Protects::Log, &[log.as_bytes()]));
        let arguments: [&(dyn ToSql + Sync); 4] = [&this, &log.as_bytes(), &whole, &lock];
        let rows = query(client, "SELECT ff_settle($1, $2, $3, $4)", &arguments).await?;
        let settled = get(rows.first().ok_or_else(nothing)?, 0)?;
        self.settle(partition, log, settled);
        let (now, page, _) = self.log_page(client, this, log, start, limit, settled).await?;
        Ok((now, Answer::Log(page)))
    }

    /// A page of the records behind which nothing can appear any more, and whether others were held back.
    async fn log_page(
        &self,
        client: &Object,
        this: i32,
        log: &Key,
        start: LogStart,
        limit: usize,
        settled: i64,
    ) -> Result<(i64, LogPage, bool)> {
        const VISIBLE: &str = "(c.counted OR r.sequence <= $4 OR r.writer < c.oldest)";
        const THIS_LOG: &str = "r.partition = $2 AND r.log = $3";
        let (from, order, argument) = match start {
            LogStart::After(after) => ("r.sequence > $6", "ASC", i64::try_from(after).unwrap_or(i64::MAX)),
            LogStart::Since(since) => ("r.sequence >= (SELECT ff_log_since($2, $3, $6) OFFSET 0)", "ASC", since),
            LogStart::Before(before) => ("r.sequence < $6", "DESC", i64::try_from(before).unwrap_or(i64::MAX)),
        };
        let statement = format!(
            "SELECT c.now, f.sequence, greatest(c.next, t.sequence + 1, 1), p.sequence, p.at, p.record, c.removed,
               EXISTS (SELECT FROM records r WHERE {THIS_LOG} AND r.sequence > coalesce(t.sequence, 0)
                 AND NOT {VISIBLE})
             FROM (SELECT ff_now($1) AS now, pg_snapshot_xmin(pg_current_snapshot()) AS oldest, l.next,
                 coalesce(l.counted, false) AS counted, coalesce(l.removed, 0) AS removed
               FROM (VALUES (1)) AS one LEFT JOIN logs l ON l.partition = $2 AND l.log = $3 OFFSET 0) c
             LEFT JOIN LATERAL (SELECT r.sequence FROM records r WHERE {THIS_LOG} AND {VISIBLE}
               ORDER BY r.sequence LIMIT 1) f ON true
             LEFT JOIN LATERAL (SELECT r.sequence FROM records r WHERE {THIS_LOG} AND {VISIBLE}
               ORDER BY r.sequence DESC LIMIT 1) t ON true
             LEFT JOIN LATERAL (SELECT r.sequence, r.at, r.record FROM records r
               WHERE {THIS_LOG} AND {VISIBLE} AND {from} ORDER BY r.sequence {order} LIMIT $5) p ON true
             ORDER BY p.sequence {order}"
        );
        let (floor, limit) = (self.floor(), limited(limit));
        let arguments: [&(dyn ToSql + Sync); 6] = [&floor, &this, &log.as_bytes(), &settled, &limit, &argument];
        let rows = query(client, &statement, &arguments).await?;
        let head = rows.first().ok_or_else(nothing)?;
        let next = number(get(head, 2)?)?;
        let first = get::<Option<i64>>(head, 1)?.map(number).transpose()?.unwrap_or(next);
        let removed_up_to = number(get(head, 6)?)?;
        let mut records = Vec::with_capacity(rows.len());
        for row in &rows {
            let Some(sequence) = get::<Option<i64>>(row, 3)? else { continue };
            let record = Bytes::copy_from_slice(get(row, 5)?);
            records.push(LogRecord { sequence: number(sequence)?, at: get(row, 4)?, record });
        }
        Ok((get(head, 0)?, LogPage { records, first, removed_up_to, next }, get(head, 7)?))
    }

    fn settled(&self, partition: Partition, log: &Key) -> i64 {
        let settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        if settled.is_empty() { 0 } else { settled.get(&(partition, log.clone())).copied().unwrap_or(0) }
    }

    fn settle(&self, partition: Partition, log: &Key, number: i64) {
        let mut settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
        if settled.len() >= SETTLED_MAX {
            settled.clear();
        }
        settled.insert((partition, log.clone()), number);
    }
}

async fn query(client: &Object, statement: &str, arguments: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
    let statement = client.prepare_cached(statement).await.map_err(|error| error::reading(&error))?;
    client.query(&statement, arguments).await.map_err(|error| error::reading(&error))
}

/// The document in the columns from `first` on.
fn document(key: Key, row: &Row, first: usize) -> Result<StoredDocument> {
    Ok(StoredDocument {
        key,
        body: Bytes::copy_from_slice(get(row, first)?),
        version: CommandId(get(row, first + 1)?),
        fence: Fence {
            epoch: LeaseEpoch(get::<i64>(row, first + 2)?.cast_unsigned()),
            lease: LeaseId(get(row, first + 3)?),
        },
        lease_until: get(row, first + 4)?,
    })
}

fn get<'r, T: FromSql<'r>>(row: &'r Row, column: usize) -> Result<T> {
    row.try_get(column).map_err(|error| StoreError::Corrupt(error::text(&error)))
}

fn number(number: i64) -> Result<u64> {
    u64::try_from(number).map_err(|_| StoreError::Corrupt(format!("a count of {number}")))
}

fn limited(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn nothing() -> StoreError {
    StoreError::Corrupt("a statement gave an answer that does not fit its question".into())
}
