//! Operations on executions.

mod change;
mod create;
mod read;
mod search;
mod sharing;

pub use change::*;
pub use create::*;
pub use read::*;
pub use search::*;
pub use sharing::*;
