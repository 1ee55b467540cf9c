/** The examples, run as a user runs them. */
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { startServer } from "./support.js";

let own: Awaited<ReturnType<typeof startServer>>;
before(async () => {
  own = await startServer();
});
after(() => own.end());

async function run(example: string): Promise<string> {
  const program = fileURLToPath(new URL(`../examples/${example}.js`, import.meta.url));
  const env = { ...process.env, FF_SERVER: own.server.url };
  const { stdout } = await promisify(execFile)(process.execPath, [program], { env, timeout: 60_000 });
  return stdout;
}

test("hello", async () => { assert.equal(await run("hello"), "Hello, world!\n"); });

test("agent: a person approves, the budget is charged, the answer comes", async () => {
  const said = await run("agent");
  assert.equal(said.match(/^turn /gm)?.length, 3);
  assert.match(said, /A weekend in Lisbon: The trip is booked\.\n$/);
  const budget = await own.server.client().budget("trips");
  assert.match(JSON.stringify(budget), /120/);
});

test("map_reduce", async () => { assert.match(await run("map_reduce"), /^1000 pages have 3997 words\n$/); });

test("webhook: a repeated request is one order", async () => {
  assert.equal(await run("webhook"), "one order\nlamp was shipped for 42\n");
});

test("crash_drill: what was done before the crash is not done again", async () => {
  const said = await run("crash_drill");
  assert.equal(said.match(/runs download/g)?.length, 1);
  assert.equal(said.match(/runs transcode/g)?.length, 2);
  assert.match(said, /done: download, transcode, upload\n$/);
});
