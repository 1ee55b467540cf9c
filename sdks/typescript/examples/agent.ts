/**
 * An agent whose model and tools are steps: it asks a person before it spends, and stays inside its budget.
 *
 *     ff dev &
 *     npm run build && node examples/agent.ts        # before Node 22.18: npx tsc && node build/examples/agent.js
 */
import { Client, type Context, task, Worker } from "@flowfabric/sdk";

interface Turn { tool?: string; answer?: string; tokens: number }

/** Stands in for a model: it looks something up, books it, and answers. */
function model(history: string[]): Promise<Turn> {
  const turns: Turn[] = [{ tool: "search", tokens: 40 }, { tool: "book", tokens: 60 }, { answer: "The trip is booked.", tokens: 20 }];
  return Promise.resolve(turns[Math.min(history.length, turns.length - 1)] ?? { answer: "", tokens: 0 });
}

export const agent = task("trip-agent", async (ctx: Context, goal: string) => {
  const history: string[] = [];
  for (let round = 0; round < 10; round++) {
    // What a call may cost is held before it is made; what it did cost is settled, and the answer is kept.
    const turn = await ctx.step("think", () => ctx.spend("think", { tokens: 100 }, async () => {
      const value = await model(history);
      ctx.emit("turn", value);
      return { value, spent: { tokens: value.tokens } };
    }), { key: String(round) });
    if (turn.answer !== undefined) return `${goal}: ${turn.answer}`;
    if (turn.tool === "book") {
      const approved = await ctx.waitSignal<boolean>("approve booking", { timeout: "7d" });
      if (!approved) return `${goal}: nobody approved it.`;
    }
    const seen = await ctx.step(`tool ${turn.tool ?? ""}`, () => `${turn.tool ?? ""} is done`, { key: String(round), once: turn.tool === "book" });
    history.push(seen);
  }
  return `${goal}: no answer in ten rounds.`;
});

const client = new Client();
const worker = new Worker(client, { tasks: [agent] });
const working = worker.run();

await client.createBudget("trips", { dimensions: { tokens: { hard: 1_000 } } });
const execution = await client.submit(agent, "A weekend in Lisbon", { budgets: ["trips"] });
for await (const event of execution.tail()) {
  if (event.event === "frame") console.log(event.type, JSON.stringify(event.value));
  // A person does this with `ff signal`, or in the dashboard.
  if (event.event === "paused") await execution.signal("approve booking", true);
}
console.log(await execution.result());

worker.stop();
await working;
