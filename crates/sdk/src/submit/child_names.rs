//! Names for the children of a task, so that a handler that runs again finds the children it spawned before.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ff_core::op::create_execution::Args;

/// Names for the children of one task that the handler did not name: by their content, and how many were submitted with
/// the same content before. A handler that runs again submits the same children in any order.
#[derive(Debug, Default)]
pub(crate) struct ChildNames(Mutex<BTreeMap<[u8; 32], Numbers>>);

#[derive(Debug, Default)]
struct Numbers {
    next: u32,
    /// Taken before, and given back.
    free: BTreeSet<u32>,
}

impl ChildNames {
    /// The name of a child with this content.
    pub(crate) fn name(self: &Arc<Self>, args: &Args) -> ChildName {
        // Instants are read from the clock, and differ when the handler runs again.
        let content = Args { delay_until: None, deadline_at: None, ..args.clone() }.content_digest();
        let mut known = self.lock();
        let numbers = known.entry(content).or_default();
        let number = numbers.free.pop_first().unwrap_or_else(|| {
            numbers.next += 1;
            numbers.next - 1
        });
        drop(known);
        ChildName { names: self.clone(), content, number, used: false }
    }

    fn give_back(&self, content: &[u8; 32], number: u32) {
        let mut known = self.lock();
        let Some(numbers) = known.get_mut(content) else { return };
        numbers.free.insert(number);
        if numbers.free.len() == usize::try_from(numbers.next).unwrap_or(usize::MAX) {
            known.remove(content);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<[u8; 32], Numbers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The name of one child. Unless it was used, it goes to the next child with the same content: a submission that failed
/// may have been accepted, and a handler that tries again means the same child.
#[derive(Debug)]
pub(crate) struct ChildName {
    names: Arc<ChildNames>,
    content: [u8; 32],
    number: u32,
    used: bool,
}

impl ChildName {
    /// The key it is submitted with.
    pub(crate) fn key(&self) -> String {
        let mut key = String::from("auto:");
        for byte in &self.content[..16] {
            let _ = write!(key, "{byte:02x}");
        }
        let _ = write!(key, "-{}", self.number);
        key
    }

    /// The child is there.
    pub(crate) fn used(mut self) {
        self.used = true;
    }
}

impl Drop for ChildName {
    fn drop(&mut self) {
        if !self.used {
            self.names.give_back(&self.content, self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(number: u32) -> Args {
        Args { kind: "page".into(), node: Some(format!("page-{number}")), ..Args::default() }
    }

    fn spawn(names: &Arc<ChildNames>, number: u32) -> String {
        let name = names.name(&page(number));
        let key = name.key();
        name.used();
        key
    }

    #[test]
    fn a_second_run_uses_the_same_names_in_any_order() {
        let (first, second) = (Arc::new(ChildNames::default()), Arc::new(ChildNames::default()));
        let mut names = [1, 2, 1].map(|number| spawn(&first, number));
        let mut again = [1, 1, 2].map(|number| spawn(&second, number));
        names.sort();
        again.sort();
        assert_eq!(names, again);
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 3, "the same content twice is two children");
    }

    #[test]
    fn an_instant_does_not_change_the_name() {
        let names = [1, 2].map(|at| {
            let args = Args { delay_until: Some(at), deadline_at: Some(at), ..page(1) };
            Arc::new(ChildNames::default()).name(&args).key()
        });
        assert_eq!(names[0], names[1]);
    }

    #[test]
    fn the_name_of_a_failed_submission_is_used_next() {
        let names = Arc::new(ChildNames::default());
        let failed = names.name(&page(1));
        let other = names.name(&page(1));
        let key = failed.key();
        drop(failed);
        assert_eq!(spawn(&names, 1), key);
        assert_ne!(other.key(), key);
        other.used();
        assert!(!names.lock().is_empty());
        let forgotten = names.name(&page(2));
        drop(forgotten);
        assert_eq!(names.lock().len(), 1, "content that was never submitted leaves nothing behind");
    }
}
