//! The load: clients of the campaign in its own process (`clients`, `signals`), which wait while too much is open (`backlog`),
//! workers in processes that may be killed (`worker`), and the words that they and the checker share (`plan`).

mod backlog;
mod clients;
pub mod plan;
mod signals;
mod worker;

pub use clients::Clients;
pub use worker::{WorkerOptions, work_if_asked};
