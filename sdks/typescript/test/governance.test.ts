/** Schedules, trees of budgets, spending in two steps, providers, bulk jobs, keys, subscriptions and hooks. */
import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { after, before, test } from "node:test";

import { BudgetRefused, type Client, ExecutionFailedError, FlowFabricError, NotDone, schedule, task, Throttled } from "../src/index.js";
import { Server } from "../src/testing.js";
import { pause } from "../src/time.js";
import { startServer, until, untilState, withWorker } from "./support.js";

const START = new Date("2030-01-01T00:00:00Z");
const DAY_MS = 86_400_000;

let own: Awaited<ReturnType<typeof startServer>>;
let client: Client;
before(async () => {
  own = await startServer();
  client = own.server.client();
});
after(() => own.end());

async function standing(budget: string): Promise<[number, number]> {
  const { tokens } = (await client.budget(budget)).standing ?? {};
  return [tokens?.used ?? -1, tokens?.reserved ?? -1];
}

async function gathered<T>(items: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const one of items) all.push(one);
  return all;
}

const report = task("report", (_ctx, of: string) => `a report of ${of}`);

test("a schedule from its creation to its end", async () => {
  const name = "nightly";
  const template = { task: report, input: "the day" };
  const when = { cron: "0 2 * * *", zone: "Europe/Berlin", startsAt: START, jitter: "10s", overlap: "skip", catchUp: 5 } as const;
  const created = await client.call("POST", "/v1/schedules", { name, ...schedule(when, template) });
  assert.equal(created.outcome, "created");
  const seen = await client.call("GET", "/v1/schedules/{name}", { name });
  assert.deepEqual([seen.overlap, seen.jitter_ms, seen.catch_up], ["skip", 10_000, { all: { max: 5 } }]);
  // Two in the morning in Berlin is one o'clock in the winter of UTC.
  assert.equal(seen.next[0], START.getTime() + 3_600_000);
  assert.ok((await gathered(client.items("/v1/schedules"))).some((one) => one.name === name));
  assert.equal((await client.call("POST", "/v1/schedules/{name}/pause", { name, note: "the warehouse is moved" })).state, "paused");
  assert.equal((await client.call("POST", "/v1/schedules/{name}/resume", { name })).state, "active");
  await withWorker(client, [report], async () => {
    const triggered = await client.call("POST", "/v1/schedules/{name}/trigger", { name });
    assert.equal(await client.execution(triggered.execution_id ?? "").result(), "a report of the day");
    const from = START.getTime();
    const backfill = await client.call("POST", "/v1/schedules/{name}/backfill", { name, from, to: from + 2 * DAY_MS });
    assert.equal(backfill.instants, 2);
    await until(async () => (await client.list({ schedule: name, state: "completed" })).items.length === 3);
  });
  const update = (expected_revision: number) =>
    client.call("PUT", "/v1/schedules/{name}", { name, expected_revision, ...schedule({ every: "1h" }, template) });
  await assert.rejects(update(0), (error) => error instanceof FlowFabricError && error.code === "stale_revision");
  assert.equal((await update(seen.revision + 2)).spec.every_ms, 3_600_000);
  await client.call("DELETE", "/v1/schedules/{name}", { name });
  await assert.rejects(client.call("GET", "/v1/schedules/{name}", { name }), (error) => error instanceof FlowFabricError && error.status === 404);
});

test("a schedule of a flow, and a spec that cannot be read", async () => {
  const flow = client.flow({ kind: "weekly" }).node("first", report, "a").node("second", report, "b", { after: ["first"] });
  const at = [START, new Date(START.getTime() + 7 * DAY_MS)];
  await client.call("POST", "/v1/schedules", { name: "weekly", ...schedule({ at }, flow) });
  assert.match(JSON.stringify((await client.call("GET", "/v1/schedules/{name}", { name: "weekly" })).template), /"flow".*"weekly"/);
  const bad = client.call("POST", "/v1/schedules", { name: "bad", ...schedule({ cron: "every day" }, flow) });
  await assert.rejects(bad, (error) => error instanceof FlowFabricError && error.problem.details["field"] === "spec.cron");
});

test("a tree of budgets shows what is used and left", async () => {
  await client.createBudget("acme", { dimensions: { tokens: { hard: 100 } } });
  await client.createBudget("acme/ada", { dimensions: { tokens: { hard: 80 } } });
  const charges = task("charges", async (ctx, tokens: number) => { await ctx.usage({ tokens }, { key: "all" }); });
  await withWorker(client, [charges], async () => {
    await (await client.submit(charges, 30, { budgets: ["acme/ada"] })).result();
  });
  const tree = await gathered(client.items("/v1/budgets/{name}/tree", { name: "acme" }));
  const left = tree.map(({ name, standing }) => [name, standing?.["tokens"]?.used, standing?.["tokens"]?.left]);
  assert.deepEqual(left, [["acme", 30, 70], ["acme/ada", 30, 50]]);
});

