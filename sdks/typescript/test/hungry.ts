/** A worker process whose heap one of its tasks fills, which ends a Node process. Each effect is a line of a file. */
import { appendFileSync, existsSync } from "node:fs";

import { Client, task, Worker } from "../src/index.js";

const effects = process.argv[2] ?? "";

export const hungry = task("hungry", () => {
  const eaten: unknown[] = [];
  for (;;) eaten.push(new Array(10_000).fill({}));
});

export const payer = task("payer", async (ctx) => {
  const paid = await ctx.step("pay", () => {
    appendFileSync(effects, "pay\n");
    return "paid";
  }, { once: "ask" });
  // The lease is held meanwhile.
  while (!existsSync(`${effects}.go`)) await new Promise((resolve) => setTimeout(resolve, 20));
  return ctx.step("ship", () => {
    appendFileSync(effects, "ship\n");
    return `${paid} and shipped`;
  }, { once: "ask" });
});

if (effects !== "") await new Worker(new Client(), { tasks: [hungry, payer], leaseTtl: "1s" }).run();
