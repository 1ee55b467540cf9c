/** Leases, crashes, cancellation and drains of real workers against real servers. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Client, FlowFabricError, type StandardSchema, task, TaskError, tool, Worker } from "../src/index.js";
import { startProxy, startServer, withWorker } from "./support.js";

let own: Awaited<ReturnType<typeof startServer>>;
let client: Client;
before(async () => {
  own = await startServer();
  client = own.server.client();
});
after(() => own.end());

/** How long an event loop is blocked; a lease lasts a quarter of that. */
const BLOCK_MS = 1_000 * Number(process.env["BLOCK_SECONDS"] ?? 8);

test("a function that blocks the event loop keeps its lease", async () => {
  const busy = task("busy", (ctx) => {
    const end = Date.now() + BLOCK_MS;
    while (Date.now() < end) Math.sqrt(end);
    return ctx.attempt;
  });
  await withWorker(client, [busy], async () => {
    const execution = await client.submit(busy, null);
    assert.equal(await execution.result(), 0);
    assert.equal((await execution.get()).reclaim_count, 0);
  }, { leaseTtl: BLOCK_MS / 4 });
});

test("a cancellation reaches the function", async () => {
  let reached: (reason: unknown) => void = () => undefined;
  const cancelled = new Promise((resolve) => (reached = resolve));
  let begun: () => void = () => undefined;
  const running = new Promise<void>((resolve) => (begun = resolve));
  const long = task("long", (ctx) => {
    begun();
    return new Promise((_, reject) => { ctx.signal.addEventListener("abort", () => { reached(ctx.signal.reason); reject(new Error("aborted")); }); });
  });
  await withWorker(client, [long], async () => {
    const execution = await client.submit(long, null);
    await running;
    await execution.cancel("changed my mind");
    assert.match(String(await cancelled), /cancelled/);
    assert.equal((await execution.get()).public_state, "cancelled");
  }, { leaseTtl: "1s" });
});

test("a worker that is told to stop lets its tasks end and hands the others back", async () => {
  const release: (() => void)[] = [];
  const slow = task("slow", async () => new Promise<string>((resolve) => release.push(() => { resolve("ended"); })));
  const worker = new Worker(client, { tasks: [slow], drain: "200ms" });
  const running = worker.run();
  const [quick, stuck] = [await client.submit(slow, null), await client.submit(slow, null)];
  while (release.length < 2) await new Promise((resolve) => setTimeout(resolve, 5));
  const first = (await quick.get()).public_state;
  release[0]?.();
  worker.stop();
  await running;
  const states = [(await quick.get()).public_state, (await stuck.get()).public_state].sort();
  assert.equal(first, "active");
  assert.deepEqual(states.filter((state) => state === "completed").length, 1);
  assert.ok(states.some((state) => ["waiting", "delayed"].includes(state)), states.join());
  await stuck.cancel();
  await quick.cancel().catch(() => undefined);
});

test("a worker waits for its tasks longer than a timer can be", async () => {
  let release: () => void = () => undefined;
  const begun = new Promise<void>((begin) => { release = begin; });
  const slow = task("slow-to-end", async () => {
    release();
    await new Promise((resolve) => setTimeout(resolve, 200));
    return "ended";
  });
  const execution = await client.submit(slow, null);
  await withWorker(client, [slow], () => begun, { drain: "30d" });
  assert.equal((await execution.get()).public_state, "completed");
});

test("a result that the server refuses fails the attempt and says so", async () => {
  const deep = task("deep", () => {
    let nested: unknown = 1;
    for (let level = 0; level < 200; level++) nested = [nested];
    return nested;
  });
  await withWorker(client, [deep], async () => {
    const execution = await client.submit(deep, null);
    await assert.rejects(execution.result());
    assert.equal((await execution.get()).last_failure?.category, "refused");
  });
});