test("what is spent is held first, and settled at what it cost", async () => {
  await client.createBudget("team", { dimensions: { tokens: { hard: 100 } } });
  const held: [number, number][] = [];
  const spender = task("spender", (ctx, how: string) => ctx.spend("ask", { tokens: 60 }, async () => {
    held.push(await standing("team"));
    if (how === "fails") throw new Error("the model answered nonsense");
    if (how === "nothing") throw new NotDone("the model was not reached");
    return { value: "an answer", spent: { tokens: 35 } };
  }));
  const outcome = async (how: string) => (await client.submit(spender, how, { retries: 0, budgets: ["team"] })).result().catch((error: unknown) => {
    assert.ok(error instanceof ExecutionFailedError);
    return `${error.category ?? ""}: ${error.message}`;
  });
  await withWorker(client, [spender], async () => {
    assert.equal(await outcome("works"), "an answer");
    assert.deepEqual(await standing("team"), [35, 0]);
    // Nothing was spent for certain: all of it goes back.
    assert.equal(await outcome("nothing"), "not_done: the model was not reached");
    assert.deepEqual(await standing("team"), [35, 0]);
    // Nobody knows what a call cost that failed: the estimate counts.
    assert.equal(await outcome("fails"), "error: the model answered nonsense");
    assert.deepEqual(await standing("team"), [95, 0]);
    // There is no room for another one: it is not begun, and the execution says why.
    assert.equal(await outcome("works"), "budget_refused: ask: budget team has 5 tokens left of 100, 60 were asked for");
    assert.deepEqual(await standing("team"), [95, 0]);
  });
  assert.deepEqual(held, [[0, 60], [35, 60], [35, 60]]);
});

test("a refusal can be caught, and says what is left", async () => {
  await client.createBudget("careful", { dimensions: { tokens: { hard: 100 } } });
  const careful = task("careful", async (ctx) => {
    try {
      return await ctx.spend("ask", { tokens: 500 }, () => ({ value: "done", spent: { tokens: 500 } }));
    } catch (error) {
      if (!(error instanceof BudgetRefused)) throw error;
      return [error.budget, error.dimension, error.refusal.left, error.refusal.limit];
    }
  });
  await withWorker(client, [careful], async () => {
    assert.deepEqual(await (await client.submit(careful, null, { budgets: ["careful"] })).result(), ["careful", "tokens", 100, 100]);
  });
});

test("a budget that asks a person lets the task wait and go on", async () => {
  await client.createBudget("asking", { dimensions: { tokens: { hard: 100 } }, on_hard: "ask" });
  const began: string[] = [];
  const asking = task("asking", async (ctx) => {
    await ctx.step("plan", () => { began.push("plan"); });
    return ctx.step("ask", () => ctx.spend("ask", { tokens: 150 }, () => {
      began.push("work");
      return { value: "done", spent: { tokens: 120 } };
    }));
  });
  await withWorker(client, [asking], async () => {
    const execution = await client.submit(asking, null, { retries: 0, budgets: ["asking"] });
    await untilState(client, execution.id, "suspended");
    await client.call("POST", "/v1/budgets/{name}/decide", { name: "asking", answer: "grant", amounts: { tokens: 100 } });
    assert.equal(await execution.result(), "done");
  });
  assert.deepEqual(await standing("asking"), [120, 0]);
  assert.deepEqual(began, ["plan", "work"]);
});

test("many that spend at once never pass the limit together", async () => {
  await client.createBudget("race", { dimensions: { tokens: { hard: 100 } } });
  let open: () => void = () => undefined;
  const gate = new Promise<void>((resolve) => { open = resolve; });
  const won: string[] = [];
  const racer = task("racer", (ctx) => ctx.spend("race", { tokens: 10 }, async () => {
    await gate;
    won.push(ctx.executionId);
    return { value: null, spent: { tokens: 10 } };
  }));
  const stands = async (...expected: [number, number]) => {
    const [used, reserved] = await standing("race");
    assert.ok(used + reserved <= 100);
    return used === expected[0] && reserved === expected[1];
  };
  await withWorker(client, [racer], async () => {
    await client.submitBatch(racer, Array.from({ length: 64 }, () => null), { retries: 0, budgets: ["race"] });
    await until(() => stands(0, 100));
    open();
    await until(() => stands(100, 0));
  }, { concurrency: 64 });
  assert.equal(new Set(won).size, 10);
  assert.equal(won.length, 10);
});

test("a call to a provider counts what it really cost, and heeds a 429", async () => {
  const calls: number[] = [];
  const asker = task("asker", async (ctx) => {
    const answer = await ctx.acquire("api", "ask", () => {
      calls.push(performance.now());
      if (calls.length === 1) throw new Throttled("too many requests", { retryAfterMs: 300 });
      return { value: "TIDES", spent: { tokens: 120 } };
    }, { tokens: 1_000 });
    await ctx.waitSignal("again");
    return answer;
  });
  await client.call("POST", "/v1/providers", { name: "api", max_tokens: 4_000, max_concurrent: 2 });
  await withWorker(client, [asker], async () => {
    const execution = await client.submit(asker, null, { retries: 0 });
    await untilState(client, execution.id, "suspended");
    const seen = await client.call("GET", "/v1/providers/{name}", { name: "api" });
    assert.deepEqual([seen.tokens_in_window, seen.in_use], [120, 0]);
    // The limit was halved by the 429.
    assert.ok(seen.effective.tokens < 4_000);
    await execution.signal("again");
    assert.equal(await execution.result(), "TIDES");
  });
  // The provider was left alone for as long as it said, and the second run of the function asked nobody.
  assert.equal(calls.length, 2);
  assert.ok((calls[1] ?? 0) - (calls[0] ?? 0) >= 295);
});

