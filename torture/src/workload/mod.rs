//! The load: clients of the campaign in its own process (`clients`, `signals`), workers in processes that may be killed
//! (`worker`), and the words that they and the checker share (`plan`).

mod clients;
pub mod plan;
mod signals;
mod worker;

pub use clients::Clients;
pub use worker::{WorkerOptions, work_if_asked};
