//! `ff-bench-counting`: `ff-bench` with an allocator that counts, which costs time: allocations are to be read, rates are
//! not.

use std::alloc::System;
use std::process::ExitCode;

use ff_bench::Allocations;
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

fn main() -> ExitCode {
    ff_bench::program(Some(|| {
        let stats = ALLOCATOR.stats();
        Allocations { count: (stats.allocations + stats.reallocations) as u64, bytes: stats.bytes_allocated as u64 }
    }))
}
