//! Inbound hooks: what becomes of signed messages from outside.

use serde::{Deserialize, Serialize};

use crate::condition::TIMEOUT_SIGNAL;
use crate::encoding::Blob;
use crate::error::{Code, Error, Result};
use crate::hook::{Hook, HookScheme};
use crate::id::{ExecutionId, FlowId, HookId};
use crate::limits;
use crate::op::parts::{self, NamespacePage, Secret};
use crate::op::{Created, ScheduleTemplate, create_execution, create_flow, operation};
use crate::text;

operation! {
    /// Creates an inbound hook. The same definition again is the same hook, another one a conflict.
    CreateHook(CreateHookArgs) -> CreateHookOutcome,
    "create_hook" Post "/v1/hooks" Admin administrative validated namespaced keyed creates body(parts::body_for(limits::SCHEDULE_TEMPLATE_MAX_BYTES))
}

/// The arguments of `create_hook`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateHookArgs {
    /// Its name, unique in its namespace; messages are posted to `/v1/hooks/{name}`.
    pub name: String,
    /// Where it works; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// How its sender signs; `standard` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheme: Option<HookScheme>,
    /// With what: `whsec_` and base64 for `standard`, any text for the others. Made by the server, and shown once, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Secret>,
    /// The target of a message: what it creates or signals.
    pub target: HookTarget,
}

/// The target of a message: what it creates or signals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", rename_all = "snake_case", deny_unknown_fields)]
pub enum HookTarget {
    /// An execution, whose input is the body.
    Execution(Box<create_execution::Args>),
    /// A flow. The body is the input of each of its nodes that brings none.
    Flow(Box<create_flow::Args>),
    /// A signal to an execution that is found by a tag.
    Signal(HookSignal),
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(HookTarget);

/// Which execution gets a signal, and what it is called.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct HookSignal {
    /// Where in the body the value stands that leads to the execution: a JSON pointer such as `/data/order/id`.
    pub correlation_id: String,
    /// The tag of the execution that has this value; `correlation_id` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// The name of the signal; conditions match it.
    pub name: String,
}
crate::newer::open_struct!(HookSignal);

impl HookSignal {
    /// The tag that leads to an execution.
    pub fn tag(&self) -> &str {
        self.tag.as_deref().unwrap_or("correlation_id")
    }

    /// The value in a body that leads to an execution.
    pub fn correlate(&self, body: &[u8]) -> Result<String> {
        let refuse = |why: &str| Error::invalid("body", format!("{why} at {}", self.correlation_id));
        let body: serde_json::Value =
            serde_json::from_slice(body).map_err(|error| Error::invalid("body", format!("is no JSON: {error}")))?;
        let value = match body.pointer(&self.correlation_id) {
            Some(serde_json::Value::String(text)) => text.clone(),
            Some(serde_json::Value::Number(number)) => number.to_string(),
            Some(_) => return Err(refuse("has neither a text nor a number")),
            None => return Err(refuse("has nothing")),
        };
        text::tag_value("body", &value)?;
        Ok(value)
    }
}

impl HookTarget {
    /// Refuses what nothing could be made from.
    pub fn validate(&self) -> Result<()> {
        match self {
            HookTarget::Execution(request) => {
                crate::op::check_template("target.execution", request)?;
                if request.input.is_some() || request.input_base64.is_some() {
                    return Err(Error::invalid("target.execution.input", "must be absent: the body is the input"));
                }
                request.validate().map_err(|error| error.inside("target.execution"))
            }
            HookTarget::Flow(request) => crate::op::check_flow_template("target.flow", request),
            HookTarget::Signal(signal) => {
                if !signal.correlation_id.starts_with('/') {
                    let detail = "must be a JSON pointer such as /data/order/id";
                    return Err(Error::invalid("target.signal.correlation_id", detail));
                }
                text::label("target.signal.correlation_id", &signal.correlation_id)?;
                text::tag_key("target.signal.tag", signal.tag())?;
                text::label("target.signal.name", &signal.name)?;
                if signal.name == TIMEOUT_SIGNAL {
                    let detail = format!("must not be {TIMEOUT_SIGNAL}, which stands for a timeout");
                    return Err(Error::invalid("target.signal.name", detail));
                }
                Ok(())
            }
            HookTarget::Unknown(variant) => Err(variant.refused("target")),
        }
    }

