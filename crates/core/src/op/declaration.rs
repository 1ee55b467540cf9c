//! The declaration of an operation: its route, its role, where its namespace is, how a repeat is recognised, whether it
//! waits, and how it answers. Routes, clients, metrics and the API description are all derived from it.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api_token::Role;
use crate::error::{Code, Result};
use crate::id::{ExecutionId, Mint, Rising};
use crate::limits;
use crate::op::parts::Content;
use crate::op::view::Task;
use crate::op::wire;
use crate::partition::PartitionConfig;

/// A public operation.
pub trait Operation: Send + Sync + 'static {
    /// The verb: the name of its span, its metric and its audit records.
    const NAME: &'static str;
    /// The documentation of the operation: a sentence or two.
    const SUMMARY: &'static str;
    /// The HTTP method.
    const METHOD: Method;
    /// The HTTP path, with the names of arguments in braces.
    const PATH: &'static str;
    /// The least role that may call it; see [`Operation::role`].
    const ROLE: Role;
    /// Whether a call leaves an audit record; see [`Operation::is_audited`].
    const ADMINISTRATIVE: bool = false;
    /// Whether some of its calls leave an audit record.
    const AUDITED: bool = Self::ADMINISTRATIVE;
    /// Whether callers of every role may call it, even those that may not read.
    const ANY_ROLE: bool = false;
    /// Whether a submitter may call it for executions that it submitted itself.
    const OWN: bool = false;
    /// The code with which arguments that cannot be read are refused.
    const UNREADABLE: Code = Code::Invalid;
    /// The largest HTTP body.
    const BODY_MAX_BYTES: usize = limits::BODY_MAX_BYTES;
    /// Whether its arguments name a namespace. If they leave it out, the caller's default applies; see
    /// [`Operation::set_default_namespace`].
    const NAMESPACED: bool = false;
    /// The field that makes a repeat the same call, and that the HTTP header `Idempotency-Key` may fill.
    const IDENTITY_FIELD: Option<&'static str> = None;
    /// Whether viewers keep its calls open or repeat them often: a server bounds how many are under way at once.
    const WATCHING: bool = false;
    /// The form of its answer over HTTP.
    const REPLY: ReplyKind = ReplyKind::Json;
    /// Whether a server also offers its answers as server-sent events.
    const EVENT_STREAM: bool = false;
    /// Whether a call creates one thing, which stands under its own path; see [`Operation::created`].
    const CREATES: bool = false;
    /// Whether the token of a waitpoint is authority enough to call it.
    const WAITPOINT_TOKEN: bool = false;
    /// The path of the operation that takes the bodies of several calls of this one as a list, and answers with a result for
    /// each.
    const GATHERED_AT: Option<&'static str> = None;

    /// The arguments of a call.
    type Args: Serialize + DeserializeOwned + Described + Clone + std::fmt::Debug + Send + Sync + 'static;
    /// The answer.
    type Outcome: Serialize + DeserializeOwned + Described + Clone + std::fmt::Debug + Send + Sync + 'static;

    /// The call as an HTTP request.
    fn write(args: &Self::Args) -> Result<wire::WireRequest>;

    /// The arguments as JSON.
    fn to_text(args: &Self::Args) -> serde_json::Result<String>;

    /// Reads the JSON of arguments.
    fn from_text(text: &str) -> serde_json::Result<Self::Args>;

    /// The answer as JSON.
    fn answer(outcome: &Self::Outcome) -> serde_json::Result<Vec<u8>>;

    /// Reads the JSON of an answer.
    fn read(answer: &[u8]) -> serde_json::Result<Self::Outcome>;

    /// Refuses arguments that are wrong whatever the state of the system.
    fn validate(_args: &Self::Args) -> Result<()> {
        Ok(())
    }

    /// Whether this very call leaves an audit record.
    fn is_audited(_args: &Self::Args) -> bool {
        Self::ADMINISTRATIVE
    }

    /// The least role for these very arguments: some prove a right of their own, such as a lease.
    fn role(_args: &Self::Args) -> Role {
        Self::ROLE
    }

    /// Whether callers of every role may make this very call: the token of a waitpoint is authority enough.
    fn takes_any_role(_args: &Self::Args) -> bool {
        Self::ANY_ROLE
    }

    /// Names the namespace where the arguments name none.
    fn set_default_namespace(_args: &mut Self::Args, _namespace: &str) {}

    /// Gives the call an identity if its caller gave it none, so that a repeat is recognised. An operation that does
    /// nothing here needs none: its fence, number or name makes a repeat harmless.
    fn identify(_args: &mut Self::Args, _minting: &Minting<'_>) {}

    /// Whether the call needs an identity beside its arguments, because these have no field for one and a repeat might
    /// undo another caller's change.
    fn needs_key(_args: &Self::Args) -> bool {
        false
    }

    /// Marks in the arguments that the call repeats one whose answer may have been lost.
    fn mark_repeat(_args: &mut Self::Args) {}

    /// How long the call asks to wait before it is answered.
    fn wait_ms(_args: &Self::Args) -> u64 {
        0
    }

    /// Refuses arguments that only a caller in the engine's own process may use.
    fn check_remote(_args: &Self::Args) -> Result<()> {
        Ok(())
    }

    /// The answer as HTTP sends it.
    fn reply(_outcome: &Self::Outcome) -> Reply<'_> {
        Reply::Json
    }

    /// The outcome that a reply without a body stands for.
    fn read_nothing() -> Option<Self::Outcome> {
        None
    }

    /// The thing that the call created, now and not by an earlier call.
    fn created(_outcome: &Self::Outcome) -> Created {
        Created::Nothing
    }

    /// The execution that the answer is about, for traces of calls whose arguments do not name it.
    fn execution(_outcome: &Self::Outcome) -> Option<ExecutionId> {
        None
    }

    /// The tasks whose attempts begin with this answer, for traces.
    fn handed_out(_outcome: &Self::Outcome) -> &[Task] {
        &[]
    }
}

