// What holds on every screen: times, copies, themes, numbers that are links, a tab that nobody sees, and the size of it all.

import { after, before, test } from "node:test";
import assert from "node:assert/strict";
import { readFile, readdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { Deployment, closeBrowser, open } from "./support.mjs";
import { checkAccess } from "./axe.mjs";

const BUILT = fileURLToPath(new URL("../../crates/server/dashboard", import.meta.url));
/** All files together, packed. */
const SIZE_MAX = 200_000;

let server;

before(async () => {
  server = await Deployment.start();
});

after(async () => {
  await closeBrowser();
  await server?.stop();
});

test("all of it is small", async (t) => {
  const names = (await readdir(BUILT, { recursive: true, withFileTypes: true })).filter((entry) => entry.isFile());
  const sizes = await Promise.all(names.map(async (entry) => gzipSync(await readFile(join(entry.parentPath ?? entry.path, entry.name))).length));
  const size = sizes.reduce((sum, one) => sum + one, 0);
  t.diagnostic(`${size} bytes in ${names.length} files`);
  assert.ok(names.length >= 3 && size > 0);
  assert.ok(size <= SIZE_MAX, `${size} bytes`);
});

test("every number of the overview leads to the list behind it", async () => {
  for (let n = 0; n < 3; n += 1) await server.submit("counted", n, { lane: "idle" });
  await server.submit("breaks", 1, { lane: "breaks", policy: { retry: { max_retries: 0 } } });
  await server.work(["breaks"], (task) => task.say("fail", { reason: "no", category: "permanent" }));
  const tab = await open(server, "/");
  const { page } = tab;
  await page.locator("[data-count=waiting]", { hasText: "3" }).waitFor();
  const tiles = await page.locator(".tile").evaluateAll((all) => all.map((tile) => tile.getAttribute("href")));
  assert.deepEqual(tiles, ["/executions?state=waiting", "/executions?state=active", "/executions?state=suspended", "/executions?state=failed", "/executions?state=completed", "/workers", "/approvals", "/system/deployment"]);
  for (const [state, rows] of [["waiting", 3], ["failed", 1]]) {
    await page.goto(server.url);
    await page.locator(`a.tile.s-${state}`).click();
    await page.getByRole("heading", { level: 1, name: "Executions" }).waitFor();
    await page.waitForFunction((wanted) => document.querySelectorAll(".vrow.item").length === wanted, rows);
  }
  await tab.close();
});

test("times are relative with the exact one on hover, ids are copied, and the theme stays chosen", async () => {
  const id = await server.submit("looked-at", 1, { lane: "idle" });
  const { created_at: created } = await server.call("GET", `/v1/executions/${id}`);
  const tab = await open(server, `/executions/${id}`);
  const { page, context } = tab;
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  const time = page.locator("dd time").first();
  await time.getByText(/^(now|\d+ s ago)$/).waitFor();
  assert.match(await time.getAttribute("title"), /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}$/);
  assert.equal(Date.parse(await time.getAttribute("datetime")), created);
  await page.getByRole("button", { name: "Copy the id" }).first().click();
  await page.getByRole("button", { name: "Copied" }).waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), id);
  await page.locator(".command", { hasText: "--attempts" }).getByRole("button", { name: "Copy the command" }).click();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), `ff get ${id} --attempts`);
  const shown = () => page.evaluate(() => document.documentElement.dataset.theme);
  assert.equal(await shown(), "light");
  await page.getByRole("main").click();
  await page.keyboard.press("t");
  assert.equal(await shown(), "dark");
  await page.reload();
  await page.getByRole("heading", { level: 1, name: "looked-at" }).waitFor();
  assert.equal(await shown(), "dark");
  await tab.close();
});

test("instants in the reasons of a list are relative with the exact one on hover", async () => {
  const until = Date.now() + 7_200_000;
  await server.submit("comes-later", 1, { lane: "idle", delay_until: until });
  const tab = await open(server, "/executions?kind=comes-later");
  const time = tab.page.locator(".vrow.item .why time");
  await time.getByText(/^for (2 h|1 h 59 min)$/).waitFor();
  assert.doesNotMatch(await tab.page.locator(".vrow.item .why").innerText(), /\dT\d/);
  assert.match(await time.getAttribute("title"), /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d/);
  assert.equal(Math.floor(Date.parse(await time.getAttribute("datetime")) / 1_000), Math.floor(until / 1_000));
  await tab.close();
});

test("a narrow page has the namespace and the API in its menu", async () => {
  const tab = await open(server, "/lanes", { width: 390 });
  const { page } = tab;
  await page.getByText("Menu", { exact: true }).click();
  await checkAccess(page, "the menu");
  assert.equal(await page.getByRole("link", { name: "API" }).getAttribute("href"), "/openapi.json");
  await page.getByRole("button", { name: "Keys" }).click();
  await page.getByRole("dialog", { name: "Keys" }).getByRole("button", { name: "Close" }).click();
  await page.getByText("Menu", { exact: true }).click();
  await page.getByLabel("Namespace").fill("team-a");
  await page.keyboard.press("Enter");
  await page.waitForURL(/\/lanes\?ns=team-a$/);
  await tab.close();
});

