//! A flow: a graph of executions that live in its partition. The document changes only with the graph, a cancellation
//! and the end; the states of its members are counted from their index.

mod cancellation;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::encoding::{Blob, Document};
use crate::error::{Code, Error, Result};
use crate::id::FlowId;
use crate::index::{self, Due, Indexed, kind};
use crate::key::{Entry, Key};
use crate::limits;
use crate::planted::{Bug, planted};
use crate::schedule::{RunEnd, ScheduledRun};
use crate::state::PublicState;
use crate::text::{self, Tags};

pub use cancellation::{CancelFailure, CancelFlowPolicy, CancelFlowResult, FlowCancellation};

crate::vocabulary! {
    /// The one word people see of a flow.
    #[derive(Default)]
    pub enum FlowState {
        /// It has no members yet.
        #[default]
        Open "open",
        /// A member runs, or can when its turn or its time comes.
        Running "running",
        /// Members remain, and each of them waits for a signal, a budget, a quota or another member.
        Blocked "blocked",
        /// Every member ended, and none in failure.
        Completed "completed",
        /// Every member ended, and one of them failed or expired.
        Failed "failed",
        /// It was cancelled, or so were members that others needed.
        Cancelled "cancelled",
    }
}

impl FlowState {
    /// Whether the flow has ended.
    pub const fn is_terminal(self) -> bool {
        matches!(self, FlowState::Completed | FlowState::Failed | FlowState::Cancelled)
    }
}

/// How many members of a flow are in each state.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct MemberCounts(BTreeMap<PublicState, u64>);

impl MemberCounts {
    /// How many are in a state.
    pub fn of(&self, state: PublicState) -> u64 {
        self.0.get(&state).copied().unwrap_or(0)
    }

    /// How many there are.
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// How many have ended.
    pub fn ended(&self) -> u64 {
        self.0.iter().filter(|(state, _)| state.is_terminal()).map(|(_, count)| count).sum()
    }

    /// The state of a flow with these members that was neither cancelled nor ended before.
    pub fn state(&self) -> FlowState {
        use PublicState as S;
        let any = |states: &[S]| states.iter().any(|state| self.of(*state) > 0);
        if self.total() == 0 {
            return FlowState::Open;
        }
        if self.ended() < self.total() {
            let moving = any(&[S::Waiting, S::Delayed, S::Active]);
            return if moving { FlowState::Running } else { FlowState::Blocked };
        }
        // If no member was cancelled, the cause of a skipped member is a failure, even if the member that failed was
        // replayed since.
        if any(&[S::Failed, S::Expired]) || (any(&[S::Skipped]) && !any(&[S::Cancelled])) {
            FlowState::Failed
        } else if any(&[S::Skipped]) || !any(&[S::Completed]) {
            // Nothing failed, so members were skipped because another one was cancelled. A cancelled member that no
            // other member needed, such as a loser of a quorum, does not make the flow a cancelled one.
            FlowState::Cancelled
        } else {
            FlowState::Completed
        }
    }
}

impl FromIterator<(PublicState, u64)> for MemberCounts {
    fn from_iter<I: IntoIterator<Item = (PublicState, u64)>>(counts: I) -> Self {
        let mut sums = BTreeMap::new();
        for (state, count) in counts.into_iter().filter(|(_, count)| *count > 0) {
            *sums.entry(state).or_default() += count;
        }
        Self(sums)
    }
}

crate::document! {
    /// How a flow ended.
    pub struct FlowEnd {
        /// The state it ended in.
        "s" state: FlowState,
        /// When its last member ended.
        "a" at: i64,
        /// Until when it and its members are kept.
        "u" retain_until: Option<i64>,
    }
}

