//! The real binary: how it starts, what it says, how it stops.

mod compose;
mod process;
mod secrets;
mod start;
mod stop;
mod viewers;
