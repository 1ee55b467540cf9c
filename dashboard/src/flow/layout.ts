// The places of the nodes of a graph, and the chain of them that decided how long the flow took.
//
// Nodes stand in layers, each behind everything it waits for. A layer is put in the order that crosses few lines, and then
// each node is moved as near to its neighbours as the nodes beside it allow. All of it is linear in nodes and lines but
// for the sorting, so a thousand nodes take milliseconds.

import type { Schemas } from "../api/client";

export type GraphView = Schemas["GraphView"];
export type Node = Schemas["GraphNode"];

export const NODE_WIDTH = 176;
export const NODE_HEIGHT = 46;
/** Between two layers, between two nodes of one, and around everything. */
const LAYER_GAP = 56;
const NODE_GAP = 18;
const MARGIN = 16;
/** A line that passes a layer takes this much of it. */
const LINE_WIDTH = 8;
/** Lines that pass more layers than this altogether are drawn straight: keeping them apart would cost more than it shows. */
const PASSES_MAX = 20_000;
/** How often layers are put in order and moved: more changes little. */
const ROUNDS = 6;

export interface Point {
  x: number;
  y: number;
}

export interface Placed {
  width: number;
  height: number;
  nodes: Map<string, Point>;
  edges: { id: string; from: string; to: string; path: string }[];
}

/** The parts of a graph that decide where its nodes stand. */
export interface Shape {
  nodes: Pick<Node, "execution_id">[];
  edges: Pick<Schemas["EdgeView"], "edge_id" | "upstream" | "downstream" | "role">[];
}

/** A place in a layer: a node, or a line that passes. */
interface Slot {
  layer: number;
  size: number;
  /** Where its middle is, across the layers. */
  at: number;
  before: Slot[];
  after: Slot[];
}

interface Line {
  id: string;
  upstream: string;
  downstream: string;
  /** The slots it goes through, from its first node to its last. */
  slots: Slot[];
}

/**
 * Places nodes from left to right, or from top to bottom in a narrow window. It depends on the shape of the graph alone, so
 * a change of state moves nothing.
 */
export function place(graph: Shape, vertical = false): Placed {
  const size = vertical ? NODE_WIDTH : NODE_HEIGHT;
  const slots = new Map<string, Slot>(graph.nodes.map((node) => [node.execution_id, { layer: 0, size, at: 0, before: [], after: [] }]));
  const lines = connect(graph, slots);
  assignLayers([...slots.values()], lines);
  const layers = fillLayers([...slots.values()], lines);
  order(layers);
  align(layers);
  return draw(slots, lines, layers, vertical);
}

/** The lines between nodes that are there. A child's result goes to its parent, but the parent came first. */
function connect(graph: Shape, slots: Map<string, Slot>): Line[] {
  const lines: Line[] = [];
  for (const { edge_id: id, upstream, downstream, role } of graph.edges) {
    const [first, last] = role === "child" ? [slots.get(downstream), slots.get(upstream)] : [slots.get(upstream), slots.get(downstream)];
    if (!first || !last || first === last) continue;
    first.after.push(last);
    last.before.push(first);
    lines.push({ id, upstream, downstream, slots: [first, last] });
  }
  return lines;
}

/** Each node stands one layer behind the last of those before it; a node with none before it stands next to its first successor. */
function assignLayers(slots: Slot[], lines: Line[]): void {
  const missing = new Map(slots.map((slot) => [slot, slot.before.length]));
  const ready = slots.filter((slot) => slot.before.length === 0);
  let rest = 0;
  for (let done = 0; done < slots.length; done += 1) {
    if (ready.length <= done) {
      // A circle, which the server refuses but for parents and children: it is cut at its first node.
      while (rest < slots.length && !missing.has(slots[rest] as Slot)) rest += 1;
      const next = slots[rest];
      if (!next) break;
      ready.push(next);
    }
    const slot = ready[done] as Slot;
    missing.delete(slot);
    for (const next of slot.after) {
      const left = missing.get(next);
      if (left === undefined) continue;
      next.layer = Math.max(next.layer, slot.layer + 1);
      if (left === 1) ready.push(next);
      missing.set(next, left - 1);
    }
  }
  for (const slot of slots) {
    if (slot.before.length > 0 || slot.after.length === 0) continue;
    slot.layer = Math.max(0, slot.after.reduce((least, next) => Math.min(least, next.layer), Infinity) - 1);
  }
  // A line that was cut out of a circle goes back; it is drawn from its earlier node.
  for (const line of lines) line.slots.sort((one, other) => one.layer - other.layer);
}