crate::document! {
    /// A graph of executions that live in its partition.
    pub struct Flow {
        /// Its id.
        "i" id: FlowId,
        /// Its namespace.
        "n" namespace: String,
        /// The kind of the flow, for people.
        "k" kind: String,
        /// Its tags.
        "t" tags: Tags,
        /// When it was created.
        "c" created_at: i64,
        /// Grows with every member and edge.
        "g" graph_revision: u64,
        /// How many members it has.
        "m" node_count: u32,
        /// A digest of the request that created it, so that a repeat can be told from a conflict.
        "h" request_hash: Blob,
        /// Its cancellation.
        "x" cancellation: Option<FlowCancellation>,
        /// Its end.
        "e" ended: Option<FlowEnd>,
        /// The longest that one of its members wants to be kept; none while it has no members.
        "q" kept_ms: Option<i64>,
        /// How long it is kept while it has no members; none where that is the default.
        "d" empty_kept_ms: Option<i64>,
        /// Its retention is over and its removal has begun. A removal is never undone.
        "v" removing: bool,
        /// It is built step by step: more members may come, so it does not end before it is closed.
        "o" stays_open: bool,
        /// Since when all members of an open flow have ended; 0 while one has not, or another may come.
        "y" idle_since: i64,
        /// The schedule that made it.
        "s" schedule: Option<Box<ScheduledRun>>,
    }
}

impl Document for Flow {
    const KIND: u8 = kind::FLOW;
    crate::encoding::compiled_here!();
}

impl Indexed for Flow {
    fn key(&self) -> Key {
        Self::key_of(&self.id)
    }

    fn index_entries(&self, _lease_until: i64) -> Vec<Entry> {
        let key = self.key();
        let mut entries = Vec::new();
        if !self.removing {
            let listing = index::listing(kind::FLOW, &self.namespace);
            entries.push(Entry { index: listing, member: key.clone(), score: self.created_at });
        }
        let cancelled_at = self.cancellation.as_ref().filter(|of| of.outstanding).map(|of| of.at);
        // This mark has a score of its own, because a mark whose score does not change is not noticed anew.
        let owed = self.owes_schedule().then_some(self.created_at - 1);
        if let Some(score) = self.removing.then_some(self.created_at).or(cancelled_at).or(owed) {
            entries.push(Entry { index: index::marks(), member: key.clone(), score });
        }
        if let Some(at) = self.next_timer() {
            entries.push(Due::Timer.entry(&key, at));
        }
        if let Some(run) = &self.schedule {
            entries.push(Entry { index: index::runs(run.schedule.0), member: key, score: run.number });
        }
        entries
    }
}

/// The effect of a flow's timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowFired {
    /// Nothing is due yet.
    Nothing,
    /// The members that its cancellation paused are to be cancelled.
    Lapsed,
    /// Its removal has begun.
    Removing,
}

/// The parts a flow is made from.
#[derive(Debug, Clone, Default)]
pub struct NewFlow {
    /// Its id.
    pub id: FlowId,
    /// Its namespace.
    pub namespace: String,
    /// The kind of the flow, for people; may be empty.
    pub kind: String,
    /// Its tags.
    pub tags: Tags,
    /// A digest of the request.
    pub request_hash: Blob,
    /// The schedule that makes it.
    pub schedule: Option<Box<ScheduledRun>>,
}

impl Flow {
    /// Where a flow lives in its partition.
    pub fn key_of(id: &FlowId) -> Key {
        Key::new(kind::FLOW, &[id.uuid.as_bytes()])
    }

    /// A flow without members.
    pub fn new(new: NewFlow, now: i64) -> Result<Self> {
        text::name("namespace", &new.namespace)?;
        if !new.kind.is_empty() {
            text::kind("kind", &new.kind)?;
        }
        text::tags("tags", &new.tags)?;
        Ok(Self {
            id: new.id,
            namespace: new.namespace,
            kind: new.kind,
            tags: new.tags,
            created_at: now,
            request_hash: new.request_hash,
            schedule: new.schedule,
            ..Default::default()
        })
    }

