//! Lists namespaces. Nothing keeps a list of them: they are read from the names of the indexes in which something is.

use std::collections::BTreeSet;

use ff_core::op::{ListNamespaces, ListNamespacesArgs, ListNamespacesOutcome, NamespaceView};
use ff_core::{Family, Partition, Result, index};
use futures_util::{StreamExt, TryStreamExt};

use crate::caller::Caller;
use crate::cursor;
use crate::named_documents::page;
use crate::op::Handle;
use crate::services::Services;

/// Partitions that are read at once.
const AT_ONCE: usize = 16;
/// Names of indexes read at once.
const CHUNK: usize = 1_000;
/// Namespaces that are told of.
const NAMESPACES_MAX: usize = 100_000;

impl Handle<ListNamespaces> for Services {
    async fn handle(&self, caller: &Caller, args: ListNamespacesArgs) -> Result<ListNamespacesOutcome> {
        let limit = self.transactor.limits().page(args.limit)?;
        let after = cursor::decode::<String>(args.cursor.as_deref())?;
        let all = match &caller.namespace {
            Some(own) => vec![own.clone()],
            None => {
                self.shared.namespaces_seen.get("", || self.transactor.env().now_ms(), self.find_namespaces()).await?
            }
        };
        let all = all.into_iter().filter(|name| after.as_ref().is_none_or(|after| name > after));
        let (items, next_cursor) = page(all.map(|name| NamespaceView { name }).collect(), limit, |view| &view.name);
        Ok(ListNamespacesOutcome { items, next_cursor })
    }
}

impl Services {
    async fn find_namespaces(&self) -> Result<Vec<String>> {
        let reads = self.transactor.partitions().all().map(|partition| self.namespaces_in(partition));
        let found: Vec<BTreeSet<String>> =
            futures_util::stream::iter(reads).buffer_unordered(AT_ONCE).try_collect().await?;
        let configured = self.transactor.options().policies.keys().cloned();
        let default = std::iter::once(ff_core::execution::DEFAULT_NAMESPACE.to_owned());
        let all: BTreeSet<String> = found.into_iter().flatten().chain(configured).chain(default).collect();
        Ok(all.into_iter().take(NAMESPACES_MAX).collect())
    }

    /// Executions are listed by state, everything else that has a namespace by kind.
    async fn namespaces_in(&self, partition: Partition) -> Result<BTreeSet<String>> {
        let prefixes: &[u8] = match partition.family {
            Family::Flow => &[index::STATE_PREFIX, index::LISTING_PREFIX],
            _ => &[index::LISTING_PREFIX],
        };
        let mut found = BTreeSet::new();
        for prefix in prefixes {
            let mut after = None;
            loop {
                let names = self.transactor.store().indexes_after(partition, vec![*prefix], after, CHUNK).await?;
                found.extend(names.iter().filter_map(index::namespace_of));
                after = names.last().cloned();
                if names.len() < CHUNK || found.len() >= NAMESPACES_MAX {
                    break;
                }
            }
        }
        Ok(found)
    }
}
