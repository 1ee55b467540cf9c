/** Workers in trouble: they keep or lose their leases as they should, say so, and nothing with `once` happens twice. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { mock, test } from "node:test";
import { fileURLToPath } from "node:url";

import { Client, task } from "../src/index.js";
import { pause } from "../src/time.js";
import { payer } from "./hungry.js";
import { startServer, until, untilState, withWorker } from "./support.js";

/** What happened, and a gate in the middle of it. */
class Effects {
  readonly done: Record<string, number> = {};
  reached = false;
  cancelled = 0;
  goOn: () => void = () => undefined;
  readonly #gate = new Promise<void>((resolve) => { this.goOn = resolve; });

  happen(name: string): string {
    this.done[name] = (this.done[name] ?? 0) + 1;
    return name;
  }

  /** An effect, after which the world outside changes before the body has ended. */
  async waitIn(name: string, signal: AbortSignal): Promise<string> {
    this.happen(name);
    signal.addEventListener("abort", () => { this.cancelled += 1; });
    this.reached = true;
    await this.#gate;
    return name;
  }
}

function paying(effects: Effects) {
  return task("payer", async (ctx) => {
    await ctx.step("plan", () => effects.happen("plan"));
    ctx.emit("note", "about to pay");
    return ctx.step("pay", (signal) => effects.waitIn("pay", signal), { once: "ask" });
  });
}

/** What the worker says meanwhile. */
async function hearing(body: (said: () => string) => Promise<void>): Promise<void> {
  const warned = mock.method(console, "warn", () => undefined);
  try {
    await body(() => warned.mock.calls.map(({ arguments: [words] }) => String(words)).join("\n"));
  } finally {
    warned.mock.restore();
  }
}

/** How long a server is away, shorter than one lease and longer than another. */
const AWAY_MS = 1_000 * Number(process.env["AWAY_SECONDS"] ?? 0);

test("a server that is away for less than a lease costs nothing, however impatient the client is", () => hearing(async (said) => {
  const { server, end } = await startServer();
  const effects = new Effects();
  const pay = paying(effects);
  try {
    const execution = await server.client().submit(pay, null, { retries: 0 });
    await withWorker(server.client({ retryForMs: 300 }), [pay], async () => {
      await until(() => effects.reached);
      const back = Date.now() + AWAY_MS;
      await server.kill();
      effects.goOn();
      // A third of the lease is one heartbeat: the client's own patience is over by then.
      await until(() => said().includes("a heartbeat failed"), AWAY_MS + 30_000);
      await pause(Math.max(0, back - Date.now()));
      await server.restart();
      assert.equal(await execution.result(), "pay");
    }, { leaseTtl: Math.max(12_000, 2 * AWAY_MS) });
    const view = await execution.get();
    assert.deepEqual([view.attempt, view.reclaim_count, view.retry_count], [0, 0, 0]);
  } finally {
    await end();
  }
  assert.deepEqual(effects.done, { plan: 1, pay: 1 });
  assert.equal(effects.cancelled, 0);
}));

test("a server that is away for longer than a lease loses it, and a person is asked", () => hearing(async (said) => {
  const { server, end } = await startServer();
  const effects = new Effects();
  const pay = paying(effects);
  try {
    const client = server.client();
    const execution = await client.submit(pay, null, { retries: 0 });
    await withWorker(server.client({ retryForMs: 300 }), [pay], async () => {
      await until(() => effects.reached);
      await server.kill();
      const began = Date.now();
      await until(() => effects.cancelled === 1);
      // It is given up when it runs out: not before, and not a heartbeat later.
      const took = Date.now() - began;
      assert.ok(took > 300 && took < 5_000, `${took} ms`);
      await pause(Math.max(0, AWAY_MS - took));
      await server.restart();
      // Nobody knows whether it was paid, so a person is asked instead of paying twice.
      await untilState(client, execution.id, "suspended");
      await execution.decide("pay", "happened", "paid before");
      assert.equal(await execution.result(), "paid before");
    }, { leaseTtl: "1s" });
    const view = await execution.get();
    assert.deepEqual([view.reclaim_count, view.retry_count], [1, 0]);
  } finally {
    effects.goOn();
    await end();
  }
  assert.deepEqual(effects.done, { plan: 1, pay: 1 });
  assert.match(said(), /a heartbeat failed/);
  assert.match(said(), /its lease is lost: expired/);
}));

