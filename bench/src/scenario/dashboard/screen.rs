//! The calls of each screen of the dashboard when it is opened. `dashboard/src/screens` is where they are decided.

use serde_json::{Value, json};

use super::deployment::Deployment;

/// A screen, and the calls that it makes.
pub(super) struct Screen {
    pub(super) name: &'static str,
    pub(super) calls: Vec<(&'static str, Value)>,
}

/// Every screen, and those of the list of executions with a filter by itself: each of them scans another index.
pub(super) fn screens(deployment: &Deployment) -> Vec<Screen> {
    let execution = || json!({ "execution_id": deployment.execution });
    let counts = || ("get_counts", json!({}));
    let list = |filter: Value| {
        let mut args = json!({ "limit": 100 });
        if let (Some(args), Value::Object(filter)) = (args.as_object_mut(), filter) {
            args.extend(filter);
        }
        vec![("list_executions", args), counts()]
    };
    let explained = || {
        let of = |id: &Value| ("explain_execution", json!({ "execution_id": id }));
        deployment.rows.iter().map(of).collect::<Vec<_>>()
    };
    let screen = |name, calls| Screen { name, calls };
    vec![
        screen(
            "overview",
            vec![
                counts(),
                ("list_approvals", json!({ "limit": 100 })),
                ("list_executions", json!({ "state": ["failed"], "limit": 6 })),
                ("list_budgets", json!({ "limit": 200 })),
                ("list_workers", json!({ "limit": 200 })),
                ("get_deployment", json!({})),
                ("list_namespaces", json!({ "limit": 200 })),
            ],
        ),
        screen("executions", list(json!({}))),
        screen("executions, oldest first, each explained", [list(json!({ "order": "oldest" })), explained()].concat()),
        screen("executions in two states", list(json!({ "state": ["waiting", "suspended"] }))),
        screen("executions of the last minute", list(json!({ "created_from": deployment.minute_ago }))),
        screen("executions of a schedule", list(json!({ "schedule": "yearly-3" }))),
        screen("executions of a kind in a lane", list(json!({ "kind": ["kind-3"], "lane": ["lane-2"] }))),
        screen("executions that completed", list(json!({ "state": ["completed"] }))),
        screen("executions of a kind", list(json!({ "kind": ["kind-3"] }))),
        screen("executions in a lane", list(json!({ "lane": ["lane-2"] }))),
        screen("executions with a tag", list(json!({ "tag": ["customer=7"] }))),
        screen("executions with a tag in a state", list(json!({ "tag": ["customer=7"], "state": ["waiting"] }))),
        screen("executions with a failure", list(json!({ "failure_category": ["permanent"] }))),
        screen("executions of a kind that is not there", list(json!({ "kind": ["nothing"] }))),
        screen(
            "one execution",
            vec![
                ("get_execution", execution()),
                ("explain_execution", execution()),
                ("list_attempts", execution()),
                ("list_steps", json!({ "execution_id": deployment.execution, "limit": 500 })),
                ("get_input", execution()),
                ("list_execution_events", json!({ "execution_id": deployment.execution, "limit": 200 })),
            ],
        ),
        screen("flows", vec![("list_flows", json!({ "limit": 100 }))]),
        screen("a flow of 1,000", vec![("get_flow_graph", json!({ "flow_id": deployment.flow }))]),
        screen("approvals", vec![("list_approvals", json!({ "limit": 100 }))]),
        screen(
            "lanes",
            vec![("list_lanes", json!({ "limit": 500 })), counts(), ("list_workers", json!({ "limit": 500 }))],
        ),
        screen(
            "workers",
            vec![
                ("list_workers", json!({ "limit": 500 })),
                ("list_executions", json!({ "state": ["waiting"], "order": "oldest", "limit": 20 })),
                counts(),
            ]
            .into_iter()
            .chain(explained())
            .collect(),
        ),
        screen(
            "budgets, quotas and providers",
            vec![
                ("list_budgets", json!({ "limit": 200 })),
                ("list_quotas", json!({ "limit": 200 })),
                ("list_providers", json!({ "limit": 200 })),
            ],
        ),
        screen("schedules", vec![("list_schedules", json!({ "limit": 200 }))]),
        screen("a schedule", vec![("get_schedule", json!({ "name": "yearly-3" }))]),
        screen("bulk jobs", vec![("list_bulk", json!({ "limit": 100 }))]),
        screen(
            "webhooks",
            vec![("list_subscriptions", json!({ "limit": 100 })), ("list_hooks", json!({ "limit": 100 }))],
        ),
        screen("a subscription", vec![("get_subscription", json!({ "name": "alarm-3" }))]),
        screen(
            "system",
            vec![("get_deployment", json!({})), ("list_audit", json!({ "limit": 100 })), ("list_tokens", json!({}))],
        ),
    ]
}
