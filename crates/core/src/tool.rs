//! Tools: kinds of work that agents may call. A worker says what its kinds take and give; what it said stays when it is
//! gone, so that a call that comes back after a crash still knows what it called.

use serde::{Deserialize, Serialize};

use crate::answer_schema::AnswerSchema;
use crate::encoding::{Document, JsonText};
use crate::error::{Error, Result};
use crate::index::{self, Indexed, kind};
use crate::key::{Entry, Key};
use crate::partition::digest16;
use crate::{document, text, vocabulary};

vocabulary! {
    /// Whether a call of a tool is a task of the protocol: an answer at once, and the result later.
    #[derive(Default)]
    pub enum TaskSupport {
        /// For clients that have tasks; others wait for the result.
        #[default]
        Optional "optional",
        /// Never: every caller waits for the result.
        Never "never",
        /// Always: clients without tasks are refused.
        Required "required",
    }
}

impl TaskSupport {
    fn is_optional(&self) -> bool {
        *self == Self::Optional
    }
}

/// Names that begin so are the server's own tools.
pub const RESERVED_PREFIX: &str = "flowfabric_";

/// A worker's definition of a kind that agents may call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct ToolDefinition {
    /// The kind of work, which is the tool's name: letters, digits, `_`, `-` and `.`.
    pub kind: String,
    /// Its title, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// A description, for the model that decides whether to call it.
    pub description: String,
    /// The JSON schema of its arguments; an object.
    pub input_schema: JsonText,
    /// The JSON schema of its result.
    #[serde(default, deserialize_with = "crate::encoding::present_json", skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<JsonText>,
    /// The lane that calls are submitted to; `default` if the worker serves it, otherwise its first, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lane: Option<String>,
    /// Calling it again with the same arguments changes nothing more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub repeatable: bool,
    /// It changes nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// It may destroy something; when absent, unless it is read only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destructive: Option<bool>,
    /// Whether a call of it is a task for agents.
    #[serde(default, skip_serializing_if = "TaskSupport::is_optional")]
    pub tasks: TaskSupport,
}
crate::newer::open_struct!(ToolDefinition);

impl ToolDefinition {
    /// Refuses names that no agent could call, and schemas that arguments cannot be checked against.
    pub fn validate(&self) -> Result<()> {
        text::kind("kind", &self.kind)?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if !self.kind.chars().all(allowed) {
            return Err(Error::invalid("kind", "has letters, digits, `_`, `-` and `.` only").with("kind", &self.kind));
        }
        if self.kind.starts_with(RESERVED_PREFIX) {
            let rule = format!("must not begin with {RESERVED_PREFIX}: those tools are the server's own");
            return Err(Error::invalid("kind", rule).with("kind", &self.kind));
        }
        self.title.as_deref().map_or(Ok(()), |title| text::label("title", title))?;
        text::text("description", &self.description)?;
        if self.description.is_empty() {
            return Err(Error::invalid("description", "must not be empty: models choose tools by it"));
        }
        self.lane.as_deref().map_or(Ok(()), |lane| text::name("lane", lane))?;
        let of_tool = |error: Error| error.with("kind", &self.kind);
        let input = AnswerSchema::parse_at("input_schema", &self.input_schema.0).map_err(of_tool)?;
        if !input.is_object() {
            return Err(of_tool(Error::invalid("input_schema", "must have the type object")));
        }
        let output = self.output_schema.as_ref();
        output.map_or(Ok(()), |schema| AnswerSchema::parse_at("output_schema", &schema.0).map(drop).map_err(of_tool))
    }
}

document! {
    /// A kind of work that agents may call.
    pub struct Tool {
        /// The namespace it belongs to.
        "n" namespace: String,
        /// The kind of work; unique in the namespace.
        "k" kind: String,
        /// Its title, for people; may be empty.
        "t" title: String,
        /// A description, for the model that decides whether to call it.
        "d" description: String,
        /// The JSON schema of its arguments.
        "i" input_schema: String,
        /// The JSON schema of its result; may be empty.
        "o" output_schema: String,
        /// The lane that calls are submitted to.
        "l" lane: String,
        /// Calling it again changes nothing more.
        "r" repeatable: bool,
        /// It changes nothing.
        "q" read_only: bool,
        /// It may destroy something.
        "x" destructive: bool,
        /// Whether a call of it is a task for agents.
        "a" tasks: TaskSupport,
        /// The worker that said so last.
        "w" worker_id: String,
        /// When it began to say so.
        "u" changed_at: i64,
    }
}

