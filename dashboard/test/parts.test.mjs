// Parts of the page that need no browser: they are built for Node and called.

import { after, before, test } from "node:test";
import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { build } from "vite";

let folder;
let scale;
let sse;
let layout;
let metrics;

async function load(name) {
  const entry = fileURLToPath(new URL(`../src/${name}.ts`, import.meta.url));
  const outDir = join(folder, name.replaceAll("/", "-"));
  await build({ configFile: false, logLevel: "error", publicDir: false, build: { outDir, lib: { entry, formats: ["es"], fileName: "part" }, minify: false } });
  return await import(pathToFileURL(join(outDir, "part.js")).href);
}

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "ff-dashboard-parts-"));
  scale = await load("execution/scale");
  globalThis.document ??= { hidden: true, addEventListener() {} };
  globalThis.window ??= { location: { origin: "http://localhost" } };
  sse = await load("api/sse");
  layout = await load("flow/layout");
  metrics = await load("prometheus");
});

after(async () => {
  await rm(folder, { recursive: true, force: true });
});

test("a week of waiting takes a few percent of the width, and its place is kept", () => {
  const week = 7 * 86_400_000;
  const axis = scale.pieces(0, week + 2_000, [
    { from: 0, to: 1_000 },
    { from: week + 1_000, to: week + 2_000 },
  ]);
  assert.deepEqual(axis.map((piece) => piece.compressed), [false, true, false]);
  assert.ok(axis[1].width < 0.15, String(axis[1].width));
  assert.ok(scale.place(axis, 1_000) < scale.place(axis, week / 2));
  assert.ok(scale.place(axis, week / 2) < scale.place(axis, week + 1_000));
  assert.equal(scale.place(axis, week + 2_000), 1);
});

test("a millisecond of work between two waits does not take the place of both", () => {
  const axis = scale.pieces(0, 16_000, [{ from: 3_000, to: 3_001 }]);
  assert.ok(axis[1].width < 0.05, String(axis[1].width));
  assert.deepEqual(axis.map((piece) => piece.compressed), [true, false, true]);
});

test("the chain that decides how long a flow takes goes back through the upstream that ended last", () => {
  const node = (execution_id, started_at, completed_at) => ({ execution_id, started_at, completed_at });
  const nodes = [node("quick", 1, 2), node("slow", 1, 9), node("join", 10, 12), node("aside", 1, 3), node("never")];
  const edges = [["quick", "join"], ["slow", "join"], ["join", "never"]].map(([upstream, downstream]) => ({ upstream, downstream }));
  assert.deepEqual([...layout.criticalPath({ nodes, edges }, 20)].sort(), ["join", "slow"]);
  // Whatever still runs ends last.
  nodes[3].completed_at = undefined;
  assert.deepEqual([...layout.criticalPath({ nodes, edges }, 20)], ["aside"]);
});

test("what never ran is drawn as it was", () => {
  const axis = scale.pieces(0, 1_000, []);
  assert.equal(scale.place(axis, 500), 0.5);
});

test("events are taken apart however the stream was cut", () => {
  const text = 'event: frame\nid: 0-1\ndata: {"a":"b\\nc"}\n\nevent: ping\ndata: {}\n\n';
  for (let cut = 0; cut <= text.length; cut += 1) {
    const parser = new sse.EventParser();
    const events = [...parser.feed(text.slice(0, cut)), ...parser.feed(text.slice(cut))];
    assert.deepEqual(events, [
      { name: "frame", id: "0-1", data: '{"a":"b\\nc"}' },
      { name: "ping", id: undefined, data: "{}" },
    ]);
  }
});

/** Layers in which each node waits for two of the layer before, and the first for none. */
function layered(layers, size) {
  const graph = { nodes: [], edges: [] };
  for (let layer = 0; layer < layers; layer += 1) {
    for (let place = 0; place < size; place += 1) {
      graph.nodes.push({ execution_id: `${layer}-${place}` });
      const upstreams = layer === 0 ? [] : [place, (place + 1) % size];
      for (const from of upstreams) graph.edges.push({ edge_id: `${layer}-${place}-${from}`, upstream: `${layer - 1}-${from}`, downstream: `${layer}-${place}`, role: "dependency" });
    }
  }
  return graph;
}

test("nodes stand behind those they wait for, none upon another, in either direction", () => {
  for (const vertical of [false, true]) {
    const graph = layered(20, 50);
    const { nodes } = layout.place(graph, vertical);
    const [along, across, size] = vertical ? ["y", "x", layout.NODE_WIDTH] : ["x", "y", layout.NODE_HEIGHT];
    for (const { upstream, downstream } of graph.edges) assert.ok(nodes.get(upstream)[along] < nodes.get(downstream)[along]);
    const layers = grouped([...nodes.values()], along);
    for (const layer of layers.values()) {
      const places = layer.map((at) => at[across]).sort((one, other) => one - other);
      for (let index = 1; index < places.length; index += 1) assert.ok(places[index] - places[index - 1] >= size, `${places[index - 1]} and ${places[index]}`);
    }
  }
});

function grouped(points, key) {
  const groups = new Map();
  for (const point of points) groups.set(point[key], [...(groups.get(point[key]) ?? []), point]);
  return groups;
}

test("a node in the middle of those it joins stands in their middle", () => {
  const edge = (upstream, downstream) => ({ edge_id: `${upstream}${downstream}`, upstream, downstream, role: "dependency" });
  const graph = { nodes: ["a", "b", "c", "d", "e"].map((execution_id) => ({ execution_id })), edges: [..."bcd"].flatMap((one) => [edge("a", one), edge(one, "e")]) };
  const { nodes } = layout.place(graph);
  assert.equal(nodes.get("a").y, nodes.get("c").y);
  assert.equal(nodes.get("e").y, nodes.get("c").y);
});

test("a circle, an edge to a stranger, a child and a graph without edges are drawn all the same", () => {
  const edge = (upstream, downstream, role = "dependency") => ({ edge_id: `${upstream}${downstream}`, upstream, downstream, role });
  const nodes = ["a", "b", "c"].map((execution_id) => ({ execution_id }));
  assert.equal(layout.place({ nodes, edges: [edge("a", "b"), edge("b", "c"), edge("c", "a")] }).nodes.size, 3);
  const child = layout.place({ nodes, edges: [edge("b", "a", "child"), edge("a", "stranger")] });
  assert.ok(child.nodes.get("a").x < child.nodes.get("b").x, "a parent stands before its child");
  assert.equal(child.edges.length, 1);
  assert.equal(layout.place({ nodes, edges: [] }).nodes.size, 3);
  assert.equal(layout.place({ nodes: [], edges: [] }).nodes.size, 0);
});

test("metrics are read with their labels", () => {
  const text = '# HELP a A.\na_total 3\nb_count{lane="x\\"y",exit="taken"} 2\nb_count{lane="z",exit="taken"} 5\n';
  assert.deepEqual(metrics.parseMetrics(text), [
    { name: "a_total", labels: {}, value: 3 },
    { name: "b_count", labels: { lane: 'x"y', exit: "taken" }, value: 2 },
    { name: "b_count", labels: { lane: "z", exit: "taken" }, value: 5 },
  ]);
  assert.equal(metrics.total(metrics.parseMetrics(text), "b_count"), 7);
});
