//! The meaning of a program's exit status for its task.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use flowfabric::policy::PERMANENT;

/// "Not now": a failure that is worth another try later.
const RETRY_LATER: i32 = 75;
/// "Never": a failure that no retry would change.
const DO_NOT_RETRY: i32 = 65;

/// The table, for the help text.
pub(crate) const TABLE: &str = "\
Exit codes of the program:
    0  completed; standard output is the result, as JSON if it is JSON
   65  failed for good, category `permanent`: not retried if submitted with ff
   75  failed for now, category `retry_later`: retried after `ff task retry-after`, or the policy's backoff
    n  failed, category `exit_<n>`: retried as the policy says
       killed by signal n: failed, category `signal_<n>`
       cannot be started: failed, category `not_runnable`
The reason of a failure is the last line of standard error.";

/// How a task ends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With what the program printed.
    Complete,
    /// In failure.
    Fail {
        /// The policy decides by it.
        category: String,
        /// The program wants to be asked again later.
        later: bool,
    },
}

impl Ending {
    pub(crate) fn of(status: ExitStatus) -> Self {
        let fail = |category: String| Ending::Fail { category, later: false };
        match (status.code(), status.signal()) {
            (Some(0), _) => Ending::Complete,
            (Some(RETRY_LATER), _) => Ending::Fail { category: "retry_later".into(), later: true },
            (Some(DO_NOT_RETRY), _) => fail(PERMANENT.into()),
            (Some(code), _) => fail(format!("exit_{code}")),
            (None, Some(signal)) => fail(format!("signal_{signal}")),
            (None, None) => fail("exit_unknown".into()),
        }
    }
}

/// A reason that people can read: what happened, and the last words of the program.
pub(crate) fn reason(status: ExitStatus, last_words: &str) -> String {
    let what = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended in an unknown way".to_owned(),
    };
    if last_words.is_empty() { what } else { format!("{what}: {last_words}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn every_status_has_its_ending() {
        assert_eq!(Ending::of(exit(0)), Ending::Complete);
        let fail = |category: &str, later| Ending::Fail { category: category.into(), later };
        assert_eq!(Ending::of(exit(75)), fail("retry_later", true));
        assert_eq!(Ending::of(exit(65)), fail("permanent", false));
        assert_eq!(Ending::of(exit(3)), fail("exit_3", false));
        assert_eq!(Ending::of(ExitStatus::from_raw(9)), fail("signal_9", false));
    }

    #[test]
    fn a_reason_says_what_happened_and_the_last_words() {
        assert_eq!(reason(exit(3), ""), "exit code 3");
        assert_eq!(reason(ExitStatus::from_raw(15), "bye"), "killed by signal 15: bye");
    }
}