/** The layers with their nodes, and with a slot for every line that passes one. */
function fillLayers(nodes: Slot[], lines: Line[]): Slot[][] {
  const layers: Slot[][] = [];
  const add = (slot: Slot) => (layers[slot.layer] ??= []).push(slot);
  for (const node of nodes) {
    add(node);
    node.before = [];
    node.after = [];
  }
  const passes = lines.reduce((sum, { slots: [first, last] }) => sum + Math.max(0, (last?.layer ?? 0) - (first?.layer ?? 0) - 1), 0);
  for (const line of lines) {
    const [first, last] = line.slots as [Slot, Slot];
    const between: Slot[] = [];
    if (passes <= PASSES_MAX) {
      for (let layer = first.layer + 1; layer < last.layer; layer += 1) {
        const slot: Slot = { layer, size: LINE_WIDTH, at: 0, before: [], after: [] };
        between.push(slot);
        add(slot);
      }
    }
    line.slots = [first, ...between, last];
    for (let index = 1; index < line.slots.length; index += 1) {
      const [from, to] = [line.slots[index - 1] as Slot, line.slots[index] as Slot];
      from.after.push(to);
      to.before.push(from);
    }
  }
  return Array.from(layers, (layer) => layer ?? []);
}

function middle(slots: Slot[], otherwise: number): number {
  return slots.length === 0 ? otherwise : slots.reduce((sum, slot) => sum + slot.at, 0) / slots.length;
}

/** Puts the slots of each layer in the order of their neighbours' middles, forth and back. */
function order(layers: Slot[][]): void {
  const number = (layer: Slot[]) => layer.forEach((slot, index) => (slot.at = index - layer.length / 2));
  layers.forEach(number);
  for (let round = 0; round < ROUNDS; round += 1) {
    const forth = round % 2 === 0;
    for (const layer of forth ? layers : [...layers].reverse()) {
      const wanted = new Map(layer.map((slot) => [slot, middle(forth ? slot.before : slot.after, slot.at)]));
      layer.sort((one, other) => (wanted.get(one) ?? 0) - (wanted.get(other) ?? 0));
      number(layer);
    }
  }
}

/** Moves the slots of each layer as near to their neighbours as their order and sizes allow. */
function align(layers: Slot[][]): void {
  for (const layer of layers) spread(layer, layer.map(() => 0));
  for (let round = 0; round < ROUNDS; round += 1) {
    const forth = round % 2 === 0;
    for (const layer of forth ? layers : [...layers].reverse()) {
      spread(layer, layer.map((slot) => middle(forth ? slot.before : slot.after, slot.at)));
    }
  }
}

/** The places nearest to those wanted, none nearer to the one before it than their sizes: neighbours that are too near move as one. */
function spread(layer: Slot[], wanted: number[]): void {
  let offset = 0;
  const offsets = layer.map((slot, index) => {
    const previous = layer[index - 1];
    if (previous) offset += (previous.size + slot.size) / 2 + NODE_GAP;
    return offset;
  });
  const blocks: { sum: number; count: number }[] = [];
  wanted.forEach((at, index) => {
    let block = { sum: at - (offsets[index] ?? 0), count: 1 };
    for (let last = blocks.at(-1); last && last.sum / last.count > block.sum / block.count; last = blocks.at(-1)) {
      blocks.pop();
      block = { sum: last.sum + block.sum, count: last.count + block.count };
    }
    blocks.push(block);
  });
  let index = 0;
  for (const block of blocks) {
    for (let left = block.count; left > 0; left -= 1, index += 1) {
      const slot = layer[index];
      if (slot) slot.at = block.sum / block.count + (offsets[index] ?? 0);
    }
  }
}

