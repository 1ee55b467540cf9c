//! Tools for people who operate a deployment through an agent: operations under their own names, with their own roles.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use ff_core::op::{self, Operation, OperationInfo};
use ff_core::tool::RESERVED_PREFIX;
use ff_core::{Code, Error, Result};
use ff_engine::{Engine, Serves};
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, Tool, ToolAnnotations};
use serde_json::Value;

use crate::deployment::Deployment;
use crate::error;

/// The effect of a tool on the deployment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Reads,
    Changes,
    Destroys,
}

/// Hands the operations that are tools to a macro as `Type Effect;` lines.
macro_rules! operator_tools {
    ($callback:ident) => {
        $callback! {
            ListExecutions Reads;
            GetExecution Reads;
            ExplainExecution Reads;
            GetResult Reads;
            ListSteps Reads;
            ListAttempts Reads;
            GetCounts Reads;
            CancelExecution Destroys;
            ReplayExecution Changes;
            HoldExecution Changes;
            ReleaseExecution Changes;
            ListApprovals Reads;
            DeliverSignal Changes;
            DecideStep Changes;
            DecideBudget Changes;
            ListSchedules Reads;
            GetSchedule Reads;
            PauseSchedule Changes;
            ResumeSchedule Changes;
            TriggerSchedule Changes;
            DeleteSchedule Destroys;
            ListBudgets Reads;
            GetBudget Reads;
            ResetBudget Destroys;
            ListFlows Reads;
            GetFlow Reads;
            CancelFlow Destroys;
            ListWorkers Reads;
            ListLanes Reads;
            PauseLane Changes;
            ResumeLane Changes;
        }
    };
}

struct Offered {
    info: OperationInfo,
    tool: Tool,
}

macro_rules! offered {
    ($($name:ident $effect:ident;)*) => {
        vec![ $( offer(OperationInfo::of::<op::$name>(), Effect::$effect), )* ]
    };
}

static OFFERED: LazyLock<Vec<Offered>> = LazyLock::new(|| operator_tools!(offered));

/// The JSON schemas of the tools' arguments, by operation. Tests make the committed file from the types; a server reads it,
/// because it has no schemas of its own.
static SCHEMAS: LazyLock<BTreeMap<String, Arc<JsonObject>>> = LazyLock::new(|| {
    let schemas: BTreeMap<String, JsonObject> =
        serde_json::from_str(include_str!("../operator_tools.json")).expect("a test compares the file with the types");
    schemas.into_iter().map(|(operation, schema)| (operation, Arc::new(schema))).collect()
});

/// The tools that a caller may hope to call.
pub(crate) fn list(deployment: &impl Deployment) -> Vec<Tool> {
    let mine = OFFERED.iter().filter(|offered| deployment.offers(&offered.info));
    mine.map(|offered| offered.tool.clone()).collect()
}

/// The operation that a tool of this name calls.
pub(crate) fn named(name: &str) -> Option<&str> {
    name.strip_prefix(RESERVED_PREFIX)
}

/// Calls one. A refusal is a result, so that the model reads it; only a name that is none is an error of the protocol.
pub(crate) async fn call<D: Deployment>(deployment: &D, name: &str, arguments: Value) -> Result<CallToolResult> {
    macro_rules! dispatch {
        ($($name:ident $effect:ident;)*) => {
            match name {
                $( <op::$name as Operation>::NAME => in_json::<op::$name, D>(deployment, &arguments).await, )*
                unknown => {
                    let detail = format!("there is no tool {RESERVED_PREFIX}{unknown}");
                    return Err(Error::new(Code::ToolNotFound, detail));
                }
            }
        };
    }
    let answered = operator_tools!(dispatch);
    Ok(match answered {
        Ok(value) => {
            let mut result = CallToolResult::success(vec![ContentBlock::text(value.to_string())]);
            result.structured_content = Some(value).filter(Value::is_object);
            result
        }
        Err(refused) => CallToolResult::error(vec![ContentBlock::text(error::sentence(&refused))]),
    })
}

async fn in_json<O: Operation, D: Deployment>(deployment: &D, arguments: &Value) -> Result<Value>
where
    Engine: Serves<O>,
{
    // As text, because values that pass through keep the text they are written in.
    let args = O::from_text(&arguments.to_string()).map_err(|error| Error::new(Code::Invalid, error.to_string()))?;
    let outcome = Box::pin(deployment.call::<O>(args)).await?;
    let answer = O::answer(&outcome).and_then(|answer| serde_json::from_slice(&answer));
    answer.map_err(|error| Error::new(Code::Internal, error.to_string()))
}

fn offer(info: OperationInfo, effect: Effect) -> Offered {
    let schema = SCHEMAS.get(info.name).cloned().unwrap_or_default();
    let annotations = ToolAnnotations::new()
        .read_only(effect == Effect::Reads)
        .destructive(effect == Effect::Destroys)
        .idempotent(effect == Effect::Reads)
        .open_world(false);
    let mut tool = Tool::new(format!("{RESERVED_PREFIX}{}", info.name), info.summary, schema);
    tool.annotations = Some(annotations);
    Offered { info, tool }
}

#[cfg(test)]
mod tests {
    use schemars::generate::SchemaSettings;
    use serde_json::Map;

    use super::*;

    /// `UPDATE=1 cargo test -p ff-mcp operator` writes the committed file anew.
    #[test]
    fn the_committed_schemas_are_those_of_the_types() {
        let schema = |info: &OperationInfo| {
            let mut settings = SchemaSettings::draft2020_12();
            settings.inline_subschemas = true;
            (info.args_schema)(&mut settings.into_generator()).to_value()
        };
        let schemas: Map<String, Value> =
            OFFERED.iter().map(|offered| (offered.info.name.to_owned(), schema(&offered.info))).collect();
        let mut text = serde_json::to_string_pretty(&schemas).unwrap();
        text.push('\n');
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/operator_tools.json");
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(path).unwrap_or_default();
        assert!(committed == text, "operator_tools.json is out of date: run UPDATE=1 cargo test -p ff-mcp operator");
    }

    #[test]
    fn every_tool_says_what_it_takes_and_does() {
        for offered in OFFERED.iter() {
            let tool = &offered.tool;
            assert_eq!(tool.input_schema.get("type"), Some(&Value::from("object")), "{}", tool.name);
            assert!(tool.description.as_ref().is_some_and(|text| !text.is_empty()), "{}", tool.name);
            let annotations = tool.annotations.as_ref().unwrap();
            let reads = offered.info.method == op::Method::Get;
            assert_eq!(annotations.read_only_hint, Some(reads), "{}", tool.name);
        }
    }
}
