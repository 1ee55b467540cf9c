// Work as it is in practice: long failures, long journals, many executions.

import { after, before, test } from "node:test";
import assert from "node:assert/strict";
import { Deployment, closeBrowser, open } from "./support.mjs";
import { checkAccess } from "./axe.mjs";

let server;

before(async () => {
  server = await Deployment.start();
});

after(async () => {
  await closeBrowser();
  await server?.stop();
});

test("a long failure is told in one line, and stands whole below with its lines as they were", async () => {
  const trace = ["thread panicked at reader.rs:214", ...Array.from({ length: 60 }, (_, index) => `  ${index}: reader::next_record at reader.rs:${index}`)].join("\n");
  const id = await server.submit("import", { rows: 9 }, { lane: "fails", policy: { retry: { max_retries: 0 } } });
  await server.work(["fails"], (task) => task.say("fail", { reason: trace, category: "permanent" }));
  const tab = await open(server, `/executions/${id}`);
  const { page } = tab;
  const why = page.getByRole("region", { name: "Why it is where it is" });
  const line = why.getByRole("listitem").first();
  await line.getByText("thread panicked").waitFor();
  assert.doesNotMatch(await line.innerText(), /next_record/);
  const whole = page.getByRole("region", { name: "The failure in full" });
  assert.equal(await whole.innerText(), trace);
  assert.ok((await whole.boundingBox()).height < 300, "it does not push the rest out of sight");
  await checkAccess(page, "a long failure");
  await tab.close();
});

test("a journal of many steps is folded, searched, drawn in a bounded place, and loaded page by page", async () => {
  const id = await server.submit("crawl", 1, { lane: "crawl" });
  await server.work(["crawl"], async (task) => {
    for (let from = 0; from < 600; from += 100) {
      const entries = Array.from({ length: 100 }, (_, index) => ({ name: "fetch", key: `page-${from + index}`, state: "completed", took_ms: 5, result: { url: `https://example.com/${from + index}` } }));
      await task.say("steps", { first_number: from + 1, entries });
    }
    await task.say("complete", { result: 600 });
  });
  const tab = await open(server, `/executions/${id}`);
  const { page } = tab;
  await page.getByRole("tab", { name: /steps 500/ }).waitFor();
  assert.ok((await page.getByRole("region", { name: "Timeline" }).boundingBox()).height < 700);
  await page.getByRole("tab", { name: /steps/ }).click();
  await page.getByRole("button", { name: "Load more" }).click();
  await page.getByRole("tab", { name: /steps 600/ }).waitFor();
  await page.getByLabel("Find").fill("page-599");
  await page.getByText("1 step", { exact: true }).waitFor();
  const row = page.getByRole("row", { name: /page-599/ });
  assert.equal(await row.locator(".json").count(), 0, "a result is folded");
  await row.locator("summary").click();
  await row.locator(".json").getByText("https://example.com/599").waitFor();
  await checkAccess(page, "a long journal");
  await tab.close();
});

test("a short sleep, which leaves one record at its end, is drawn from the entry before it", async () => {
  const id = await server.submit("naps", 1, { lane: "naps" });
  await server.work(["naps"], async (task) => {
    await task.say("steps", { first_number: 1, entries: [{ name: "plan", state: "completed", took_ms: 1, result: 1 }] });
    // By the clock of the server: the entries are as far apart as the sleep is long.
    const { now } = await server.call("GET", "/v1/deployment");
    while ((await server.call("GET", "/v1/deployment")).now < now + 300);
    await task.say("steps", { first_number: 2, entries: [{ name: "think", kind: "sleep", state: "completed" }] });
    await task.say("complete", { result: 1 });
  });
  const tab = await open(server, `/executions/${id}`);
  const bar = tab.page.getByRole("img", { name: /sleep think, completed/ });
  await bar.waitFor();
  const track = await bar.locator("xpath=..").boundingBox();
  const { width } = await bar.boundingBox();
  assert.ok(width > track.width / 2, `${width} of ${track.width} pixels`);
  await tab.close();
});

test("lists that are longer than a page say so, and bring the rest", async () => {
  for (let n = 0; n < 105; n += 1) await server.call("POST", "/v1/flows", { kind: `flow-${n}` });
  const tab = await open(server, "/flows");
  const { page } = tab;
  await page.getByText("100 shown").waitFor();
  await page.getByRole("button", { name: "Load more" }).click();
  await page.getByText("105 flows, newest first").waitFor();
  assert.equal(await page.getByRole("region", { name: "Flows" }).locator("td a.open").count(), 105);
  await tab.close();
});

