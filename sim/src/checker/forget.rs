//! Forgetting together with the store: all of it, or one partition alone.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::{Family, Partition, PartitionConfig};

use super::{Checker, Facts};

impl Checker {
    /// The store went back to a snapshot, and these facts were put beside it.
    pub(crate) fn forget(&mut self, facts: Facts, now_ms: i64) {
        self.facts = facts;
        self.generation += 1;
        self.forgot_at = Some(self.latest_at);
        self.meet_anew(now_ms);
    }

    /// One partition went back to a snapshot, and these facts were put beside it.
    pub(crate) fn forget_partition(&mut self, partition: Partition, old: Facts, config: &PartitionConfig, now_ms: i64) {
        self.facts.take_back(partition, old, config);
        self.generation += 1;
        self.forgot_at = Some(self.latest_at);
        self.meet_anew(now_ms);
    }
}

impl Facts {
    /// Everything about one partition is as it was; everything else stays. The old facts are taken apart by name, so that
    /// a fact that is added cannot be left out here.
    fn take_back(&mut self, partition: Partition, old: Facts, config: &PartitionConfig) {
        let Facts {
            executions,
            removed,
            endings,
            ended_suspensions,
            started,
            resumptions,
            revocations,
            resets,
            created,
            submitted,
            promised,
            flows,
            edges,
            signals,
            accepted,
            frames,
            journals,
            steps,
            events,
            events_read,
            keys,
            grants,
            charged,
            exhausted,
            quotas,
            runs,
            bulk_matches,
            // What a subscription wants never changes, so that knowing one that the store forgot does no harm.
            subscriptions: _,
            deliveries,
            admitted,
        } = old;
        let here = |found: Partition| found == partition;
        map(&mut self.executions, executions, |(found, _), _| here(*found));
        set(&mut self.removed, removed, |(found, _)| here(*found));
        map(&mut self.endings, endings, |(id, _), _| here(id.partition()));
        set(&mut self.ended_suspensions, ended_suspensions, |(id, _)| here(id.partition()));
        set(&mut self.started, started, |id| here(id.partition()));
        map(&mut self.resumptions, resumptions, |id, _| here(id.partition()));
        map(&mut self.revocations, revocations, |id, _| here(id.partition()));
        map(&mut self.created, created, |found, _| here(*found));
        set(&mut self.submitted, submitted, |id| here(id.partition()));
        map(&mut self.promised, promised, |(id, _), _| here(id.partition()));
        map(&mut self.flows, flows, |id, _| here(Partition::flow(id.partition)));
        map(&mut self.edges, edges, |(found, _), _| here(*found));
        map(&mut self.signals, signals, |_, (_, found)| here(*found));
        map(&mut self.accepted, accepted, |_, found| here(*found));
        map(&mut self.frames, frames, |(found, _), _| here(*found));
        map(&mut self.journals, journals, |(found, _), _| here(*found));
        map(&mut self.steps, steps, |(id, _), _| here(id.partition()));
        if partition.family == Family::Flow {
            map(&mut self.events, events, |number, _| *number == partition.number);
            map(&mut self.events_read, events_read, |number, _| *number == partition.number);
        }
        map(&mut self.deliveries, deliveries, |_, found| here(*found));
        map(&mut self.keys, keys, |_, id| here(id.partition()));
        set(&mut self.grants, grants, |(id, _)| here(id.partition()));
        map(&mut self.charged, charged, |_, found| here(*found));
        set(&mut self.runs, runs, |(_, found, _)| here(*found));
        set(&mut self.bulk_matches, bulk_matches, |(_, found, _)| here(*found));
        let budget = |name: &String| here(config.budget_partition("default", name));
        let quota = |name: &String| here(config.quota_partition("default", name));
        map(&mut self.exhausted, exhausted, |name, _| budget(name));
        map(&mut self.resets, resets, |name, _| budget(name));
        map(&mut self.quotas, quotas, |name, _| quota(name));
        map(&mut self.admitted, admitted, |name, _| quota(name));
    }
}

fn map<K: Ord, V>(now: &mut BTreeMap<K, V>, old: BTreeMap<K, V>, here: impl Fn(&K, &V) -> bool) {
    now.retain(|key, value| !here(key, value));
    now.extend(old.into_iter().filter(|(key, value)| here(key, value)));
}

fn set<K: Ord>(now: &mut BTreeSet<K>, old: BTreeSet<K>, here: impl Fn(&K) -> bool) {
    now.retain(|key| !here(key));
    now.extend(old.into_iter().filter(|key| here(key)));
}
