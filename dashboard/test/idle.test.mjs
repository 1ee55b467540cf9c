// Open dashboards ask little of the server and its store while somebody looks, and nothing while nobody does.

import { after, before, test } from "node:test";
import assert from "node:assert/strict";
import { setTimeout as pass } from "node:timers/promises";
import { Deployment, closeBrowser, open } from "./support.mjs";

const PATHS = ["/", "/executions", "/lanes", "/workers", "/budgets", "/approvals", "/flows", "/system", "/bulk", "/webhooks"];
/** Each part lasts this long by the clocks of the pages: longer than any screen waits before it asks again, a minute. */
const WATCHED_MS = 70_000;
const STEP_MS = 10_000;
/** And by ours: longer than the server shares a reading of its queues, so that each look at its metrics costs the same. */
const WINDOW_MS = 6_000;
/** A screen asks at most this much in ten seconds: four calls, and once a minute why the oldest wait. */
const CALLS_MAX = 4;
const EXPLAINED_MAX = 21;
/** The server sweeps its store now and then by itself. Streams that read would read once each, ten times in all. */
const SWEEPS_MAX = 3;

let server;

before(async () => {
  server = await Deployment.start();
  for (let n = 0; n < 30; n += 1) await server.submit("waits", n, { lane: "idle" });
});

after(async () => {
  await closeBrowser();
  await server?.stop();
});

/** Requests that the server has answered so far, those for this very page included, and reads of its store. */
async function heard() {
  const text = await (await fetch(`${server.url}/metrics`)).text();
  const sum = (name) => [...text.matchAll(new RegExp(`^${name}(?:\\{.*\\})? (\\d+)`, "gm"))].reduce((all, [, value]) => all + Number(value), 0);
  return { requests: sum("flowfabric_http_responses_total"), reads: sum("flowfabric_store_reads_total") };
}

/**
 * Counts what is asked while `act` runs and for a window after it. There is no event to wait for: that nothing happens is
 * what is measured. The second look at the metrics is the one request that is ours.
 */
async function askedDuring(act) {
  const before = await heard();
  await act();
  await pass(WINDOW_MS);
  const after = await heard();
  return { requests: after.requests - before.requests - 1, reads: after.reads - before.reads };
}

/** Waits until calls that were under way are answered: two looks that differ by no more than the second of them. */
async function untilAnswered() {
  for (let last = await heard(); ; ) {
    await pass(1_000);
    const next = await heard();
    if (next.requests - last.requests === 1) return;
    last = next;
  }
}

test("ten tabs ask little while somebody looks, nothing while nobody does, and again when somebody comes back", async (t) => {
  const alone = await askedDuring(async () => {});
  assert.equal(alone.requests, 0, "nobody else asks this server");
  const tabs = await Promise.all(PATHS.map((path) => open(server, path, { clock: true })));
  const pages = tabs.map((tab) => tab.page);
  for (const page of pages) {
    await page.getByRole("heading", { level: 1 }).waitFor();
    await page.locator(".live[data-on=true]").waitFor();
    await page.waitForFunction(() => document.querySelectorAll("[aria-label=Loading]").length === 0);
  }

  const watched = await askedDuring(async () => {
    for (let passed = 0; passed < WATCHED_MS; passed += STEP_MS) {
      for (const page of pages) {
        await page.mouse.move(300 + passed / 1_000, 300);
        await page.clock.runFor(STEP_MS);
      }
    }
  });
  for (const page of pages) assert.equal(await page.getByText("resting").count(), 0, "somebody was there all the time");
  const most = PATHS.length * ((WATCHED_MS / STEP_MS) * CALLS_MAX + EXPLAINED_MAX);
  assert.ok(watched.requests > PATHS.length, `${watched.requests} requests: the screens do not keep up`);
  assert.ok(watched.requests <= most, `${watched.requests} requests instead of at most ${most}`);

  for (const page of pages) {
    await page.clock.fastForward(90_000);
    await page.getByText("resting").waitFor();
  }
  await untilAnswered();
  const resting = await askedDuring(async () => {
    for (const page of pages) await page.clock.runFor(2 * WATCHED_MS);
  });
  const told = (what, { requests, reads }) => `${what}: ${requests} requests and ${reads} reads of the store`;
  t.diagnostic([told("without a tab", alone), told(`${PATHS.length} tabs with somebody there, over ${WATCHED_MS / 1_000} s`, watched), told(`with nobody there, over ${WATCHED_MS / 500} s`, resting)].join("; "));
  assert.equal(resting.requests, 0);
  assert.ok(resting.reads <= alone.reads + SWEEPS_MAX, `${resting.reads} reads instead of ${alone.reads}`);

  const back = await askedDuring(async () => {
    await pages[0].mouse.move(200, 200);
    await pages[0].getByText("resting").waitFor({ state: "detached" });
  });
  assert.ok(back.requests > 0, "a page that somebody comes back to asks again");
  for (const tab of tabs) await tab.close();
});
