//! Tests the tester: switches on planted bugs one by one and runs seeds until each is caught.

use std::path::Path;

pub use ff_core::planted::Bug;
use ff_core::planted::select;

use crate::invariant::{Invariant, Violation};
use crate::run::{Focus, Setup, run};

/// The outcome for one planted bug.
#[derive(Debug)]
pub struct Caught {
    /// The bug.
    pub bug: Bug,
    /// The seed that caught it, and what did not hold.
    pub by: Option<(u64, Violation)>,
}

/// Bugs that show only where several rare things meet are looked for where these are not rare.
fn focus_of(bug: Bug) -> Option<Focus> {
    match bug {
        Bug::LateClaimLands => Some(Focus::Slots),
        Bug::ReserveUnchecked => Some(Focus::Budgets),
        _ => None,
    }
}

/// Runs seeds with a bug until one catches it. A seed that fails without the bug proves nothing and is passed over.
/// `None`: this build has no bugs to switch on.
pub fn catch(bug: Bug, seeds: std::ops::Range<u64>, steps: u64, except: &[Invariant]) -> Option<Caught> {
    if !select(Some(bug)) {
        return None;
    }
    let by = seeds.into_iter().find_map(|seed| {
        let setup = Setup { seed, steps, keep_history: false, focus: focus_of(bug), except: except.to_vec() };
        select(Some(bug));
        let violation = run(&setup, Path::new("target/sim")).violation?;
        select(None);
        let sound = run(&setup, Path::new("target/sim")).violation.is_none();
        sound.then_some((seed, violation))
    });
    select(None);
    Some(Caught { bug, by })
}
