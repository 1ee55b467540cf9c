//! The deployment itself, and the record of what was done to it.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use ff_core::op::{
    CallerView, GetDeployment, GetDeploymentArgs, GetDeploymentOutcome, ListAudit, ListAuditArgs, ListAuditOutcome,
};
use ff_core::{AuditRecord, Code, Document, Error, Key, Partition, Result, limits};
use ff_store::LogStart;

use crate::caller::Caller;
use crate::logs;
use crate::op::Handle;
use crate::services::Services;

impl Handle<GetDeployment> for Services {
    async fn handle(&self, caller: &Caller, _args: GetDeploymentArgs) -> Result<GetDeploymentOutcome> {
        let info = self.transactor.store().info();
        Ok(GetDeploymentOutcome {
            partitions: *self.transactor.partitions(),
            store: info.kind.to_string(),
            store_version: info.version,
            durability: info.durability,
            now: self.transactor.now(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            retention_ms: Some(self.transactor.options().retention_ms),
            test_clock: self.transactor.options().test_clock.is_some(),
            undecodable: self.transactor.metrics().undecodable.load(Ordering::Relaxed),
            undecodable_entries: self.transactor.metrics().undecodable_entries.entries(),
            servers: self.shared.servers.known(),
            caller: Some(CallerView {
                name: caller.name.clone(),
                namespace: caller.namespace.clone(),
                role: caller.role,
                lanes: caller.lanes.clone(),
            }),
        })
    }
}

/// Pages of the logs one call reads at most; a filter that finds little then answers with a cursor to go on from.
const PAGES_MAX: usize = 20;

/// Acts that were done and acts that were refused stand in two logs, and are listed as one: the latest first.
impl Handle<ListAudit> for Services {
    async fn handle(&self, caller: &Caller, args: ListAuditArgs) -> Result<ListAuditOutcome> {
        let namespace = match (&args.namespace, &caller.namespace) {
            (None, None) => None,
            (asked, _) => Some(caller.namespace(asked.as_deref())?),
        };
        let same = |filter: &Option<String>, value: &str| filter.as_deref().is_none_or(|wanted| wanted == value);
        let wanted = |record: &AuditRecord| {
            same(&namespace, &record.namespace) && same(&args.who, &record.who) && same(&args.what, &record.what)
        };
        let limit = self.transactor.limits().page(args.limit)?;
        let mut trails = trails(args.cursor.as_deref())?;
        let mut items = Vec::new();
        let mut pages = 0;
        loop {
            for trail in trails.iter_mut().filter(|trail| trail.is_empty()) {
                if pages == PAGES_MAX {
                    return Ok(ListAuditOutcome { items, next_cursor: Some(cursor_of(&trails)) });
                }
                pages += 1;
                self.read_trail(trail).await?;
            }
            let [done, refused] = &mut trails;
            let latest = if refused.latest() >= done.latest() { refused } else { done };
            if latest.latest().is_none() {
                return Ok(ListAuditOutcome { items, next_cursor: None });
            }
            if items.len() == limit {
                return Ok(ListAuditOutcome { items, next_cursor: Some(cursor_of(&trails)) });
            }
            items.extend(latest.take().filter(|(_, record)| wanted(record)).map(|(place, record)| record.view(place)));
        }
    }
}

impl Services {
    async fn read_trail(&self, trail: &mut Trail) -> Result<()> {
        let start = LogStart::Before(trail.read_before);
        let page = self.transactor.store().log(Partition::SYSTEM, trail.log.clone(), start, limits::PAGE_MAX).await?;
        trail.ended = page.records.len() < limits::PAGE_MAX;
        for entry in page.records {
            trail.read_before = entry.sequence;
            match AuditRecord::decode(&entry.record) {
                Ok(record) => trail.waiting.push_back((entry.sequence, record)),
                Err(error) => self.transactor.pass_over(&trail.log, &error),
            }
        }
        Ok(())
    }
}

/// One log of the audit, read from its end.
struct Trail {
    log: Key,
    /// Everything from here on was listed.
    before: u64,
    /// Everything from here on was read.
    read_before: u64,
    waiting: VecDeque<(u64, AuditRecord)>,
    ended: bool,
}

impl Trail {
    fn new(log: Key, before: u64) -> Self {
        Self { log, before, read_before: before, waiting: VecDeque::new(), ended: false }
    }

    /// Whether its next record has to be read first.
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && !self.ended
    }

    /// When the next record was written.
    fn latest(&self) -> Option<i64> {
        self.waiting.front().map(|(_, record)| record.at)
    }

    fn take(&mut self) -> Option<(u64, AuditRecord)> {
        let (sequence, record) = self.waiting.pop_front()?;
        self.before = sequence;
        Some((sequence, record))
    }
}

/// The cursor of a page: how far both logs were listed.
fn cursor_of([done, refused]: &[Trail; 2]) -> String {
    format!("{}-{}", done.before, refused.before)
}

/// Both logs from where a page ended. A cursor of one number is from a page that knew one log.
fn trails(cursor: Option<&str>) -> Result<[Trail; 2]> {
    let (done, refused) = match cursor {
        None => (u64::MAX, u64::MAX),
        Some(cursor) => match cursor.split_once('-') {
            Some((done, refused)) => (sequence(done)?, sequence(refused)?),
            None => (sequence(cursor)?, u64::MAX),
        },
    };
    Ok([Trail::new(logs::audit(), done), Trail::new(logs::audit_refusals(), refused)])
}

fn sequence(cursor: &str) -> Result<u64> {
    // No page ends with zeros before a number.
    let number = cursor.parse().ok().filter(|number: &u64| number.to_string().len() == cursor.len());
    number.ok_or_else(|| {
        Error::new(Code::InvalidFilter, "cursor is not one that a page ended with").with("field", "cursor")
    })
}
