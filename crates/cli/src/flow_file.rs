//! Graphs in files: YAML or JSON, checked here so that mistakes are told by line and column.
//!
//! ```yaml
//! kind: report
//! tags: { team: data }
//! nodes:
//!   fetch:  { kind: fetch, input: { url: https://example.com } }
//!   render: { kind: render, after: [fetch] }
//!   mail:   { kind: mail, after: [{ node: render, as: page }], join: { quorum: { k: 1 } } }
//! ```

use std::collections::BTreeMap;

use ff_core::JsonText;
use flowfabric::op::create_execution;
use flowfabric::op::create_flow::Args;
use flowfabric::op::{GraphEdge, NodeRequest};
use flowfabric::{CapabilitySet, JoinPolicy, PolicyRequest};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::failure::{Failure, Result};
use crate::input::{Source, malformed};
use crate::span;

/// The place to look at next.
const ADVICE: &str = "`ff flow submit --help` shows such a file, --check looks for mistakes alone.";

/// A file. `V` is how its format keeps free values.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FlowFile<V> {
    kind: Option<String>,
    #[serde(default)]
    tags: BTreeMap<String, String>,
    nodes: BTreeMap<String, Node<V>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Node<V> {
    kind: String,
    #[serde(default = "Option::default", deserialize_with = "present")]
    #[serde(bound(deserialize = "V: Deserialize<'de>"))]
    input: Option<V>,
    lane: Option<String>,
    priority: Option<i64>,
    #[serde(default)]
    tags: BTreeMap<String, String>,
    /// Not before: a span from now or RFC 3339.
    delay: Option<String>,
    /// It expires: a span from now or RFC 3339.
    deadline: Option<String>,
    #[serde(default)]
    requires: Vec<String>,
    #[serde(default)]
    budgets: Vec<String>,
    quota: Option<String>,
    policy: Option<PolicyRequest>,
    join: Option<JoinPolicy>,
    #[serde(default)]
    after: Vec<After>,
}

/// The nodes that a node waits for: a name, or a name with more.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum After {
    Name(String),
    Edge(Edge),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Edge {
    node: String,
    /// Under which name the worker reads the upstream's result.
    #[serde(rename = "as")]
    data_ref: Option<String>,
    kind: Option<String>,
}

/// An explicit null is a value, an absent field is none.
fn present<'de, D: serde::Deserializer<'de>, V: Deserialize<'de>>(deserializer: D) -> Result<Option<V>, D::Error> {
    V::deserialize(deserializer).map(Some)
}

/// Reads a graph. A text that begins like JSON is JSON.
pub(crate) fn read(source: &Source) -> Result<Args> {
    let (name, text) = (source.name(), source.read_text()?);
    let args = if text.trim_start().starts_with('{') {
        request(name, json::<FlowFile<JsonText>>(name, &text)?, Ok)
    } else {
        request(name, yaml::<FlowFile<serde_json::Value>>(name, &text)?, |value| JsonText::of(&value))
    }?;
    args.validate().map_err(|error| refused(name, &error))?;
    if args.nodes.is_empty() {
        return Err(Failure::usage(format!("{name}: nodes is empty, so there is nothing to run")).advice(ADVICE));
    }
    Ok(args)
}

fn json<T: DeserializeOwned>(name: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| malformed(name, error.line(), error.column(), &error).advice(ADVICE))
}

fn yaml<T: DeserializeOwned>(name: &str, text: &str) -> Result<T> {
    serde_saphyr::from_str(text).map_err(|error| {
        let why = in_our_words(&error.without_snippet().to_string());
        let Some(location) = error.location() else { return Failure::usage(format!("{name}: {why}")).advice(ADVICE) };
        let place = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        malformed(name, place(location.line()), place(location.column()), &why).advice(ADVICE)
    })
}

/// What the reader of YAML says, in words of this file.
fn in_our_words(why: &str) -> String {
    let words = [
        ("string scalar", "a text"),
        ("scalar", "a single value"),
        ("mapping start", "names with values"),
        ("sequence start", "a list"),
    ];
    words.iter().fold(why.to_owned(), |why, (theirs, ours)| why.replace(theirs, ours))
}

/// A refusal that the engine would give, by the node it is about.
fn refused(name: &str, error: &ff_core::Error) -> Failure {
    let node = error.details.get("node").and_then(|node| node.as_str()).map(|node| format!("node {node:?}: "));
    let failure = Failure::usage(format!("{name}: {}{}", node.unwrap_or_default(), error.detail));
    failure.with("code", error.code.as_str()).advice(ADVICE)
}

