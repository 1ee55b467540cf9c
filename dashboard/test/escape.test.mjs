// Everything a user writes is shown as what it is: text.

import { after, before, test } from "node:test";
import assert from "node:assert/strict";
import { Deployment, XSS, XSS_NAME, closeBrowser, open } from "./support.mjs";

let server;
let ids;
let flow;

before(async () => {
  server = await Deployment.start();
  const name = XSS_NAME;
  // The slash in the name puts the budget under another.
  await server.call("POST", "/v1/budgets", { name: name.split("/")[0], dimensions: { [name]: { hard: 10 } } });
  await server.call("POST", "/v1/budgets", { name, dimensions: { [name]: { hard: 10, soft: 5 } }, scope_type: "team", scope_id: XSS });
  await server.call("POST", "/v1/quotas", { name, window_seconds: 60, max_requests: 5 });
  const more = { lane: name, tags: { evil: XSS }, creator: XSS, budget_ids: [name], quota_policy_id: name, idempotency_key: XSS };
  const done = await server.submit(XSS_NAME, { [XSS]: XSS }, more);
  await server.work([name], async (task) => {
    await task.say("progress", { pct: 50, message: XSS });
    await task.frame(XSS, XSS);
    await task.frame("json", { [XSS]: [XSS] });
    await task.say("steps", { first_number: 1, entries: [{ name: XSS_NAME, key: XSS, state: "completed", result: { [XSS]: XSS } }] });
    await task.say("fail", { reason: XSS, category: "permanent" });
  });
  const asking = await server.submit("asks", XSS, { lane: "ask", tags: { evil: XSS } });
  await server.work(["ask"], (task) => task.say("suspend", { condition: { any: [{ name: XSS }, { name: "approve" }] }, reason: "approval", detail: XSS, requested_by: XSS, waitpoint_key: XSS.slice(0, 60) }));
  await server.call("POST", `/v1/lanes/${encodeURIComponent(name)}/pause`, { reason: XSS });
  flow = (await server.call("POST", "/v1/flows", { kind: XSS_NAME, tags: { evil: XSS }, nodes: [{ name: XSS_NAME, request: { kind: XSS_NAME, lane: name } }] })).flow_id;
  const template = { execution: { kind: XSS_NAME, lane: name, input: XSS, tags: { evil: XSS } } };
  await server.call("POST", "/v1/schedules", { name, spec: { every_ms: 3_600_000 }, template });
  await server.call("POST", `/v1/schedules/${encodeURIComponent(name)}/pause`, { note: XSS });
  await server.call("PUT", "/v1/workers/w1", { worker_id: name, lanes: [name], capabilities: [name], capacity: 1, lease_ttl_ms: 300_000, version: XSS, nonce: crypto.randomUUID() });
  ids = { done, asking };
});

after(async () => {
  await closeBrowser();
  await server?.stop();
});

test("no text of a user is run or becomes markup, on any screen", async (t) => {
  const paths = [
    "/",
    "/executions",
    ...["timeline", "stream", "input+and+result", "steps", "signals", "usage", "events"].flatMap((tab) => Object.values(ids).map((id) => `/executions/${id}?tab=${tab}`)),
    "/flows",
    `/flows/${flow}`,
    "/approvals",
    "/lanes",
    "/workers",
    "/budgets",
    `/budgets/${encodeURIComponent(XSS_NAME)}`,
    "/schedules",
    `/schedules/${encodeURIComponent(XSS_NAME)}`,
    "/system",
    "/system/audit",
    "/system/deployment",
    `/executions?kind=${encodeURIComponent(XSS)}&tag=${encodeURIComponent(XSS)}`,
    `/waitpoints/${encodeURIComponent(XSS)}/${encodeURIComponent(XSS)}#${encodeURIComponent(XSS)}`,
    `/executions/${encodeURIComponent(XSS)}`,
  ];
  const tab = await open(server, "/");
  for (const path of paths) {
    await t.test(path, async () => {
      await tab.page.goto(server.url + path);
      await tab.page.getByRole("main").waitFor();
      await tab.page.waitForLoadState("load");
      // Every call of the screen has been answered once nothing says that it loads.
      await tab.page.waitForFunction(() => document.querySelectorAll("[aria-label=Loading]").length === 0);
      const injected = await tab.page.evaluate(() => document.querySelectorAll("main img:not(.logo), main script, main svg[onload]").length);
      assert.equal(injected, 0);
      assert.equal(await tab.page.evaluate(() => window.pwned), undefined);
    });
  }
  await tab.close();
});

test("the text itself is there to read", async () => {
  const tab = await open(server, "/approvals");
  await tab.page.getByText(XSS, { exact: true }).first().waitFor();
  await tab.close();
});