test("a server that restarts finds its workers at work", async () => {
  const { server, end } = await startServer();
  const done: Record<string, number> = {};
  const steady = task("steady", async (ctx) => {
    for (const name of ["one", "two", "three"]) await ctx.step(name, () => { done[ctx.executionId] = (done[ctx.executionId] ?? 0) + 1; }, { once: "fail" });
    return "done";
  });
  try {
    const client = server.client();
    const executions = await Promise.all(Array.from({ length: 30 }, () => client.submit(steady, null, { retries: 0 })));
    await withWorker(server.client({ retryForMs: 300 }), [steady], async () => {
      await until(() => Object.keys(done).length > 0);
      for (let round = 0; round < 2; round++) {
        await server.stop();
        await server.restart();
      }
      for (const one of executions) assert.equal(await one.result(), "done");
    }, { leaseTtl: "10s" });
    const views = await Promise.all(executions.map((one) => one.get()));
    assert.ok(views.every(({ attempt, reclaim_count }) => attempt === 0 && reclaim_count === 0));
  } finally {
    await end();
  }
  assert.deepEqual(new Set(Object.values(done)), new Set([3]));
});

test("a worker whose token is revoked loses its leases and says so", () => hearing(async (said) => {
  const { server, end } = await startServer({ FF_API_TOKEN: "an-administrator-of-tests" });
  const effects = new Effects();
  const pay = paying(effects);
  try {
    const admin = server.client({ token: "an-administrator-of-tests" });
    const make = (name: string) => admin.call("POST", "/v1/admin/tokens", { name, role: "worker", namespace: "default" });
    const [first, second] = [await make("one"), await make("two")];
    const execution = await admin.submit(pay, null, { retries: 0 });
    await withWorker(server.client({ token: first.secret }), [pay], async () => {
      await until(() => effects.reached);
      await admin.call("DELETE", "/v1/admin/tokens/{name}", { name: "one" });
      await withWorker(server.client({ token: second.secret }), [pay], async () => {
        await untilState(admin, execution.id, "suspended");
        await execution.decide("pay", "did_not_happen");
        effects.goOn();
        assert.equal(await execution.result(), "pay");
        await until(() => effects.cancelled === 1);
      }, { leaseTtl: "1s" });
    }, { leaseTtl: "1s" });
  } finally {
    await end();
  }
  assert.deepEqual(effects.done, { plan: 1, pay: 2 });
  for (const words of [/a heartbeat failed: unauthenticated/, /a claim failed: unauthenticated/, /its lease is lost: expired/]) assert.match(said(), words);
}));

test("a process that runs out of memory loses its leases, and what it did is not done again", async () => {
  const { server, folder, end } = await startServer();
  const effects = join(folder, "effects");
  await writeFile(effects, "");
  const program = fileURLToPath(new URL("./hungry.js", import.meta.url));
  const start = (...flags: string[]) => spawn(process.execPath, [...flags, program, effects], { env: { ...process.env, FF_SERVER: server.url }, stdio: "ignore" });
  const small = start("--max-old-space-size=40");
  try {
    const client: Client = server.client();
    const payment = await client.submit(payer, null);
    await until(async () => (await payment.steps()).some(({ state }) => state === "completed"));
    const ended = new Promise((resolve) => small.once("exit", resolve));
    const hungry = await client.submit("hungry", null, { policy: { max_reclaim_count: 0 } });
    await ended;
    await writeFile(`${effects}.go`, "");
    const second = start();
    try {
      assert.equal(await payment.result(), "paid and shipped");
      assert.notEqual((await hungry.wait()).public_state, "completed");
    } finally {
      second.kill("SIGKILL");
    }
    assert.equal(await readFile(effects, "utf8"), "pay\nship\n");
    assert.equal((await payment.get()).reclaim_count, 1);
  } finally {
    small.kill("SIGKILL");
    await end();
  }
});
