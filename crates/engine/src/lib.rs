//! FlowFabric's engine.
//!
//! [`Engine::call`] carries out any operation of [`ff_core::op`] in process. Underneath, an operation is an optimistic
//! transaction on one partition; beside it run the scheduler, the timers, the resolver and the reconcilers.

mod audit;
mod authenticate;
mod board;
mod bulk;
mod cache;
mod clock;
mod cursor;
mod delivery;
mod engine;
pub mod env;
mod execution_data;
mod flow;
mod follow;
mod fork;
mod groups;
mod hint;
mod in_use;
mod journal;
mod limits;
mod locks;
mod logs;
mod mailbox;
mod metrics;
mod named_documents;
mod op;
mod payload;
mod providers;
mod readable;
mod reconcile;
mod registry;
mod renewal;
mod resolver;
mod schedule;
mod scheduler;
mod secrets;
mod servers;
mod serves;
mod service;
mod shared;
mod subscription;
mod substitute;
mod system;
mod test_clock;
mod timers;
mod transaction;
mod transition;
mod usage;
mod view;
mod visibility;

pub use delivery::{Courier, Undelivered, Webhook};
pub use engine::{Caller, Engine, Options, Standing};
pub use follow::{JournalSeen, Seen, Sight};
pub use limits::Limits;
pub use metrics::{
    BUCKETS_US, BudgetCharges, BudgetLabel, Family, FamilyKind, Histogram, Metrics, Sample, SampleValue,
};
pub use op::{EventWatch, HookMessage};
pub use reconcile::Reconciled;
pub use serves::Serves;
pub use service::ServiceHealth;
pub use test_clock::TestClock;