    /// Creating the same flow again is fine; with another request it is not.
    pub fn check_same(&self, request_hash: &Blob) -> Result<()> {
        if self.request_hash == *request_hash {
            return Ok(());
        }
        Err(Error::of(Code::IdempotencyConflict).with("flow_id", self.id))
    }

    /// Its state, given the counts of its members. Until its end is decided it takes members, and every reader sees it
    /// running, even in the moment after its last member has ended.
    pub fn state(&self, counts: &MemberCounts) -> FlowState {
        match (&self.cancellation, &self.ended) {
            (Some(_), _) => FlowState::Cancelled,
            (None, Some(end)) => end.state,
            (None, None) if counts.state().is_terminal() && self.stays_open => FlowState::Open,
            (None, None) if counts.state().is_terminal() => FlowState::Running,
            (None, None) => counts.state(),
        }
    }

    /// Whether its members have all ended and its own end is yet to be decided, which is a matter of moments.
    pub fn is_about_to_end(&self, counts: &MemberCounts) -> bool {
        self.node_count > 0 && !self.is_terminal() && !self.stays_open && self.all_ended(counts)
    }

    fn all_ended(&self, counts: &MemberCounts) -> bool {
        counts.ended() == counts.total() && counts.total() == u64::from(self.node_count)
    }

    /// Whether it takes no more members: it was cancelled, or its last member has ended.
    pub fn is_terminal(&self) -> bool {
        self.cancellation.is_some() || self.ended.is_some() || self.removing
    }

    /// Whether members that never ran may start.
    pub fn admits_claims(&self) -> bool {
        !self.is_terminal() || planted(Bug::CancelledFlowStarts)
    }

    /// Whether members that have started may go on after a retry, a delay or a suspension: a cancellation that leaves
    /// them alone must also let them come to their end.
    pub fn admits_continuations(&self) -> bool {
        self.cancellation.as_ref().is_none_or(|cancellation| cancellation.policy != CancelFlowPolicy::CancelAll)
    }

    /// Refuses to change the graph of a flow that has ended.
    pub fn check_open(&self) -> Result<()> {
        if self.is_terminal() {
            return Err(Error::of(Code::FlowAlreadyTerminal).with("flow_id", self.id));
        }
        Ok(())
    }

    /// Sets how long it is kept while it has no members.
    pub fn keep_empty_for(&mut self, retention_ms: i64) {
        self.empty_kept_ms = (retention_ms != limits::RETENTION_DEFAULT_MS).then_some(retention_ms);
    }

    /// Notes how long a member that is about to join wants to be kept after the flow's end. All members are removed
    /// together, so the longest time counts.
    pub fn keep_for(&mut self, retention_ms: Option<i64>) {
        let wanted = retention_ms.unwrap_or(limits::RETENTION_DEFAULT_MS);
        // Members that joined before this field existed count as if they had asked for the default.
        let unknown = (self.node_count > 0).then_some(limits::RETENTION_DEFAULT_MS);
        self.kept_ms = Some(self.kept_ms.or(unknown).map_or(wanted, |kept_ms| kept_ms.max(wanted)));
    }

    /// The next instant at which something happens to it by itself.
    pub fn next_timer(&self) -> Option<i64> {
        let after = |at: i64, kept_ms: Option<i64>| {
            Some(at.saturating_add(kept_ms.unwrap_or(limits::RETENTION_DEFAULT_MS)).min(limits::SCORE_MAX))
        };
        match (&self.ended, &self.cancellation) {
            _ if self.removing => None,
            (Some(end), _) => end.retain_until,
            (None, Some(cancellation)) => {
                let pauses = cancellation.policy_now() == CancelFlowPolicy::FlowOnly && !cancellation.outstanding;
                if pauses { after(cancellation.at, self.kept_ms) } else { None }
            }
            (None, None) if self.node_count == 0 => after(self.created_at, self.empty_kept_ms),
            // No caller closed the flow or added a member for as long as the flow would have been kept.
            (None, None) if self.idle_since != 0 => after(self.idle_since, self.kept_ms),
            (None, None) => None,
        }
    }