fn request<V>(name: &str, file: FlowFile<V>, text: impl Fn(V) -> ff_core::Result<JsonText>) -> Result<Args> {
    let mut args = Args { kind: file.kind, tags: file.tags, ..Args::default() };
    for (node_name, node) in file.nodes {
        let at = |field: &str, value: Option<String>| match value.map(|value| span::parse_instant(&value)) {
            Some(Err(why)) => Err(Failure::usage(format!("{name}: node {node_name:?}: {field} {why}"))),
            Some(Ok(instant)) => Ok(Some(instant)),
            None => Ok(None),
        };
        let bad = |error: ff_core::Error| refused(name, &error.with("node", &node_name));
        let mut policy = node.policy.unwrap_or_default();
        // So that a program run by `ff worker` can say that no retry would help.
        policy.retry.get_or_insert_default().spare_permanent.get_or_insert(true);
        let request = create_execution::Args {
            kind: node.kind,
            input: node.input.map(&text).transpose().map_err(bad)?,
            lane: node.lane,
            priority: node.priority,
            tags: node.tags,
            delay_until: at("delay", node.delay)?,
            deadline_at: at("deadline", node.deadline)?,
            required_capabilities: CapabilitySet::new(node.requires).map_err(bad)?,
            budget_ids: node.budgets,
            quota_policy_id: node.quota,
            policy: Some(policy),
            ..Default::default()
        };
        for after in node.after {
            let edge = match after {
                After::Name(node) => Edge { node, data_ref: None, kind: None },
                After::Edge(edge) => edge,
            };
            let Edge { node, data_ref, kind } = edge;
            args.edges.push(GraphEdge { from: node, to: node_name.clone(), kind, data_ref });
        }
        args.nodes.push(NodeRequest { name: node_name, request, join: node.join });
    }
    Ok(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(source: &str) -> Result<Args> {
        read(&Source::Text(source.to_owned()))
    }

    fn why(source: &str) -> String {
        text(source).unwrap_err().text().unwrap()
    }

    const YAML: &str = "\
kind: report
tags: { team: data }
nodes:
  fetch: { kind: fetch, input: { url: https://example.com, tries: 3 } }
  render:
    kind: render
    after: [fetch]
    join: all_of
    policy: { retry: { max_retries: 1 } }
  mail: { kind: mail, after: [{ node: render, as: page }, fetch], join: { quorum: { k: 1 } } }
";

    #[test]
    fn yaml_and_json_say_the_same() {
        let yaml = text(YAML).unwrap();
        let json = text(
            r#"{"kind":"report","tags":{"team":"data"},"nodes":{
                "fetch":{"kind":"fetch","input":{"tries":3,"url":"https://example.com"}},
                "render":{"kind":"render","after":["fetch"],"join":"all_of","policy":{"retry":{"max_retries":1}}},
                "mail":{"kind":"mail","after":[{"node":"render","as":"page"},"fetch"],"join":{"quorum":{"k":1}}}}}"#,
        )
        .unwrap();
        assert_eq!(yaml.edges, json.edges);
        assert_eq!(yaml.edges.len(), 3);
        let names = |args: &Args| args.nodes.iter().map(|node| node.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&yaml), ["fetch", "mail", "render"]);
        assert_eq!(yaml.nodes[1..], json.nodes[1..]);
    }

    #[test]
    fn numbers_in_json_keep_their_text() {
        let args = text(r#"{"nodes":{"a":{"kind":"k","input":{"n": 1.00}},"b":{"kind":"k","input":null}}}"#).unwrap();
        assert_eq!(args.nodes[0].request.input, Some(JsonText(r#"{"n": 1.00}"#.into())));
        assert_eq!(args.nodes[1].request.input, Some(JsonText("null".into())));
    }

    #[test]
    fn mistakes_are_told_by_line_and_column() {
        assert!(why("nodes:\n  a: { kind: [ }\n").contains("argument:2:"), "{}", why("nodes:\n  a: { kind: [ }\n"));
        let unknown = why("nodes:\n  a:\n    kind: k\n    lnae: gpu\n");
        assert!(unknown.contains("argument:4:5") && unknown.contains("lnae"), "{unknown}");
        let wrong = why("nodes:\n  a:\n    kind: k\n    priority: high\n");
        assert!(wrong.contains("argument:4:15"), "{wrong}");
        assert!(why("nodes: 1\n").contains("expected names with values"), "{}", why("nodes: 1\n"));
        assert!(why("nodes:\n  a: { kind: [\n").contains("expected a text"));
        let json = why("{\n \"nodes\": {\n  \"a\": {\"kind\": 1}}}");
        assert!(json.contains("argument:3:17"), "{json}");
    }

    #[test]
    fn a_graph_that_does_not_fit_together_names_its_node() {
        let edge = why("nodes:\n  a: { kind: k, after: [b] }\n");
        assert!(edge.contains("\"b\""), "{edge}");
        let kind = why("nodes:\n  a: { kind: '' }\n");
        assert!(kind.contains("node \"a\""), "{kind}");
        let delay = why("nodes:\n  a: { kind: k, delay: soon }\n");
        assert!(delay.contains("node \"a\": delay \"soon\""), "{delay}");
    }
}