impl Document for Tool {
    const KIND: u8 = kind::TOOL;
    crate::encoding::compiled_here!();
}

impl Indexed for Tool {
    fn key(&self) -> Key {
        Self::key_of(&self.namespace, &self.kind)
    }

    fn index_entries(&self, _: i64) -> Vec<Entry> {
        let listing = index::listing(kind::TOOL, &self.namespace);
        vec![Entry { index: listing, member: self.key(), score: index::name_score(&self.kind) }]
    }
}

impl Tool {
    /// The key of a tool by its kind.
    pub fn key_of(namespace: &str, kind: &str) -> Key {
        Key::new(kind::TOOL, &[&digest16(&[namespace.as_bytes(), kind.as_bytes()])])
    }

    /// The definition of a kind by a worker in these lanes.
    pub fn define(worker: &crate::worker::Registration, definition: &ToolDefinition, now: i64) -> Self {
        let served = || {
            let default = crate::execution::DEFAULT_LANE;
            if worker.lanes.contains(default) { Some(default) } else { worker.lanes.first().map(String::as_str) }
        };
        Self {
            namespace: worker.namespace.clone(),
            kind: definition.kind.clone(),
            title: definition.title.clone().unwrap_or_default(),
            description: definition.description.clone(),
            input_schema: definition.input_schema.0.clone(),
            output_schema: definition.output_schema.as_ref().map(|schema| schema.0.clone()).unwrap_or_default(),
            lane: definition.lane.as_deref().or_else(served).unwrap_or_default().to_owned(),
            repeatable: definition.repeatable || definition.read_only,
            read_only: definition.read_only,
            destructive: definition.destructive.unwrap_or(!definition.read_only) && !definition.read_only,
            tasks: definition.tasks,
            worker_id: worker.worker_id.clone(),
            changed_at: now,
            ..Default::default()
        }
    }

    /// Whether another definition says the same of the kind, whichever worker sent it and since whenever.
    pub fn says_the_same(&self, other: &Self) -> bool {
        let said = |tool: &Self| Self { worker_id: String::new(), changed_at: 0, ..tool.clone() };
        said(self) == said(other)
    }

    /// The view of it for people and agents.
    pub fn view(&self) -> ToolView {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        ToolView {
            namespace: self.namespace.clone(),
            kind: self.kind.clone(),
            title: some(&self.title),
            description: self.description.clone(),
            input_schema: JsonText(self.input_schema.clone()),
            output_schema: some(&self.output_schema).map(JsonText),
            lane: self.lane.clone(),
            repeatable: self.repeatable,
            read_only: self.read_only,
            destructive: self.destructive,
            tasks: self.tasks,
            worker_id: self.worker_id.clone(),
            changed_at: self.changed_at,
        }
    }
}

