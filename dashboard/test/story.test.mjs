// What people do with it, from the first command of the README on.

import { after, before, test } from "node:test";
import assert from "node:assert/strict";
import { Deployment, closeBrowser, open } from "./support.mjs";

let demo;

before(async () => {
  demo = await Deployment.start({ demo: true });
});

after(async () => {
  await closeBrowser();
  await demo?.stop();
});

test("from the first command to an approved flow by mouse alone, and a second browser sees it happen", async () => {
  // What the command prints is where the browser goes; everything after that is a click.
  const printed = await demo.process.line(demo.url);
  assert.match(printed, /http:\/\/127\.0\.0\.1:\d+/);
  const mine = await open(demo, "/");
  const theirs = await open(demo, "/flows");
  await theirs.page.getByRole("link", { name: "report" }).first().click();
  await theirs.page.locator("[data-node=review][data-state=suspended]").waitFor();

  await mine.page.getByRole("link", { name: "Approvals open" }).click();
  await mine.page.getByRole("button", { name: "Approve" }).click();
  await mine.page.getByText("All questions are answered").waitFor();
  await mine.page.getByRole("link", { name: "Flows", exact: true }).click();
  await mine.page.getByRole("link", { name: "report" }).first().click();
  await mine.page.locator(".title [data-state=completed]").waitFor();

  await theirs.page.locator("[data-node=publish][data-state=completed]").waitFor();
  await theirs.page.locator(".title [data-state=completed]").waitFor();
  await demo.process.line("completed the flow");
  await mine.close();
  await theirs.close();
});

test("a node of the graph opens its execution, and its stream is there after a reload", async () => {
  const flow = (await demo.call("GET", "/v1/flows")).items[0].flow_id;
  const tab = await open(demo, `/flows/${flow}`);
  await tab.page.locator("[data-node=draft]").click();
  await tab.page.getByRole("heading", { level: 1, name: "draft" }).waitFor();
  await tab.page.getByRole("tab", { name: /stream/ }).click();
  const stream = tab.page.getByRole("log");
  await stream.getByText("loses the right to write").waitFor();
  const before = await stream.innerText();
  await tab.page.reload();
  await tab.page.getByRole("log").getByText("goes on where it was").waitFor();
  assert.equal(await tab.page.getByRole("log").innerText(), before);
  await tab.close();
});

test("a stream goes on after a reload, and says what a retry made void", async () => {
  const id = await demo.submit("talker", "x", { lane: "talk", policy: { retry: { max_retries: 1, backoff: { fixed: { delay_ms: 1 } } } } });
  let tab;
  await demo.work(
    ["talk"],
    async (task) => {
      await task.frame("token", "first try ");
      tab = await open(demo, `/executions/${id}?tab=stream`);
      await tab.page.getByRole("log").getByText("first try").waitFor();
      await tab.page.reload();
      await tab.page.getByRole("log").getByText("first try").waitFor();
      await task.frame("token", "goes on ");
      await tab.page.getByRole("log").getByText("goes on").waitFor();
      await task.say("fail", { reason: "not good enough", category: "transient" });
    },
  );
  await demo.work(["talk"], async (task) => {
    await task.frame("token", "second try");
    await tab.page.getByRole("log").getByText("second try").waitFor();
    await tab.page.locator(".stream .void").getByText("first try goes on").waitFor();
    await task.say("complete", { result: "done" });
  });
  await tab.page.locator(".title [data-state=completed]").waitFor();
  await tab.close();
});

test("an operator acts on an execution, is told what will happen, and leaves an audit record", async () => {
  const id = await demo.submit("nobody-does-this", { a: 1 }, { lane: "idle" });
  const tab = await open(demo, `/executions/${id}`);
  await tab.page.getByText("no live worker serves lane idle").waitFor();
  for (const [name, state] of [
    ["Hold", "waiting"],
    ["Release", "waiting"],
    ["Cancel", "cancelled"],
    ["Replay", "waiting"],
  ]) {
    await tab.page.getByRole("group", { name: "Actions" }).getByRole("button", { name, exact: true }).click();
    const dialog = tab.page.getByRole("dialog");
    await dialog.locator("p").first().waitFor();
    await dialog.getByRole("button", { name, exact: true }).click();
    await dialog.waitFor({ state: "detached" });
    await tab.page.locator(`.title [data-state=${state}]`).waitFor();
  }
  await tab.page.goto(`${demo.url}/system/audit`);
  await tab.page.getByRole("cell", { name: "replay execution" }).first().waitFor();
  await tab.close();
});

test("many executions are chosen and cancelled at once, with progress", async () => {
  for (let n = 0; n < 3; n += 1) await demo.submit("bulk", n, { lane: "idle" });
  const tab = await open(demo, "/executions?kind=bulk");
  for (const box of await waitForRows(tab.page, 3)) await box.check();
  await tab.page.getByRole("button", { name: "Cancel", exact: true }).click();
  await tab.page.getByRole("dialog").getByText("3 of 3 chosen").waitFor();
  await tab.page.getByRole("dialog").getByRole("button", { name: "Cancel 3" }).click();
  await tab.page.getByText("Cancel: 3 done.").waitFor();
  await tab.page.goto(`${demo.url}/executions?kind=bulk&state=cancelled`);
  await waitForRows(tab.page, 3);
  await tab.close();
});

async function waitForRows(page, count) {
  await page.waitForFunction((wanted) => document.querySelectorAll(".vrow.item").length === wanted, count);
  return await page.locator(".vrow.item input[type=checkbox]").all();
}

test("a question is answered by keyboard alone", async () => {
  const id = await demo.submit("asker", "x", { lane: "ask" });
  await demo.work(["ask"], (task) => task.say("suspend", { condition: { any: [{ name: "approve" }, { name: "reject" }] }, reason: "approval", detail: "go on?" }));
  const tab = await open(demo, "/");
  const { page } = tab;
  await page.getByText("go on?").first().waitFor();
  await page.keyboard.press("g");
  await page.keyboard.press("a");
  await page.getByRole("heading", { level: 1, name: "Approvals" }).waitFor();
  await page.getByText("go on?").waitFor();
  await page.keyboard.press("j");
  await page.keyboard.press("y");
  await page.keyboard.press("Enter");
  await page.getByText("All questions are answered").waitFor();
  assert.equal((await demo.call("GET", `/v1/executions/${id}/state`)).public_state, "waiting");

  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keys" }).waitFor();
  await page.keyboard.press("Escape");
  await page.getByRole("dialog").waitFor({ state: "detached" });
  await page.keyboard.press("/");
  await page.keyboard.type(id);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { level: 1, name: "asker" }).waitFor();
  await tab.close();
});

test("a lane is paused and opened, and the search finds tags", async () => {
  await demo.submit("tagged", "x", { lane: "idle", tags: { team: "blue" } });
  const tab = await open(demo, "/lanes");
  const row = tab.page.getByRole("row", { name: /demo/ });
  for (const [name, state] of [
    ["Pause", "paused"],
    ["Open", "active"],
  ]) {
    await row.getByRole("button", { name }).click();
    await tab.page.getByRole("dialog").getByRole("button", { name: `${name} demo` }).click();
    await row.locator(`[data-state=${state}]`).waitFor();
  }
  await tab.page.getByRole("searchbox").fill("team=blue");
  await tab.page.keyboard.press("Enter");
  await tab.page.locator(".vrow.item").getByText("tagged").waitFor();
  assert.match(tab.page.url(), /tag=team%3Dblue/);
  await tab.close();
});
