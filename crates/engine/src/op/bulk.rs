//! Bulk jobs: how they begin, are shown and stopped. Their turns are in [`crate::bulk`].

use ff_core::bulk::{BulkJob, NewBulkJob};
use ff_core::op::parts::NamespacePage;
use ff_core::op::{
    BulkFilter, BulkView, CancelBulk, CancelBulkArgs, CreateBulk, CreateBulkArgs, GetBulk, GetBulkArgs, ListBulk,
    ListBulkOutcome,
};
use ff_core::{BulkId, Code, Error, Partition, Result, index, limits, text};
use ff_store::{Answer, Query, Scan};
use uuid::Uuid;

use crate::bulk::Turn;
use crate::caller::Caller;
use crate::cursor;
use crate::op::Handle;
use crate::services::Services;
use crate::transaction::{Command, Tx};

/// Where a page of jobs ended: creation and id.
type Position = (i64, [u8; 16]);

impl Handle<CreateBulk> for Services {
    async fn handle(&self, caller: &Caller, args: CreateBulkArgs) -> Result<BulkView> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let filter = within_reach(caller, &args.filter)?;
        let list = filter.as_list();
        let searched = self.transactor.filter(namespace.clone(), &list).await?;
        // One partition, all of them, or none.
        let partitions: Vec<u32> =
            self.transactor.searched(&searched).map(|partition| u32::from(partition.number)).collect();
        let partitions = match (partitions.first(), partitions.last()) {
            (Some(first), Some(last)) => *first..last + 1,
            _ => 0..0,
        };
        let identity = self.transactor.identity::<CreateBulk>(caller, &args, args.command_id);
        let id = identity.as_ref().map(|identity| BulkId(Uuid::from_bytes(*identity.digest()))).unwrap_or_default();
        let begin = Begin(NewBulkJob {
            id,
            namespace,
            filter: filter.encode(),
            change: args.change(),
            dry_run: args.dry_run.unwrap_or(false),
            max: args.max.unwrap_or(limits::BULK_MAX),
            rate_per_second: args.rate_per_second.unwrap_or(0),
            // Names of callers come from outside and may be longer than a label.
            created_by: if text::optional_label("by", &caller.name).is_ok() {
                caller.name.clone()
            } else {
                String::new()
            },
            partitions,
        });
        self.transactor.transact_once(Partition::SYSTEM, identity, &begin).await
    }
}

/// The filter, as far as the caller's token reaches: one that is limited to lanes cannot reach beyond them.
fn within_reach(caller: &Caller, filter: &BulkFilter) -> Result<BulkFilter> {
    let mut filter = filter.clone();
    if filter.lane.is_empty() {
        filter.lane.clone_from(&caller.lanes);
    }
    filter.lane.iter().try_for_each(|lane| caller.check_lane(lane))?;
    Ok(filter)
}

struct Begin(NewBulkJob);

impl Command for Begin {
    type Outcome = BulkView;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<BulkView> {
        let open = tx.count(index::open_bulk(&self.0.namespace)).await?;
        if open >= limits::BULK_OPEN_MAX {
            let detail = format!("{open} bulk jobs of this namespace are under way");
            return Err(Error::new(Code::ConcurrencyLimitExceeded, detail).with("pool", "bulk").retry_after(1_000));
        }
        let job = BulkJob::create(self.0.clone(), tx.now);
        tx.create(&job);
        BulkView::of(&job)
    }
}

impl Handle<GetBulk> for Services {
    async fn handle(&self, caller: &Caller, args: GetBulkArgs) -> Result<BulkView> {
        let job = self.transactor.find::<BulkJob>(Partition::SYSTEM, BulkJob::key_of(&args.bulk_id)).await?;
        BulkView::of(&visible(caller, &args.bulk_id, job)?)
    }
}

/// A job of a namespace that the caller does not see reads as absent.
fn visible(caller: &Caller, id: &BulkId, job: Option<BulkJob>) -> Result<BulkJob> {
    let job = job.filter(|job| caller.sees(&job.namespace));
    job.ok_or_else(|| Error::of(Code::BulkNotFound).with("bulk_id", id))
}

impl Handle<ListBulk> for Services {
    async fn handle(&self, caller: &Caller, args: NamespacePage) -> Result<ListBulkOutcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let limit = self.transactor.limits().page(args.limit)?;
        let mut scan = Scan::last(index::listing(index::kind::BULK, &namespace), limit + 1).with_documents();
        if let Some((created_at, id)) = cursor::decode::<Position>(args.cursor.as_deref())? {
            scan.max = created_at;
            scan.after = Some((created_at, BulkJob::key_of(&BulkId(Uuid::from_bytes(id)))));
        }
        let page = self.transactor.read(Partition::SYSTEM, vec![Query::Scan(scan)]).await?;
        let mut entries = page.into_only(Answer::into_scan).map_err(Error::from)?.entries;
        let more = entries.len() > limit;
        entries.truncate(limit);
        let last = entries.last().filter(|_| more);
        let position = last.and_then(|last| Some((last.score, last.member.uuid()?.into_bytes())));
        let next_cursor = position.map(|position: Position| cursor::encode(&position));
        let jobs = entries.into_iter().filter_map(|entry| self.transactor.readable::<BulkJob>(&entry.document?));
        let views = jobs.map(|job| Ok(BulkView { refusals: Vec::new(), ..BulkView::of(&job)? }));
        Ok(ListBulkOutcome { items: views.collect::<Result<_>>()?, next_cursor })
    }
}

/// The commit that is answered says that the job is to stop; the turn behind it makes its part stop, which ends the job.
/// After a crash in between, its timer goes on.
impl Handle<CancelBulk> for Services {
    async fn handle(&self, caller: &Caller, args: CancelBulkArgs) -> Result<BulkView> {
        let key = BulkJob::key_of(&args.bulk_id);
        let stop = Stop { caller, id: &args.bulk_id };
        let mut job = self.transactor.transact(Partition::SYSTEM, self.transactor.fresh_command(), &stop).await?;
        while !job.has_ended() {
            if let Turn::Gone = self.shared.bulk.take_turn(&key).await? {
                break;
            }
            let found = self.transactor.find::<BulkJob>(Partition::SYSTEM, key.clone()).await?;
            job = visible(caller, &args.bulk_id, found)?;
        }
        BulkView::of(&job)
    }
}

struct Stop<'a> {
    caller: &'a Caller,
    id: &'a BulkId,
}

impl Command for Stop<'_> {
    type Outcome = BulkJob;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<BulkJob> {
        let found = tx.load::<BulkJob>(BulkJob::key_of(self.id)).await?.map(|loaded| loaded.document);
        let mut job = visible(self.caller, self.id, found)?;
        let lanes = BulkFilter::decode(&job.filter)?.lane;
        match lanes.is_empty() {
            true => self.caller.check_every_lane()?,
            false => lanes.iter().try_for_each(|lane| self.caller.check_lane(lane))?,
        }
        if job.cancel(tx.now) {
            tx.save(&job);
        }
        Ok(job)
    }
}
