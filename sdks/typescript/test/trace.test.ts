/** The trace of a submitter goes on in the function, and in what the function submits. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { context, propagation, ROOT_CONTEXT, trace } from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { W3CTraceContextPropagator } from "@opentelemetry/core";

import { type Client, task } from "../src/index.js";
import { startServer, withWorker } from "./support.js";

let own: Awaited<ReturnType<typeof startServer>>;
let client: Client;
before(async () => {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  own = await startServer();
  client = own.server.client();
});
after(() => own.end());

const traceId = () => trace.getSpanContext(context.active())?.traceId;

test("a function runs in the trace of its submitter, across its steps, and so do its children", async () => {
  const leaf = task("leaf", () => traceId());
  const root = task("root", async (ctx) => {
    await ctx.step("wait", () => new Promise((resolve) => setImmediate(resolve)));
    return [traceId(), await ctx.child("leaf", leaf, null)];
  });
  const submitter = { traceId: "0af7651916cd43dd8448eb211c80319c", spanId: "b7ad6b7169203331", traceFlags: 1 };
  await withWorker(client, [leaf, root], async () => {
    const traced = await context.with(trace.setSpanContext(ROOT_CONTEXT, submitter), () => client.submit(root, null));
    assert.deepEqual(await traced.result(), [submitter.traceId, submitter.traceId]);
    const alone = await client.submit(leaf, null);
    assert.equal(await alone.result(), null);
  });
});
