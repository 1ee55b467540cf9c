/** A worker process that the crash tests kill. Each step appends a line to a file, so that effects can be counted. */
import { appendFileSync } from "node:fs";

import { Client, type Context, task, Worker } from "../src/index.js";

const effects = process.argv[2] ?? "";
/** The process kills itself when it has begun, or has done, what this names. */
const killAt = process.env["KILL_AT"];

function effect(name: string): string {
  if (killAt === `before ${name}`) process.kill(process.pid, "SIGKILL");
  appendFileSync(effects, `${name}\n`);
  if (killAt === `after ${name}`) process.kill(process.pid, "SIGKILL");
  return name;
}

export const agent = task("agent", async (ctx: Context) => {
  const plan = await ctx.step("plan", () => effect("plan"));
  const search = await ctx.step("search", () => effect("search"));
  const paid = await ctx.step("pay", () => effect("pay"), { once: "ask" });
  const written = await ctx.step("write", () => effect("write"));
  return [plan, search, paid, written];
});

if (effects !== "") {
  const client = new Client();
  await new Worker(client, { tasks: [agent], lanes: [process.env["LANE"] ?? "default"], leaseTtl: "2s" }).run();
}
