//! Why a command did not succeed: a sentence, the next step, and an exit code.

use ff_core::{Class, Code};
use flowfabric::SdkError;
use serde_json::{Map, Value, json};

/// The execution ended, but not well.
pub(crate) const ENDED_WITHOUT_SUCCESS: u8 = 10;
/// The awaited event did not happen in time.
pub(crate) const TIME_RAN_OUT: u8 = 11;
/// The doctor found something to change.
pub(crate) const WARNINGS: u8 = 12;
/// A question was answered with no, or could not be asked.
pub(crate) const NOT_CONFIRMED: u8 = 13;

/// A budget refused what was spent: its hard limit is met.
pub(crate) const BUDGET_SPENT: u8 = 14;
/// The awaited event has happened already: go on.
pub(crate) const GO_ON: u8 = 15;

/// A command's result.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code of the process.
    pub(crate) exit_code: u8,
    /// `None` when everything was said already, or the reader has gone: only the exit code is left.
    said: Option<Box<Said>>,
}

#[derive(Debug)]
struct Said {
    /// The code of the error table, or a word of ours.
    code: String,
    message: String,
    details: Map<String, Value>,
    /// Advice for the next step.
    advice: Option<String>,
}

impl Failure {
    /// The user's arguments make no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Class::Invalid.exit_code(), "usage", message)
    }

    /// A failure with a word of ours.
    pub(crate) fn new(exit_code: u8, code: &str, message: impl Into<String>) -> Self {
        let said = Said { code: code.to_owned(), message: message.into(), details: Map::new(), advice: None };
        Self { exit_code, said: Some(Box::new(said)) }
    }

    /// A refusal with a code of the table.
    pub(crate) fn of(code: Code, message: impl Into<String>) -> Self {
        let advice = next_step(code).unwrap_or(code.advice());
        Self::new(code.class().exit_code(), code.as_str(), message).advice(advice)
    }

    /// Only an exit code: the answer that was printed says the rest.
    pub(crate) fn silent(exit_code: u8) -> Self {
        Self { exit_code, said: None }
    }

    /// Says what to do next.
    pub(crate) fn advice(mut self, advice: impl Into<String>) -> Self {
        if let Some(said) = &mut self.said {
            said.advice = Some(advice.into());
        }
        self
    }

    /// Adds a detail for programs.
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        if let Some(said) = &mut self.said {
            said.details.insert(name.to_owned(), value.into());
        }
        self
    }

    /// Names what it is about, where a command is about several things.
    pub(crate) fn about(mut self, what: impl std::fmt::Display) -> Self {
        if let Some(said) = &mut self.said {
            let message = std::mem::take(&mut said.message);
            said.message = format!("{what}: {message}");
            said.details.insert("about".to_owned(), json!(what.to_string()));
        }
        self
    }

    /// The text for people.
    pub(crate) fn text(&self) -> Option<String> {
        let said = self.said.as_ref()?;
        let advice = said.advice.as_ref().map(|advice| format!("\n  {advice}")).unwrap_or_default();
        let coded = Code::parse(&said.code).is_some() && !said.message.ends_with(&words(&said.code));
        let code = if coded { format!(" ({})", said.code) } else { String::new() };
        Some(format!("ff: {}{code}{advice}", said.message))
    }

    /// The JSON for programs.
    pub(crate) fn json(&self) -> Option<Value> {
        let said = self.said.as_ref()?;
        let mut error = json!({ "code": said.code, "message": said.message, "exit_code": self.exit_code });
        if let Some(advice) = &said.advice {
            error["advice"] = json!(advice);
        }
        if !said.details.is_empty() {
            error["details"] = Value::Object(said.details.clone());
        }
        Some(json!({ "error": error }))
    }
}

impl From<SdkError> for Failure {
    fn from(error: SdkError) -> Self {
        match error {
            SdkError::Refused(error) => {
                // Some refusals have no sentence of their own but their code's advice, which is said anyway.
                let said = error.detail != error.code.advice();
                let message = if said { error.detail } else { words(error.code.as_str()) };
                let mut failure = Self::of(error.code, message);
                for (name, value) in error.details {
                    failure = failure.with(&name, value);
                }
                if let Some(retry_after_ms) = error.retry_after_ms {
                    failure = failure.with("retry_after_ms", retry_after_ms);
                }
                failure
            }
            SdkError::Unreachable(why) => {
                Self::new(Class::Unavailable.exit_code(), "unreachable", format!("the server cannot be reached: {why}"))
                    .advice("Start one with `ff server`, or name another with --server, FF_SERVER or a profile.")
            }
            SdkError::NotCompleted { execution_id, public_state, failure } => {
                let why = failure.map(|failure| format!(": {}", failure.reason)).unwrap_or_default();
                Self::new(
                    ENDED_WITHOUT_SUCCESS,
                    "ended_without_success",
                    format!("execution {execution_id} is {public_state}{why}"),
                )
                .advice(format!(
                    "`ff get {execution_id} --attempts` shows its attempts, `ff replay {execution_id}` runs it again."
                ))
            }
            SdkError::Config { .. } | SdkError::Payload { .. } => Self::usage(error.to_string()),
            other => Self::new(Class::Internal.exit_code(), "internal", other.to_string())
                .advice("Compare `ff --version` with the server's: `ff doctor`."),
        }
    }
}

