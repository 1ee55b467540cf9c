//! Benchmarks. Each scenario prints figures for people, or with `--json` one object a line.
//!
//! `ff bench` and the program `ff-bench` are both thin: they say where new stores may be made ([`Places`]) and call
//! [`measure`]. A scenario is a function in `scenario`; it starts a [`subject`], works, and reports [`figures`].
//!
//! Figures of one run may be compared with each other; those of two machines or two hours may not.

mod arguments;
mod error;
mod figures;
mod latency;
mod load;
mod machine;
mod open;
mod postgres;
#[cfg(feature = "servers")]
mod program;
mod run;
mod scenario;
mod subject;
mod work;

pub use arguments::{Arguments, Scenario};
pub use error::{Error, Result};
pub use open::{Choice, Kind, NewFiles, Place, Places};
#[cfg(feature = "servers")]
pub use program::program;
pub use run::measure;
pub use subject::{Allocations, Via};
