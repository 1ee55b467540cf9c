// Acts of an operator on budgets, quotas, lanes, flows and executions: what each says, what it does, and the command it shows.

import { after, before, test } from "node:test";
import assert from "node:assert/strict";
import { Deployment, closeBrowser, open, runShown, shownBy } from "./support.mjs";
import { checkAccess } from "./axe.mjs";

let server;

before(async () => {
  server = await Deployment.start();
});

after(async () => {
  await closeBrowser();
  await server?.stop();
});

/** Presses the button of an act, fills what it takes, and confirms it. */
async function act(page, group, name, values = {}) {
  await page.getByRole("group", { name: group }).getByRole("button", { name, exact: true }).click();
  const dialog = page.getByRole("dialog");
  for (const [label, value] of Object.entries(values)) {
    const field = dialog.getByLabel(label);
    if (await field.evaluate((element) => element.tagName === "SELECT")) await field.selectOption(value);
    else await field.fill(value);
  }
  await dialog.getByRole("button", { name, exact: true }).click();
  return dialog;
}

async function gone(dialog) {
  await dialog.waitFor({ state: "detached" });
}

test("a budget that is in use is deleted only after a second look that says what follows", async () => {
  await server.call("POST", "/v1/budgets", { name: "team", dimensions: { tokens: { hard: 100, soft: 50 } } });
  const id = await server.submit("spender", 1, { lane: "idle", budget_ids: ["team"] });
  const tab = await open(server, "/budgets");
  const { page } = tab;
  await gone(await act(page, "Actions on team", "Limits", { "Hard limit of tokens": "250" }));
  await page.getByText("0 of 250").waitFor();
  await gone(await act(page, "Actions on team", "Rules", { "At a hard limit": "fail", "Begins anew every": "3600" }));
  const { definition } = await server.call("GET", "/v1/budgets/team");
  assert.deepEqual([definition.on_hard, definition.reset_interval_ms, definition.dimensions.tokens.hard], ["fail", 3_600_000, 250]);

  const dialog = await act(page, "Actions on team", "Delete");
  await dialog.getByRole("alert").getByText("in use").waitFor();
  await dialog.getByText("If you delete it all the same").waitFor();
  await dialog.getByText("ff budget rm team --force").waitFor();
  await checkAccess(page, "a budget in use");
  assert.equal((await server.call("GET", "/v1/budgets/team")).name, "team", "nothing was deleted yet");
  await dialog.getByRole("button", { name: "Delete all the same" }).click();
  await gone(dialog);
  await page.getByText("There is no budget yet").waitFor();
  await server.call("POST", `/v1/executions/${id}/cancel`, {});
  await tab.close();
});

test("a quota is changed and deleted, and a lane that has work is forgotten only after a second look", async () => {
  await server.call("POST", "/v1/quotas", { name: "model", window_seconds: 60, max_requests: 5 });
  const tab = await open(server, "/budgets");
  const { page } = tab;
  await gone(await act(page, "Actions on model", "Change", { "Attempts that may start": "70", "Attempts that may run": "3" }));
  await page.getByText("0 of 70 in 1 min").waitFor();
  await page.getByText("0 of 3").waitFor();
  await gone(await act(page, "Actions on model", "Delete"));
  await page.getByText("There is no quota yet").waitFor();

  const id = await server.submit("waits", 1, { lane: "old" });
  await server.call("POST", "/v1/lanes/old/pause", { reason: "is moved" });
  await page.goto(`${server.url}/lanes`);
  await page.getByText("is moved").waitFor();
  const dialog = await act(page, "Actions on old", "Forget");
  await dialog.getByRole("alert").getByText("in use").waitFor();
  await dialog.getByRole("button", { name: "Forget all the same" }).click();
  await gone(dialog);
  await page.getByText("is moved").waitFor({ state: "detached" });
  await server.call("POST", `/v1/executions/${id}/cancel`, {});
  await tab.close();
});

