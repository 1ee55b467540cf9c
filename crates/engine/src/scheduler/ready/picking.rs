//! Picking: the best work that is known for a claimer, or the reads that may find better work.

use super::{BUFFERED_MAX, Candidate, Criteria, LEFT_PER_RANK_MS, QueueId, Read, Ready};

/// How much a claimer wants now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// The lane that begins the turn among its lanes.
    pub(crate) first_lane: usize,
    /// The candidates that it may try.
    pub(crate) count: usize,
    /// The reads that it may begin beside those it has under way.
    pub(crate) reads: usize,
    /// Whether it waits for reads that may find better work than is known.
    pub(crate) patient: bool,
}

/// Why picking from a lane ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LaneEnd {
    /// Enough is picked, or nothing more is known in the lane.
    Reached,
    /// Everything picked is at least as good as the work that is yet to be read. Reading first would only bring the same
    /// head again if more is wanted than one read returns.
    ReadLater,
}

/// The next candidates and reads for a claimer.
#[derive(Debug, Default)]
pub(crate) struct Pick {
    /// Try these.
    pub(crate) candidates: Vec<Candidate>,
    /// Read these, and pick again when they are known: they may hold better work.
    pub(crate) reads: Vec<Read>,
    /// Read these, too, without waiting for them: they failed the last time.
    pub(crate) suspects: Vec<Read>,
}

impl Pick {
    /// How many reads may be added.
    pub(super) fn room(&self, wanted: Wanted) -> usize {
        wanted.reads.saturating_sub(self.reads.len() + self.suspects.len())
    }
}

impl Ready {
    /// The best work for a claimer, or the reads that are needed to find it. A claimer that waits no longer, or may
    /// read no more, gets the best work that is known; queues of which nothing is known are then read only if no work
    /// is.
    pub(crate) fn pick(&mut self, criteria: &Criteria, wanted: Wanted, now: i64) -> Pick {
        self.aside.retain(|_, until| *until > now);
        let mut pick = Pick::default();
        // Candidates that are read must be kept until they are taken, so there must be room for them.
        let patient = wanted.patient && wanted.reads > 0 && self.buffered < BUFFERED_MAX;
        let lanes = criteria.lanes.len();
        for turn in 0..lanes {
            let lane = &criteria.lanes[(wanted.first_lane + turn) % lanes];
            self.probe(criteria, (lane, wanted), &mut pick, now);
            if patient {
                self.learn_names(criteria, (lane, wanted), &mut pick, now);
            }
            let before = (pick.candidates.len(), pick.reads.len());
            let found = self.pick_in_lane(criteria, (lane, Wanted { patient, ..wanted }), &mut pick, now);
            if found == LaneEnd::ReadLater {
                return pick;
            }
            if !patient && before == (pick.candidates.len(), pick.reads.len()) {
                self.learn_names(criteria, (lane, wanted), &mut pick, now);
            }
        }
        if patient && !pick.reads.is_empty() {
            // Unread work may be better than what was picked: put it back and ask again with everything known.
            for candidate in std::mem::take(&mut pick.candidates) {
                self.put_back(candidate);
            }
        }
        pick
    }

    /// Picks from the queues of one lane, best first, until enough is picked or nothing more is known there.
    fn pick_in_lane(
        &mut self,
        criteria: &Criteria,
        (name, wanted): (&str, Wanted),
        pick: &mut Pick,
        now: i64,
    ) -> LaneEnd {
        while pick.candidates.len() < wanted.count {
            let Some(lane) = self.lanes.get(&criteria.namespace).and_then(|lanes| lanes.get(name)) else { break };
            let Some(lane) = lane.awaited() else { break };
            let Some((best, unread)) = lane.best(&criteria.skills, wanted.patient) else { break };
            let Some(queue) = self.queues.get_mut(best) else { break };
            queue.note_head(now);
            // While other servers take work, too, heads are left to those that are ranked first for them, if there is
            // something else of about the same age.
            let contended = now < lane.contended_until;
            let near = match contended && !unread && self.is_left(best, now) {
                true => lane.near(&criteria.skills, |id| self.is_left(id, now)),
                false => None,
            };
            let id = near.unwrap_or(best).clone();
            let Some(queue) = self.queues.get_mut(&id) else { break };
            let unread = unread || matches!(queue.head(), Some((_, true)));
            if unread && !self.outages.contains_key(&id.partition) {
                if !queue.suspect && pick.reads.is_empty() && !pick.candidates.is_empty() {
                    return LaneEnd::ReadLater;
                } else if pick.room(wanted) == 0 {
                    break;
                } else if queue.suspect {
                    pick.suspects.push(Read::Head(id.clone()));
                } else {
                    pick.reads.push(Read::Head(id.clone()));
                }
                queue.begin_fetch(now);
                self.relist(&id);
                continue;
            }
            let Some(candidate) = self.take_head(&id, contended, now) else { break };
            pick.candidates.push(candidate);
        }
        LaneEnd::Reached
    }

    /// Whether the head of a queue is left to a server that is ranked before this one in its partition. It is for a
    /// while only: as long as newer work is there to take, such a head would never be taken otherwise.
    fn is_left(&self, id: &QueueId, now: i64) -> bool {
        let left_ms = self.ranks.of(id.partition).saturating_mul(LEFT_PER_RANK_MS);
        left_ms > 0 && self.queues.get(id).is_some_and(|queue| queue.head_stood_ms(now) < left_ms)
    }

    /// Takes the first candidate of a queue and charges its key and its gate with the try. In a lane that several
    /// engines claim from, an engine that leaves the head to another takes a candidate further behind, so that they do
    /// not all try the same one.
    fn take_head(&mut self, id: &QueueId, contended: bool, now: i64) -> Option<Candidate> {
        let spread = contended && self.is_left(id, now);
        let queue = self.queues.get_mut(id)?;
        let candidate = queue.take(if spread { self.spread } else { 0 })?;
        self.spread = self.spread.wrapping_add(u64::from(spread));
        queue.used_at = now;
        let gated = !queue.name.gate.is_empty() && !self.gates.are_all_open();
        let gate = gated.then(|| (queue.name.namespace.clone(), queue.name.gate.clone()));
        self.buffered -= 1;
        self.in_flight.insert(candidate.place());
        self.charge(&candidate, true);
        if let Some(gate) = gate.filter(|gate| self.gates.begin_try(gate)) {
            self.relist_gate(&gate);
        }
        self.relist(id);
        Some(candidate)
    }
}
