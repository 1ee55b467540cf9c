//! FlowFabric's embedded store: one SQLite file in WAL mode, nothing to install.
//!
//! One thread writes. It takes everything that waits in its queue and commits it in one transaction, so that many
//! callers share one `fsync`. A few more threads read, each on a connection of its own and in one read transaction
//! per call. Callers wait on channels, so the store works on any executor and blocks none.
//!
//! A batch's guards are all checked before its first write, which is why a conflict needs no rollback and harms no
//! neighbour in the transaction. Answers and hints leave only after the transaction is durable.
//!
//! An idle store does nothing: expired documents and trimmed records are removed as part of later commits.

mod clock;
mod commit;
mod connect;
mod error;
mod lock;
mod logs;
mod look;
mod options;
mod queue;
mod read;
mod schema;
mod store;
mod sweep;
mod wal;
mod writer;

pub use look::look;
pub use options::{Options, Sync};
pub use store::{SqliteStore, open};