    /// Does what is due: cancels the members that an earlier cancellation only paused, or begins the flow's removal.
    pub fn fire(&mut self, now: i64) -> FlowFired {
        if self.next_timer().is_none_or(|at| at > now) {
            return FlowFired::Nothing;
        }
        if let (None, Some(cancellation)) = (&self.ended, &mut self.cancellation) {
            cancellation.lapsed = true;
            cancellation.outstanding = true;
            return FlowFired::Lapsed;
        }
        self.removing = true;
        FlowFired::Removing
    }

    /// Closes the flow to new members: it ends with its last one. Returns whether this call closed it. A flow that
    /// never had a member has nothing left to wait for, and ends at once.
    pub fn close(&mut self, now: i64, retention_ms: i64) -> bool {
        if self.is_terminal() || !std::mem::take(&mut self.stays_open) {
            return false;
        }
        if self.node_count == 0 {
            let at = now.max(self.created_at);
            self.ended = Some(FlowEnd { state: FlowState::Completed, at, ..Default::default() });
            self.retain_from(at, Some(retention_ms));
        }
        true
    }

    /// Begins the removal before the retention is over.
    pub fn begin_removal(&mut self) -> Result<()> {
        if self.ended.is_none() {
            return Err(Error::of(Code::FlowNotTerminal).with("flow_id", self.id));
        }
        self.removing = true;
        Ok(())
    }

    /// Adds a member; returns how many there are.
    pub fn add_member(&mut self) -> Result<u32> {
        self.add_members(1)
    }

    /// Adds all nodes of a graph at once; returns how many members there are.
    pub fn add_members(&mut self, members: u32) -> Result<u32> {
        self.check_open()?;
        let count = self.node_count.saturating_add(members);
        if count > limits::FLOW_MEMBERS_MAX {
            return Err(Error::of(Code::FlowFull).with("flow_id", self.id).with("node_count", self.node_count));
        }
        self.node_count = count;
        self.idle_since = 0;
        self.graph_revision += 1;
        Ok(count)
    }

    /// Adds an edge, if the graph is still the one that the caller has seen; returns the new revision.
    pub fn stage_edge(&mut self, expected_graph_revision: Option<u64>) -> Result<u64> {
        self.check_graph(expected_graph_revision)?;
        self.graph_revision += 1;
        Ok(self.graph_revision)
    }

    /// Refuses a flow that has ended, or whose graph is not the one that the caller has seen.
    pub fn check_graph(&self, expected_graph_revision: Option<u64>) -> Result<()> {
        self.check_open()?;
        if let Some(expected) = expected_graph_revision.filter(|expected| *expected != self.graph_revision) {
            let detail = format!("the graph has revision {}, not {expected}", self.graph_revision);
            let error = Error::new(Code::StaleGraphRevision, detail);
            return Err(error.with("expected", expected).with("graph_revision", self.graph_revision));
        }
        Ok(())
    }

    /// Cancels it; returns whether this call did. A cancelled flow keeps its first policy and reason; a flow that ended
    /// by itself refuses.
    pub fn cancel(&mut self, policy: CancelFlowPolicy, reason: &str, now: i64) -> Result<bool> {
        text::text("reason", reason)?;
        if self.cancellation.is_some() {
            return Ok(false);
        }
        if let Some(end) = &self.ended {
            return Err(Error::of(Code::FlowAlreadyTerminal).with("flow_id", self.id).with("state", end.state));
        }
        self.cancellation = Some(FlowCancellation {
            policy,
            reason: reason.to_owned(),
            at: now.max(self.created_at),
            outstanding: self.node_count > 0,
            ..Default::default()
        });
        Ok(true)
    }

