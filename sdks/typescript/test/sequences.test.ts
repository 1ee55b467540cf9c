/**
 * Sequences of the engine's contract that a worker takes part in: a sleep across a crash, an exchange whose answer is
 * lost, a link without an account, and two services in one lane. The others are in durable and governance.
 */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";

import { Client, type Execution, FlowFabricError, task } from "../src/index.js";
import { type Said, startProxy, startServer, until, untilState, withWorker } from "./support.js";

let own: Awaited<ReturnType<typeof startServer>>;
let client: Client;
before(async () => {
  own = await startServer();
  client = own.server.client();
});
after(() => own.end());

/** Longer than what is slept under the lease. */
const NAP_MS = 7_000;
/** Endings and claims of one exchange. */
const MANY = 20;
const ADMIN = "an-administrator-of-tests";

test("a sleep ends at its first instant although its worker crashed meanwhile", async () => {
  let runs = 0;
  let dying = "";
  const naps = task("naps", async (ctx) => {
    runs += 1;
    const branch = async () => {
      await ctx.waitSignal("go");
      if (dying !== "") return;
      dying = ctx.executionId;
      await ctx.step("dies here", () => new Promise<never>(() => undefined));
    };
    await Promise.all([ctx.sleep("nap", NAP_MS), branch()]);
    return "rested";
  });
  await withWorker(client, [naps], async () => {
    const execution = await client.submit(naps, null, { retries: 0 });
    const endsAt = async () => (await execution.steps()).find(({ name }) => name === "nap")?.next_at;
    await until(async () => (await endsAt()) != null);
    const first = (await endsAt()) ?? 0;
    await execution.signal("go");
    await until(() => dying === execution.id);
    await client.call("POST", "/v1/executions/{execution_id}/revoke-lease", { execution_id: execution.id });
    assert.equal(await execution.result(), "rested");
    const { completed_at: ended, reclaim_count: reclaims } = await execution.get();
    assert.equal(reclaims, 1);
    assert.ok(ended != null && ended >= first && ended < first + NAP_MS, `${ended} after ${first}`);
    assert.ok(runs >= 3);
  }, { leaseTtl: "1s" });
});

test("twenty endings and claims whose answer is lost are said again, and happen once", async () => {
  const done = new Map<string, number>();
  let begun = 0;
  let release: () => void = () => undefined;
  const together = new Promise<void>((resolve) => { release = resolve; });
  const twenty = task("twenty", async (ctx) => {
    done.set(ctx.executionId, (done.get(ctx.executionId) ?? 0) + 1);
    if (++begun === MANY) release();
    await together;
    return done.get(ctx.executionId);
  });
  const proxy = await startProxy(own.server.url);
  const lost: Said[] = [];
  proxy.fate = (name, body) => {
    if (name !== "exchange" || body.end?.length !== MANY || lost.length > 0) return undefined;
    lost.push(body);
    return "lose";
  };
  try {
    const submitted = (await client.submitBatch(twenty, Array.from({ length: 2 * MANY }, () => null), { retries: 0 })) as Execution<number>[];
    await withWorker(new Client({ server: proxy.url }), [twenty], async () => {
      for (const one of submitted) assert.equal(await one.result(), 1);
    }, { concurrency: MANY });
    for (const one of submitted) {
      const { attempt, reclaim_count } = await one.get();
      assert.deepEqual([attempt, reclaim_count], [0, 0]);
    }
  } finally {
    proxy.close();
  }
  const endings = JSON.stringify(lost[0]?.end);
  const said = proxy.calls.filter(({ body }) => JSON.stringify(body.end) === endings).map(({ body }) => body.claim);
  assert.deepEqual(said.map((claim) => claim?.retry), [undefined, true]);
  assert.equal(said[0]?.lease_ids.length, MANY);
  assert.deepEqual(said[0].lease_ids, said[1]?.lease_ids);
  assert.deepEqual(new Set(done.values()), new Set([1]));
  assert.equal(done.size, 2 * MANY);
});

test("a waitpoint token decides without an API token, and does nothing else", async () => {
  const { server, end } = await startServer({ FF_API_TOKEN: ADMIN });
  const asks = task("asks", (ctx) => ctx.waitSignal<string>("decision"));
  try {
    const admin = server.client({ token: ADMIN });
    await withWorker(admin, [asks], async () => {
      const execution = await admin.submit(asks, null, { retries: 0 });
      await untilState(admin, execution.id, "suspended");
      const at = { execution_id: execution.id };
      const { items } = await admin.call("GET", "/v1/executions/{execution_id}/pending-waitpoints", at);
      const waitpoint = items[0]?.waitpoint_id ?? "";
      const { token } = await admin.call("GET", "/v1/executions/{execution_id}/waitpoints/{waitpoint_id}/token", { ...at, waitpoint_id: waitpoint });
      const theirs = server.client().execution(execution.id);
      for (const refused of [() => server.client().list(), () => theirs.get(), () => theirs.cancel(), () => theirs.signal("decision", "no")]) {
        await assert.rejects(refused, (error) => error instanceof FlowFabricError && error.status === 401);
      }
      await theirs.signal("decision", "yes", { waitpoint, token });
      assert.equal(await execution.result(), "yes");
    });
  } finally {
    await end();
  }
});

test("a waitpoint token does not approve for two people", async () => {
  const { server, end } = await startServer({ FF_API_TOKEN: ADMIN });
  try {
    const admin = server.client({ token: ADMIN });
    const execution = await admin.submit("refund", 40, { lane: "refunds" });
    const at = { execution_id: execution.id };
    const { tasks: [held] } = await admin.call("POST", "/v1/workers/{instance_id}/claim", { instance_id: "by-hand", lanes: ["refunds"], wait_ms: 5_000 });
    assert.ok(held);
    const condition = { count: { n: 2, distinct: "sources" as const, matchers: [{ name: "approve" }] } };
    const asked = await admin.call("POST", "/v1/executions/{execution_id}/suspend", { ...at, fence: held.fence, reason: "approval", condition });
    const theirs = server.client().execution(execution.id);
    const vote = (source: string) => theirs.signal("approve", undefined, { waitpoint: asked.waitpoint_id, token: asked.token, source });
    const votes = [await vote("ann"), await vote("bob")];
    assert.deepEqual(votes.map((one) => "effect" in one && one.effect), ["appended_to_waitpoint", "no_op"]);
    assert.equal((await execution.get()).public_state, "suspended");
    assert.equal((await execution.approve()).outcome, "triggered_resume");
  } finally {
    await end();
  }
});

test("neither of two workers of one lane is handed the other's kind", async () => {
  const left = task("left-kind", () => "left");
  const right = task("right-kind", () => "right");
  const ids = await Promise.all(Array.from({ length: 10 }, async (_, place) => client.submit(place % 2 === 0 ? left : right, null)));
  await withWorker(client, [left], () =>
    withWorker(client, [right], async () => {
      const results = await Promise.all(ids.map(async (one) => one.result()));
      assert.deepEqual(results, Array.from({ length: 10 }, (_, place) => (place % 2 === 0 ? "left" : "right")));
      const attempts = await Promise.all(ids.map(async (one) => (await one.get()).attempt));
      assert.deepEqual(new Set(attempts), new Set([0]));
    }),
  );
});
