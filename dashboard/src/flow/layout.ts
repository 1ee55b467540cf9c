// Where the nodes of a graph stand, and which chain of them decided how long the flow took.

import { Graph, layout } from "@dagrejs/dagre";
import type { Schemas } from "../api/client";

export type GraphView = Schemas["GraphView"];
export type Node = Schemas["GraphNode"];

export const NODE_WIDTH = 176;
export const NODE_HEIGHT = 46;

export interface Placed {
  width: number;
  height: number;
  nodes: Map<string, { x: number; y: number }>;
  edges: { id: string; from: string; to: string; path: string }[];
}

/** Places nodes from left to right. It depends on the shape of the graph alone, so a change of state moves nothing. */
export function place(graph: GraphView): Placed {
  const drawn = new Graph<Record<string, unknown>, { width: number; height: number; x?: number; y?: number }, { points?: { x: number; y: number }[] }>({ multigraph: true });
  drawn.setGraph({ rankdir: "LR", nodesep: 18, ranksep: 56, marginx: 16, marginy: 16 });
  for (const node of graph.nodes) drawn.setNode(node.execution_id, { width: NODE_WIDTH, height: NODE_HEIGHT });
  const known = new Set(graph.nodes.map((node) => node.execution_id));
  const edges = graph.edges.filter((edge) => known.has(edge.upstream) && known.has(edge.downstream));
  for (const edge of edges) {
    // A child's result goes to its parent, but the parent came first.
    const [from, to] = edge.role === "child" ? [edge.downstream, edge.upstream] : [edge.upstream, edge.downstream];
    drawn.setEdge(from, to, {}, edge.edge_id);
  }
  layout(drawn as never);
  const nodes = new Map<string, { x: number; y: number }>();
  for (const node of graph.nodes) {
    const at = drawn.node(node.execution_id);
    nodes.set(node.execution_id, { x: (at.x ?? 0) - NODE_WIDTH / 2, y: (at.y ?? 0) - NODE_HEIGHT / 2 });
  }
  const size = drawn.graph() as { width?: number; height?: number };
  const lines = edges.map((edge) => {
    const [from, to] = edge.role === "child" ? [edge.downstream, edge.upstream] : [edge.upstream, edge.downstream];
    const [start, end] = [nodes.get(from), nodes.get(to)];
    const between = (drawn.edge(from, to, edge.edge_id)?.points ?? []).slice(1, -1);
    // A line leaves a node in the middle of its right side and reaches the next in the middle of its left.
    const points = start && end ? [{ x: start.x + NODE_WIDTH, y: start.y + NODE_HEIGHT / 2 }, ...between.slice(1, -1), { x: end.x, y: end.y + NODE_HEIGHT / 2 }] : [];
    return { id: edge.edge_id, from: edge.upstream, to: edge.downstream, path: curve(points) };
  });
  return { width: size.width ?? 100, height: size.height ?? 100, nodes, edges: lines };
}

function curve(points: { x: number; y: number }[]): string {
  const first = points[0];
  if (!first) return "";
  let path = `M${first.x.toFixed(1)},${first.y.toFixed(1)}`;
  for (let index = 1; index < points.length; index += 1) {
    const from = points[index - 1] ?? first;
    const to = points[index] ?? first;
    const middle = ((from.x + to.x) / 2).toFixed(1);
    path += ` C${middle},${from.y.toFixed(1)} ${middle},${to.y.toFixed(1)} ${to.x.toFixed(1)},${to.y.toFixed(1)}`;
  }
  return path;
}

/** The chain that ended last: from the node that ended last back through the upstream that each one waited for longest. */
export function criticalPath(graph: GraphView, now: number): Set<string> {
  const byId = new Map(graph.nodes.map((node) => [node.execution_id, node]));
  const ended = (node: Node | undefined) => node?.completed_at ?? (node?.started_at ? now : 0);
  const upstreams = new Map<string, string[]>();
  for (const edge of graph.edges) upstreams.set(edge.downstream, [...(upstreams.get(edge.downstream) ?? []), edge.upstream]);
  const path = new Set<string>();
  let at = [...graph.nodes].filter((node) => node.started_at).sort((one, other) => ended(other) - ended(one))[0];
  while (at && !path.has(at.execution_id)) {
    path.add(at.execution_id);
    at = (upstreams.get(at.execution_id) ?? [])
      .map((id) => byId.get(id))
      .filter((node): node is Node => node !== undefined && Boolean(node.started_at))
      .sort((one, other) => ended(other) - ended(one))[0];
  }
  return path;
}
