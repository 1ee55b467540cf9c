//! On whose behalf an operation runs, and what that caller may reach.

use ff_core::execution::Execution;
use ff_core::{Code, Error, Result, Role};

/// The name of a caller that has nothing but a waitpoint's token.
pub(crate) const WAITPOINT_TOKEN: &str = "waitpoint_token";

/// How well a caller is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Standing {
    /// The caller has nothing to prove: it is the process itself, or calls a server without tokens. It is believed when
    /// it names senders of signals.
    #[default]
    Open,
    /// It has an API token, and is known by the token's name.
    Token,
    /// It has an API token and is believed when it names the sender of a signal.
    Relay,
    /// It has no API token. All it may do is to use a waitpoint's.
    Stranger,
}

/// On whose behalf an operation runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Its name, for the audit log.
    pub name: String,
    /// The one namespace it may see; `None` for all.
    pub namespace: Option<String>,
    /// Its role.
    pub role: Role,
    /// Its own name for this very call, so that a repeat is the same call; `None` where it gives none.
    pub idempotency_key: Option<String>,
    /// How much is known of it.
    pub standing: Standing,
    /// The lanes that it submits to, claims from and acts on; all when empty.
    pub lanes: Vec<String>,
    /// When its stored API token was made, which tells it from a later one of the same name; 0 where it has none.
    pub token_created_at: i64,
    /// The configured token it has: the name of such a token may differ between servers and change at any restart.
    pub configured_token: Option<[u8; 16]>,
    /// Its role does not reach this operation, and it may carry it out for what it submitted itself.
    pub only_own: bool,
}

impl Caller {
    /// A caller that is believed what it says, with every right of a role.
    pub fn new(name: impl Into<String>, namespace: Option<String>, role: Role) -> Self {
        Self {
            name: name.into(),
            namespace,
            role,
            idempotency_key: None,
            standing: Standing::Open,
            lanes: Vec::new(),
            token_created_at: 0,
            configured_token: None,
            only_own: false,
        }
    }

    /// The process itself: everything is allowed.
    pub fn system() -> Self {
        Self::new("system", None, Role::Admin)
    }

    /// A caller without an API token that has a waitpoint's.
    pub fn stranger() -> Self {
        Self { standing: Standing::Stranger, ..Self::new(WAITPOINT_TOKEN, None, Role::Reader) }
    }

    /// What tells the keys of this caller's calls from those of others: its token, whatever the name of that is.
    pub(crate) fn key_scope(&self) -> &[u8] {
        self.configured_token.as_ref().map_or(self.name.as_bytes(), |id| id.as_slice())
    }

    /// The namespace an operation works in: the one asked for, if the caller may see it.
    pub(crate) fn namespace(&self, asked: Option<&str>) -> Result<String> {
        match (asked, &self.namespace) {
            (None, None) => Ok(ff_core::execution::DEFAULT_NAMESPACE.to_owned()),
            (None, Some(own)) => Ok(own.clone()),
            (Some(asked), own) => {
                ff_core::text::name("namespace", asked)?;
                if own.as_ref().is_none_or(|own| own == asked) {
                    return Ok(asked.to_owned());
                }
                Err(Error::new(Code::Forbidden, format!("this token does not reach namespace {asked:?}")))
            }
        }
    }

    /// The namespace in which an operation makes, changes or takes away a limit. Work of every lane may be under it, so
    /// that a caller that is limited to lanes is refused.
    pub(crate) fn namespace_of_limits(&self, asked: Option<&str>) -> Result<String> {
        let namespace = self.namespace(asked)?;
        self.check_every_lane()?;
        Ok(namespace)
    }

    /// Whether the caller's token is good for a lane.
    pub fn reaches(&self, lane: &str) -> bool {
        is_among(&self.lanes, lane)
    }

    /// Refuses a lane that the caller's token is not good for.
    pub(crate) fn check_lane(&self, lane: &str) -> Result<()> {
        check_lane_among(&self.lanes, lane)
    }

    /// The name that an execution keeps of its submitter: empty where the caller may do more than submit anyway.
    pub(crate) fn submitter(&self) -> String {
        if self.role == Role::Submitter { self.name.clone() } else { String::new() }
    }

    /// Whether the caller submitted an execution, as far as that was written down.
    pub(crate) fn submitted(&self, execution: &Execution) -> bool {
        !execution.submitted_by.is_empty() && execution.submitted_by == self.name
    }

    /// Refuses an act on the whole deployment or namespace to a caller that is limited to lanes.
    pub(crate) fn check_every_lane(&self) -> Result<()> {
        if self.lanes.is_empty() {
            return Ok(());
        }
        Err(Error::new(Code::Forbidden, "this reaches every lane, and the token some only").with("lanes", &self.lanes))
    }

    /// Whether the caller is shown the ids of leases. With one of them it could act in the place of its holder.
    pub(crate) fn sees_fences(&self) -> bool {
        self.role.allows(Role::Operator)
    }

    /// Whether something of this namespace exists for the caller.
    pub fn sees(&self, namespace: &str) -> bool {
        self.namespace.as_ref().is_none_or(|own| own == namespace)
    }
}

/// Whether a token with these lanes is good for one; without any it is good for all.
fn is_among(lanes: &[String], lane: &str) -> bool {
    lanes.is_empty() || lanes.iter().any(|one| one == lane)
}

/// Refuses a lane that a token with these lanes is not good for.
pub(crate) fn check_lane_among(lanes: &[String], lane: &str) -> Result<()> {
    if is_among(lanes, lane) {
        return Ok(());
    }
    let detail = format!("this token does not reach lane {lane:?}");
    Err(Error::new(Code::Forbidden, detail).with("lane", lane))
}