/// A kind of work that agents may call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ToolView {
    /// Its namespace.
    pub namespace: String,
    /// The kind of work, which is the tool's name.
    pub kind: String,
    /// Its title, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// A description, for the model that decides whether to call it.
    pub description: String,
    /// The JSON schema of its arguments.
    pub input_schema: JsonText,
    /// The JSON schema of its result.
    #[serde(default, deserialize_with = "crate::encoding::present_json", skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<JsonText>,
    /// The lane that calls are submitted to.
    pub lane: String,
    /// Calling it again with the same arguments changes nothing more.
    pub repeatable: bool,
    /// It changes nothing.
    pub read_only: bool,
    /// It may destroy something.
    pub destructive: bool,
    /// Whether a call of it is a task for agents.
    #[serde(default)]
    pub tasks: TaskSupport,
    /// The worker that defined it as it is.
    pub worker_id: String,
    /// When that was.
    pub changed_at: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition() -> ToolDefinition {
        serde_json::from_str(
            r#"{ "kind": "summarize", "description": "Sums up a text.", "input_schema": { "type": "object" } }"#,
        )
        .unwrap()
    }

    fn refused(change: impl FnOnce(&mut ToolDefinition)) -> String {
        let mut definition = definition();
        change(&mut definition);
        definition.validate().unwrap_err().details["field"].as_str().unwrap().to_owned()
    }

    #[test]
    fn what_no_agent_could_call_is_refused_by_its_field() {
        definition().validate().unwrap();
        assert_eq!(refused(|tool| tool.kind = "sum up".into()), "kind");
        assert_eq!(refused(|tool| tool.kind = "sum/up".into()), "kind");
        assert_eq!(refused(|tool| tool.kind = format!("{RESERVED_PREFIX}x")), "kind");
        assert_eq!(refused(|tool| tool.description = String::new()), "description");
        assert_eq!(refused(|tool| tool.input_schema.0 = r#"{"type":"string"}"#.into()), "input_schema");
        let unknown = r#"{"type":"object","properties":{"a":{"moon":1}}}"#;
        assert_eq!(refused(|tool| tool.input_schema.0 = unknown.into()), "input_schema.properties.a.moon");
        assert_eq!(refused(|tool| tool.output_schema = Some(JsonText("[]".into()))), "output_schema");
    }

    #[test]
    fn a_tool_is_called_in_a_lane_that_its_worker_serves() {
        let worker = |lanes: &[&str]| crate::worker::Registration {
            namespace: "n".into(),
            worker_id: "w".into(),
            instance_id: "i".into(),
            lanes: lanes.iter().map(|lane| (*lane).to_owned()).collect(),
            capabilities: Default::default(),
            kinds: Default::default(),
            capacity: 1,
            version: String::new(),
            nonce: "x".into(),
            lease_ttl_ms: 30_000,
            tools: Vec::new(),
        };
        let lane = |lanes: &[&str], tool: &ToolDefinition| Tool::define(&worker(lanes), tool, 1).lane;
        assert_eq!(lane(&["default", "a"], &definition()), "default");
        assert_eq!(lane(&["b", "c"], &definition()), "b");
        let named = ToolDefinition { lane: Some("c".into()), ..definition() };
        assert_eq!(lane(&["b", "c"], &named), "c");
        let first = Tool::define(&worker(&["b"]), &definition(), 1);
        assert!(first.says_the_same(&Tool::define(&worker(&["b"]), &definition(), 2)));
        assert!(!first.says_the_same(&Tool::define(&worker(&["c"]), &definition(), 2)));
        assert_eq!(Tool::decode(&first.encode()).unwrap(), first);
        assert_eq!((first.destructive, first.repeatable), (true, false));
    }

    #[test]
    fn a_tool_says_whether_its_calls_are_tasks() {
        assert_eq!(definition().tasks, TaskSupport::Optional);
        let required = ToolDefinition { tasks: TaskSupport::Required, ..definition() };
        let written = serde_json::to_value(&required).unwrap();
        assert_eq!(written["tasks"], "required");
        assert_eq!(serde_json::from_value::<ToolDefinition>(written.clone()).unwrap().tasks, required.tasks);
        // The default is not written, so that a server of an earlier version still takes the definition.
        assert_eq!(serde_json::to_value(definition()).unwrap().get("tasks"), None);
        let mut unknown = written;
        unknown["tasks"] = "sometimes".into();
        let refused = serde_json::from_value::<ToolDefinition>(unknown).unwrap_err().to_string();
        assert!(refused.contains("sometimes") && refused.contains("required"), "{refused}");
    }

    #[test]
    fn a_tool_that_was_stored_before_it_said_so_is_a_task_where_it_can_be() {
        const STORED_BEFORE: &[u8] = b"\x02\x82\xa1n\xa1n\xa1k\xa9summarize";
        let before = Tool { namespace: "n".into(), kind: "summarize".into(), ..Default::default() };
        assert_eq!(Tool::decode(STORED_BEFORE).unwrap(), before);
        assert_eq!(before.tasks, TaskSupport::Optional);
        let never = Tool { tasks: TaskSupport::Never, ..before };
        assert_eq!(Tool::decode(&never.encode()).unwrap(), never);
    }
}
