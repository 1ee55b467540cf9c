//! `ff-bench`: see [`ff_bench::program`].

use std::process::ExitCode;

/// As in the product: the engine makes many small and short-lived allocations on several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ff_bench::program(None)
}
