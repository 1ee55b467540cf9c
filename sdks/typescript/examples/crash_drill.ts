/**
 * A worker process is killed in the middle of its work; another one goes on where it was.
 *
 *     ff dev &
 *     npm run build && node examples/crash_drill.ts        # before Node 22.18: npx tsc && node build/examples/crash_drill.js
 */
import { type ChildProcess, spawn } from "node:child_process";
import { fileURLToPath } from "node:url";

import { Client, task, Worker } from "@flowfabric/sdk";

const role = process.argv[2];

export const pipeline = task("pipeline", async (ctx) => {
  const done: string[] = [];
  for (const name of ["download", "transcode", "upload"]) {
    done.push(await ctx.step(name, () => {
      console.log(`  ${role ?? ""} runs ${name}`);
      // The first worker dies here, without a word to anybody.
      if (role === "first" && name === "transcode") process.kill(process.pid, "SIGKILL");
      return name;
    }));
  }
  return done.join(", ");
});

const client = new Client();
if (role === undefined) {
  const execution = await client.submit(pipeline, null);
  await ended(start("first"));
  console.log("the first worker was killed");
  const second = start("second");
  console.log(`done: ${await execution.result()}`);
  second.kill("SIGTERM");
  await ended(second);
} else {
  await new Worker(client, { tasks: [pipeline], leaseTtl: "1s" }).run();
}

function start(role: string): ChildProcess {
  return spawn(process.execPath, [fileURLToPath(import.meta.url), role], { stdio: ["ignore", "inherit", "inherit"] });
}

function ended(child: ChildProcess): Promise<unknown> {
  return new Promise((resolve) => child.once("exit", resolve));
}
