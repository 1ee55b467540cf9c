/** Endings and the next tasks travel in one call, and nothing is lost or done twice when its answer is. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Client, type Execution, FlowFabricError, task } from "../src/index.js";
import { type Proxy, startProxy, startServer, until, withWorker } from "./support.js";

let own: Awaited<ReturnType<typeof startServer>>;
let direct: Client;
before(async () => {
  own = await startServer();
  direct = own.server.client();
});
after(() => own.end());

async function throughProxy(body: (proxy: Proxy, client: Client) => Promise<void>): Promise<void> {
  const proxy = await startProxy(own.server.url);
  try {
    await body(proxy, new Client({ server: proxy.url }));
  } finally {
    proxy.close();
  }
}

function counting(kind: string): { count: ReturnType<typeof task<null, number>>; done: Map<string, number> } {
  const done = new Map<string, number>();
  const count = task<null, number>(kind, (ctx) => {
    done.set(ctx.executionId, (done.get(ctx.executionId) ?? 0) + 1);
    return done.get(ctx.executionId) ?? 0;
  });
  return { count, done };
}

async function resultsOf<O>(submitted: (Execution<O> | FlowFabricError)[]): Promise<O[]> {
  return Promise.all(submitted.map(async (one) => {
    if (one instanceof FlowFabricError) throw one;
    return one.result();
  }));
}

const ones = (many: number) => Array.from({ length: many }, () => 1);
const nulls = (many: number) => Array.from({ length: many }, () => null);

test("endings and the next tasks are one call", async () => {
  const { count } = counting("shared-calls");
  await throughProxy(async (proxy, client) => {
    await withWorker(client, [count], async () => {
      assert.deepEqual(await resultsOf(await direct.submitBatch(count, nulls(200))), ones(200));
    });
    const named = (wanted: string) => proxy.calls.filter(({ name }) => name === wanted);
    // Ten at a time, so about twenty turns; each used to be ten endings and a claim.
    assert.ok(named("exchange").length <= 120, `${named("exchange").length} calls`);
    assert.equal(named("complete").length + named("claim").length, 0);
    assert.ok(named("exchange").some(({ body }) => (body.end?.length ?? 0) > 1));
  });
});

test("an exchange whose answer is lost is the same exchange", async () => {
  const { count, done } = counting("lost-answers");
  const seen = { ending: 0, claim: 0 };
  await throughProxy(async (proxy, client) => {
    proxy.fate = (name, body) => {
      if (name !== "exchange" || body.claim?.retry === true) return undefined;
      const kind = (body.end?.length ?? 0) > 0 ? "ending" : "claim";
      seen[kind] += 1;
      return seen[kind] % (kind === "ending" ? 2 : 3) === 0 ? "lose" : undefined;
    };
    const submitted = await direct.submitBatch(count, nulls(80));
    await withWorker(client, [count], async () => { assert.deepEqual(await resultsOf(submitted), ones(80)); }, { concurrency: 4, prefetch: 2 });
    for (const one of submitted) {
      assert.ok(!(one instanceof FlowFabricError));
      const view = await one.get();
      assert.deepEqual([view.attempt, view.reclaim_count], [0, 0]);
    }
    const claims = proxy.calls.flatMap(({ body }) => body.claim ?? []);
    const first = new Set(claims.filter(({ retry }) => retry !== true).map(({ lease_ids }) => lease_ids.join()));
    const repeats = claims.filter(({ retry }) => retry === true);
    assert.ok(repeats.length > 0);
    assert.ok(repeats.every(({ lease_ids }) => first.has(lease_ids.join())));
  });
  assert.deepEqual(new Set(done.values()), new Set([1]));
  assert.ok(seen.ending >= 2);
});

test("an ending that is refused or cannot be written is said, and those beside it stand", async (t) => {
  const warned = t.mock.method(console, "warn", () => undefined);
  let release: () => void = () => undefined;
  const together = new Promise<void>((resolve) => { release = resolve; });
  let begun = 0;
  const some = task("some-refused", async (_ctx, what: string): Promise<unknown> => {
    begun += 1;
    await together;
    if (what === "circular") {
      const circle: { self?: unknown } = {};
      circle.self = circle;
      return circle;
    }
    let nested: unknown = what;
    for (let level = 0; level < (what === "deep" ? 200 : 0); level++) nested = [nested];
    return nested;
  });
  const submitted = await direct.submitBatch(some, ["fine", "deep", "circular", "x".repeat(1_000_000), "fine"], { retries: 0 });
  await withWorker(direct, [some], async () => {
    await until(() => begun === 5);
    release();
    const ended = await Promise.all(submitted.map(async (one) => {
      if (one instanceof FlowFabricError) throw one;
      const view = await one.wait();
      return view.last_failure?.category ?? view.public_state;
    }));
    assert.deepEqual(ended, ["completed", "refused", "refused", "completed", "completed"]);
  });
  const said = warned.mock.calls.map(({ arguments: [words] }) => String(words)).join("\n");
  assert.match(said, /its endings are handed in one by one/);
  assert.match(said, /its ending was refused; the attempt fails/);
});

test("endings that are too large together are handed in one by one", async (t) => {
  const warned = t.mock.method(console, "warn", () => undefined);
  let release: () => void = () => undefined;
  const together = new Promise<void>((resolve) => { release = resolve; });
  let begun = 0;
  const large = task("large", async () => {
    begun += 1;
    await together;
    return "x".repeat(1_000_000);
  });
  const submitted = await direct.submitBatch(large, nulls(20));
  await withWorker(direct, [large], async () => {
    await until(() => begun === 20);
    release();
    const results = await resultsOf(submitted);
    assert.ok(results.every((one) => one.length === 1_000_000));
  }, { concurrency: 20 });
  assert.ok(warned.mock.calls.some(({ arguments: [said] }) => String(said).includes("handed in one by one")));
});

test("prefetch is bounded, and handed back at once", async () => {
  let release: () => void = () => undefined;
  const gate = new Promise<void>((resolve) => { release = resolve; });
  const started: string[] = [];
  const ahead = task("ahead", async (ctx) => {
    started.push(ctx.executionId);
    await gate;
    return "done";
  });
  const submitted = (await direct.submitBatch(ahead, nulls(12))).filter((one) => !(one instanceof FlowFabricError)) as Execution<string>[];
  const states = async () => Promise.all(submitted.map(async (one) => (await one.get()).public_state));
  const active = async () => (await states()).filter((state) => state === "active").length;
  await withWorker(direct, [ahead], async (worker) => {
    await until(async () => (await active()) === 5);
    assert.equal(started.length, 2);
    worker.stop();
    // Those that have not begun are given back before those in hand have ended.
    await until(async () => (await active()) === 2);
    release();
    await until(async () => (await states()).filter((state) => state === "completed").length === 2);
  }, { concurrency: 2, prefetch: 3, drain: "20s" });
  assert.equal((await states()).filter((state) => state === "waiting").length, 10);
  await withWorker(direct, [ahead], async () => { assert.deepEqual(await resultsOf(submitted), submitted.map(() => "done")); });
  assert.deepEqual([...started].sort(), submitted.map(({ id }) => id).sort());
});

test("a worker that stops hands back what its claim has brought", async () => {
  const { count, done } = counting("stopped-claims");
  await throughProxy(async (proxy, client) => {
    let answer: () => void = () => undefined;
    const held = new Promise<void>((resolve) => { answer = resolve; });
    proxy.fate = (name, { claim }) => (name === "exchange" && claim !== undefined && claim.retry !== true ? held : undefined);
    const submitted = await direct.submitBatch(count, nulls(3));
    const states = () => Promise.all(submitted.map(async (one) => (one instanceof FlowFabricError ? one.code : (await one.get()).public_state)));
    await withWorker(client, [count], async () => { await until(async () => (await states()).every((state) => state === "active")); });
    assert.deepEqual(await states(), ["waiting", "waiting", "waiting"]);
    answer();
  });
  assert.equal(done.size, 0);
});

test("a worker asks for no more than it has room for when a task stays in hand", async (t) => {
  const warned = t.mock.method(console, "warn", () => undefined);
  const words = task("words", (ctx) => ctx.waitSignal<string>("word"));
  const executions = await Promise.all(Array.from({ length: 10 }, () => direct.submit(words, null)));
  for (const execution of executions) await execution.signal("word", "hello");
  await withWorker(direct, [words], async () => {
    assert.deepEqual(new Set(await Promise.all(executions.map((one) => one.result()))), new Set(["hello"]));
  }, { concurrency: 1 });
  assert.ok(!warned.mock.calls.some(({ arguments: [said] }) => String(said).includes("a claim failed")));
});

test("a worker asks for no more than it has room for when a lease is lost before its end is told", async (t) => {
  const warned = t.mock.method(console, "warn", () => undefined);
  const said = (what: string) => warned.mock.calls.some(({ arguments: [words] }) => String(words).includes(what));
  const { count } = counting("lost-beside-endings");
  await throughProxy(async (proxy, client) => {
    let answer: () => void = () => undefined;
    const held = new Promise<void>((resolve) => { answer = resolve; });
    let away = false;
    proxy.fate = (name, { end = [] }) => {
      if (name === "exchange" && end.length > 0 && !away) {
        away = true;
        return held.then(() => { away = false; });
      }
      return away && ["heartbeat", "renew"].includes(name) ? "lose" : undefined;
    };
    const submitted = await direct.submitBatch(count, nulls(1));
    const claims = () => proxy.calls.filter(({ name, body }) => name === "exchange" && body.claim !== undefined).length;
    await withWorker(client, [count], async () => {
      await until(() => said("its lease is lost: expired"));
      const asked = claims();
      // A worker that finds room asks for work in the same turn.
      await new Promise((resolve) => setTimeout(resolve, 50));
      const later = claims();
      answer();
      assert.equal(later, asked);
      assert.deepEqual(await resultsOf(submitted), [1]);
    }, { concurrency: 1, leaseTtl: "1s" });
  });
});