test("a call to a provider waits for its turn without its task", async () => {
  const clocked = await Server.start();
  const its = clocked.client();
  const asks = task("asks", (ctx, number: number) => ctx.acquire("slow-api", "ask", () => ({ value: number, spent: { tokens: 3 } }), { tokens: 10 }));
  try {
    await its.call("POST", "/v1/providers", { name: "slow-api", max_requests: 1, window_ms: 60_000 });
    await withWorker(its, [asks], async () => {
      assert.equal(await (await its.submit(asks, 1)).result(), 1);
      const second = await its.submit(asks, 2);
      await untilState(its, second.id, "delayed");
      assert.match(JSON.stringify(await second.explain()), /slow-api/);
      await clocked.advance("2m");
      assert.equal(await second.result(), 2);
    });
  } finally {
    await clocked.stop();
  }
});

test("a bulk job replays what failed, and says how many", async () => {
  let mended = false;
  const fragile = task("fragile", () => {
    if (!mended) throw new Error("not yet");
    return "whole";
  });
  await withWorker(client, [fragile], async () => {
    const executions = await Promise.all([1, 2, 3].map(() => client.submit(fragile, null, { retries: 0 })));
    for (const one of executions) assert.equal((await one.wait()).public_state, "failed");
    mended = true;
    const failed = { kind: ["fragile"], state: ["failed" as const] };
    assert.equal((await client.bulk("replay", failed, { dry_run: true })).progress.done, 3);
    assert.equal((await client.bulk("replay", failed)).progress.done, 3);
    for (const one of executions) assert.equal(await one.result(), "whole");
  });
});

test("a submission says what it shares", async () => {
  let most = 0;
  let running = 0;
  const exclusive = task("exclusive", async () => {
    most = Math.max(most, ++running);
    await pause(20);
    running -= 1;
  });
  await withWorker(client, [exclusive], async () => {
    const keys = { concurrency: { tenant: 1 }, fairKey: "tenant", fairWeight: 2 };
    const executions = await Promise.all([1, 2, 3, 4, 5].map(() => client.submit(exclusive, null, keys)));
    for (const one of executions) await one.result();
    assert.equal(most, 1);
    const later = { singleton: "tenant", lane: "nobody-works-here" };
    const first = await client.submit(exclusive, null, later);
    assert.equal((await client.submit(exclusive, null, later)).id, first.id);
    const { states } = await client.call("GET", "/v1/counts");
    assert.ok(Object.values(states).reduce((sum, { value }) => sum + value, 0) >= 6);
    await first.cancel();
  });
});

test("a subscription creates an execution for each end, and a hook one for each message", async () => {
  const heard: string[] = [];
  const works = task("works", () => null);
  const hears = task("hears", (_ctx, message: { type?: string; number?: number }) => { heard.push(message.type ?? String(message.number)); });
  await client.call("POST", "/v1/subscriptions", { name: "ends", filter: { kinds: ["works"] }, target: { execution: { kind: "hears" } } });
  const secret = "a secret that both sides know";
  await client.call("POST", "/v1/hooks", { name: "pulls", scheme: "github", secret, target: { execution: { kind: "hears" } } });
  await withWorker(client, [works, hears], async () => {
    await (await client.submit(works, null)).result();
    await until(() => Promise.resolve(heard.includes("completed")));
    const body = JSON.stringify({ number: 7 });
    const signature = createHmac("sha256", secret).update(body).digest("hex");
    const headers = { "x-hub-signature-256": `sha256=${signature}`, "x-github-delivery": "1", "content-type": "application/json" };
    assert.equal((await fetch(`${client.connection.server}/v1/hooks/pulls`, { method: "POST", body, headers })).ok, true);
    await until(() => Promise.resolve(heard.includes("7")));
  });
  await client.call("DELETE", "/v1/subscriptions/{name}", { name: "ends" });
  await client.call("DELETE", "/v1/hooks/{name}", { name: "pulls" });
});

test("a function that repeats itself is let go when the policy says so", async () => {
  let asked = 0;
  const asksAgain = task("asks-again", async (ctx) => {
    for (let number = 0; number < 10; number++) await ctx.step("ask", () => { asked += 1; return "the same"; }, { key: String(number) });
  });
  const policy = { no_progress: { same: 3, window: 10, action: "ask" as const } };
  await withWorker(client, [asksAgain], async () => {
    const execution = await client.submit(asksAgain, null, { retries: 0, policy });
    await untilState(client, execution.id, "suspended");
    // The step that is one too many was recorded, and the next one did not run.
    assert.equal(asked, 3);
    await execution.cancel();
  });
});