    /// The lanes that it creates work in.
    pub fn lanes(&self) -> Vec<String> {
        let template = match self {
            HookTarget::Execution(request) => ScheduleTemplate::Execution(request.clone()),
            HookTarget::Flow(request) => ScheduleTemplate::Flow(request.clone()),
            HookTarget::Signal(_) | HookTarget::Unknown(_) => return Vec::new(),
        };
        template.lanes().map(str::to_owned).collect()
    }

    /// The bytes that a hook keeps of it.
    pub fn encode(&self) -> Result<Blob> {
        let bytes = serde_json::to_vec(self).expect("requests hold only types that JSON can express");
        if bytes.len() > limits::SCHEDULE_TEMPLATE_MAX_BYTES {
            return Err(Error::too_large("target", bytes.len(), limits::SCHEDULE_TEMPLATE_MAX_BYTES));
        }
        Ok(bytes.into())
    }

    /// Reads the bytes that a hook keeps.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let read = serde_json::from_slice(bytes);
        read.map_err(|error| Error::new(Code::CorruptDocument, format!("the target of a hook: {error}")))
    }
}

impl CreateHookArgs {
    /// Refuses bad names, secrets that are too weak, and targets that nothing could be made from.
    pub fn validate(&self) -> Result<()> {
        named(&self.name, self.namespace.as_deref())?;
        if let Some(secret) = &self.secret {
            self.scheme.unwrap_or_default().read_secret("secret", &secret.0)?;
        }
        self.target.validate()
    }
}

/// The answer to `create_hook`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "outcome", rename_all = "snake_case")]
pub enum CreateHookOutcome {
    /// It was created.
    Created {
        /// The hook.
        hook_id: HookId,
        /// The secret that signs its messages, if the server made it. It is not shown again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secret: Option<Secret>,
    },
    /// It existed before, with the same definition.
    AlreadyExists {
        /// The hook.
        hook_id: HookId,
    },
    /// A variant of a newer server.
    #[serde(skip)]
    Unknown(crate::newer::Variant),
}
crate::newer::open_enum!(CreateHookOutcome);

impl CreateHookOutcome {
    /// The hook, if this call created it.
    pub fn created(&self) -> Created {
        if matches!(self, Self::Created { .. }) { Created::AsNamed } else { Created::Nothing }
    }
}

operation! {
    /// Shows an inbound hook without its secret.
    GetHook(HookName) -> HookView,
    "get_hook" Get "/v1/hooks/{name}" Reader validated namespaced
}

operation! {
    /// Removes an inbound hook: messages to it are refused from then on.
    DeleteHook(HookName) -> DeleteHookOutcome,
    "delete_hook" Delete "/v1/hooks/{name}" Admin administrative validated namespaced keyed
}

/// The arguments of `delete_hook`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HookName {
    /// The hook.
    pub name: String,
    /// Where it works; the caller's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl HookName {
    /// Refuses bad names.
    pub fn validate(&self) -> Result<()> {
        named(&self.name, self.namespace.as_deref())
    }
}

/// The answer to `delete_hook`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DeleteHookOutcome {
    /// The hook that is gone.
    pub hook_id: HookId,
}

operation! {
    /// Lists inbound hooks by name, without their secrets.
    ListHooks(NamespacePage) -> ListHooksOutcome,
    "list_hooks" Get "/v1/hooks" Reader validated filtered namespaced
}

/// The answer to `list_hooks`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListHooksOutcome {
    /// The hooks.
    pub items: Vec<HookView>,
    /// Where the next page begins, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// Everything about a hook but its secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HookView {
    /// Its id.
    pub hook_id: HookId,
    /// Where it works.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// How its sender signs.
    pub scheme: HookScheme,
    /// The target of a message: what it creates or signals.
    pub target: HookTarget,
    /// The name of the caller that created it.
    pub created_by: String,
    /// When it was created.
    pub created_at: i64,
}

impl HookView {
    /// The view of a hook.
    pub fn of(hook: &Hook) -> Result<Self> {
        Ok(Self {
            hook_id: hook.id,
            namespace: hook.namespace.clone(),
            name: hook.name.clone(),
            scheme: hook.scheme,
            target: HookTarget::decode(&hook.target)?,
            created_by: hook.created_by.clone(),
            created_at: hook.created_at,
        })
    }
}

/// The receipt for a message to a hook.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HookReceipt {
    /// It had its effect before.
    pub duplicate: bool,
    /// The execution that was created or signalled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_id: Option<ExecutionId>,
    /// The flow that was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flow_id: Option<FlowId>,
}

fn named(name: &str, namespace: Option<&str>) -> Result<()> {
    text::name("name", name)?;
    parts::optional(namespace, "namespace", text::name)
}
