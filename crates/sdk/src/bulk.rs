//! Bulk jobs: one change, made to everything that a filter matches.

use std::time::Duration;

use ff_core::BulkId;
use ff_core::bulk::BulkAction;
use ff_core::op::{
    BulkFilter, BulkView, CancelBulk, CreateBulk, GetBulk, ListBulk, cancel_bulk, create_bulk, get_bulk, list_bulk,
};
use ff_core::text::Tags;

use crate::client::Client;
use crate::error::Result;

/// How often a job is looked at while a caller waits for its end.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// A bulk job in the making.
///
/// ```
/// # async fn example(client: flowfabric::Client) -> flowfabric::Result<()> {
/// use flowfabric::{BulkFilter, PublicState};
///
/// let failed = BulkFilter { state: vec![PublicState::Failed], kind: vec!["report".into()], ..Default::default() };
/// let job = client.bulk_replay(failed).rate_per_second(100).begin().await?;
/// let ended = client.wait_bulk(job.bulk_id).await?;
/// println!("{} of {} replayed", ended.progress.done, ended.progress.matched);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a bulk job begins by `begin`"]
pub struct NewBulk<'a> {
    client: &'a Client,
    args: create_bulk::Args,
}

impl NewBulk<'_> {
    /// Why; for a cancellation and a hold.
    pub fn reason(mut self, reason: impl Into<String>) -> Self {
        self.args.reason = Some(reason.into());
        self
    }

    /// Nothing is changed: the counts say what would become of everything.
    pub fn dry_run(mut self) -> Self {
        self.args.dry_run = Some(true);
        self
    }

    /// At most so many are changed.
    pub fn max(mut self, max: u64) -> Self {
        self.args.max = Some(max);
        self
    }

    /// At most so many are changed in a second.
    pub fn rate_per_second(mut self, rate: u32) -> Self {
        self.args.rate_per_second = Some(rate);
        self
    }

    /// Begins it. It goes on by itself, also when this process ends.
    pub async fn begin(self) -> Result<BulkView> {
        self.client.call::<CreateBulk>(self.args).await
    }
}

/// Bulk jobs.
impl Client {
    /// Does something to everything that a filter matches.
    pub fn bulk(&self, action: BulkAction, filter: BulkFilter) -> NewBulk<'_> {
        let args = create_bulk::Args {
            namespace: None,
            filter,
            action,
            reason: None,
            priority: None,
            tags: None,
            dry_run: None,
            max: None,
            rate_per_second: None,
            command_id: None,
        };
        NewBulk { client: self, args }
    }

    /// Cancels what has not ended.
    pub fn bulk_cancel(&self, filter: BulkFilter) -> NewBulk<'_> {
        self.bulk(BulkAction::Cancel, filter)
    }

    /// Runs what has ended once more.
    pub fn bulk_replay(&self, filter: BulkFilter) -> NewBulk<'_> {
        self.bulk(BulkAction::Replay, filter)
    }

    /// Keeps what has not ended from being claimed.
    pub fn bulk_hold(&self, filter: BulkFilter) -> NewBulk<'_> {
        self.bulk(BulkAction::Hold, filter)
    }

    /// Ends operators' holds.
    pub fn bulk_release(&self, filter: BulkFilter) -> NewBulk<'_> {
        self.bulk(BulkAction::Release, filter)
    }

    /// Changes the priority of what has not ended.
    pub fn bulk_set_priority(&self, filter: BulkFilter, priority: i64) -> NewBulk<'_> {
        let mut new = self.bulk(BulkAction::SetPriority, filter);
        new.args.priority = Some(priority);
        new
    }

    /// Replaces tags.
    pub fn bulk_set_tags(&self, filter: BulkFilter, tags: Tags) -> NewBulk<'_> {
        let mut new = self.bulk(BulkAction::SetTags, filter);
        new.args.tags = Some(tags);
        new
    }

    /// Removes what has ended.
    pub fn bulk_remove(&self, filter: BulkFilter) -> NewBulk<'_> {
        self.bulk(BulkAction::Remove, filter)
    }

    /// A bulk job: how far it is, and what it could not change.
    pub async fn get_bulk(&self, bulk_id: BulkId) -> Result<BulkView> {
        self.call::<GetBulk>(get_bulk::Args { bulk_id }).await
    }

    /// Waits until a bulk job has ended.
    pub async fn wait_bulk(&self, bulk_id: BulkId) -> Result<BulkView> {
        loop {
            let job = self.get_bulk(bulk_id).await?;
            if job.ended_at.is_some() {
                return Ok(job);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The bulk jobs that are remembered, newest first.
    pub async fn list_bulk(&self) -> Result<Vec<BulkView>> {
        let mut jobs = Vec::new();
        let mut page = list_bulk::Args::default();
        loop {
            let answer = self.call::<ListBulk>(page.clone()).await?;
            jobs.extend(answer.items);
            match answer.next_cursor {
                Some(cursor) => page.cursor = Some(cursor),
                None => return Ok(jobs),
            }
        }
    }

    /// Stops a bulk job. Changes that were made stay.
    pub async fn cancel_bulk(&self, bulk_id: BulkId) -> Result<BulkView> {
        self.call::<CancelBulk>(cancel_bulk::Args { bulk_id }).await
    }
}
