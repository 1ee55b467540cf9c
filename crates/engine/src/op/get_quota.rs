//! Shows a quota and how full it is.

use ff_core::op::GetQuota;
use ff_core::op::get_quota::Args;
use ff_core::quota::{QuotaPolicy, QuotaStatus};
use ff_core::{Code, Result};

use super::named::no_such;
use crate::engine::{Caller, Engine, Handle};

impl Handle<GetQuota> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<QuotaStatus> {
        let namespace = caller.namespace(args.namespace.as_deref())?;
        let partition = self.partitions().quota_partition(&namespace, &args.name);
        let quota = self.find::<QuotaPolicy>(partition, QuotaPolicy::key_of(&namespace, &args.name)).await?;
        quota.map(|quota| quota.status(self.now_in(partition))).ok_or_else(|| no_such(Code::QuotaNotFound, &args.name))
    }
}
