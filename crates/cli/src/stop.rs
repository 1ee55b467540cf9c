//! The signals that tell a command to stop.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Failure, Result};

/// Listens from when it is made: a signal that comes while the command starts is not missed, and does not kill it.
pub(crate) struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    pub(crate) fn listen() -> Result<Self> {
        let cannot = |error| Failure::new(1, "internal", format!("signals cannot be received: {error}"));
        let terminate = signal(SignalKind::terminate()).map_err(cannot)?;
        let interrupt = signal(SignalKind::interrupt()).map_err(cannot)?;
        Ok(Self { terminate, interrupt })
    }

    /// Waits for one of them, and says which it was.
    pub(crate) async fn requested(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "told to terminate",
            _ = self.interrupt.recv() => "interrupted",
        }
    }
}
