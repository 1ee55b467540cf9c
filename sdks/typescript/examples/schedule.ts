/**
 * A report every working day: makes a schedule, runs it once by hand, and shows when it runs next.
 *
 *     ff dev &
 *     npm run build && node examples/schedule.ts        # before Node 22.18: npx tsc && node build/examples/schedule.js
 */
import { Client, schedule, task, Worker } from "@flowfabric/sdk";

export const report = task("morning-report", { retries: 3 }, (ctx, of: string) => ctx.step("write", () => `The report of ${of} is written.`));

const client = new Client();
const worker = new Worker(client, { tasks: [report] });
const working = worker.run();

const name = "morning-report";
// While one report is not finished, the next is not begun; after an outage the last one is made up for.
const when = { cron: "0 6 * * MON-FRI", zone: "Europe/Berlin", overlap: "skip", catchUp: "last" } as const;
await client.call("POST", "/v1/schedules", { name, ...schedule(when, { task: report, input: "yesterday" }) });
const triggered = await client.call("POST", "/v1/schedules/{name}/trigger", { name });
console.log(await client.execution(triggered.execution_id ?? "").result());
const { next } = await client.call("GET", "/v1/schedules/{name}", { name });
for (const at of next.slice(0, 3)) console.log(`next: ${new Date(at).toUTCString()}`);
await client.call("DELETE", "/v1/schedules/{name}", { name });

worker.stop();
await working;
