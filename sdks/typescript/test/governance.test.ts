/** Schedules, trees of budgets, and spending in two steps. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { BudgetRefused, type Client, ExecutionFailedError, FlowFabricError, NotDone, task } from "../src/index.js";
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
  const schedule = client.schedule("nightly");
  const template = { task: report, input: "the day" };
  const when = { cron: "0 2 * * *", zone: "Europe/Berlin", startsAt: START, jitter: "10s", overlap: "skip", catchUp: 5 } as const;
  const created = await schedule.create(when, template);
  assert.equal(created.outcome, "created");
  const seen = await schedule.get();
  assert.deepEqual([seen.overlap, seen.jitter_ms, seen.catch_up], ["skip", 10_000, { all: { max: 5 } }]);
  // Two in the morning in Berlin is one o'clock in the winter of UTC.
  assert.equal(seen.next[0], START.getTime() + 3_600_000);
  assert.ok((await gathered(client.schedules())).some(({ name }) => name === "nightly"));
  assert.equal((await schedule.pause("the warehouse is moved")).state, "paused");
  assert.equal((await schedule.resume()).state, "active");
  await withWorker(client, [report], async () => {
    const triggered = await schedule.trigger();
    assert.equal(await client.execution(triggered.execution_id ?? "").result(), "a report of the day");
    const backfill = await schedule.backfill(START, new Date(START.getTime() + 2 * DAY_MS));
    assert.equal(backfill.instants, 2);
    await until(async () => (await client.list({ schedule: "nightly", state: "completed" })).items.length === 3);
  });
  await assert.rejects(schedule.update({ every: "1h" }, template, 0), (error) => error instanceof FlowFabricError && error.code === "stale_revision");
  assert.equal((await schedule.update({ every: "1h" }, template, seen.revision + 2)).spec.every_ms, 3_600_000);
  await schedule.delete();
  await assert.rejects(schedule.get(), (error) => error instanceof FlowFabricError && error.status === 404);
});

test("a schedule of a flow, and a spec that cannot be read", async () => {
  const flow = client.flow({ kind: "weekly" }).node("first", report, "a").node("second", report, "b", { after: ["first"] });
  const schedule = client.schedule("weekly");
  await schedule.create({ at: [START, new Date(START.getTime() + 7 * DAY_MS)] }, flow);
  assert.match(JSON.stringify((await schedule.get()).template), /"flow".*"weekly"/);
  await assert.rejects(client.schedule("bad").create({ cron: "every day" }, flow), (error) => error instanceof FlowFabricError && error.problem.details["field"] === "spec.cron");
});

test("a tree of budgets shows what is used and left", async () => {
  await client.createBudget("acme", { dimensions: { tokens: { hard: 100 } } });
  await client.createBudget("acme/ada", { dimensions: { tokens: { hard: 80 } } });
  const charges = task("charges", async (ctx, tokens: number) => { await ctx.usage({ tokens }, { key: "all" }); });
  await withWorker(client, [charges], async () => {
    await (await client.submit(charges, 30, { budgets: ["acme/ada"] })).result();
  });
  const tree = await gathered(client.budgetTree("acme"));
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
    await client.call("POST", "/v1/budgets/asking/decide", { answer: "grant", amounts: { tokens: 100 } });
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
