//! FlowFabric's engine: runs operations as transactions on a store, hands out work, and brings about everything that
//! follows from time and from ends.
//!
//! [`Engine::call`] carries out any operation of [`ff_core::op`] in process. Underneath, an operation is an optimistic
//! transaction on one partition; beside it run the scheduler, the timers, the resolver and the reconcilers.

mod authenticate;
mod board;
mod bulk;
mod cache;
mod caller;
mod cancellation;
mod charges;
mod clock;
mod counts;
mod courier;
mod cursor;
mod delivery;
mod dispatch;
mod due;
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
mod journal_upkeep;
mod limits;
mod locks;
mod logs;
mod mailbox;
mod metrics;
mod named_documents;
mod op;
mod opening;
mod options;
mod payload;
mod providers;
mod ranks;
mod reconcile;
mod registry;
mod removal;
mod renewal;
mod repair;
mod replay;
mod resolver;
mod runtime;
mod schedule;
mod scheduler;
mod search;
mod secrets;
mod servers;
mod services;
mod shared;
mod single_key;
mod submission;
mod subscription;
mod substitute;
mod supervision;
mod system;
mod test_clock;
mod timers;
mod transaction;
mod transition;
mod view;
mod visibility;

pub use caller::{Caller, Standing};
pub use courier::{Courier, Undelivered, Webhook};
pub use engine::{Engine, Serves};
pub use follow::{JournalSeen, Seen, StreamUpdate};
pub use limits::Limits;
pub use metrics::{
    BUCKETS_US, BudgetCharges, BudgetLabel, Family, FamilyKind, Histogram, Metrics, Sample, SampleValue,
};
pub use op::{EventWatch, HookMessage};
pub use options::Options;
pub use reconcile::Reconciled;
pub use supervision::ServiceHealth;
pub use test_clock::TestClock;