test("what a lane says about its age stands in a few lines, and its buttons are in sight", async () => {
  await server.call("PUT", "/v1/lanes/aged", { aging_ms: 600_000 });
  const tab = await open(server, "/lanes", { width: 1280 });
  const remark = tab.page.getByText("10 min of age are worth one step of priority");
  await remark.waitFor();
  const { height } = await remark.boundingBox();
  assert.ok(height < 45, `${height} pixels high`);
  const wider = await tab.page.getByRole("region", { name: "Lanes" }).evaluate((element) => element.scrollWidth - element.clientWidth);
  assert.ok(wider <= 0, `${wider} pixels are out of sight`);
  await server.call("DELETE", "/v1/lanes/aged");
  await tab.close();
});

test("a tab that is hidden holds no connection and asks nothing, and goes on when it is seen", async () => {
  const tab = await open(server, "/executions", { clock: true });
  const { page } = tab;
  await page.locator(".live[data-on=true]").waitFor();
  const turn = (hidden) =>
    page.evaluate((hidden) => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
      document.dispatchEvent(new Event("visibilitychange"));
    }, hidden);
  const asked = [];
  page.on("request", (request) => asked.push(request.url()));
  await turn(true);
  await page.locator(".live", { hasText: "connecting" }).waitFor();
  // What an event had asked for just before is still read, once.
  await page.clock.runFor(10_000);
  await page.waitForLoadState("networkidle");
  asked.length = 0;
  await page.clock.runFor(120_000);
  await server.submit("unseen", 1, { lane: "idle" });
  assert.deepEqual(asked, []);
  await turn(false);
  await page.locator(".vrow.item").getByText("unseen").waitFor();
  assert.ok(asked.some((url) => url.includes("/v1/events")), "the stream of events is there again");
  await tab.close();
});

test("a budget without room asks, its question stands in the inbox, and a grant lets the work go on", async () => {
  await server.call("POST", "/v1/budgets", { name: "asking", dimensions: { tokens: { hard: 100 } }, on_hard: "ask" });
  await server.submit("spends", 1, { lane: "spends", budget_ids: ["asking"] });
  const reserve = () => server.work(["spends"], async (task) => assert.ok(await task.say("spend/reserve", { amounts: { tokens: 150 }, key: "call-1", ttl_ms: 600_000 })));
  await reserve();
  const tab = await open(server, "/approvals");
  const { page } = tab;
  const question = page.getByRole("article", { name: "asking has no room left" });
  await question.getByText("May asking use more tokens?").waitFor();
  await checkAccess(page, "the question of a budget");
  await question.getByRole("button", { name: "Grant" }).click();
  await page.getByRole("dialog").getByText("ff budget grant asking tokens=50").waitFor();
  await page.getByRole("dialog").getByRole("button", { name: "Grant" }).click();
  await question.waitFor({ state: "detached" });
  await reserve();
  await page.goto(`${server.url}/budgets/asking`);
  await page.getByRole("row", { name: /call-1/ }).getByText("150 tokens").waitFor();
  await tab.close();
});

test("a budget that fills up says at which hour its limit will be reached", async (t) => {
  const server = await Deployment.start({ args: ["dev", "--memory", "--test-clock"] });
  t.after(() => server.stop());
  await server.call("POST", "/v1/budgets", { name: "burning", dimensions: { tokens: { hard: 1_000_000 } } });
  await server.submit("burns", 1, { lane: "burns", budget_ids: ["burning"] });
  await server.work(["burns"], (task) => task.say("usage", { usage: { tokens: 600_000 }, dedup_key: "first" }));
  await server.call("POST", "/v1/test/clock", { advance_ms: 3_600_000 });
  const tab = await open(server, "/budgets/burning");
  const { page } = tab;
  await page.getByText("600,000 of 1,000,000").waitFor();
  await page.getByText("600,000 tokens an hour").waitFor();
  // Two fifths are left, at three fifths an hour.
  await page.getByText(/limit is reached in (39|40) min, around \d{4}-\d\d-\d\d \d\d:\d\d/).waitFor();
  await tab.close();
});

test("a budget whose window rolls says for how long something counts, and one by tag for what", async () => {
  await server.call("POST", "/v1/budgets", { name: "rolling", dimensions: { tokens: { hard: 100 } }, rolling_ms: 86_400_000, per: "tag:customer", template: { dimensions: { tokens: { hard: 10 } } } });
  const tab = await open(server, "/budgets");
  await tab.page.getByRole("row", { name: /rolling/ }).getByText("bit by bit, in 1 d").waitFor();
  await tab.page.getByRole("link", { name: "rolling", exact: true }).click();
  await tab.page.getByText("counts for 1 d").waitFor();
  await tab.page.getByText("tag customer").waitFor();
  await checkAccess(tab.page, "a budget whose window rolls");
  await tab.close();
});

test("a join that needs only some of its upstreams says how many", async () => {
  const node = (name) => ({ name, request: { kind: name, lane: "idle" } });
  const nodes = [node("a"), node("b"), node("c"), { ...node("join"), join: { quorum: { k: 2 } } }];
  const { flow_id: flow } = await server.call("POST", "/v1/flows", { kind: "vote", nodes, edges: ["a", "b", "c"].map((from) => ({ from, to: "join" })) });
  const tab = await open(server, `/flows/${flow}`);
  await tab.page.locator("[data-node=join]").getByText("waits · quorum 2 of 0/3").waitFor();
  await tab.page.locator("[data-node=join]").click();
  await tab.page.getByRole("heading", { level: 1, name: "join" }).waitFor();
  await tab.close();
});