test("filters by failure and schedule are chips, and the command beside them says the same", async () => {
  await server.call("POST", "/v1/schedules", { name: "nightly", spec: { every_ms: 3_600_000 }, template: { execution: { kind: "report", lane: "idle" } } });
  await server.call("POST", "/v1/schedules/nightly/trigger", {});
  const tab = await open(server, "/executions");
  const { page } = tab;
  await page.getByLabel("Schedule").fill("nightly");
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "schedule nightly" }).waitFor();
  await page.waitForFunction(() => document.querySelectorAll(".vrow.item").length === 1);
  await page.getByText("ff ls --schedule nightly").waitFor();
  await page.getByRole("button", { name: "schedule nightly" }).click();
  await page.getByLabel("Failure").fill("permanent");
  await page.keyboard.press("Enter");
  await page.locator(".vrow.item").getByText("import").waitFor();
  await page.getByText("ff ls --failure permanent").waitFor();
  await tab.close();
});

test("what an execution was given stands beside its question, for those who may read it", async () => {
  await server.submit("refund", { order: 4711 }, { lane: "ask" });
  await server.work(["ask"], (task) => task.say("suspend", { condition: { any: [{ name: "approve" }] }, reason: "approval", question: "refund it?", timeout_ms: 3_600_000 }));
  const tab = await open(server, "/approvals");
  const ask = tab.page.getByRole("article", { name: "refund it?" });
  await ask.getByText("then it").waitFor();
  await ask.getByText("What it was given").click();
  await ask.getByText("4711").waitFor();
  await checkAccess(tab.page, "a question with its context");
  await tab.close();
});

test("a flow shows its members over time, and the chain that decides how long it takes", async () => {
  const nodes = ["quick", "slow", "join"].map((name) => ({ name, request: { kind: name, lane: name } }));
  const edges = ["quick", "slow"].map((from) => ({ from, to: "join" }));
  const { flow_id: flow } = await server.call("POST", "/v1/flows", { kind: "chain", nodes, edges });
  const tab = await open(server, `/flows/${flow}`);
  const { page } = tab;
  await page.getByText("No member has begun yet").waitFor();
  for (const name of ["quick", "slow", "join"]) {
    await server.work([name], (task) => task.say("complete", { result: name }));
    // The next one ends in a later millisecond.
    await page.locator(`[data-node=${name}][data-state=completed]`).waitFor();
  }
  const line = (name) => page.getByRole("region", { name: "Members over time" }).locator(".tl-row", { hasText: name });
  await line("join").getByRole("img", { name: /^join, completed: / }).waitFor();
  assert.deepEqual(await Promise.all(["quick", "slow", "join"].map((name) => line(name).locator(".on-path").count())), [0, 1, 1]);
  assert.equal(await page.locator(".graph .edge.critical").count(), 1);
  await checkAccess(page, "a flow over time");
  await tab.close();
});

test("a narrow list says, too, why something does not run", async () => {
  await server.submit("nobody-serves-this", 1, { lane: "idle" });
  const tab = await open(server, "/executions?kind=nobody-serves-this", { width: 390 });
  const row = tab.page.locator(".vrow.item");
  const why = row.getByText(/no live worker/);
  await why.waitFor({ state: "visible" });
  const [inner, outer] = [await why.boundingBox(), await row.boundingBox()];
  assert.ok(inner.y >= outer.y && inner.y + inner.height <= outer.y + outer.height, "it stands in its row");
  await tab.close();
});

test("the events of the system are those that the page has seen on any of its screens", async () => {
  const tab = await open(server, "/executions");
  const { page } = tab;
  await page.locator(".live[data-on=true]").waitFor();
  await server.submit("seen-elsewhere", 1, { lane: "seen" });
  await server.work(["seen"], (task) => task.say("complete", { result: 1 }));
  await page.locator(".vrow.item", { hasText: "seen-elsewhere" }).getByText("completed").waitFor();
  await page.getByRole("link", { name: "System" }).click();
  await page.getByRole("row", { name: /completed.*seen-elsewhere/ }).waitFor();
  await tab.close();
});
