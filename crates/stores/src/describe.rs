//! Columns beside a document that people may query: a pure function of its bytes, never read back by the engine.

use std::sync::LazyLock;

use ff_core::execution::Execution;
use ff_core::flow::Flow;
use ff_core::index::kind;
use ff_core::{Document, Key};
use ff_store_postgres::Columns;
use serde::Serialize;
use serde_json::Value;

/// The columns of executions and flows; other documents have none.
pub(crate) fn describe(key: &Key, body: &[u8]) -> Option<Columns> {
    match key.kind() {
        kind::EXECUTION => Execution::decode(body).ok().map(|execution| execution_columns(&execution)),
        kind::FLOW => Flow::decode(body).ok().map(|flow| flow_columns(&flow)),
        _ => None,
    }
}

/// An execution or a flow as JSON; other documents have no view.
pub(crate) fn view(key: &Key, body: &[u8]) -> Option<String> {
    match key.kind() {
        kind::EXECUTION => Execution::decode(body).ok().and_then(|execution| view_of(&execution, &EXECUTION)),
        kind::FLOW => Flow::decode(body).ok().and_then(|flow| view_of(&flow, &FLOW)),
        _ => None,
    }
}

fn execution_columns(execution: &Execution) -> Columns {
    Columns {
        namespace: Some(execution.namespace.clone()),
        lane: Some(execution.lane.clone()),
        kind: Some(execution.kind.clone()),
        state: Some(execution.public_state().as_str().to_owned()),
        flow: execution.flow.map(|flow| flow.to_string()),
        priority: i32::try_from(execution.priority).ok(),
        created_at: Some(execution.created_at),
        updated_at: Some(execution.updated_at),
    }
}

fn flow_columns(flow: &Flow) -> Columns {
    Columns {
        namespace: Some(flow.namespace.clone()),
        kind: Some(flow.kind.clone()),
        state: flow.ended.as_ref().map(|end| end.state.as_str().to_owned()),
        created_at: Some(flow.created_at),
        ..Columns::default()
    }
}

static EXECUTION: LazyLock<Value> = LazyLock::new(default_of::<Execution>);
static FLOW: LazyLock<Value> = LazyLock::new(default_of::<Flow>);

fn default_of<D: Default + Serialize>() -> Value {
    serde_json::to_value(D::default()).unwrap_or_default()
}

/// Evidence by which repeated calls are recognised; people do not ask for it.
const EVIDENCE: [&str; 2] = ["endings", "request_hash"];

/// The document as JSON, without what is as in any new one: that would be most of it, and written with every change.
fn view_of(document: &impl Serialize, default: &Value) -> Option<String> {
    let mut view = serde_json::to_value(document).ok()?;
    leave_out(&mut view, default);
    if let Value::Object(members) = &mut view {
        EVIDENCE.iter().for_each(|name| drop(members.remove(*name)));
    }
    Some(view.to_string())
}

fn leave_out(value: &mut Value, default: &Value) {
    if let (Value::Object(members), Value::Object(defaults)) = (value, default) {
        members.retain(|name, member| match defaults.get(name) {
            Some(default) if default == member => false,
            Some(default) => {
                leave_out(member, default);
                true
            }
            None => true,
        });
    }
}

#[cfg(test)]
mod tests {
    use ff_core::Indexed;

    use super::*;

    #[test]
    fn an_execution_shows_what_people_ask_for_and_other_documents_nothing() {
        let execution =
            Execution { namespace: "team".into(), kind: "render".into(), priority: 7, ..Default::default() };
        let columns = describe(&execution.key(), &execution.encode()).expect("it is an execution");
        assert_eq!((columns.namespace.as_deref(), columns.lane.as_deref()), (Some("team"), Some("default")));
        assert_eq!((columns.kind.as_deref(), columns.state.as_deref()), (Some("render"), Some("waiting")));
        assert_eq!(columns.priority, Some(7));
        let view = view(&execution.key(), &execution.encode()).expect("a view");
        let view: serde_json::Value = serde_json::from_str(&view).expect("JSON");
        assert_eq!((&view["kind"], &view["priority"]), (&"render".into(), &7.into()));
        assert_eq!(view.get("lease"), None, "what is as in any new execution is left out");
        assert_eq!(describe(&Key::new(kind::LANE, &[b"x"]), b"anything"), None);
        assert_eq!(describe(&execution.key(), b"garbage"), None, "what cannot be read has no columns");
        assert_eq!(super::view(&execution.key(), b"garbage"), None, "nor a view");
    }
}
