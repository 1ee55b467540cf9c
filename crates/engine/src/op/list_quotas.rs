//! Lists quotas by name.

use ff_core::op::ListQuotas;
use ff_core::op::list_quotas::{Args, Outcome};
use ff_core::quota::QuotaPolicy;
use ff_core::{Family, Result};

use super::named::page;
use crate::cursor;
use crate::engine::{Caller, Engine, Handle};

impl Handle<ListQuotas> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<Outcome> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let partitions = self.partitions().all().filter(|partition| partition.family == Family::Quota).collect();
        let limit = self.limits().page(args.limit)?;
        let cursor = cursor::decode::<String>(args.cursor.as_deref())?;
        let cursor = cursor.as_deref();
        let all = self.named_after::<QuotaPolicy>(partitions, &namespace, cursor, |quota| &quota.name).await?;
        let (quotas, next_cursor) = page(all, limit, |quota| &quota.name);
        let now = self.now();
        Ok(Outcome { items: quotas.iter().map(|quota| quota.status(now)).collect(), next_cursor })
    }
}