test("an execution gets other tags, a wrong one says which, and what has ended is removed", async () => {
  const id = await server.submit("tagged", 1, { lane: "idle", tags: { team: "blue" } });
  const tab = await open(server, `/executions/${id}`);
  const { page } = tab;
  const dialog = await act(page, "Actions", "Tags", { "Tags, as key=value": "team=green\nnonsense" });
  await dialog.getByRole("alert").getByText("“nonsense” is not key=value").waitFor();
  await dialog.getByLabel("Tags, as key=value").fill("team=green\ncustomer=a=b");
  await dialog.getByRole("button", { name: "Tags", exact: true }).click();
  await page.getByRole("link", { name: "customer=a=b" }).waitFor();
  assert.deepEqual((await server.call("GET", `/v1/executions/${id}`)).tags, { team: "green", customer: "a=b" });

  assert.equal(await page.getByRole("button", { name: "Remove", exact: true }).count(), 0, "what has not ended stays");
  await gone(await act(page, "Actions", "Cancel"));
  await gone(await act(page, "Actions", "Remove"));
  await page.getByRole("heading", { level: 1, name: "Executions" }).waitFor();
  await page.goto(`${server.url}/executions/${id}`);
  await page.getByText("There is no such execution").waitFor();
  await tab.close();
});

test("the command of a dialog follows what is written into it, and does the same", async () => {
  const id = await server.submit("followed", 1, { lane: "followed", tags: { team: "blue", stage: "one" } });
  await server.call("POST", "/v1/quotas", { name: "followed", window_seconds: 60, max_requests: 5 });
  await server.call("POST", "/v1/schedules", { name: "followed", spec: { every_ms: 3_600_000 }, template: { execution: { kind: "one", lane: "idle" } } });
  const tab = await open(server, "/");
  const { page } = tab;
  /** Writes into the fields of an act, and gives the command that stands below them then. */
  const commandOf = async (path, group, name, values) => {
    await page.goto(server.url + path);
    await page.getByRole("group", { name: group }).getByRole("button", { name, exact: true }).click();
    const dialog = page.getByRole("dialog");
    for (const [label, value] of Object.entries(values)) {
      const field = dialog.getByLabel(label);
      if (await field.evaluate((element) => element.tagName === "SELECT")) await field.selectOption(value);
      else await field.fill(value);
    }
    return await dialog.locator(".command code").innerText();
  };
  const here = `/executions/${id}`;
  assert.equal(await commandOf(here, "Actions", "Priority", { Priority: "70" }), `ff priority 70 ${id}`);
  assert.equal(await commandOf(here, "Actions", "Hold", { Reason: "it's late" }), `ff hold ${id} --reason 'it'\\''s late'`);
  assert.equal(await commandOf(here, "Actions", "Cancel", { Reason: "-" }), `ff cancel ${id} --reason=-`);
  assert.equal(await commandOf(here, "Actions", "Fork", { "Another input": '{"a": 1}' }), `ff fork ${id} '{"a":1}'`);
  assert.equal(await commandOf("/lanes", "Actions on followed", "Pause", { Reason: "moved" }), "ff lane pause followed --reason moved");
  assert.equal(await commandOf("/schedules/followed", "Actions on followed", "Pause", { Why: "moved" }), "ff schedule pause followed --note moved");
  assert.equal(await commandOf("/schedules/followed", "Actions on followed", "Trigger", { "While the latest": "skip" }), "ff schedule trigger followed --overlap skip");
  assert.equal(await commandOf("/budgets", "Actions on followed", "Change", { "Attempts that may start": "9" }), "ff quota update followed --requests 9 --window 60 --concurrent 0 --jitter 0ms");

  const command = await commandOf(here, "Actions", "Tags", { "Tags, as key=value": "team=green\nnew=1" });
  assert.equal(command, `ff tag ${id} team=green new=1 stage=`);
  // A tag that came meanwhile stays, whichever way is taken.
  const began = { team: "blue", stage: "one", late: "x" };
  const tagsAfter = async (change) => {
    await server.call("PUT", `/v1/executions/${id}/tags`, { tags: began });
    await change();
    return (await server.call("GET", here.replace("/executions", "/v1/executions"))).tags;
  };
  const wanted = { team: "green", new: "1", late: "x" };
  assert.deepEqual(await tagsAfter(() => runShown(command, server)), wanted);
  assert.deepEqual(
    await tagsAfter(async () => {
      await page.getByRole("dialog").getByRole("button", { name: "Tags", exact: true }).click();
      await gone(page.getByRole("dialog"));
    }),
    wanted,
  );
  await server.call("POST", `/v1/executions/${id}/cancel`, {});

  // Another namespace is named, so that the command is not about the caller's own.
  await server.call("POST", "/v1/quotas", { namespace: "team-a", name: "followed", window_seconds: 60, max_requests: 5 });
  const elsewhere = await commandOf("/budgets?ns=team-a", "Actions on followed", "Change", { "Attempts that may start": "8" });
  await runShown(elsewhere, server);
  assert.equal((await server.call("GET", "/v1/quotas/followed?namespace=team-a")).definition.max_requests, 8);
  assert.equal((await server.call("GET", "/v1/quotas/followed")).definition.max_requests, 5);
  const there = await server.submit("followed", 1, { namespace: "team-a", lane: "idle" });
  await runShown(await commandOf(`/executions/${there}?ns=team-a`, "Actions", "Hold", { Reason: "late" }), server);
  assert.ok((await server.call("GET", `/v1/executions/${there}`)).held_by.includes("blocked_by_operator"));
  await tab.close();
});

