//! Hooks by which a test observes a function, holds it up or breaks it.

use ff_core::journal::{StepIdentity, StepView};
use futures_util::future::BoxFuture;

use crate::task_error::TaskError;

/// A moment in the life of a step or a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Moment {
    /// The body is about to run. The beginning of a `once` step has been recorded.
    BeforeBody,
    /// The body has ended, and nothing of it is recorded.
    AfterBody,
    /// The result is recorded.
    Recorded,
    /// A sleep, a signal or a child is about to be waited for.
    BeforeWait,
}

/// Observes the functions of a worker; used by tests only.
pub(crate) trait Watcher: std::fmt::Debug + Send + Sync {
    /// The journal that a function begins with, instead of the one its claim brought.
    fn journal(&self) -> Option<Vec<StepView>> {
        None
    }

    /// A step is called, whether it runs or not.
    fn called(&self, _step: &StepIdentity) {}

    /// A person is asked about a step, because the code has changed under it or it is not known whether it happened.
    fn asked(&self, _step: &StepIdentity, _why: &str) {}

    /// A step has come to a moment. A returned error becomes the step's; a future that does not end holds the function
    /// there.
    fn reached<'a>(&'a self, moment: Moment, step: &'a StepIdentity) -> BoxFuture<'a, Result<(), TaskError>>;
}