/// The types of arguments and answers: with the feature `schema` they know their JSON schema.
#[cfg(feature = "schema")]
pub trait Described: schemars::JsonSchema {}
#[cfg(feature = "schema")]
impl<T: schemars::JsonSchema> Described for T {}

/// The types of arguments and answers. Without the feature `schema` they know no JSON schema.
#[cfg(not(feature = "schema"))]
pub trait Described {}
#[cfg(not(feature = "schema"))]
impl<T> Described for T {}

/// The sources of the ids of a new call; core itself has neither a clock nor randomness.
#[derive(Clone, Copy)]
pub struct Minting<'a> {
    /// How the deployment is partitioned.
    pub partitions: &'a PartitionConfig,
    /// An instant with random bits.
    pub mint: fn() -> Mint,
    /// Makes ids rise in the order of submission.
    pub rising: &'a Rising,
}

impl Minting<'_> {
    /// An instant with random bits.
    pub fn fresh(&self) -> Mint {
        (self.mint)()
    }

    /// The values for an id that is greater than every earlier one.
    pub fn next(&self) -> Mint {
        self.rising.next(self.fresh())
    }

    /// A text that no other call has.
    pub fn unique(&self) -> String {
        self.fresh().uuid().to_string()
    }
}

impl std::fmt::Debug for Minting<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Minting").field("partitions", self.partitions).finish_non_exhaustive()
    }
}

/// The form of an operation's answers over HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyKind {
    /// JSON.
    Json,
    /// JSON, or no body at all.
    JsonOrNothing,
    /// The bytes of the content, or JSON for a caller that accepts it.
    Bytes,
}

/// An answer over HTTP.
#[derive(Debug, Clone, Copy)]
pub enum Reply<'a> {
    /// The answer as JSON.
    Json,
    /// No body.
    Nothing,
    /// These bytes.
    Bytes(&'a Content),
}

/// The thing that a call created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Created {
    /// Nothing: the thing was there before.
    Nothing,
    /// Something with this id.
    Id(String),
    /// The thing that the arguments name.
    AsNamed,
}

/// An HTTP method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    /// Reads.
    Get,
    /// Acts.
    Post,
    /// Sets.
    Put,
    /// Removes.
    Delete,
}

impl Method {
    /// Its name in a request.
    pub const fn as_str(self) -> &'static str {
        match self {
            Method::Get => "GET",
            Method::Post => "POST",
            Method::Put => "PUT",
            Method::Delete => "DELETE",
        }
    }
}

/// The declaration of an operation without its types.
#[derive(Debug, Clone, Copy)]
pub struct OperationInfo {
    /// See [`Operation::NAME`].
    pub name: &'static str,
    /// See [`Operation::SUMMARY`].
    pub summary: &'static str,
    /// See [`Operation::METHOD`].
    pub method: Method,
    /// See [`Operation::PATH`].
    pub path: &'static str,
    /// See [`Operation::ROLE`].
    pub role: Role,
    /// See [`Operation::ADMINISTRATIVE`].
    pub administrative: bool,
    /// See [`Operation::AUDITED`].
    pub audited: bool,
    /// See [`Operation::ANY_ROLE`].
    pub any_role: bool,
    /// See [`Operation::OWN`].
    pub own: bool,
    /// See [`Operation::BODY_MAX_BYTES`].
    pub body_max_bytes: usize,
    /// See [`Operation::NAMESPACED`].
    pub namespaced: bool,
    /// See [`Operation::IDENTITY_FIELD`].
    pub identity_field: Option<&'static str>,
    /// See [`Operation::WATCHING`].
    pub watching: bool,
    /// See [`Operation::REPLY`].
    pub reply: ReplyKind,
    /// See [`Operation::EVENT_STREAM`].
    pub event_stream: bool,
    /// See [`Operation::CREATES`].
    pub creates: bool,
    /// See [`Operation::WAITPOINT_TOKEN`].
    pub waitpoint_token: bool,
    /// The JSON schema of the arguments.
    #[cfg(feature = "schema")]
    pub args_schema: fn(&mut schemars::SchemaGenerator) -> schemars::Schema,
    /// The JSON schema of the answer.
    #[cfg(feature = "schema")]
    pub outcome_schema: fn(&mut schemars::SchemaGenerator) -> schemars::Schema,
}

