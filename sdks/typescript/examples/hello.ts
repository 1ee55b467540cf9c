/**
 * One task, a worker, and a program that submits it.
 *
 *     ff dev &
 *     npm run build && node examples/hello.ts        # before Node 22.18: npx tsc && node build/examples/hello.js
 */
import { Client, task, Worker } from "@flowfabric/sdk";

export const greet = task("greet", (_ctx, name: string) => `Hello, ${name}!`);

const client = new Client();
const worker = new Worker(client, { tasks: [greet] });
const working = worker.run();

const execution = await client.submit(greet, "world");
console.log(await execution.result());

worker.stop();
await working;
