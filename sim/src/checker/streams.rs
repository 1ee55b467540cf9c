//! `frames_in_order`: only the holder of the running attempt appends, and the frame with number n says n.

use ff_core::encoding::Document;
use ff_core::index::kind;
use ff_core::lease::LeaseFence;
use ff_core::{ExecutionId, Key, LifecyclePhase, stream::Frame};
use uuid::Uuid;

use super::{Checker, Commit};
use crate::invariant::Invariant;

/// The first byte of a log of frames.
const FRAMES: u8 = b'f';

impl Checker {
    /// Checks the frames that a commit appended.
    pub(super) fn check_appends(&mut self, commit: Commit<'_>) {
        for append in commit.batch.appends.iter().filter(|append| append.log.as_bytes().first() == Some(&FRAMES)) {
            let Some((uuid, attempt)) = parse(&append.log) else { continue };
            let key = Key::new(kind::EXECUTION, &[uuid.as_bytes()]);
            let seen = self.facts.executions.get(&(commit.partition, key));
            let open = seen.is_some_and(|seen| {
                let running = seen.document.state.lifecycle_phase == LifecyclePhase::Active;
                let current = seen.document.attempt.as_ref().is_some_and(|current| current.index.0 == attempt);
                running && current && seen.lease_until > commit.at
            });
            self.expect(open, Invariant::FramesInOrder, || {
                format!("frames of {uuid} attempt {attempt} were appended to a closed stream")
            });
            let place = (commit.partition, append.log.clone());
            for record in &append.records {
                let count = self.facts.frames.entry(place.clone()).or_default();
                *count += 1;
                let expected = *count;
                let found = Frame::decode(record).ok().map(|frame| frame.payload.0);
                let right = found.as_deref() == Some(expected.to_string().as_bytes());
                self.expect(right, Invariant::FramesInOrder, || {
                    format!("frame {expected} of {uuid} attempt {attempt} says {found:?}")
                });
            }
        }
        // What is made again under the same id begins anew.
        for trim in commit.batch.trims.iter().filter(|trim| trim.before == u64::MAX) {
            self.facts.frames.remove(&(commit.partition, trim.log.clone()));
        }
    }

    /// A holder was told that its frames up to this number are there.
    pub(crate) fn acknowledged_frames(&mut self, id: ExecutionId, fence: &LeaseFence, last: u64) {
        let log = frames_log(id, fence.attempt.0);
        let count = self.facts.frames.get(&(id.partition(), log)).copied().unwrap_or(0);
        self.expect(count >= last || self.is_or_was_gone(id), Invariant::FramesInOrder, || {
            format!("frame {last} of {id} was acknowledged, but there are {count}")
        });
    }
}

/// The log of an attempt's frames.
pub(crate) fn frames_log(id: ExecutionId, attempt: u32) -> Key {
    Key::new(FRAMES, &[id.uuid.as_bytes(), &attempt.to_be_bytes()])
}

fn parse(log: &Key) -> Option<(Uuid, u32)> {
    let attempt: [u8; 4] = log.as_bytes().get(17..21)?.try_into().ok()?;
    Some((log.uuid()?, u32::from_be_bytes(attempt)))
}
