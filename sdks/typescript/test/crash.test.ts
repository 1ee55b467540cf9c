/** A worker killed with SIGKILL at each boundary of a program: each effect happens once where `once` says so. */
import assert from "node:assert/strict";
import { type ChildProcess, spawn } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import type { Client } from "../src/index.js";
import { agent } from "./agent.js";
import { startServer, startServerOnValkey, untilState } from "./support.js";

const NAMES = ["plan", "search", "pay", "write"];
const boundaries = NAMES.flatMap((name) => [`before ${name}`, `after ${name}`]);

for (const [store, start] of Object.entries({ sqlite: startServer, valkey: startServerOnValkey })) {
  test(`a worker that is killed at any boundary loses nothing, on ${store}`, async () => {
    const { server, folder, end } = await start();
    try {
      for (const boundary of boundaries) await drill(server.client(), folder, boundary);
    } finally {
      await end();
    }
  });
}

async function drill(client: Client, folder: string, boundary: string): Promise<void> {
  const lane = boundary.replace(" ", "-");
  const effects = join(folder, lane);
  await writeFile(effects, "");
  const execution = await client.submit(agent, null, { lane });
  const first = startAgent(client, lane, effects, boundary);
  await new Promise((resolve) => first.once("exit", resolve));
  const second = startAgent(client, lane, effects);
  try {
    if (boundary.endsWith("pay")) {
      await untilState(client, execution.id, "suspended");
      const happened = boundary.startsWith("after");
      await (happened ? execution.decide("pay", "happened", "pay") : execution.decide("pay", "did_not_happen"));
    }
    assert.deepEqual(await execution.result(), NAMES);
  } finally {
    second.kill("SIGKILL");
  }
  const counts: Record<string, number> = {};
  for (const line of (await readFile(effects, "utf8")).trim().split("\n")) counts[line] = (counts[line] ?? 0) + 1;
  // A step whose result was recorded ran once; the one in which the worker died may have run twice, unless it is `once`.
  const killed = boundary.split(" ")[1] ?? "";
  for (const name of NAMES) {
    const most = name === killed && name !== "pay" && boundary.startsWith("after") ? 2 : 1;
    assert.equal(counts[name], most, `${boundary}: ${name} ran ${counts[name] ?? 0} times`);
  }
}

function startAgent(client: Client, lane: string, effects: string, killAt?: string): ChildProcess {
  const program = fileURLToPath(new URL("./agent.js", import.meta.url));
  const env = { ...process.env, FF_SERVER: client.connection.server, LANE: lane, ...(killAt !== undefined && { KILL_AT: killAt }) };
  return spawn(process.execPath, [program, effects], { env, stdio: ["ignore", "inherit", "inherit"] });
}
