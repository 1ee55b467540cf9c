/** Steps, waits and children against a real server. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { z } from "zod";

import { Client, ExecutionFailedError, NotDone, task, TaskError } from "../src/index.js";
import { startProxy, startServer, untilState, withWorker } from "./support.js";

let own: Awaited<ReturnType<typeof startServer>>;
let client: Client;
before(async () => {
  own = await startServer();
  client = own.server.client();
});
after(() => own.end());

test("a task's result comes back with its type", async () => {
  const double = task("double", (_ctx, input: number) => input * 2);
  await withWorker(client, [double], async () => {
    const result: number = await (await client.submit(double, 21)).result();
    assert.equal(result, 42);
  });
});

test("a step that completed is not run again by a retry, and the failed one is", async () => {
  const runs = { fetch: 0, write: 0 };
  const report = task("report", { retries: 1 }, async (ctx) => {
    const page = await ctx.step("fetch", () => ++runs.fetch);
    return ctx.step("write", () => {
      if (++runs.write === 1) throw new Error("the disk is full");
      return `page ${page}`;
    });
  });
  await withWorker(client, [report], async () => {
    const execution = await client.submit(report, null, { policy: { retry: { max_retries: 1, backoff: { fixed: { delay_ms: 0 } } } } });
    assert.equal(await execution.result(), "page 1");
    assert.deepEqual(runs, { fetch: 1, write: 2 });
    const states = (await execution.steps()).map((step) => `${step.name} ${step.state}`);
    assert.deepEqual(states, ["fetch completed", "write failed", "write retrying", "write completed"]);
  });
});

test("a retry runs the step again that is among the causes of a failure", async () => {
  let runs = 0;
  const wrapped = task("wrapped", async (ctx) => {
    const fetched = ctx.step("fetch", () => {
      if (++runs === 1) throw new Error("the line is cut");
      return "page";
    });
    return fetched.catch((error: unknown) => { throw new TaskError("no report", { cause: new Error("no page", { cause: error }) }); });
  });
  await withWorker(client, [wrapped], async () => {
    const execution = await client.submit(wrapped, null, { policy: { retry: { max_retries: 1, backoff: { fixed: { delay_ms: 0 } } } } });
    assert.equal((await execution.wait({ timeout: "10s" })).public_state, "completed");
    assert.equal(await execution.result(), "page");
    assert.equal(runs, 2);
  });
});

test("a function logs under the name of its execution", async (t) => {
  const informed = t.mock.method(console, "info", () => undefined);
  const logs = task("logs", (ctx) => { ctx.log.info("read", 3); });
  await withWorker(client, [logs], async () => {
    const execution = await client.submit(logs, null);
    await execution.result();
    assert.deepEqual(informed.mock.calls.map(({ arguments: said }) => said), [[`logs ${execution.id}:`, "read", 3]]);
  });
});

test("a failure carries its category and its reason", async () => {
  const refuse = task("refuse", () => { throw new TaskError("no such customer", { category: "bad_request" }); });
  await withWorker(client, [refuse], async () => {
    const execution = await client.submit(refuse, null);
    await assert.rejects(execution.result(), (error) => {
      assert.ok(error instanceof ExecutionFailedError);
      assert.deepEqual([error.state, error.category, error.message], ["failed", "bad_request", "no such customer"]);
      return true;
    });
  });
});

test("a function that waits for a signal is parked and goes on with its payload", async () => {
  const Decision = z.object({ approved: z.boolean() });
  let calls = 0;
  const gate = task("gate", async (ctx) => {
    calls += 1;
    const plan = await ctx.step("plan", () => "ship it");
    const decision = await ctx.waitSignal("decision", Decision);
    return decision.approved ? plan : "stay";
  });
  await withWorker(client, [gate], async () => {
    const execution = await client.submit(gate, null);
    await untilState(client, execution.id, "suspended");
    await execution.signal("decision", { approved: true });
    assert.equal(await execution.result(), "ship it");
    assert.equal(calls, 2);
  });
});

test("a signal that comes before the function waits is kept", async () => {
  const early = task("early", (ctx) => ctx.waitSignal<string>("word"));
  const execution = await client.submit(early, null);
  await execution.signal("word", "hello");
  await withWorker(client, [early], async () => { assert.equal(await execution.result(), "hello"); });
});

test("a wait for a signal gives up at its timeout", async () => {
  const patient = task("patient", async (ctx) => {
    try {
      return await ctx.waitSignal("never", { timeout: 200 });
    } catch (error) {
      return (error as TaskError).category;
    }
  });
  await withWorker(client, [patient], async () => {
    assert.equal(await (await client.submit(patient, null)).result(), "timeout");
  });
});

test("branches wait beside each other and each gets its own signal", async () => {
  const both = task("both", async (ctx) => Promise.all([ctx.waitSignal("left"), ctx.waitSignal("right")]));
  await withWorker(client, [both], async () => {
    const execution = await client.submit(both, null);
    await untilState(client, execution.id, "suspended");
    await execution.signal("right", 2);
    await execution.signal("left", 1);
    assert.deepEqual(await execution.result(), [1, 2]);
  });
});

test("a child is spawned once and its result comes back", async () => {
  let children = 0;
  const square = task("square", (_ctx, input: number) => { children += 1; return input * input; });
  const sum = task("sum", async (ctx, inputs: number[]) => {
    const squares = await Promise.all(inputs.map((input) => ctx.child("square", square, input, { key: String(input) })));
    return squares.reduce((total, each) => total + each, 0);
  });
  await withWorker(client, [square, sum], async () => {
    assert.equal(await (await client.submit(sum, [1, 2, 3])).result(), 14);
    assert.equal(children, 3);
  });
});

test("a replay spawns a child anew", async () => {
  const leaf = task("leaf", (ctx) => ctx.executionId);
  const tree = task("tree", (ctx) => ctx.child("leaf", leaf, null));
  await withWorker(client, [leaf, tree], async () => {
    const execution = await client.submit(tree, null);
    const first = await execution.result();
    await execution.replay();
    assert.notEqual(await execution.result(), first);
  });
});

for (const [answer, expected, runs] of [["happened", "receipt 7", 1], ["did_not_happen", "paid now", 2], ["fail", "in_doubt", 1]] as const) {
  test(`a step that may happen once is asked about when nobody knows whether it did, and takes the answer ${answer}`, async () => {
    let charges = 0;
    const pay = task("pay", async (ctx) => {
      try {
        return await ctx.step("charge", () => {
          charges += 1;
          if (charges === 1) throw new Error("the connection was cut");
          return "paid now";
        }, { once: "ask" });
      } catch (error) {
        if (error instanceof TaskError) return error.category;
        throw error;
      }
    });
    await withWorker(client, [pay], async () => {
      const execution = await client.submit(pay, null);
      await untilState(client, execution.id, "suspended");
      await execution.decide("charge", answer, answer === "happened" ? "receipt 7" : undefined);
      assert.equal(await execution.result(), expected);
      assert.equal(charges, runs);
    });
  });
}

test("a once step whose body says that nothing happened is tried again", async () => {
  let tries = 0;
  const careful = task("careful", (ctx) =>
    ctx.step("charge", () => {
      if (++tries < 3) throw new NotDone("the provider is busy");
      return tries;
    }, { once: true, retry: { times: 3 } }));
  await withWorker(client, [careful], async () => {
    assert.equal(await (await client.submit(careful, null)).result(), 3);
  });
});

test("the time, random numbers and ids are the same in every run", async () => {
  const seen: unknown[] = [];
  const stable = task("stable", async (ctx) => {
    seen.push([await ctx.now(), ctx.random(), ctx.uuid()]);
    await ctx.waitSignal("go");
    return null;
  });
  await withWorker(client, [stable], async () => {
    const execution = await client.submit(stable, null);
    await untilState(client, execution.id, "suspended");
    await execution.signal("go");
    await execution.result();
    assert.equal(seen.length, 2);
    assert.deepEqual(seen[0], seen[1]);
  });
});

test("two calls of one name at once need keys, and a key is used once", async () => {
  const pairs = task("pairs", async (ctx) => {
    const category = (error: unknown) => (error as TaskError).category;
    const slow = ctx.step("a", () => new Promise((resolve) => setTimeout(resolve, 50)));
    const second = await ctx.step("a", () => 1).catch(category);
    await slow;
    await ctx.step("b", () => 1, { key: "k" });
    return [second, await ctx.step("b", () => 1, { key: "k" }).catch(category)];
  });
  await withWorker(client, [pairs], async () => {
    assert.deepEqual(await (await client.submit(pairs, null)).result(), ["step_key_required", "duplicate_step"]);
  });
});

test("an input that does not fit its schema fails without calling the function", async () => {
  let called = false;
  const strict = task("strict", { input: z.object({ count: z.number() }) }, () => { called = true; });
  await withWorker(client, [strict], async () => {
    const execution = await client.submit("strict", { count: "many" });
    await assert.rejects(execution.result(), /count/);
    assert.equal((await execution.get()).last_failure?.category, "invalid_input");
    assert.equal(called, false);
  });
});

test("a counted step with another input than before is asked about", async () => {
  let version = 1;
  const changing = task("changing", async (ctx) => {
    const value = await ctx.step("fetch", () => version, { input: version });
    await ctx.waitSignal("go");
    return value;
  });
  await withWorker(client, [changing], async () => {
    const execution = await client.submit(changing, null);
    await untilState(client, execution.id, "suspended");
    version = 2;
    await execution.signal("go");
    const asked = async () => execution.decide("fetch", "keep").then(() => true, () => false);
    while (!(await asked())) await new Promise((resolve) => setTimeout(resolve, 10));
    assert.equal(await execution.result(), 1);
  });
});

test("an execution begins anew with an empty journal, as often as it likes", async () => {
  const loop = task("loop", async (ctx, round: number) => {
    const next = await ctx.step("count", () => round + 1);
    return next < 20 ? ctx.continueAsNew(next) : next;
  });
  await withWorker(client, [loop], async () => {
    const execution = await client.submit(loop, 0);
    assert.equal(await execution.result(), 20);
    assert.equal((await execution.steps()).length, 1);
  });
});

test("a retry runs a step again that was undone, and its compensation", async () => {
  const ran: string[] = [];
  const saga = task("saga", async (ctx) => {
    await ctx.step("book", () => { ran.push("book"); });
    try {
      await ctx.step("pay", () => {
        ran.push("pay");
        if (ran.length < 4) throw new Error("declined");
      });
    } catch (error) {
      await ctx.step("unbook", () => { ran.push("unbook"); }, { compensates: "book" });
      throw error;
    }
    return ran;
  });
  await withWorker(client, [saga], async () => {
    const policy = { retry: { max_retries: 1, backoff: { fixed: { delay_ms: 0 } } } };
    assert.deepEqual(await (await client.submit(saga, null, { policy })).result(), ["book", "pay", "unbook", "book", "pay"]);
  });
});

test("steps that a run no longer asks for are listed", async () => {
  let version = 1;
  const shrinking = task("shrinking", async (ctx) => {
    if (version === 1) await ctx.step("old", () => 1);
    await ctx.waitSignal("go");
    return "done";
  });
  await withWorker(client, [shrinking], async () => {
    const execution = await client.submit(shrinking, null);
    await untilState(client, execution.id, "suspended");
    version = 2;
    await execution.signal("go");
    assert.equal(await execution.result(), "done");
    assert.match(JSON.stringify(await execution.get()), /"steps_not_visited":\[\{"name":"old"/);
  });
});

test("a replay from a step keeps the child that ended before it", async () => {
  let children = 0;
  const part = task("part", () => { children += 1; return "made"; });
  const whole = task("whole", async (ctx) => {
    const made = await ctx.child("part", part, null);
    return ctx.step("join", () => `${made} and joined`);
  });
  await withWorker(client, [part, whole], async () => {
    const execution = await client.submit(whole, null);
    assert.equal(await execution.result(), "made and joined");
    await execution.replay({ fromStep: "join" });
    assert.equal(await execution.result(), "made and joined");
    assert.equal(children, 1);
  });
});

test("a fork takes over what a child gave", async () => {
  const part = task("fork-part", () => "made");
  const whole = task("fork-whole", async (ctx) => {
    const made = await ctx.child("part", part, null);
    return ctx.step("join", () => `${made} and joined`);
  });
  await withWorker(client, [part, whole], async () => {
    const execution = await client.submit(whole, null);
    await execution.result();
    const fork = await execution.fork({ before: "join" });
    assert.equal(await fork.result(), "made and joined");
  });
});

test("a fork goes on before a step, and a diff shows what it did otherwise", async () => {
  const forked = task("forked", async (ctx, model: string) => {
    const plan = await ctx.step("plan", () => "one plan");
    return plan + (await ctx.step("write", () => ` by ${model}`, { key: "draft" }));
  });
  await withWorker(client, [forked], async () => {
    const origin = await client.submit(forked, "large");
    assert.equal(await origin.result(), "one plan by large");
    const fork = await origin.fork({ before: { name: "write", key: "draft" }, input: "small", tags: { why: "cheaper" } });
    assert.equal(await fork.result(), "one plan by small");
    assert.deepEqual((await origin.diff(fork)).map(({ one, other }) => [one?.name, other?.key]), [["write", "draft"]]);
    assert.deepEqual(await origin.diff(origin), []);
  });
});

test("results of parallel steps that are too large together are recorded in several calls", async () => {
  const bulky = task("bulky", { retries: 0 }, async (ctx) => {
    const pages = await Promise.all(Array.from({ length: 20 }, (_, place) => ctx.step("page", () => "x".repeat(900_000), { key: String(place) })));
    return pages.join("").length;
  });
  const proxy = await startProxy(own.server.url);
  try {
    await withWorker(new Client({ server: proxy.url }), [bulky], async () => {
      assert.equal(await (await client.submit(bulky, null)).result(), 18_000_000);
    });
  } finally {
    proxy.close();
  }
  const records = proxy.calls.filter(({ name }) => name === "steps").map(({ body }) => body.entries?.length ?? 0);
  assert.equal(records.reduce((total, each) => total + each, 0), 20);
  assert.ok(records.length <= 8, records.join());
});

test("an entry that is refused fails its own step only", async () => {
  const paid: Record<string, number> = {};
  const refused: [name: string, key: string, value: unknown][] = [["bad", "large", "x".repeat(2_000_000)], ["bad", "\ud800", 1], ["bad", "bigint", 1n]];
  const beside = task("beside", { retries: 0 }, async (ctx, which: number) => {
    const [name, key, value] = refused[which] ?? ["", "", null];
    let working = 0;
    let go: () => void = () => undefined;
    // They end in the same turn of the loop, so that their entries share a call.
    const together = new Promise<void>((resolve) => { go = resolve; });
    const work = async (result: unknown): Promise<unknown> => {
      if (++working === 4) go();
      await together;
      return result;
    };
    const pay = (place: string) => ctx.step("pay", () => {
      paid[`${place}${which}`] = (paid[`${place}${which}`] ?? 0) + 1;
      return work(place);
    }, { key: place, once: true });
    const done = await Promise.allSettled([pay("a"), ctx.step(name, () => work(value), { key }), pay("b"), pay("c")]);
    return done.map((one) => (one.status === "fulfilled" ? one.value : "refused"));
  });
  await withWorker(client, [beside], async () => {
    for (const which of refused.keys()) {
      const execution = await client.submit(beside, which);
      assert.equal((await execution.wait({ timeout: "10s" })).public_state, "completed");
      assert.deepEqual(await execution.result(), ["a", "refused", "b", "c"]);
    }
  });
  assert.deepEqual(new Set(Object.values(paid)), new Set([1]));
});

test("a step fails with its own category whatever its failure says", async () => {
  const failures: [said: string, recorded: string][] = [["é".repeat(3_000), "é".repeat(2_048)], ["a\0b", "ab"], ["\ud83d!", "\\ud83d!"]];
  const caught: unknown[] = [];
  const wordy = task("wordy", async (ctx, which: number) => {
    await ctx.step("fail", () => { throw new TaskError(failures[which]?.[0] ?? "", { category: "final" }); }).catch((error: unknown) => {
      assert.ok(error instanceof TaskError);
      caught.push([error.category, error.message]);
      throw error;
    });
  });
  await withWorker(client, [wordy], async () => {
    for (const [which, [, recorded]] of failures.entries()) {
      const policy = { retry: { max_retries: 3, non_retryable_categories: ["final"] } };
      const execution = await client.submit(wordy, which, { policy });
      const { last_failure: failure } = await execution.wait({ timeout: "10s" });
      assert.deepEqual([failure?.category, failure?.reason], ["final", recorded]);
      assert.deepEqual((await execution.steps()).map(({ state, category, message }) => [state, category, message]), [["failed", "final", recorded]]);
      assert.deepEqual(caught.pop(), ["final", recorded]);
    }
  });
});

test("bytes stay bytes in steps, signals, decisions and frames", async () => {
  let charged = 0;
  const binary = task("binary", async (ctx) => {
    const step = await ctx.step("make", () => {
      ctx.emit("chunk", Buffer.of(4, 5));
      return Uint8Array.of(1, 2, 255);
    });
    const signal = await ctx.waitSignal<Uint8Array>("scan");
    const decision = await ctx.step("pay", (): Uint8Array => {
      charged += 1;
      throw new Error("cut");
    }, { once: "ask" });
    return [step, signal, decision].map((each) => [each instanceof Uint8Array, ...each]);
  });
  await withWorker(client, [binary], async () => {
    const execution = await client.submit(binary, null);
    await untilState(client, execution.id, "suspended");
    await execution.signal("scan", Buffer.of(0, 128));
    while ((await execution.get()).public_state !== "suspended" || charged === 0) await new Promise((resolve) => setTimeout(resolve, 10));
    await execution.decide("pay", "happened", Uint8Array.of(9));
    assert.deepEqual(await execution.result(), [[true, 1, 2, 255], [true, 0, 128], [true, 9]]);
    const frames = [];
    for await (const event of execution.tail()) if (event.event === "frame") frames.push(event.value);
    assert.deepEqual(frames, [Uint8Array.of(4, 5)]);
  });
});

test("a step may take longer than a timer can be", async () => {
  const patient = task("very-patient", { retries: 0 }, (ctx) => ctx.step("work", () => new Promise((resolve) => setTimeout(resolve, 50, "done")), { timeout: "30d" }));
  await withWorker(client, [patient], async () => { assert.equal(await (await client.submit(patient, null)).result(), "done"); });
});
