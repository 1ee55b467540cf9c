//! Lists live workers by instance id.

use ff_core::index::{self, kind};
use ff_core::op::ListWorkers;
use ff_core::op::list_workers::{Args, Outcome};
use ff_core::worker::Worker;
use ff_core::{Blob, Key, Partition, Result};
use ff_store::Scan;

use crate::cursor;
use crate::engine::{Caller, Engine, Handle};

/// Pages of the registry that one call looks at before it hands out a short page with a cursor.
const SCANS_MAX: usize = 10;

impl Handle<ListWorkers> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let limit = self.limits().page(args.limit)?;
        let mut position = cursor::decode::<(i64, Blob)>(args.cursor.as_deref())?;
        let mut found = Vec::new();
        let mut ended = false;
        for _ in 0..SCANS_MAX {
            let mut scan = Scan::first(index::listing(kind::WORKER, &namespace), limit).with_documents();
            if let Some((score, member)) = &position {
                scan = scan.after(*score, Key::from_bytes(member.to_vec()));
            }
            let page = self.store().scan(Partition::SYSTEM, scan).await?;
            ended = page.entries.len() < limit;
            let now = self.now();
            for entry in page.entries {
                if found.len() == limit {
                    ended = false;
                    break;
                }
                position = Some((entry.score, Blob::from(entry.member.as_bytes().to_vec())));
                let Some(stored) = entry.document.filter(|stored| stored.lease_until > now) else { continue };
                let worker = self.readable::<Worker>(&stored);
                let wanted = |worker: &Worker| args.lane.as_ref().is_none_or(|lane| worker.lanes.contains(lane));
                found.extend(worker.filter(wanted).map(|worker| (worker, stored.lease_until)));
            }
            if ended || found.len() == limit {
                break;
            }
        }
        let instances: Vec<&str> = found.iter().map(|(worker, _)| worker.instance_id.as_str()).collect();
        let held = self.leases_held(&namespace, &instances).await?;
        let items = found.iter().zip(held).map(|((worker, until), held)| worker.view(*until, held)).collect();
        let next_cursor = position.filter(|_| !ended).map(|position| cursor::encode(&position));
        Ok(Outcome { items, next_cursor })
    }
}
