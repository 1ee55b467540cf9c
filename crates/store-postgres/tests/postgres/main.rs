//! Behaviour that is particular to PostgreSQL: opening, hints between processes, event numbers, and surviving its
//! failures.

mod adopting;
mod columns;
mod cut;
mod drained;
mod events;
mod expiring;
mod fixture;
mod groups;
mod hints;
mod kill;
mod opening;
mod plans;
mod silence;
mod standby;
mod time;
mod trimming;
mod trouble;