test("a refusal says each thing once, and names the field that it is about", async () => {
  const id = await server.submit("refused", 1, { lane: "idle" });
  const tab = await open(server, `/executions/${id}`);
  const { page } = tab;
  const refusals = [
    [{ code: "invalid", detail: "this is too long", details: { field: "hold_reason" }, advice: "Correct the field named in details.field." }, "invalid\nthis is too long\nThe field is hold reason."],
    [{ code: "invalid", detail: "hold_reason is too long", details: { field: "hold_reason" }, advice: "Correct the field named in details.field." }, "invalid\nhold_reason is too long"],
    [{ code: "not_now", detail: "Not now.", details: {}, advice: "Not now." }, "Not now."],
  ];
  for (const [said, shown] of refusals) {
    await page.route("**/hold", (route) => route.fulfill({ status: 400, json: said }), { times: 1 });
    const dialog = await act(page, "Actions", "Hold");
    assert.equal(await dialog.getByRole("alert").innerText(), shown);
    await dialog.getByRole("button", { name: "Back", exact: true }).click();
  }
  await tab.close();
});

test("a flow that is made step by step is closed, cancelled and removed with its members", async () => {
  const { flow_id: flow } = await server.call("POST", "/v1/flows", { kind: "steps" });
  const tab = await open(server, `/flows/${flow}`);
  const { page } = tab;
  await gone(await act(page, "Actions", "Close"));
  await page.getByText("Closed; it is").waitFor();
  const { flow_id: other } = await server.call("POST", "/v1/flows", { kind: "whole", nodes: [{ name: "one", request: { kind: "one", lane: "idle" } }] });
  await page.goto(`${server.url}/flows/${other}`);
  await gone(await act(page, "Actions", "Cancel"));
  await page.locator(".title [data-state=cancelled]").waitFor();
  await gone(await act(page, "Actions", "Remove"));
  await page.getByRole("heading", { level: 1, name: "Flows" }).waitFor();
  await page.goto(`${server.url}/flows/${other}`);
  await page.getByText("There is no such flow").waitFor();
  await tab.close();
});

test("budgets are a tree: a charge counts in all of them, and each has a screen with what it holds", async () => {
  for (const [name, hard] of [["acme", 1_000], ["acme/research", 500], ["acme/research/agents", 100], ["acme-labs", 10]]) {
    await server.call("POST", "/v1/budgets", { name, dimensions: { tokens: { hard } } });
  }
  await server.submit("spender", 1, { lane: "spend", budget_ids: ["acme/research/agents"] });
  await server.work(["spend"], async (task) => {
    await task.say("usage", { usage: { tokens: 85 }, dedup_key: "first" });
    await task.say("spend/reserve", { amounts: { tokens: 10 }, key: "call-1", ttl_ms: 600_000 });
  });
  const tab = await open(server, "/budgets");
  const { page } = tab;
  await page.getByText("85 and 10 held of 100").waitFor();
  const names = await page.getByRole("region", { name: "Budgets" }).locator("td a.open").allInnerTexts();
  assert.deepEqual(names, ["acme", "research", "agents", "acme-labs"], "what stands under a budget comes behind it");
  await page.getByText("85 and 10 held of 1,000").waitFor();
  await page.getByRole("link", { name: "research" }).click();
  await page.getByRole("heading", { level: 1, name: "acme / research" }).waitFor();
  assert.match(page.url(), /\/budgets\/acme%2Fresearch$/, "it has an address that can be shared");
  await page.getByRole("region", { name: "Budgets under acme/research" }).getByRole("link", { name: "agents" }).click();
  await page.getByRole("row", { name: /call-1/ }).getByText("10 tokens").waitFor();
  await page.reload();
  await page.getByRole("row", { name: /call-1/ }).waitFor();
  await page.getByRole("link", { name: "acme", exact: true }).click();
  await page.getByRole("heading", { level: 1, name: "acme", exact: true }).waitFor();
  await checkAccess(page, "a budget");
  await tab.close();
});

