//! Forgetting together with the store: all of it, or one partition alone.

use std::collections::{BTreeMap, BTreeSet};

use ff_core::{Family, Partition, PartitionConfig};

use super::{Checker, Facts};

impl Checker {
    /// The store went back to a snapshot, and these facts were put beside it.
    pub(crate) fn forget(&mut self, facts: Facts, now_ms: i64) {
        self.facts = facts;
        self.generation += 1;
        self.meet_anew(now_ms);
    }

    /// One partition went back to a snapshot, and these facts were put beside it.
    pub(crate) fn forget_partition(&mut self, partition: Partition, old: Facts, config: &PartitionConfig, now_ms: i64) {
        self.facts.take_back(partition, old, config);
        self.generation += 1;
        self.meet_anew(now_ms);
    }
}

impl Facts {
    /// Everything about one partition is as it was; everything else stays.
    fn take_back(&mut self, partition: Partition, old: Facts, config: &PartitionConfig) {
        let here = |found: Partition| found == partition;
        map(&mut self.executions, old.executions, |(found, _), _| here(*found));
        set(&mut self.removed, old.removed, |(found, _)| here(*found));
        map(&mut self.endings, old.endings, |(id, _), _| here(id.partition()));
        set(&mut self.ended_suspensions, old.ended_suspensions, |(id, _)| here(id.partition()));
        set(&mut self.started, old.started, |id| here(id.partition()));
        map(&mut self.resumptions, old.resumptions, |id, _| here(id.partition()));
        map(&mut self.revocations, old.revocations, |id, _| here(id.partition()));
        map(&mut self.created, old.created, |found, _| here(*found));
        set(&mut self.submitted, old.submitted, |id| here(id.partition()));
        map(&mut self.promised, old.promised, |(id, _), _| here(id.partition()));
        map(&mut self.flows, old.flows, |id, _| here(Partition::flow(id.partition)));
        map(&mut self.edges, old.edges, |(found, _), _| here(*found));
        map(&mut self.signals, old.signals, |_, (_, found)| here(*found));
        map(&mut self.accepted, old.accepted, |_, found| here(*found));
        map(&mut self.frames, old.frames, |(found, _), _| here(*found));
        map(&mut self.journals, old.journals, |(found, _), _| here(*found));
        map(&mut self.steps, old.steps, |(id, _), _| here(id.partition()));
        if partition.family == Family::Flow {
            map(&mut self.events, old.events, |number, _| *number == partition.number);
            map(&mut self.events_read, old.events_read, |number, _| *number == partition.number);
        }
        map(&mut self.deliveries, old.deliveries, |_, found| here(*found));
        map(&mut self.keys, old.keys, |_, id| here(id.partition()));
        set(&mut self.grants, old.grants, |(id, _)| here(id.partition()));
        map(&mut self.charged, old.charged, |_, found| here(*found));
        let budget = |name: &String| here(config.budget_partition("default", name));
        let quota = |name: &String| here(config.quota_partition("default", name));
        map(&mut self.exhausted, old.exhausted, |name, _| budget(name));
        map(&mut self.resets, old.resets, |name, _| budget(name));
        map(&mut self.quotas, old.quotas, |name, _| quota(name));
        map(&mut self.admitted, old.admitted, |name, _| quota(name));
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