impl OperationInfo {
    /// The declaration of this operation.
    pub const fn of<O: Operation>() -> Self {
        Self {
            name: O::NAME,
            summary: O::SUMMARY,
            method: O::METHOD,
            path: O::PATH,
            role: O::ROLE,
            administrative: O::ADMINISTRATIVE,
            audited: O::AUDITED,
            any_role: O::ANY_ROLE,
            own: O::OWN,
            body_max_bytes: O::BODY_MAX_BYTES,
            namespaced: O::NAMESPACED,
            identity_field: O::IDENTITY_FIELD,
            watching: O::WATCHING,
            reply: O::REPLY,
            event_stream: O::EVENT_STREAM,
            creates: O::CREATES,
            waitpoint_token: O::WAITPOINT_TOKEN,
            #[cfg(feature = "schema")]
            args_schema: schemars::SchemaGenerator::subschema_for::<O::Args>,
            #[cfg(feature = "schema")]
            outcome_schema: schemars::SchemaGenerator::subschema_for::<O::Outcome>,
        }
    }

    /// The names in braces in the path.
    pub fn path_parameters(&self) -> impl Iterator<Item = &'static str> {
        path_parameters(self.path)
    }
}

/// The names in braces in the path of an operation.
pub fn path_parameters(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}

/// Declares an operation beside its arguments and its answer: `Type(Args) -> Outcome, "verb" Method "path" Role`, then
/// any of these words:
///
/// * `administrative`: it leaves an audit record. `filtered`: unreadable arguments are `invalid_filter`.
/// * `validated`, `with_roles`, `audited`: the arguments have a method `validate`, `role`, `is_audited`.
/// * `any_role`, `own`, `waitpoint_token`: see the constants of [`Operation`].
/// * `body(bytes)`: the largest HTTP body. `watching`, `event_stream`: see the constants of [`Operation`].
/// * `namespaced`: the arguments have a field `namespace`; `namespaced(method)`: this method of theirs sets it.
/// * `identified`: the arguments have a method `identify`; `identified("field")`: and this is the field it fills.
/// * `keyed`, `keyed(method)`: a call needs a key beside its arguments, always or if this method of theirs says so.
/// * `gathered(Operation)`: that operation takes several of its calls at once.
/// * `marks_repeats`: the arguments have a method `mark_repeat`.
/// * `waits`, `waits(field)`: the arguments have a method `wait_ms`, or this field says how long.
/// * `checked_remote`: the arguments have a method `check_remote`.
/// * `answers_bytes`: the answer is a [`Content`]. `answers_nothing`: an answer equal to its default has no body.
/// * `creates`, `about_execution`, `hands_out`: the answer has a method `created`, `execution`, `handed_out`.
macro_rules! operation {
    ($(#[doc = $doc:literal])* $name:ident($args:ident) -> $outcome:ident, $verb:literal $method:ident $path:literal $role:ident $($special:ident $(($($value:tt)*))?)*) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name;

        impl $crate::op::Operation for $name {
            const NAME: &'static str = $verb;
            const SUMMARY: &'static str = concat!($($doc),*).trim_ascii();
            const METHOD: $crate::op::Method = $crate::op::Method::$method;
            const PATH: &'static str = $path;
            const ROLE: $crate::api_token::Role = $crate::api_token::Role::$role;
            $( $crate::op::operation!(@ $special $(($($value)*))?); )*
            type Args = $args;
            type Outcome = $outcome;

            // These are written here and not as defaults of the trait, so that they are compiled once and not by every
            // calling crate.
            fn write(args: &$args) -> $crate::error::Result<$crate::op::wire::WireRequest> {
                $crate::op::wire::write::<Self>(args)
            }

            fn to_text(args: &$args) -> ::serde_json::Result<String> {
                ::serde_json::to_string(args)
            }

            fn from_text(text: &str) -> ::serde_json::Result<$args> {
                ::serde_json::from_str(text)
            }

            fn answer(outcome: &$outcome) -> ::serde_json::Result<Vec<u8>> {
                ::serde_json::to_vec(outcome)
            }

            fn read(answer: &[u8]) -> ::serde_json::Result<$outcome> {
                // Read from a text, as arguments are, so that types that both contain are compiled once.
                let text = $crate::encoding::answer_text(answer)?;
                $crate::encoding::read_answer(|| ::serde_json::from_str(text))
            }
        }
    };
    (@ any_role) => { const ANY_ROLE: bool = true; };
    (@ own) => { const OWN: bool = true; };
    (@ audited) => {
        const AUDITED: bool = true;
        fn is_audited(args: &Self::Args) -> bool {
            args.is_audited()
        }
    };
    (@ administrative) => { const ADMINISTRATIVE: bool = true; };
    (@ filtered) => { const UNREADABLE: $crate::error::Code = $crate::error::Code::InvalidFilter; };
    (@ validated) => {
        fn validate(args: &Self::Args) -> $crate::error::Result<()> {
            args.validate()
        }
    };
    (@ with_roles) => {
        fn role(args: &Self::Args) -> $crate::api_token::Role {
            args.role()
        }
    };
    (@ body ($value:expr)) => { const BODY_MAX_BYTES: usize = $value; };
    (@ watching) => { const WATCHING: bool = true; };
    (@ event_stream) => { const EVENT_STREAM: bool = true; };
    (@ namespaced) => {
        const NAMESPACED: bool = true;
        fn set_default_namespace(args: &mut Self::Args, namespace: &str) {
            args.namespace.get_or_insert_with(|| namespace.to_owned());
        }
    };
    (@ namespaced ($method:ident)) => {
        const NAMESPACED: bool = true;
        fn set_default_namespace(args: &mut Self::Args, namespace: &str) {
            args.$method(namespace);
        }
    };
    (@ identified) => {
        fn identify(args: &mut Self::Args, minting: &$crate::op::Minting<'_>) {
            args.identify(minting);
        }
    };
    (@ identified ($field:literal)) => {
        const IDENTITY_FIELD: Option<&'static str> = Some($field);
        $crate::op::operation!(@ identified);
    };
    (@ keyed) => {
        fn needs_key(_args: &Self::Args) -> bool {
            true
        }
    };
    (@ keyed ($method:ident)) => {
        fn needs_key(args: &Self::Args) -> bool {
            args.$method()
        }
    };
    (@ gathered ($operation:ident)) => {
        const GATHERED_AT: Option<&'static str> = Some(<$operation as $crate::op::Operation>::PATH);
    };
    (@ marks_repeats) => {
        fn mark_repeat(args: &mut Self::Args) {
            args.mark_repeat();
        }
    };
    (@ waits ($field:ident)) => {
        fn wait_ms(args: &Self::Args) -> u64 {
            args.$field.and_then(|wait_ms| wait_ms.try_into().ok()).unwrap_or(0)
        }
    };
    (@ checked_remote) => {
        fn check_remote(args: &Self::Args) -> $crate::error::Result<()> {
            args.check_remote()
        }
    };
    (@ answers_bytes) => {
        const REPLY: $crate::op::ReplyKind = $crate::op::ReplyKind::Bytes;
        fn reply(outcome: &Self::Outcome) -> $crate::op::Reply<'_> {
            $crate::op::Reply::Bytes(outcome)
        }
    };
    (@ answers_nothing) => {
        const REPLY: $crate::op::ReplyKind = $crate::op::ReplyKind::JsonOrNothing;
        fn reply(outcome: &Self::Outcome) -> $crate::op::Reply<'_> {
            match *outcome == Self::Outcome::default() {
                true => $crate::op::Reply::Nothing,
                false => $crate::op::Reply::Json,
            }
        }
        fn read_nothing() -> Option<Self::Outcome> {
            Some(Self::Outcome::default())
        }
    };
    (@ waits) => {
        fn wait_ms(args: &Self::Args) -> u64 {
            args.wait_ms()
        }
    };
    (@ waitpoint_token) => {
        const WAITPOINT_TOKEN: bool = true;
        fn takes_any_role(args: &Self::Args) -> bool {
            args.token.is_some()
        }
    };
    (@ creates) => {
        const CREATES: bool = true;
        fn created(outcome: &Self::Outcome) -> $crate::op::Created {
            outcome.created()
        }
    };
    (@ about_execution) => {
        fn execution(outcome: &Self::Outcome) -> Option<$crate::id::ExecutionId> {
            outcome.execution()
        }
    };
    (@ hands_out) => {
        fn handed_out(outcome: &Self::Outcome) -> &[$crate::op::view::Task] {
            outcome.handed_out()
        }
    };
}
pub(crate) use operation;
