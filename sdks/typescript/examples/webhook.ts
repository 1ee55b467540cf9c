/**
 * A web server that starts an order for each request once, and tells it when its payment has arrived.
 *
 *     ff dev &
 *     npm run build && node examples/webhook.ts        # before Node 22.18: npx tsc && node build/examples/webhook.js
 */
import { createServer } from "node:http";

import { Client, task, Worker } from "@flowfabric/sdk";

interface Paid { amount: number }

export const order = task("order", async (ctx, item: string) => {
  const paid = await ctx.waitSignal<Paid>("paid", { timeout: "3d" });
  return ctx.step("ship", () => `${item} was shipped for ${paid.amount}`);
});

const client = new Client();
const worker = new Worker(client, { tasks: [order] });
const working = worker.run();

const web = createServer((request, response) => {
  void (async () => {
    const [, what, id = ""] = (request.url ?? "").split("/");
    if (what === "order") {
      // The sender repeats what it is not sure of: the same order is the same execution.
      const execution = await client.submit(order, id, { idempotencyKey: `order ${id}` });
      response.end(execution.id);
    } else {
      await client.execution(id).signal("paid", { amount: 42 });
      response.end("thank you");
    }
  })();
});
await new Promise<void>((resolve) => web.listen(0, "127.0.0.1", resolve));
const address = web.address();
const at = `http://127.0.0.1:${typeof address === "object" && address !== null ? address.port : 0}`;

const first = await (await fetch(`${at}/order/lamp`)).text();
const again = await (await fetch(`${at}/order/lamp`)).text();
console.log(first === again ? "one order" : "two orders");
await fetch(`${at}/paid/${first}`);
console.log(await client.execution(first).result());

web.close();
worker.stop();
await working;
