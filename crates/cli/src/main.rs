//! `ff`, the program. What it does is in the library of this package.

use std::process::ExitCode;

/// The engine makes many small and short-lived allocations on several threads.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ff_cli::main()
}
