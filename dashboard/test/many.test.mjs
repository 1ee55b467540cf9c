// Bulk jobs, webhooks in both directions, providers and keys: what each screen shows and does, and for whom.

import { after, before, test } from "node:test";
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { once } from "node:events";
import { Deployment, XSS, XSS_NAME, closeBrowser, freePort, open, runShown, shownBy } from "./support.mjs";
import { checkAccess } from "./axe.mjs";

const ADMIN = "an-administrator-of-many";
let server;

before(async () => {
  // Webhooks go to this machine only where the operator has allowed it.
  server = await Deployment.start({ env: { FF_WEBHOOK_ALLOW_PRIVATE: "127.0.0.0/8" } });
});

after(async () => {
  await closeBrowser();
  await server?.stop();
});

/** Presses the button of an act, fills what it takes, and confirms it. */
async function act(page, group, name, values = {}) {
  await page.getByRole("group", { name: group }).getByRole("button", { name, exact: true }).click();
  const dialog = page.getByRole("dialog");
  for (const [label, value] of Object.entries(values)) await dialog.getByLabel(label).fill(value);
  await dialog.getByRole("button", { name, exact: true }).click();
  await dialog.waitFor({ state: "detached" });
}

/** A receiver of webhooks that answers as it is told, and keeps what it got. */
async function receiver(t) {
  const got = [];
  let status = 204;
  const http = createServer((request, response) => {
    let body = "";
    request.setEncoding("utf8").on("data", (chunk) => (body += chunk)).on("end", () => {
      got.push({ headers: request.headers, body: JSON.parse(body) });
      response.writeHead(status).end();
    });
  });
  http.listen(await freePort(), "127.0.0.1");
  await once(http, "listening");
  t.after(() => http.close());
  return { url: `http://127.0.0.1:${http.address().port}/in?key=secret`, got, answer: (other) => (status = other) };
}