test("a retry waits for as long as the failure of a step asks for", async () => {
  const hasty = task("hasty-step", (ctx) => ctx.step("call", () => {
    if (ctx.attempt === 0) throw new TaskError("busy", { retryAfterMs: 1 });
  }));
  await withWorker(client, [hasty], async () => {
    const execution = await client.submit(hasty, null, { policy: { retry: { max_retries: 1, backoff: { fixed: { delay_ms: 3_600_000 } } } } });
    const { public_state, retry_count } = await execution.wait({ timeout: "10s" });
    assert.deepEqual([public_state, retry_count], ["completed", 1]);
  });
});

/** An error that throws when it is asked what it says. */
class Mute extends Error {
  override get message(): string {
    throw new RangeError("no words");
  }
}

test("an attempt ends whatever its failure says", async () => {
  const circle = new Error("circle");
  circle.cause = new Error("of causes", { cause: circle });
  const failures: [error: Error, category: string, reason: RegExp][] = [
    [new TaskError("é".repeat(3_000), { category: "long" }), "long", /^é{2048}$/],
    [new TaskError("a\0b", { category: "n\0ul\n" }), "nul", /^ab$/],
    [new TaskError("\ud83d!"), "error", /^\\ud83d!$/],
    [new TaskError("one", { category: "c".repeat(300) }), "c".repeat(256), /^one$/],
    [new TaskError("two", { category: "" }), "error", /^two$/],
    ...[0.5, -1, 1e300, NaN].map((retryAfterMs): [Error, string, RegExp] => [new TaskError("three", { retryAfterMs }), "error", /^three$/]),
    [new Mute(), "error", /^Mute$/],
    [circle, "error", /^circle$/],
  ];
  const fails = task("fails", { retries: 0 }, (_ctx, which: number) => { throw failures[which]?.[0] ?? new Error("there is no such failure"); });
  await withWorker(client, [fails], async () => {
    for (const [which, [, category, reason]] of failures.entries()) {
      const { last_failure: failure } = await (await client.submit(fails, which)).wait({ timeout: "10s" });
      assert.equal(failure?.category, category);
      assert.match(failure.reason, reason);
    }
  });
});

test("a wait that a failure asks for is rounded", async () => {
  const hasty = task("hasty", { retries: 1 }, (ctx) => {
    if (ctx.attempt === 0) throw new TaskError("again", { retryAfterMs: 0.5 });
  });
  await withWorker(client, [hasty], async () => {
    const { public_state, retry_count } = await (await client.submit(hasty, null)).wait({ timeout: "10s" });
    assert.deepEqual([public_state, retry_count], ["completed", 1]);
  });
});

test("an attempt that fails with another error than the step that was made up for ends", async () => {
  const saga = task("another-error", { retries: 0 }, async (ctx) => {
    await ctx.step("book", () => null);
    await ctx.step("unbook", () => null, { compensates: "book" });
    throw new TaskError("sold out", { category: "sold_out" });
  });
  await withWorker(client, [saga], async () => {
    const { last_failure: failure } = await (await client.submit(saga, null)).wait({ timeout: "10s" });
    assert.deepEqual([failure?.category, failure?.reason], ["sold_out", "sold out"]);
  });
});

test("an attempt whose failure is refused all the same ends", async (t) => {
  t.mock.method(console, "warn", () => undefined);
  const proxy = await startProxy(own.server.url);
  proxy.fate = (name, { end = [], category }) => ((name === "exchange" && end.length > 0) || category === "odd" ? 400 : undefined);
  const odd = task("odd", { retries: 0 }, () => { throw new TaskError("it is odd", { category: "odd" }); });
  try {
    await withWorker(new Client({ server: proxy.url }), [odd], async () => {
      const { last_failure: failure } = await (await client.submit(odd, null)).wait({ timeout: "10s" });
      assert.equal(failure?.category, "refused");
      assert.match(failure.reason, /says the proxy/);
    });
  } finally {
    proxy.close();
  }
});

