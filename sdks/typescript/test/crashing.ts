/**
 * A worker that kills itself with SIGKILL at a boundary: just before or just after one of its calls about a task. Every
 * effect is a line in a file, written by the body itself, so that a test can count what really happened.
 */
import { appendFileSync } from "node:fs";

import { Client, Connection, task, Worker } from "../src/index.js";

const effects = process.env["EFFECTS"] ?? "";
const killAt = Number(process.env["KILL_AT"] ?? 0);

/** Something that cannot be undone. */
function effect(execution: string, name: string): string {
  appendFileSync(effects, `${execution} ${name}\n`, { flush: true });
  return `${name} done`;
}

/** Calls that are boundaries; those about the worker itself, and claims without an ending, are not. */
function isAboutTasks(route: string, body: unknown): boolean {
  if (route.endsWith("/exchange")) return (body as { end: unknown[] }).end.length > 0;
  return /\/v1\/executions(\/[^/]+\/(steps|frames|spend\/\w+))?$/.test(route) && body !== undefined;
}

/** Counts the boundaries of this process, and ends it at one of them. */
class CrashingConnection extends Connection {
  #boundaries = 0;

  override async call<T>(method: string, route: string, options: Parameters<Connection["call"]>[2] = {}): Promise<T> {
    const aboutTasks = isAboutTasks(route, options.body);
    if (aboutTasks) this.#boundary();
    const answer = await super.call<T>(method, route, options);
    if (aboutTasks) this.#boundary();
    return answer;
  }

  #boundary(): void {
    if (++this.#boundaries === killAt) process.kill(process.pid, "SIGKILL");
  }
}

export const mail = task("mail", { retries: 0 }, (ctx, order: string) => ctx.step("mail", () => effect(order, "mail"), { once: true }));

export const drill = task("drill", { retries: 0 }, async (ctx, lane: string) => {
  const me = ctx.executionId;
  const pages = await Promise.all([0, 1, 2].map((n) => ctx.step("fetch", () => effect(me, `fetch-${n}`), { key: String(n) })));
  const plan = await ctx.step("plan", () => effect(me, "plan"));
  ctx.emit("token", plan);
  const paid = await ctx.step("pay", () => effect(me, "pay"), { once: true });
  const decision = await ctx.waitSignal<string>("decision");
  const mailed = await ctx.child("mail", mail, me, { lane });
  await ctx.sleep("settle", 10);
  const shipped = await ctx.step("ship", () => effect(me, "ship"), { once: "ask" });
  const noted = await ctx.step("note", () => effect(me, "note"));
  return [...pages, plan, paid, decision, mailed, shipped, noted];
});

if (effects !== "") {
  const client = new Client(killAt > 0 ? new CrashingConnection() : {});
  await new Worker(client, { tasks: [drill, mail], lanes: process.argv.slice(2), leaseTtl: "3s", concurrency: 30 }).run();
}
