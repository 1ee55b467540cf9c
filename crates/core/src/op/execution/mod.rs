//! Operations on executions.

mod change;
mod create;
mod read;

pub use change::*;
pub use create::*;
pub use read::*;
