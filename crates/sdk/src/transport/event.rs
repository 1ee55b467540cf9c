//! Events of a stream, whichever way they come.

use ff_core::stream::StreamFrame;
use ff_core::{AttemptIndex, BlockingReason, PublicState};

/// An event as a viewer of a stream sees it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum StreamEvent {
    /// A frame.
    Frame(StreamFrame),
    /// Another attempt has begun; what the one before it wrote is void.
    Attempt {
        /// Its number.
        attempt: AttemptIndex,
    },
    /// The worker let go of the attempt, which will go on.
    Paused {
        /// The attempt.
        attempt: AttemptIndex,
        /// The reason why it waits.
        reason: BlockingReason,
        /// A detail of the wait, for people.
        detail: String,
    },
    /// The execution has ended, and so does the stream.
    End {
        /// How.
        public_state: PublicState,
    },
}