/// The reader of our output may stop reading.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            return Self::silent(0);
        }
        Self::new(Class::Internal.exit_code(), "internal", format!("the output cannot be written: {error}"))
    }
}

/// A code as words.
fn words(code: &str) -> String {
    code.replace('_', " ")
}

/// The command to type next, where it says more than the advice of the table.
fn next_step(code: Code) -> Option<&'static str> {
    Some(match code {
        Code::ExecutionNotFound => "`ff ls` lists what there is; check the id and --namespace.",
        Code::FlowNotFound => "`ff flow ls` lists what there is; check the id and --namespace.",
        Code::BudgetNotFound => "`ff budget ls` lists what there is; `ff budget create` makes one.",
        Code::ProviderNotFound => "`ff provider ls` lists what there is; `ff provider create` makes one.",
        Code::QuotaNotFound => "`ff quota ls` lists what there is; `ff quota create` makes one.",
        Code::ScheduleNotFound => "`ff schedule ls` lists what there is; `ff schedule create` makes one.",
        Code::BulkNotFound => "`ff bulk ls` lists what there is; one that has ended is forgotten after the retention.",
        Code::SubscriptionNotFound => "`ff subscription ls` lists what there is; `ff subscription create` makes one.",
        Code::HookNotFound => "`ff hook ls` lists what there is; `ff hook create` makes one.",
        Code::LaneNotFound => "`ff lane ls` lists the lanes of this deployment.",
        Code::WorkerNotFound => "`ff worker ls` lists the live workers.",
        Code::TokenNotFound => "`ff token ls` lists the tokens.",
        Code::ResultNotReady => "`ff wait` waits for it, `ff explain` says why it is not running.",
        Code::NoResult => "`ff get` shows what went wrong last, `ff replay` runs it again.",
        Code::ExecutionNotTerminal => "`ff cancel` ends it first.",
        Code::ExecutionTerminal => "`ff replay` runs it again.",
        Code::ExecutionNotSuspended | Code::TargetNotSignalable => "`ff get` shows its state.",
        Code::LaneDisabled => "`ff lane resume` opens it, --lane names another.",
        Code::Invalid => "`--help` says what the command takes.",
        Code::Unavailable => "Check the address, and that the store behind it runs.",
        Code::RouteNotFound => "`ff call --list` lists the operations.",
        Code::Unauthenticated => {
            "The token is missing or not valid here: --token, --token-file, FF_TOKEN or a profile gives one."
        }
        Code::Forbidden => "Use a token with a stronger role; `ff token create` makes one.",
        Code::DefinitionConflict => "Choose another name, or change the one that is there.",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_of_the_table_has_a_step_and_its_class_exit_code() {
        for code in Code::ALL {
            let failure = Failure::of(*code, "why");
            assert_eq!(failure.exit_code, code.class().exit_code());
            assert!(failure.text().unwrap().lines().count() == 2, "{code}");
        }
    }

    #[test]
    fn nothing_is_said_twice() {
        let bare = Failure::from(SdkError::Refused(flowfabric::Error::of(Code::RotationConflict)));
        assert_eq!(bare.text().unwrap(), format!("ff: rotation conflict\n  {}", Code::RotationConflict.advice()));
        let said = Failure::from(SdkError::Refused(flowfabric::Error::new(Code::RotationConflict, "k2 is taken")));
        assert!(said.text().unwrap().starts_with("ff: k2 is taken (rotation_conflict)\n"));
    }

    #[test]
    fn our_own_exit_codes_are_none_of_the_table() {
        for own in [ENDED_WITHOUT_SUCCESS, TIME_RAN_OUT, WARNINGS, NOT_CONFIRMED, BUDGET_SPENT, GO_ON] {
            assert!(Code::ALL.iter().all(|code| code.class().exit_code() != own));
        }
    }

    #[test]
    fn whoever_stops_reading_is_no_failure() {
        let failure = Failure::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert_eq!((failure.exit_code, failure.text(), failure.json()), (0, None, None));
    }
}