function draw(slots: Map<string, Slot>, lines: Line[], layers: Slot[][], vertical: boolean): Placed {
  const all = layers.flat();
  const least = all.reduce((found, slot) => Math.min(found, slot.at - slot.size / 2), Infinity);
  const most = all.reduce((found, slot) => Math.max(found, slot.at + slot.size / 2), -Infinity);
  const [along, across] = vertical ? [NODE_HEIGHT, NODE_WIDTH] : [NODE_WIDTH, NODE_HEIGHT];
  const start = (slot: Slot) => MARGIN + slot.layer * (along + LAYER_GAP);
  const point = (far: number, slot: Slot): Point => {
    const side = slot.at - least + MARGIN;
    return vertical ? { x: side, y: far } : { x: far, y: side };
  };
  const nodes = new Map<string, Point>();
  for (const [id, slot] of slots) {
    const at = point(start(slot), slot);
    nodes.set(id, vertical ? { x: at.x - across / 2, y: at.y } : { x: at.x, y: at.y - across / 2 });
  }
  const edges = lines.map(({ id, upstream, downstream, slots: through }) => {
    // A line leaves its first node in the middle of its far side, reaches the last in the middle of its near one, and runs
    // straight through the layers between.
    const points = through.flatMap((slot, index) => {
      const [near, far] = [point(start(slot), slot), point(start(slot) + along, slot)];
      return index === 0 ? [far] : index === through.length - 1 ? [near] : [near, far];
    });
    return { id, from: upstream, to: downstream, path: curve(points, vertical) };
  });
  const [length, breadth] = [layers.length * (along + LAYER_GAP) - LAYER_GAP + 2 * MARGIN, Math.max(across, most - least) + 2 * MARGIN];
  return vertical ? { width: breadth, height: length, nodes, edges } : { width: length, height: breadth, nodes, edges };
}

function curve(points: Point[], vertical: boolean): string {
  const write = ({ x, y }: Point) => `${x.toFixed(1)},${y.toFixed(1)}`;
  const first = points[0];
  if (!first) return "";
  let path = `M${write(first)}`;
  for (let index = 1; index < points.length; index += 1) {
    const [from, to] = [points[index - 1] as Point, points[index] as Point];
    const [midX, midY] = [(from.x + to.x) / 2, (from.y + to.y) / 2];
    const [out, back] = vertical ? [{ x: from.x, y: midY }, { x: to.x, y: midY }] : [{ x: midX, y: from.y }, { x: midX, y: to.y }];
    path += ` C${write(out)} ${write(back)} ${write(to)}`;
  }
  return path;
}

/** The chain that ended last: from the node that ended last back through the upstream that each one waited for longest. */
export function criticalPath(graph: GraphView, now: number): Set<string> {
  const byId = new Map(graph.nodes.map((node) => [node.execution_id, node]));
  const ended = (node: Node) => node.completed_at ?? now;
  const later = (one: Node | undefined, other: Node) => (!one || ended(other) > ended(one) ? other : one);
  const lastUpstream = new Map<string, Node>();
  for (const { upstream, downstream } of graph.edges) {
    const node = byId.get(upstream);
    if (node?.started_at) lastUpstream.set(downstream, later(lastUpstream.get(downstream), node));
  }
  const path = new Set<string>();
  let at = graph.nodes.filter((node) => node.started_at).reduce<Node | undefined>(later, undefined);
  while (at && !path.has(at.execution_id)) {
    path.add(at.execution_id);
    at = lastUpstream.get(at.execution_id);
  }
  return path;
}
