/** The kit for users' tests: the real server, whose clock the test moves. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { task } from "../src/index.js";
import { Server } from "../src/testing.js";
import { startServer, withWorker } from "./support.js";

test("an hour passes when the test says so, and a step before it is not run again", async () => {
  const server = await Server.start();
  const client = server.client();
  let ran = 0;
  const nap = task("nap", async (ctx) => {
    await ctx.step("before", () => { ran += 1; });
    await ctx.sleep("nap", "1h");
    return "rested";
  });
  try {
    await withWorker(client, [nap], async () => {
      const execution = await client.submit(nap, null);
      await server.untilIdle();
      assert.equal((await execution.get()).public_state, "delayed");
      await server.advance("59m");
      assert.equal((await execution.get()).public_state, "delayed");
      await server.advance("1m");
      assert.equal(await execution.result(), "rested");
    });
  } finally {
    await server.stop();
  }
  assert.equal(ran, 1);
});

test("a sleep whose worker is gone ends at its first instant, in the hands of another", async () => {
  const server = await Server.start();
  const client = server.client();
  const nap = task("nap", async (ctx) => {
    await ctx.sleep("nap", "1h");
    return "rested";
  });
  try {
    const execution = await client.submit(nap, null);
    await withWorker(client, [nap], () => server.untilIdle());
    await server.advance("30m");
    await withWorker(client, [nap], async () => {
      assert.equal((await execution.get()).public_state, "delayed");
      await server.advance("30m");
      assert.equal(await execution.result(), "rested");
    });
  } finally {
    await server.stop();
  }
});

test("a server on real time has no clock to move", async () => {
  const { server, end } = await startServer();
  try {
    await assert.rejects(server.advance("1h"), /real time/);
  } finally {
    await end();
  }
});
