/** A worker killed with SIGKILL at each boundary of a program: each effect happens once where `once` says so. */
import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import type { Client, Execution } from "../src/index.js";
import { drill } from "./crashing.js";
import { startServer, startServerOnValkey, until } from "./support.js";

const RUNS = 25;
/** Workers that start at the same time. */
const AT_ONCE = 5;
const REPEATABLE = ["fetch-0", "fetch-1", "fetch-2", "plan", "note"];
const ONCE = ["pay", "mail", "ship"];
const EXPECTED = ["fetch-0 done", "fetch-1 done", "fetch-2 done", "plan done", "pay done", "yes", "mail done", "ship done", "note done"];

for (const [store, start] of Object.entries({ sqlite: startServer, valkey: startServerOnValkey })) {
  test(`a worker that is killed at any of ${RUNS} boundaries loses nothing, on ${store}`, { timeout: 240_000 }, async () => {
    const { server, folder, end } = await start();
    try {
      await killEach(server.client(), join(folder, "effects"));
    } finally {
      await end();
    }
  });
}

async function killEach(client: Client, effects: string): Promise<void> {
  writeFileSync(effects, "");
  const lanes = Array.from({ length: RUNS }, (_, number) => `lane-${number + 1}`);
  const executions = await Promise.all(lanes.map((lane) => client.submit(drill, lane, { lane })));
  await Promise.all(executions.map((execution) => execution.signal("decision", "yes")));
  const kills = lanes.map((lane, number) => ({ lane, killAt: number + 1 }));
  await Promise.all(Array.from({ length: AT_ONCE }, async () => {
    for (let kill = kills.shift(); kill !== undefined; kill = kills.shift()) {
      const dying = startWorker(client, effects, [kill.lane], kill.killAt);
      const signal = await new Promise((resolve) => dying.once("exit", (_, how) => { resolve(how); }));
      assert.equal(signal, "SIGKILL", `boundary ${kill.killAt}`);
    }
  }));
  const survivor = startWorker(client, effects, lanes);
  try {
    for (const execution of executions) await until(() => isSettled(client, execution, effects));
  } finally {
    survivor.kill("SIGTERM");
  }
  for (const execution of executions) assert.deepEqual(await execution.result(), EXPECTED);
  checkEffects(linesOf(effects), executions.map(({ id }) => id));
}

/** Answers what an execution or its child is in doubt about, as a person does who looks at what happened; says whether the execution has ended. */
async function isSettled(client: Client, execution: Execution, effects: string): Promise<boolean> {
  const children = await client.call("GET", "/v1/executions/{execution_id}/upstreams", { execution_id: execution.id });
  for (const one of [execution, ...children.items.map((child) => client.execution(child.execution_id))]) {
    if ((await one.get()).public_state !== "suspended") continue;
    for (const step of await one.steps()) {
      if (step.state !== "begun" || !ONCE.includes(step.name)) continue;
      if (linesOf(effects).includes(`${execution.id} ${step.name}`)) await one.decide(step.name, "happened", `${step.name} done`);
      else await one.decide(step.name, "did_not_happen");
    }
  }
  return ["completed", "failed", "cancelled"].includes((await execution.get()).public_state);
}

function checkEffects(lines: string[], executions: string[]): void {
  const times = (line: string) => lines.filter((one) => one === line).length;
  for (const execution of executions) {
    for (const name of ONCE) assert.equal(times(`${execution} ${name}`), 1, `${execution} ${name}`);
    for (const name of REPEATABLE) {
      // A body that ended just before its worker died, and before its entry was stored, runs again.
      assert.ok([1, 2].includes(times(`${execution} ${name}`)), `${execution} ${name}`);
    }
  }
  // One worker dies at one boundary: at most the steps that were under way then ran twice.
  assert.ok(lines.length - executions.length * (ONCE.length + REPEATABLE.length) <= RUNS);
}

function linesOf(file: string): string[] {
  return readFileSync(file, "utf8").trim().split("\n");
}

function startWorker(client: Client, effects: string, lanes: string[], killAt?: number): ChildProcess {
  const program = fileURLToPath(new URL("./crashing.js", import.meta.url));
  const env = { ...process.env, FF_SERVER: client.connection.server, EFFECTS: effects, KILL_AT: String(killAt ?? 0) };
  return spawn(process.execPath, [program, ...lanes], { env, stdio: ["ignore", "inherit", "ignore"] });
}
