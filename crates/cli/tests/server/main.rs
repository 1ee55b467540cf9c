//! The real binary: how it starts, what it says, how it stops.

mod process;
mod secrets;
mod start;
mod stop;
mod viewers;
