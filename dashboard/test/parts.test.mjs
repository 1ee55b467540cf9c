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