for (const [role, operates, submits] of [
  ["reader", false, false],
  ["submitter", false, true],
  ["operator", true, true],
]) {
  test(`the role ${role} decides which of these acts exist`, async (t) => {
    const admin = "an-administrator-of-the-acts";
    const server = await Deployment.start({ token: admin });
    t.after(() => server.stop());
    await server.call("POST", "/v1/budgets", { name: "team", dimensions: { tokens: { hard: 100 } } });
    await server.call("POST", "/v1/quotas", { name: "model", max_concurrent: 5 });
    await server.call("POST", "/v1/lanes/old/pause", {});
    const { flow_id: flow } = await server.call("POST", "/v1/flows", { kind: "whole", nodes: [{ name: "one", request: { kind: "one", lane: "idle" } }] });
    const { secret } = await server.call("POST", "/v1/admin/tokens", { name: `a-${role}`, role });
    const tab = await open(server, "/budgets");
    const { page } = tab;
    await page.getByLabel("API token").fill(secret);
    await page.getByRole("button", { name: "Sign in" }).click();
    const exists = async (path, text, name) => {
      await page.goto(server.url + path);
      await page.getByText(text).first().waitFor();
      return (await page.getByRole("button", { name, exact: true }).count()) > 0;
    };
    await page.getByText("0 of 100").waitFor();
    assert.equal(await exists("/budgets", "0 of 100", "Limits"), operates);
    assert.equal(await exists("/budgets", "0 of 5", "Change"), operates);
    assert.equal(await exists("/budgets/team", "0 of 100", "Delete"), operates);
    assert.equal(await exists("/lanes", "paused", "Forget"), operates);
    assert.equal(await exists(`/flows/${flow}`, "Over time", "Cancel"), operates);
    assert.equal(await exists(`/flows/${flow}`, "Over time", "Close"), submits);
    await tab.close();
  });
}

test("the command that an act shows does the same", async (t) => {
  const id = await server.submit("shown", 1, { lane: "shown", tags: { team: "it's blue" }, priority: 7 });
  const { flow_id: flow } = await server.call("POST", "/v1/flows", { kind: "shown", nodes: [{ name: "one", request: { kind: "one", lane: "idle" } }] });
  await server.call("POST", "/v1/budgets", { name: "shown", dimensions: { "<tokens>": { hard: 100 } } });
  await server.call("POST", "/v1/quotas", { name: "shown", window_seconds: 60, max_requests: 5 });
  await server.call("POST", "/v1/schedules", { name: "shown", spec: { every_ms: 3_600_000 }, template: { execution: { kind: "one", lane: "idle" } } });
  const tab = await open(server, "/");
  const { page } = tab;
  const shown = shownBy(t, page, server);
  for (const name of ["Priority", "Tags", "Hold", "Release", "Cancel", "Replay"]) await shown(`/executions/${id}`, "Actions", name);
  assert.equal((await server.call("GET", `/v1/executions/${id}`)).tags.team, "it's blue");
  // Nothing is left in the lane when it is forgotten.
  for (const name of ["Pause", "Drain", "Open", "Disable"]) await shown("/lanes", "Actions on shown", name);
  await shown(`/executions/${id}`, "Actions", "Cancel");
  await shown(`/executions/${id}`, "Actions", "Remove");
  await shown("/lanes", "Actions on shown", "Forget");
  for (const name of ["Close", "Cancel", "Remove"]) await shown(`/flows/${flow}`, "Actions", name);
  for (const name of ["Limits", "Rules", "Reset", "Delete"]) await shown("/budgets/shown", "Actions on shown", name);
  for (const name of ["Change", "Delete"]) await shown("/budgets", "Actions on shown", name);
  for (const name of ["Trigger", "Pause", "Resume", "Backfill", "Delete"]) await shown("/schedules/shown", "Actions on shown", name);
  // A registration runs out by itself, so it is made when it is needed.
  await server.call("PUT", "/v1/workers/shown-1", { worker_id: "w", lanes: ["idle"], capacity: 1, version: "1", nonce: crypto.randomUUID() });
  await shown("/workers", "Actions on shown-1", "Remove");
  await shown(`/executions/${await server.submit("shown", 1, { lane: "idle" })}`, "Actions", "Fork");
  await tab.close();
});
