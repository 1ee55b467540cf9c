//! The rows that `ff_commit_2` takes and gives, field by field as `migrations/0004_rows.sql` declares them.

use std::borrow::Cow;
use std::time::SystemTime;

use postgres_types::{FromSql, ToSql};
use uuid::Uuid;

#[derive(Debug, ToSql)]
#[postgres(name = "ff_lock")]
pub(crate) struct LockRow {
    pub(crate) id: i64,
    pub(crate) shared: bool,
}

/// All that a batch wants of one document. Nothing is wanted where there is `None`.
#[derive(Debug, Default, ToSql)]
#[postgres(name = "ff_guard")]
pub(crate) struct GuardRow<'a> {
    pub(crate) batch: i32,
    pub(crate) absent: bool,
    /// Whether the lease must still run, or be over.
    pub(crate) live: Option<bool>,
    pub(crate) epoch: Option<i64>,
    pub(crate) not_after: Option<i64>,
    pub(crate) version: Option<Uuid>,
    pub(crate) lease_id: Option<Uuid>,
    /// Without a key only the time counts.
    pub(crate) key: Option<&'a [u8]>,
}

#[derive(Debug, ToSql)]
#[postgres(name = "ff_put")]
pub(crate) struct PutRow<'a> {
    pub(crate) batch: i32,
    /// The place of the document's guard, from 1.
    pub(crate) guard: i32,
    pub(crate) priority: Option<i32>,
    pub(crate) epoch: i64,
    /// 0 clears the lease, -1 keeps it.
    pub(crate) ttl: i64,
    pub(crate) expires_at: Option<i64>,
    pub(crate) version: Uuid,
    pub(crate) lease_id: Uuid,
    pub(crate) created_at: Option<SystemTime>,
    pub(crate) updated_at: Option<SystemTime>,
    pub(crate) key: &'a [u8],
    pub(crate) body: &'a [u8],
    pub(crate) namespace: Option<String>,
    pub(crate) lane: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) state: Option<String>,
    pub(crate) flow: Option<String>,
    pub(crate) view: Option<String>,
}

#[derive(Debug, ToSql)]
#[postgres(name = "ff_key")]
pub(crate) struct KeyRow<'a> {
    pub(crate) batch: i32,
    pub(crate) key: &'a [u8],
}

#[derive(Debug, ToSql)]
#[postgres(name = "ff_entry")]
pub(crate) struct EntryRow<'a> {
    pub(crate) batch: i32,
    /// The score counts from now; `None`: and never goes back (the end of a renewed lease).
    pub(crate) relative: Option<bool>,
    /// `None` for an entry to remove.
    pub(crate) score: Option<i64>,
    pub(crate) name: Cow<'a, [u8]>,
    pub(crate) member: &'a [u8],
}

/// The lowest score that is set in an index.
#[derive(Debug, ToSql)]
#[postgres(name = "ff_lowest")]
pub(crate) struct LowestRow<'a> {
    pub(crate) score: i64,
    pub(crate) name: Cow<'a, [u8]>,
}

#[derive(Debug, ToSql)]
#[postgres(name = "ff_long_name")]
pub(crate) struct LongNameRow<'a> {
    pub(crate) short: Cow<'a, [u8]>,
    pub(crate) name: &'a [u8],
}

#[derive(Debug, ToSql)]
#[postgres(name = "ff_lease")]
pub(crate) struct LeaseRow {
    pub(crate) batch: i32,
    pub(crate) guard: i32,
    pub(crate) ttl: i64,
}

#[derive(Debug, ToSql)]
#[postgres(name = "ff_counted")]
pub(crate) struct CountedRow<'a> {
    pub(crate) batch: i32,
    pub(crate) records: i32,
    pub(crate) expected: Option<i64>,
    pub(crate) log: &'a [u8],
}

#[derive(Debug, ToSql)]
#[postgres(name = "ff_record")]
pub(crate) struct RecordRow<'a> {
    pub(crate) batch: i32,
    /// Which counted log, from 1; 0 for an event.
    pub(crate) counted: i32,
    /// Its place among the records of that log, or among all events.
    pub(crate) place: i32,
    pub(crate) log: &'a [u8],
    pub(crate) record: &'a [u8],
}

#[derive(Debug, ToSql)]
#[postgres(name = "ff_trim")]
pub(crate) struct TrimRow<'a> {
    pub(crate) batch: i32,
    pub(crate) before: i64,
    pub(crate) log: &'a [u8],
}

#[derive(Debug, ToSql)]
#[postgres(name = "ff_blob")]
pub(crate) struct BlobRow<'a> {
    pub(crate) batch: i32,
    pub(crate) key: &'a [u8],
    pub(crate) bytes: Option<&'a [u8]>,
}

/// What was found where a guard does not hold; without a version, no document.
#[derive(Debug, Clone, Copy, FromSql)]
#[postgres(name = "ff_conflict")]
pub(crate) struct ConflictRow {
    pub(crate) guard: i32,
    pub(crate) epoch: Option<i64>,
    pub(crate) lease_until: Option<i64>,
    pub(crate) version: Option<Uuid>,
    pub(crate) lease_id: Option<Uuid>,
}