test("a task whose end could not be reported is left to its lease", async (t) => {
  t.mock.method(console, "warn", () => undefined);
  const proxy = await startProxy(own.server.url);
  const mute = task("mute", (ctx) => ctx.attempt);
  const refused = new Set<string>();
  proxy.fate = (name, { end = [] }) => {
    if (name === "exchange" && end.length > 0) return 404;
    if (!["complete", "fail"].includes(name) || refused.has(name)) return undefined;
    refused.add(name);
    return 403;
  };
  try {
    await withWorker(new Client({ server: proxy.url }), [mute], async () => {
      const execution = await client.submit(mute, null);
      const { public_state, reclaim_count } = await execution.wait({ timeout: "20s" });
      assert.deepEqual([public_state, reclaim_count], ["completed", 1]);
    }, { leaseTtl: "1s" });
  } finally {
    proxy.close();
  }
});

test("a worker says what it serves, and why an attempt failed", async (t) => {
  const warned = t.mock.method(console, "warn", () => undefined);
  const breaks = task("breaks", { retries: 0 }, (ctx) => ctx.step("read", function readPage() { throw new RangeError("no such page"); }));
  const [instance, failed] = await withWorker(client, [breaks], async ({ instanceId }) => {
    const execution = await client.submit(breaks, null);
    await assert.rejects(execution.result());
    return [instanceId, execution.id] as const;
  });
  const said = warned.mock.calls.map(({ arguments: [words] }) => String(words));
  assert.equal(said[0], `flowfabric: worker ${instance} serves breaks in the lanes default at ${own.server.url}`);
  const [failure = "", ...others] = said.filter((line) => line.includes(failed));
  assert.deepEqual(others, []);
  assert.ok(failure.startsWith(`flowfabric: ${failed}: attempt 0 of breaks failed: `));
  assert.match(failure, /caused by RangeError: no such page\n +at readPage/);
});

test("a token that is revoked is told as such", async () => {
  const { server, end } = await startServer({ FF_API_TOKEN: "an-administrator-of-tests" });
  try {
    const admin = server.client({ token: "an-administrator-of-tests" });
    const created = await admin.call("POST", "/v1/admin/tokens", { name: "temp", role: "submitter", namespace: "default" });
    const temp = server.client({ token: created.secret });
    await temp.submit("k", 1);
    await admin.call("DELETE", "/v1/admin/tokens/{name}", { name: "temp" });
    await assert.rejects(temp.submit("k", 1), (error) => error instanceof FlowFabricError && error.status === 401);
  } finally {
    await end();
  }
});

test("a task is a tool of agents, with the JSON schema of its own schema", async () => {
  const text: StandardSchema<{ text: string }> = {
    "~standard": {
      version: 1,
      vendor: "test",
      validate: (value) => ({ value: value as { text: string } }),
      jsonSchema: {
        input: ({ target }) => ({ $schema: target, type: "object", properties: { text: { type: "string" } } }),
        output: () => ({ type: "object" }),
      },
    },
  };
  const shout = task("shout", { input: text, lane: "agents" }, (_, input) => input.text.toUpperCase());
  const tools = [tool(shout, { description: "Says it loudly.", readOnly: true, tasks: "required" })];
  await withWorker(client, [shout], async () => {
    let listed;
    while (listed === undefined) [listed] = (await client.call("GET", "/v1/tools", { kind: "shout" })).items;
    assert.deepEqual([listed.lane, listed.read_only, listed.tasks], ["agents", true, "required"]);
    assert.deepEqual(listed.input_schema, { $schema: "draft-2020-12", type: "object", properties: { text: { type: "string" } } });
  }, { tools, lanes: ["agents"] });
  const plain = task("plain", () => null);
  assert.throws(() => tool(plain, { description: "Does it." }), /"plain" needs an inputSchema/);
  assert.deepEqual(tool(plain, { description: "Does it.", inputSchema: { type: "object" } }), {
    kind: "plain", description: "Does it.", input_schema: { type: "object" },
  });
});

test("an execution that is pinned stays with the build that started it", async () => {
  const pinned = task("pinned", () => "done");
  await withWorker(client, [pinned], async () => {
    const execution = await client.submit(pinned, null, { policy: { pin_build: true } });
    assert.equal(await execution.result(), "done");
    assert.equal((await execution.get()).pinned_build, "v1");
  }, { buildId: "v1" });
});
