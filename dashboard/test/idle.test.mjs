// Open dashboards that nobody touches cost the store nothing.

import { after, before, test } from "node:test";
import assert from "node:assert/strict";
import { setTimeout as pass } from "node:timers/promises";
import { Deployment, closeBrowser, open } from "./support.mjs";

const TABS = 10;
/** Longer than a reading of the queues is shared, so that each look at the metrics costs the same. */
const WINDOW_MS = 6_000;

let server;

before(async () => {
  server = await Deployment.start();
  for (let n = 0; n < 20; n += 1) await server.submit("waits", n, { lane: "idle" });
});

after(async () => {
  await closeBrowser();
  await server?.stop();
});

async function reads() {
  const text = await (await fetch(`${server.url}/metrics`)).text();
  return Number(/^flowfabric_store_reads_total (\d+)/m.exec(text)?.[1]);
}

/** Reads of the store over a while. There is no event to wait for: that nothing happens is what is measured. */
async function readsInAWhile() {
  const before = await reads();
  await pass(WINDOW_MS);
  return (await reads()) - before;
}

test("ten open tabs that nobody touches read nothing, and ask again when somebody comes back", async (t) => {
  const alone = await readsInAWhile();
  const paths = ["/", "/executions", "/lanes", "/workers", "/budgets", "/approvals", "/flows", "/system", "/", "/executions"];
  const tabs = await Promise.all(paths.slice(0, TABS).map((path) => open(server, path, { clock: true })));
  for (const { page } of tabs) {
    await page.getByRole("heading", { level: 1 }).waitFor();
    await page.locator(".live[data-on]").waitFor();
    await page.clock.fastForward(90_000);
    await page.getByText("resting").waitFor();
  }
  const watched = await readsInAWhile();
  t.diagnostic(`reads of the store in ${WINDOW_MS} ms: ${alone} without a tab, ${watched} with ${TABS}`);
  assert.ok(watched - alone <= 2, `${watched} instead of ${alone}`);
  const [{ page }] = tabs;
  await page.mouse.move(200, 200);
  await page.getByText("resting").waitFor({ state: "detached" });
  for (const tab of tabs) await tab.close();
});