test("everything that the filters match is cancelled by one job, after a look that changes nothing", async () => {
  for (let n = 0; n < 12; n += 1) await server.submit("old-report", n, { lane: "idle", tags: { team: "it's blue" } });
  const kept = await server.submit("other", 1, { lane: "idle" });
  const tab = await open(server, "/executions?kind=old-report");
  const { page } = tab;
  await page.getByRole("button", { name: "All that match…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText("Every execution with kind old-report").waitFor();
  await checkAccess(page, "a bulk job in the making");
  await dialog.getByLabel("Reason").fill("no longer needed");
  await dialog.getByRole("button", { name: "See what it would do" }).click();
  await dialog.getByText("12 executions would be cancelled.").waitFor();
  await dialog.getByText("Nothing was changed yet.").waitFor();
  await checkAccess(page, "a look at what a bulk job would do");
  const states = async () => (await server.call("GET", "/v1/executions?kind=old-report")).items.map((item) => item.public_state);
  assert.deepEqual([...new Set(await states())], ["waiting"]);
  assert.equal(await dialog.locator(".command code").innerText(), "ff bulk cancel --kind old-report --reason 'no longer needed' --yes");
  await dialog.getByRole("button", { name: "Cancel 12" }).click();

  await page.getByRole("heading", { level: 1, name: "Cancel", exact: true }).waitFor();
  assert.match(page.url(), /\/bulk\/[0-9a-f-]+$/, "the job has an address that can be shared");
  await page.getByText("12 executions were cancelled.").waitFor();
  await page.getByText("no longer needed").waitFor();
  await page.locator(".title [data-state=completed]").waitFor();
  await checkAccess(page, "a bulk job");
  assert.deepEqual([...new Set(await states())], ["cancelled"]);
  assert.equal((await server.call("GET", `/v1/executions/${kept}/state`)).public_state, "waiting");

  await page.getByRole("link", { name: "As a list" }).click();
  await page.getByRole("button", { name: "kind old-report" }).waitFor();
  await page.getByRole("link", { name: "Bulk jobs" }).click();
  await page.getByRole("link", { name: "Cancel, dry run" }).waitFor();
  await page.getByText("12 of 12").first().waitFor();
  await checkAccess(page, "bulk jobs");
  await tab.close();
});

test("what a job could not change is listed with the reason, and a dry run is carried out from its page", async () => {
  const ids = [];
  for (let n = 0; n < 3; n += 1) ids.push(await server.submit("replayed", n, { lane: "replays", policy: { max_replay_count: n === 0 ? 0 : 5, retry: { max_retries: 0 } } }));
  await server.work(["replays"], (task) => task.say("fail", { reason: "no", category: "permanent" }), { count: 3 });
  const tab = await open(server, "/executions?kind=replayed&state=failed");
  const { page } = tab;
  await page.getByRole("button", { name: "All that match…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("What to do with them").selectOption({ label: "Replay" });
  assert.equal(await dialog.getByLabel("Reason").count(), 0, "a replay takes no reason");
  await dialog.getByRole("button", { name: "See what it would do" }).click();
  await dialog.getByText("2 executions would be replayed. 1 would refuse it: max replays exhausted 1.").waitFor();
  await dialog.getByRole("button", { name: "Back" }).click();
  await dialog.getByLabel("What to do with them").waitFor();
  await dialog.getByRole("button", { name: "Back" }).click();
  await dialog.waitFor({ state: "detached" });

  await page.goto(`${server.url}/bulk`);
  await page.getByRole("link", { name: "Replay, dry run" }).click();
  await page.getByText("2 executions would be replayed.").waitFor();
  const job = page.url();
  await page.getByRole("button", { name: "Carry out" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Carry out" }).click();
  await page.getByRole("heading", { level: 1, name: "Replay", exact: true }).waitFor();
  assert.notEqual(page.url(), job);
  await page.getByText("2 executions were replayed. 1 refused it").waitFor();
  const refused = page.getByRole("region", { name: "Could not be changed" }).getByRole("row", { name: /max replays exhausted/ });
  await refused.getByRole("link").click();
  await page.getByRole("heading", { level: 1, name: "replayed" }).waitFor();
  assert.ok(page.url().includes(ids[0]));
  await tab.close();
});

test("a job that takes its time shows how far it is, and stops when it is told to", async () => {
  for (let n = 0; n < 40; n += 1) await server.submit("slow-hold", n, { lane: "idle" });
  const begun = await server.call("POST", "/v1/bulk", { filter: { kind: ["slow-hold"] }, action: "hold", rate_per_second: 1 });
  const tab = await open(server, "/bulk");
  const { page } = tab;
  await page.getByRole("row", { name: /Hold/ }).getByRole("meter").waitFor();
  await checkAccess(page, "a job that runs");
  await page.goto(`${server.url}/bulk/${begun.bulk_id}`);
  await page.locator(".title [data-state=running]").waitFor();
  await page.getByText("it goes on by itself if this page is closed").waitFor();
  await act(page, `Actions on ${begun.bulk_id}`, "Stop");
  await page.getByText("stopped").first().waitFor();
  const { state, progress } = await server.call("GET", `/v1/bulk/${begun.bulk_id}`);
  assert.equal(state, "cancelled");
  assert.ok(progress.done < 40, `${progress.done} were held`);
  await tab.close();
});

test("a priority and tags are given to all that match, and what is wrong is said before anything begins", async () => {
  for (let n = 0; n < 3; n += 1) await server.submit("moved", n, { lane: "idle", tags: { team: "old" } });
  const tab = await open(server, "/executions?kind=moved");
  const { page } = tab;
  const dialog = page.getByRole("dialog");
  const begin = async (label, field, value) => {
    await page.goto(`${server.url}/executions?kind=moved`);
    await page.getByRole("button", { name: "All that match…" }).click();
    await dialog.getByLabel("What to do with them").selectOption({ label });
    await dialog.getByLabel(field).fill(value);
    await dialog.getByRole("button", { name: "See what it would do" }).click();
  };
  await begin("Replace tags", "Tags in the place of theirs", "nonsense");
  await dialog.getByRole("alert").getByText("“nonsense” is not key=value").waitFor();
  assert.equal((await server.call("GET", "/v1/bulk")).items.some((job) => job.action === "set_tags"), false);
  await dialog.getByLabel("Tags in the place of theirs").fill("team=new\nnote=it's new");
  await dialog.getByRole("button", { name: "See what it would do" }).click();
  await dialog.getByText("3 executions would be given other tags.").waitFor();
  const command = await dialog.locator(".command code").innerText();
  await runShown(command, server);
  assert.deepEqual((await server.call("GET", "/v1/executions?kind=moved")).items[0].tags, { team: "new", note: "it's new" });
  await begin("Change priority", "Priority, 0 to 9000", "70");
  await dialog.getByText("3 executions would be given another priority.").waitFor();
  await dialog.getByRole("button", { name: "Change priority 3" }).click();
  await page.getByRole("heading", { level: 1, name: "Change priority to 70" }).waitFor();
  await page.getByText("3 executions were given another priority.").waitFor();
  await tab.close();
});

test("a subscription is tested, paused with a note and resumed, and what its receiver refused is sent again", async (t) => {
  const { url, got, answer } = await receiver(t);
  await server.call("POST", "/v1/subscriptions", { name: "alarms", target: { webhook: { url } }, filter: { event_types: ["failed"] }, retry: { max_retries: 0 } });
  const tab = await open(server, "/webhooks");
  const { page } = tab;
  await page.getByText(url).waitFor();
  await checkAccess(page, "webhooks");
  await page.getByRole("link", { name: "alarms" }).click();
  await page.getByText("Nothing was delivered yet").waitFor();
  await act(page, "Actions on alarms", "Test");
  await page.getByRole("row", { name: /completed.*test/ }).waitFor();
  assert.equal(got[0].body.type, "test");
  assert.match(got[0].headers["webhook-signature"], /^v1,/);

  answer(410);
  await server.submit("breaks", 1, { lane: "breaks", policy: { retry: { max_retries: 0 } } });
  await server.work(["breaks"], (task) => task.say("fail", { reason: "no", category: "permanent" }));
  const given = page.getByRole("row", { name: /failed.*410/ });
  await given.waitFor();
  await page.getByText("Last deliveries, 1 given up").waitFor();
  await checkAccess(page, "a delivery that was given up");
  answer(204);
  await given.getByRole("button", { name: "Send again" }).click();
  await page.getByRole("dialog").getByText("ff replay").waitFor();
  await page.getByRole("dialog").getByRole("button", { name: "Send again" }).click();
  await given.waitFor({ state: "detached" });
  assert.equal(got.at(-1).body.data.event.execution_kind, "breaks");
  assert.equal(got.at(-1).headers["webhook-id"], got.at(-2).headers["webhook-id"]);

  await act(page, "Actions on alarms", "Pause", { "Why, for those who look at it": "the receiver is moved" });
  await page.getByRole("region", { name: "What was last said about it" }).getByText("the receiver is moved").waitFor();
  assert.equal((await server.call("GET", "/v1/subscriptions/alarms")).state, "paused");
  await act(page, "Actions on alarms", "Resume");
  await page.locator(".title [data-state=active]").waitFor();
  await act(page, "Actions on alarms", "Delete");
  await page.getByText("Nobody is told what happens").waitFor();
  await tab.close();
});

test("an inbound hook shows where its messages go and what they lead to, and is deleted", async () => {
  await server.call("POST", "/v1/hooks", { name: "pushes", scheme: "github", secret: "a secret of its own", target: { execution: { kind: "build", lane: "ci" } } });
  await server.call("POST", "/v1/hooks", { name: "payments", target: { signal: { correlation_id: "/data/order", tag: "order", name: "paid" } } });
  const tab = await open(server, "/webhooks");
  const { page } = tab;
  const row = page.getByRole("row", { name: /pushes/ });
  await row.getByTitle(`${server.url}/v1/hooks/pushes`).waitFor();
  await row.getByText("GitHub").waitFor();
  await row.getByText("creates build in the lane ci").waitFor();
  await page.getByText("signals paid to the execution whose order stands at /data/order").waitFor();
  assert.doesNotMatch(await page.locator("body").innerText(), /a secret of its own/);
  await checkAccess(page, "inbound hooks");
  await act(page, "Actions on pushes", "Delete");
  await row.waitFor({ state: "detached" });
  await tab.close();
});

test("a provider shows the rate in effect, until when it is closed, and who is in line", async () => {
  await server.call("POST", "/v1/providers", { name: "model-api", window_ms: 60_000, max_requests: 2, max_tokens: 90_000, max_concurrent: 8 });
  for (let n = 0; n < 3; n += 1) await server.submit("asks-a-model", n, { lane: "models" });
  await server.work(["models"], (task) => task.say("providers/acquire", { provider: "model-api", key: "ask", cost: { tokens: 2_000 } }), { count: 3 });
  const tab = await open(server, "/budgets");
  const { page } = tab;
  const row = page.getByRole("region", { name: "Providers" }).getByRole("row", { name: /model-api/ });
  await row.getByText("2 of 2 in 1 min").waitFor();
  await row.getByText("the last one in").waitFor();
  await checkAccess(page, "providers");
  await act(page, "Actions on model-api", "Change", { "Requests within the window": "60" });
  await row.getByText("of 60 in 1 min").waitFor();
  await act(page, "Actions on model-api", "Throttle", { "Seconds to leave it alone": "600" });
  await row.getByText("closed").waitFor();
  await row.getByText("for 9 min").waitFor();
  await row.getByText("of 30 in 1 min").waitFor();
  await row.getByText("lowered from 60").waitFor();
  await row.getByText("said once that it was too much").waitFor();
  await checkAccess(page, "a provider that is closed");
  await page.getByRole("group", { name: "Actions on model-api" }).getByRole("button", { name: "Delete" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByRole("button", { name: "Delete" }).click();
  await dialog.getByRole("button", { name: "Delete all the same" }).click();
  await page.getByText("There is no provider yet").waitFor();
  await tab.close();
});

test("the keys that an execution shares are among its details", async () => {
  const id = await server.submit("shares", 1, { lane: "idle", concurrency: [{ key: "acme", limit: 1 }, { key: "gpu", limit: 3 }], fair_key: "tenant-7" });
  const alone = await server.submit("alone", 1, { lane: "idle", singleton: { key: "nightly" } });
  await server.call("PUT", "/v1/lanes/idle", { aging_ms: 600_000 });
  const tab = await open(server, `/executions/${id}`);
  const { page } = tab;
  await page.getByText("nobody else holds acme").waitFor();
  await page.getByText("fewer than 3 hold gpu").waitFor();
  await page.getByText("tenant-7").waitFor();
  await page.goto(`${server.url}/executions/${alone}`);
  await page.getByText("nightly").waitFor();
  await page.goto(`${server.url}/lanes`);
  await page.getByText("10 min of age are worth one step of priority").waitFor();
  await tab.close();
});

test("the deployment lists its servers", async () => {
  const tab = await open(server, "/system/deployment");
  await tab.page.getByRole("region", { name: "Servers" }).getByText("alive, answers this page").waitFor();
  await tab.page.getByRole("region", { name: "Servers" }).getByText(new URL(server.url).host).waitFor();
  await tab.close();
});

for (const [role, operates, administers] of [
  ["reader", false, false],
  ["submitter", false, false],
  ["operator", true, false],
  ["admin", true, true],
]) {
  test(`the role ${role} decides which acts on jobs, webhooks and providers exist`, async (t) => {
    const server = await Deployment.start({ token: ADMIN });
    t.after(() => server.stop());
    await server.submit("held", 1, { lane: "idle" });
    const dry = await server.call("POST", "/v1/bulk", { filter: {}, action: "hold", dry_run: true });
    await server.call("POST", "/v1/subscriptions", { name: "alarms", target: { webhook: { url: "https://example.com/a/secret/path" } } });
    await server.call("POST", "/v1/hooks", { name: "pushes", target: { execution: { kind: "build" } } });
    await server.call("POST", "/v1/providers", { name: "model-api", max_requests: 60 });
    const { secret } = await server.call("POST", "/v1/admin/tokens", { name: `a-${role}`, role });
    const tab = await open(server, "/bulk");
    const { page } = tab;
    await page.getByLabel("API token").fill(secret);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByRole("link", { name: "Hold, dry run" }).waitFor();
    const exists = async (path, text, name) => {
      await page.goto(server.url + path);
      await page.getByText(text).first().waitFor();
      return (await page.getByRole("button", { name, exact: true }).count()) > 0;
    };
    assert.equal(await exists("/executions", "held", "All that match…"), operates);
    assert.equal(await exists(`/bulk/${dry.bulk_id}`, "1 execution would be held", "Carry out"), operates);
    assert.equal(await exists("/webhooks", "alarms", "Test"), operates);
    assert.equal(await exists("/webhooks", "creates build", "Delete"), administers);
    assert.equal(await exists("/webhooks/alarms", "Nothing was delivered yet", "Pause"), operates);
    assert.equal(await exists("/webhooks/alarms", "Nothing was delivered yet", "Delete"), administers);
    assert.equal((await page.getByText("/a/secret/path").count()) > 0, administers, "the path of an address is a secret");
    assert.equal(await exists("/budgets", "0 of 60", "Throttle"), operates);
    await tab.close();
  });
}

test("texts of users in jobs, subscriptions, hooks and providers are shown as text", async () => {
  const name = XSS_NAME;
  await server.call("POST", "/v1/subscriptions", { name, target: { execution: { kind: name, lane: name, tags: { evil: XSS } } }, filter: { kinds: [name], tags: { evil: XSS } } });
  await server.call("POST", `/v1/subscriptions/${encodeURIComponent(name)}/pause`, { note: XSS });
  await server.call("POST", "/v1/hooks", { name, target: { signal: { correlation_id: `/${XSS}`, name: XSS } } });
  await server.call("POST", "/v1/providers", { name, max_requests: 5 });
  const held = await server.submit(name, 1, { lane: name, concurrency: [{ key: XSS, limit: 1 }], fair_key: XSS });
  const job = await server.call("POST", "/v1/bulk", { filter: { kind: [name], tag: [`evil=${XSS}`] }, action: "hold", reason: XSS });
  const tab = await open(server, "/");
  const { page } = tab;
  for (const path of ["/webhooks", `/webhooks/${encodeURIComponent(name)}`, "/budgets", "/bulk", `/bulk/${job.bulk_id}`, `/bulk/${encodeURIComponent(XSS)}`, `/webhooks/${encodeURIComponent(XSS)}`, `/executions/${held}`]) {
    await page.goto(server.url + path);
    await page.getByRole("main").waitFor();
    await page.waitForFunction(() => document.querySelectorAll("[aria-label=Loading]").length === 0);
    assert.equal(await page.evaluate(() => document.querySelectorAll("main img:not(.logo), main script, main svg[onload]").length), 0, path);
  }
  await page.goto(`${server.url}/bulk/${job.bulk_id}`);
  await page.getByText(XSS, { exact: true }).waitFor();
  await tab.close();
});

test("the command that an act on jobs, webhooks and providers shows does the same", async (t) => {
  for (let n = 0; n < 40; n += 1) await server.submit("shown-hold", n, { lane: "idle" });
  const job = await server.call("POST", "/v1/bulk", { filter: { kind: ["shown-hold"] }, action: "hold", rate_per_second: 1 });
  await server.call("POST", "/v1/subscriptions", { name: "shown", target: { execution: { kind: "told", lane: "idle" } } });
  await server.call("POST", "/v1/hooks", { name: "shown-hook", target: { execution: { kind: "build" } } });
  await server.call("POST", "/v1/providers", { name: "shown-api", max_requests: 60 });
  const tab = await open(server, "/");
  const { page } = tab;
  const shown = shownBy(t, page, server);
  await shown(`/bulk/${job.bulk_id}`, `Actions on ${job.bulk_id}`, "Stop");
  assert.equal((await server.call("GET", `/v1/bulk/${job.bulk_id}`)).state, "cancelled");
  for (const name of ["Test", "Pause", "Resume", "Delete"]) await shown("/webhooks/shown", "Actions on shown", name);
  await shown("/webhooks", "Actions on shown-hook", "Delete");
  for (const name of ["Change", "Throttle", "Delete"]) await shown("/budgets", "Actions on shown-api", name);
  await tab.close();
});
