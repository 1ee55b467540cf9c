//! A graph as a tree. A node stands below the first of its upstreams; below the others it is only named.

use std::collections::{BTreeMap, BTreeSet};

use flowfabric::op::view::GraphNode;
use flowfabric::{ExecutionId, GraphView, PublicState};

use crate::output::{Colour, Style, flow_state, one_line, public_state};
use crate::span;

/// The whole tree with a line about the flow above it.
pub(super) fn text(graph: &GraphView, style: Style) -> String {
    let mut tree = Tree::new(graph, style);
    tree.lines.push(head(graph, style));
    for root in tree.roots() {
        tree.add(root, "", None);
    }
    // A node that is left hangs in no root, which only a cycle could do; it is shown all the same.
    for node in &graph.nodes {
        if !tree.shown.contains(&node.execution_id) {
            tree.add(node.execution_id, "", None);
        }
    }
    tree.lines.join("\n")
}

fn head(graph: &GraphView, style: Style) -> String {
    let flow = &graph.flow;
    let state = style.paint(flow_state(flow.state), flow.state.as_str());
    let kind = flow.kind.as_ref().map(|kind| format!(" {}", one_line(kind))).unwrap_or_default();
    let ended = flow.counts.ended();
    let cancelled = flow.cancellation.as_ref().map(|cancellation| {
        let reason = cancellation.reason.as_ref().filter(|reason| !reason.is_empty());
        reason.map(|reason| format!(", cancelled: {}", one_line(reason))).unwrap_or_default()
    });
    format!("{}{kind} {state}, {ended} of {} ended{}", flow.flow_id, flow.member_count, cancelled.unwrap_or_default())
}

struct Tree<'a> {
    style: Style,
    nodes: BTreeMap<ExecutionId, &'a GraphNode>,
    order: Vec<ExecutionId>,
    downstreams: BTreeMap<ExecutionId, Vec<ExecutionId>>,
    with_upstream: BTreeSet<ExecutionId>,
    shown: BTreeSet<ExecutionId>,
    lines: Vec<String>,
}

impl<'a> Tree<'a> {
    fn new(graph: &'a GraphView, style: Style) -> Self {
        let mut downstreams: BTreeMap<ExecutionId, Vec<ExecutionId>> = BTreeMap::new();
        let mut with_upstream = BTreeSet::new();
        for edge in &graph.edges {
            downstreams.entry(edge.upstream).or_default().push(edge.downstream);
            with_upstream.insert(edge.downstream);
        }
        // Members of one request are equally old; names are what people know them by.
        let mut sorted: Vec<&GraphNode> = graph.nodes.iter().collect();
        sorted.sort_by_key(|node| (node.created_at, name(node)));
        let order: Vec<ExecutionId> = sorted.iter().map(|node| node.execution_id).collect();
        Self {
            style,
            nodes: graph.nodes.iter().map(|node| (node.execution_id, node)).collect(),
            order,
            downstreams,
            with_upstream,
            shown: BTreeSet::new(),
            lines: Vec::new(),
        }
    }

    fn roots(&self) -> Vec<ExecutionId> {
        self.order.iter().copied().filter(|id| !self.with_upstream.contains(id)).collect()
    }

    /// Adds a node and what hangs on it. `branch` is how the node hangs on its upstream: as the last one, or not.
    fn add(&mut self, id: ExecutionId, prefix: &str, branch: Option<bool>) {
        let Some(node) = self.nodes.get(&id).copied() else { return };
        let (arm, below) = match branch {
            None => ("", ""),
            Some(false) => ("├─ ", "│  "),
            Some(true) => ("└─ ", "   "),
        };
        if !self.shown.insert(id) {
            let name = self.style.paint(Colour::Dim, &format!("{} (above)", name(node)));
            self.lines.push(format!("{prefix}{arm}{name}"));
            return;
        }
        self.lines.push(format!("{prefix}{arm}{}", self.line(node)));
        let mut downstreams = self.downstreams.get(&id).cloned().unwrap_or_default();
        downstreams.sort_by_key(|id| self.order.iter().position(|other| other == id));
        let last = downstreams.len().saturating_sub(1);
        for (index, downstream) in downstreams.into_iter().enumerate() {
            self.add(downstream, &format!("{prefix}{below}"), Some(index == last));
        }
    }

    fn line(&self, node: &GraphNode) -> String {
        let state = self.style.paint(public_state(node.public_state), node.public_state.as_str());
        let mut line = format!("{} {state}", self.style.bold(&name(node)));
        if node.public_state == PublicState::WaitingChildren {
            line.push_str(&format!(" {}/{} upstreams", node.join.succeeded, node.join.total));
        }
        if let (Some(started), Some(ended)) = (node.started_at, node.completed_at) {
            line.push_str(&format!(" in {}", span::show(ended.saturating_sub(started))));
        }
        format!("{line} {}", self.style.paint(Colour::Dim, &node.execution_id.to_string()))
    }
}

fn name(node: &GraphNode) -> String {
    one_line(node.node.as_deref().unwrap_or(&node.kind))
}
