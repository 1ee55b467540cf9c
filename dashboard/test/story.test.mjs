// Stories of people who use the dashboard, from the first command of the README on.

import { after, before, test } from "node:test";
import assert from "node:assert/strict";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Deployment, closeBrowser, open } from "./support.mjs";
import { checkAccess } from "./axe.mjs";

let demo;

before(async () => {
  demo = await Deployment.start({ demo: true });
  // The demo's own question: the tests below ask others.
  await demo.process.line("suspended review");
  const [{ execution_id }] = (await demo.call("GET", "/v1/approvals")).items;
  await demo.call("POST", `/v1/executions/${execution_id}/signal`, { name: "approve" });
  await demo.process.line("completed the flow");
});

after(async () => {
  await closeBrowser();
  await demo?.stop();
});

/** The arguments of the first command that the README names. */
async function firstCommand() {
  const readme = await readFile(new URL("../../README.md", import.meta.url), "utf8");
  const [, args] = /^ {4}cargo run --release -- (.+)$/m.exec(readme);
  return args.split(" ");
}

test("from the README's first command to an approved flow by mouse alone, and a second browser sees it happen", async (t) => {
  const cwd = await mkdtemp(join(tmpdir(), "ff-dashboard-story-"));
  const demo = await Deployment.start({ args: await firstCommand(), cwd });
  t.after(async () => {
    await demo.stop();
    await rm(cwd, { recursive: true, force: true });
  });
  // The browser goes to the address that the command prints. Everything after that is a click.
  const printed = await demo.process.line("http://127.0.0.1:");
  demo.url = /http:\/\/127\.0\.0\.1:\d+/.exec(printed)[0];
  const mine = await open(demo, "/");
  const theirs = await open(demo, "/flows");
  const typed = [];
  await mine.page.exposeFunction("pressed", (key) => typed.push(key));
  await mine.page.evaluate(() => document.addEventListener("keydown", (event) => window.pressed(event.key), true));
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
  assert.deepEqual(typed, []);
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
  await tab.page.getByRole("button", { name: "attempt 1" }).click();
  await tab.page.getByRole("log").getByText("first try").waitFor({ state: "detached" });
  await tab.page.getByRole("log").getByText("second try").waitFor();
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

test("filters are chips in the address, columns are chosen, and all that is shown is chosen at once", async () => {
  for (const kind of ["chip-a", "chip-b", "chip-c"]) await demo.submit(kind, 1, { lane: "idle", tags: { team: kind } });
  const tab = await open(demo, "/executions?lane=idle");
  const { page } = tab;
  for (const kind of ["chip-a", "chip-b"]) {
    await page.getByLabel("Kind", { exact: true }).fill(kind);
    await page.keyboard.press("Enter");
    await page.getByRole("button", { name: `kind ${kind}` }).waitFor();
  }
  await waitForRows(page, 2);
  assert.match(page.url(), /kind=chip-a&kind=chip-b/);
  await page.getByText("ff ls --kind chip-a --kind chip-b --lane idle").waitFor();

  await page.getByText("Columns").click();
  await page.getByLabel("Tags").check();
  await page.getByRole("link", { name: "team=chip-a" }).waitFor();
  await page.reload();
  await page.getByRole("link", { name: "team=chip-a" }).waitFor();

  await page.getByLabel("Choose all that are shown").check();
  await page.getByText("2 chosen").waitFor();
  await page.getByRole("button", { name: "Hold", exact: true }).click();
  await page.getByRole("dialog").getByText("2 of 2 chosen").waitFor();
  await page.getByRole("dialog").getByRole("button", { name: "Hold 2" }).click();
  await page.getByText("Hold: 2 done.").waitFor();
  await page.getByRole("button", { name: "kind chip-b" }).click();
  await waitForRows(page, 1);
  await page.locator(".vrow.item").getByText("held").waitFor();
  await tab.close();
});

test("an execution is forked before a step: the steps before it are inherited, and the original stays", async () => {
  const id = await demo.submit("forked", { city: "Rome" }, { lane: "fork" });
  await demo.work(["fork"], async (task) => {
    const step = (name, result) => ({ name, state: "completed", result });
    await task.say("steps", { first_number: 1, entries: [step("plan", "read"), step("search", ["tides"]), step("write", "done")] });
    await task.say("complete", { result: "done" });
  });
  const tab = await open(demo, `/executions/${id}?tab=steps`);
  const { page } = tab;
  await page.getByRole("row", { name: /search/ }).getByRole("button", { name: "Fork before" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText(`ff fork ${id} --before search`).waitFor();
  await dialog.getByLabel("Another input").fill("{not json");
  await dialog.getByRole("button", { name: "Fork before search" }).click();
  await dialog.getByRole("alert").getByText("The input: this is not JSON").waitFor();
  await dialog.getByLabel("Another input").fill('{"city":"Oslo"}');
  await dialog.getByRole("button", { name: "Fork before search" }).click();
  await page.getByText("forked from").waitFor();
  const fork = page.url().split("/").pop().split("?")[0];
  assert.notEqual(fork, id);
  await page.getByRole("tab", { name: /steps/ }).click();
  await page.getByRole("row", { name: /plan/ }).getByText("inherited").waitFor();
  assert.equal(await page.getByRole("row", { name: /search|write/ }).count(), 0);
  await page.getByRole("tab", { name: /input/ }).click();
  await page.getByText("Oslo").waitFor();
  await page.goto(`${demo.url}/executions/${id}?tab=steps`);
  await page.locator(".title [data-state=completed]").waitFor();
  await page.getByRole("region", { name: "Forks" }).getByText(`ff diff ${id} ${fork}`).waitFor();
  await tab.close();
});

test("a question with a schema is a form, and a wrong answer says what to do", async () => {
  const id = await demo.submit("refund", "x", { lane: "form" });
  const schema = {
    type: "object",
    required: ["amount", "currency"],
    properties: {
      amount: { type: "integer", title: "Amount", minimum: 1, maximum: 500 },
      currency: { type: "string", enum: ["EUR", "USD"] },
      urgent: { type: "boolean", description: "Pay today" },
      notes: { type: "array", items: { type: "string" } },
    },
  };
  await demo.work(["form"], (task) => task.say("suspend", { condition: { any: [{ name: "approve" }] }, reason: "approval", question: "Refund how much?", schema }));
  const tab = await open(demo, "/approvals");
  const { page } = tab;
  const ask = page.getByRole("article", { name: "Refund how much?" });
  await ask.waitFor();
  await checkAccess(page, "a form");
  await ask.getByRole("button", { name: "Approve" }).click();
  await ask.getByRole("alert").getByText("Amount:").waitFor();
  await ask.getByLabel("Amount").fill("900");
  await ask.getByLabel("currency").selectOption("EUR");
  await ask.getByRole("button", { name: "Approve" }).click();
  await ask.getByRole("alert").getByText("500").waitFor();
  await ask.getByLabel("Amount").fill("40");
  await ask.getByLabel("notes").fill("late");
  await ask.getByRole("button", { name: "Approve" }).click();
  await ask.getByRole("alert").getByText("notes: this is not JSON").waitFor();
  await ask.getByLabel("notes").fill('["late"]');
  await ask.getByLabel("urgent").check();
  await ask.getByRole("button", { name: "Approve" }).click();
  await ask.waitFor({ state: "detached" });
  let answered;
  await demo.work(["form"], async (task, claimed) => {
    answered = JSON.parse(Buffer.from(claimed.resume_signals[0].payload_base64, "base64").toString());
    await task.say("complete", { result: 1 });
  });
  assert.equal((await demo.call("GET", `/v1/executions/${id}/state`)).public_state, "completed");
  assert.deepEqual(answered, { amount: 40, currency: "EUR", urgent: true, notes: ["late"] });
  await tab.close();
});

test("a step in doubt is decided by an operator, and the journal has the answer", async () => {
  const id = await demo.submit("payer", "x", { lane: "pay" });
  await demo.work(["pay"], (task) => task.say("park", { first_number: 1, questions: [{ step: { name: "pay" }, reason: "in_doubt", detail: "nobody knows whether step pay happened" }] }));
  const tab = await open(demo, "/approvals");
  const { page } = tab;
  await page.getByRole("article", { name: "nobody knows whether step pay happened" }).getByRole("link", { name: "Answer it where the steps are" }).click();
  const question = page.getByRole("region", { name: "A question about the step pay" });
  await question.getByRole("button", { name: "Happened" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Its result, as JSON").fill('{"receipt":7}');
  await dialog.getByRole("button", { name: "Happened" }).click();
  await question.waitFor({ state: "detached" });
  await page.getByRole("tab", { name: /steps/ }).click();
  await page.getByRole("row", { name: /pay/ }).getByText("receipt").waitFor();
  assert.equal((await demo.call("GET", `/v1/executions/${id}/state`)).public_state, "waiting");
  await demo.call("POST", `/v1/executions/${id}/cancel`, {});
  await tab.close();
});

test("a server that went away is told, and what is shown goes on once it is back", async (t) => {
  const folder = await mkdtemp(join(tmpdir(), "ff-dashboard-outage-"));
  const store = `sqlite://${join(folder, "store.db")}`;
  const first = await Deployment.start({ store });
  const port = Number(new URL(first.url).port);
  let server = first;
  t.after(async () => {
    await server.stop();
    await rm(folder, { recursive: true, force: true });
  });
  const id = await first.submit("outlives", 1, { lane: "idle" });
  const tab = await open(first, `/executions/${id}`);
  await tab.page.locator(".live[data-on=true]").waitFor();
  await tab.page.locator(".title [data-state=waiting]").waitFor();
  await first.stop();
  await tab.page.getByText("connecting").waitFor();
  server = await Deployment.start({ store, port });
  await server.call("POST", `/v1/executions/${id}/cancel`, {});
  await tab.page.locator(".live[data-on=true]").waitFor();
  await tab.page.locator(".title [data-state=cancelled]").waitFor();
  await tab.close();
});

test("a schedule shows its next runs, is paused with a note, resumed, triggered and deleted", async () => {
  const template = { execution: { kind: "nightly-report", lane: "idle", input: { of: "yesterday" } } };
  await demo.call("POST", "/v1/schedules", { name: "nightly", spec: { cron: "0 2 * * *", time_zone: "Europe/Berlin" }, template });
  const tab = await open(demo, "/schedules");
  const { page } = tab;
  const row = page.getByRole("row", { name: /nightly/ });
  await row.getByText("0 2 * * * in Europe/Berlin").waitFor();
  await row.getByRole("button", { name: "Pause" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Why").fill("the warehouse is moved");
  await dialog.getByRole("button", { name: "Pause" }).click();
  await row.locator("[data-state=paused]").waitFor();
  await row.getByText("the warehouse is moved").waitFor();
  await row.getByRole("link", { name: "nightly" }).click();
  await page.getByRole("heading", { level: 1, name: "nightly" }).waitFor();
  await page.getByText("Nothing while it is paused.").waitFor();
  await page.getByRole("button", { name: "Resume" }).click();
  await dialog.getByRole("button", { name: "Resume" }).click();
  await page.locator(".title [data-state=active]").waitFor();
  assert.equal(await page.getByRole("listitem").count(), 10);
  await checkAccess(page, "a schedule");

  await page.getByRole("button", { name: "Trigger" }).click();
  await dialog.getByText("ff schedule trigger nightly").waitFor();
  await dialog.getByRole("button", { name: "Trigger" }).click();
  await page.getByRole("region", { name: "Last runs" }).getByRole("link", { name: "waiting" }).click();
  await page.getByRole("heading", { level: 1, name: "nightly-report" }).waitFor();
  await page.goto(`${demo.url}/executions?schedule=nightly`);
  await waitForRows(page, 1);

  await page.goto(`${demo.url}/schedules/nightly`);
  await page.getByRole("button", { name: "Backfill" }).click();
  await dialog.getByLabel("The first instant").fill("soon");
  await dialog.getByRole("button", { name: "Backfill" }).click();
  await dialog.getByRole("alert").getByText("this is no instant").waitFor();
  await dialog.getByRole("button", { name: "Back", exact: true }).click();
  await page.getByRole("button", { name: "Delete" }).click();
  await dialog.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("heading", { level: 1, name: "Schedules" }).waitFor();
  await page.getByRole("row", { name: /morning-digest/ }).waitFor();
  await page.getByRole("row", { name: /nightly/ }).waitFor({ state: "detached" });
  await tab.close();
});

test("questions are answered one after the other by keyboard alone", async () => {
  const ask = async (lane, detail) => {
    const id = await demo.submit("asker", "x", { lane });
    await demo.work([lane], (task) => task.say("suspend", { condition: { any: [{ name: "approve" }, { name: "reject" }] }, reason: "approval", detail }));
    return id;
  };
  const id = await ask("ask", "go on?");
  const other = await ask("ask-2", "and this?");
  const tab = await open(demo, "/");
  const { page } = tab;
  await page.getByText("go on?").first().waitFor();
  await page.keyboard.press("g");
  await page.keyboard.press("a");
  await page.getByRole("heading", { level: 1, name: "Approvals" }).waitFor();
  // The first question has the focus from the start, and then the one that follows it.
  for (const [name, answered] of [["go on?", id], ["and this?", other]]) {
    const question = page.getByRole("article", { name });
    await page.waitForFunction((name) => document.activeElement?.getAttribute("aria-label") === name, name);
    await page.keyboard.press("y");
    await page.keyboard.press("Enter");
    await question.waitFor({ state: "detached" });
    assert.equal((await demo.call("GET", `/v1/executions/${answered}/state`)).public_state, "waiting");
  }

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

test("a row is chosen, opened and left by keyboard alone, and tabs follow the arrows", async () => {
  const id = await demo.submit("keyed", { a: 1 }, { lane: "idle" });
  const tab = await open(demo, "/executions?kind=keyed");
  const { page } = tab;
  await waitForRows(page, 1);
  await page.keyboard.press("j");
  await page.keyboard.press("x");
  await page.getByText("1 chosen").waitFor();
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { level: 1, name: "keyed" }).waitFor();
  await page.getByRole("tab", { name: "timeline" }).focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  await page.getByRole("tab", { name: "input and result", selected: true }).waitFor();
  assert.match(page.url(), new RegExp(`${id}\\?tab=input`));
  await page.getByRole("tabpanel").getByText("There is none yet.").waitFor();
  await page.keyboard.press("g");
  await page.keyboard.press("l");
  await page.getByRole("heading", { level: 1, name: "Lanes" }).waitFor();
  await page.getByRole("row", { name: /idle/ }).waitFor();
  await page.keyboard.press("j");
  assert.equal(await page.evaluate(() => document.activeElement?.tagName), "A");
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
    await tab.page.getByRole("dialog").getByRole("button", { name, exact: true }).click();
    await row.locator(`[data-state=${state}]`).waitFor();
  }
  await tab.page.getByRole("searchbox").fill("team=blue");
  await tab.page.keyboard.press("Enter");
  await tab.page.locator(".vrow.item").getByText("tagged").waitFor();
  assert.match(tab.page.url(), /tag=team%3Dblue/);
  await tab.close();
});
