//! The deployment itself, and the record of what was done to it.

use std::sync::atomic::Ordering;

use ff_core::op::{GetDeployment, GetDeploymentArgs, GetDeploymentOutcome, ListAudit, ListAuditArgs, ListAuditOutcome};
use ff_core::{AuditRecord, Code, Document, Error, Partition, Result, limits};
use ff_store::LogStart;

use crate::engine::{Caller, Engine, Handle};
use crate::logs;

impl Handle<GetDeployment> for Engine {
    async fn handle(&self, _caller: &Caller, _args: GetDeploymentArgs) -> Result<GetDeploymentOutcome> {
        let info = self.store().info();
        Ok(GetDeploymentOutcome {
            partitions: *self.partitions(),
            store: info.kind.to_string(),
            store_version: info.version,
            durability: info.durability,
            now: self.now(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            test_clock: self.options().test_clock.is_some(),
            undecodable: self.metrics().undecodable.load(Ordering::Relaxed),
            undecodable_entries: self.metrics().undecodable_entries.entries(),
        })
    }
}

/// Pages of the log one call reads at most; a filter that finds little then answers with a cursor to go on from.
const PAGES_MAX: usize = 20;

impl Handle<ListAudit> for Engine {
    async fn handle(&self, caller: &Caller, args: ListAuditArgs) -> Result<ListAuditOutcome> {
        let namespace = match (&args.namespace, &caller.namespace) {
            (None, None) => None,
            (asked, _) => Some(caller.namespace(asked.as_deref())?),
        };
        let same = |filter: &Option<String>, value: &str| filter.as_deref().is_none_or(|wanted| wanted == value);
        let wanted = |record: &AuditRecord| {
            same(&namespace, &record.namespace) && same(&args.who, &record.who) && same(&args.what, &record.what)
        };
        let limit = self.limits().page(args.limit)?;
        let mut before = args.cursor.as_deref().map_or(Ok(u64::MAX), sequence)?;
        let mut items = Vec::new();
        for _ in 0..PAGES_MAX {
            let start = LogStart::Before(before);
            let page = self.store().log(Partition::SYSTEM, logs::audit(), start, limits::PAGE_MAX).await?;
            let whole = page.records.len() == limits::PAGE_MAX;
            for entry in page.records {
                if items.len() == limit {
                    return Ok(ListAuditOutcome { items, next_cursor: Some(before.to_string()) });
                }
                before = entry.sequence;
                match AuditRecord::decode(&entry.record) {
                    Ok(record) if wanted(&record) => items.push(record.view(entry.sequence)),
                    Ok(_) => {}
                    Err(error) => self.pass_over(&logs::audit(), &error),
                }
            }
            if !whole {
                return Ok(ListAuditOutcome { items, next_cursor: None });
            }
        }
        Ok(ListAuditOutcome { items, next_cursor: Some(before.to_string()) })
    }
}

fn sequence(cursor: &str) -> Result<u64> {
    cursor.parse().map_err(|_| {
        Error::new(Code::InvalidFilter, "cursor is not one that a page ended with").with("field", "cursor")
    })
}