    /// Notes that every member was told of the cancellation; returns whether this changed anything.
    pub fn finish_cancellation(&mut self) -> bool {
        match &mut self.cancellation {
            Some(cancellation) => std::mem::take(&mut cancellation.outstanding),
            None => false,
        }
    }

    /// Ends it if every member has ended, or notes that an open flow is idle; returns whether that changed it. From
    /// then on the flow and its members are kept for the longest time that a member asks for, or for `retention_ms` if
    /// no member asks.
    pub fn end(&mut self, counts: &MemberCounts, retention_ms: Option<i64>, now: i64) -> bool {
        let empty = self.node_count == 0 && self.cancellation.is_none();
        if self.stays_open && self.cancellation.is_none() && self.ended.is_none() && !empty && self.all_ended(counts) {
            let newly_idle = self.idle_since == 0;
            self.idle_since = if newly_idle { now.max(self.created_at) } else { self.idle_since };
            return newly_idle;
        }
        let open = self.stays_open && self.cancellation.is_none();
        if self.ended.is_some() || open || self.removing || self.is_lapsing() || !self.all_ended(counts) || empty {
            return false;
        }
        let at = now.max(self.created_at);
        let state = if self.cancellation.is_some() { FlowState::Cancelled } else { counts.state() };
        self.ended = Some(FlowEnd { state, at, ..Default::default() });
        self.retain_from(at, retention_ms);
        if let Some(run) = &mut self.schedule {
            run.owes_end = true;
        }
        true
    }

    /// Whether its end is still to be told to its schedule.
    pub fn owes_schedule(&self) -> bool {
        self.schedule.as_ref().is_some_and(|run| run.owes_end)
    }

    /// Its end, in the form that its schedule needs; `None` while it has not ended.
    pub fn run_end(&self) -> Option<RunEnd> {
        self.ended.as_ref().map(|end| match end.state {
            FlowState::Completed => RunEnd::Succeeded,
            FlowState::Failed => RunEnd::Failed,
            _ => RunEnd::Other,
        })
    }

    /// Lets its retention count from this instant and not from its end.
    pub fn retain_from(&mut self, since: i64, retention_ms: Option<i64>) {
        let since = since.max(self.cancellation.as_ref().map_or(self.created_at, |cancellation| cancellation.at));
        if let Some(end) = &mut self.ended {
            let retention_ms = self.kept_ms.or(retention_ms);
            end.retain_until = retention_ms.map(|kept_ms| since.saturating_add(kept_ms).min(limits::SCORE_MAX));
        }
    }

    /// Whether the members that it paused are being cancelled now. It ends only when that is done, because only then is
    /// it known since when it has been kept.
    pub fn is_lapsing(&self) -> bool {
        self.cancellation.as_ref().is_some_and(|cancellation| cancellation.lapsed && cancellation.outstanding)
    }

    /// Reopens the flow because a member is replayed; returns whether it had ended. It refuses while a cancellation is
    /// being carried out, because that would cancel the member again.
    pub fn reopen(&mut self) -> Result<bool> {
        if self.removing && !planted(Bug::RemovalReopened) {
            let detail = "the flow is being removed";
            return Err(Error::new(Code::FlowAlreadyTerminal, detail).with("flow_id", self.id));
        }
        if self.cancellation.as_ref().is_some_and(|cancellation| cancellation.outstanding) {
            let detail = "the flow's cancellation is still being carried out";
            return Err(Error::new(Code::FlowAlreadyTerminal, detail).with("flow_id", self.id));
        }
        let ended = self.is_terminal();
        self.cancellation = None;
        self.ended = None;
        self.idle_since = 0;
        self.removing = false;
        if let Some(run) = &mut self.schedule {
            run.owes_end = false;
        }
        Ok(ended)
    }
}

#[cfg(test)]
mod lives;
#[cfg(test)]
mod tests;
