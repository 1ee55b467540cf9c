//! Every command against a server: what it prints for people and for programs, and how it fails.

mod administration;
mod approvals;
mod bench;
mod embedded;
mod executions;
mod flows;
mod help;
mod mistakes;
mod normalise;
mod screen;
mod streams;
mod support;
mod work;
