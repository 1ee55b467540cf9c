//! Operations on executions.

mod change;
mod create;
mod read;
mod search;

pub use change::*;
pub use create::*;
pub use read::*;
pub use search::*;
