/**
 * A thousand pages in parallel children, and one sum at the end.
 *
 *     ff dev &
 *     npm run build && node examples/map_reduce.ts        # before Node 22.18: npx tsc && node build/examples/map_reduce.js
 */
import { Client, task, Worker } from "@flowfabric/sdk";

const PAGES = Number(process.env["PAGES"] ?? 1_000);
const CHUNK = 100;

export const count = task("count-words", (_ctx, pages: number[]) => pages.reduce((words, page) => words + (page % 7) + 1, 0));

export const total = task("total-words", async (ctx, pages: number) => {
  const chunks = Array.from({ length: Math.ceil(pages / CHUNK) }, (_, chunk) =>
    Array.from({ length: Math.min(CHUNK, pages - chunk * CHUNK) }, (_, page) => chunk * CHUNK + page));
  const counts = await Promise.all(chunks.map((chunk, place) => ctx.child("count", count, chunk, { key: String(place) })));
  return counts.reduce((sum, each) => sum + each, 0);
});

const client = new Client();
const worker = new Worker(client, { tasks: [count, total], concurrency: 20 });
const working = worker.run();

console.log(`${PAGES} pages have ${await (await client.submit(total, PAGES)).result()} words`);

worker.stop();
await working;
