//! Reads the frames after a certain one, waiting for the first of them. While nothing is written this costs the store
//! nothing; the end of the stream wakes every tail.

use ff_core::Result;
use ff_core::op::TailStream;
use ff_core::op::tail_stream::Args;
use ff_core::stream::{FrameId, StreamFrames};

use crate::engine::{Caller, Engine, Handle};
use crate::{env, logs};

impl Handle<TailStream> for Engine {
    async fn handle(&self, caller: &Caller, args: Args) -> Result<StreamFrames> {
        let id = &args.execution_id;
        self.check_id(id)?;
        let after = args.after.unwrap_or(FrameId::START).after_in(args.attempt);
        let count = self.limits().frames(args.count)?;
        let deadline = self.env().now_ms() + self.limits().tail_wait("block_ms", args.block_ms.unwrap_or(0))?;
        let mut listener = self.listen_to(id.partition(), logs::frames(id, args.attempt));
        loop {
            self.refuse_if_closing()?;
            // The execution first: what was written before its end is in the log by then.
            let (execution, _) = self.visible_execution(caller, id).await?;
            let answer = self.read_frames(&execution, args.attempt, after, count).await?;
            let left = deadline - self.env().now_ms();
            if !answer.frames.is_empty() || answer.closed_at.is_some() || left <= 0 {
                return Ok(answer);
            }
            env::within(self.env_handle(), left, listener.changed()).await;
        }
    }
}
