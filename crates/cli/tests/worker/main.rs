//! Programs as workers, and the first five minutes: the real binary, real scripts, a real server.

mod cancellation;
mod demo;
mod endings;
mod process;
mod quickstart;
mod scripts;
mod steps;
mod suspension;
