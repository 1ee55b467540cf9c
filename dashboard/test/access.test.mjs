// Access: tokens, sessions, roles, and links for people without an account.

import { after, before, test } from "node:test";
import assert from "node:assert/strict";
import { Deployment, XSS, closeBrowser, open } from "./support.mjs";
import { checkAccess } from "./axe.mjs";

const ADMIN = "an-administrator-of-the-tests";
let server;
let tokens;
let waiting;

before(async () => {
  server = await Deployment.start({ token: ADMIN });
  tokens = { admin: ADMIN };
  for (const role of ["reader", "submitter", "worker", "operator", "approver"]) {
    tokens[role] = (await server.call("POST", "/v1/admin/tokens", { name: `a-${role}`, role })).secret;
  }
  waiting = await server.submit("waits", "x", { lane: "idle" });
});

after(async () => {
  await closeBrowser();
  await server?.stop();
});

async function signIn(path, token) {
  const tab = await open(server, path);
  await tab.page.getByLabel("API token").fill(token);
  await tab.page.getByRole("button", { name: "Sign in" }).click();
  return tab;
}

test("the page asks for a token, refuses a wrong one, and everybody can use it", async () => {
  const tab = await open(server, "/");
  await tab.page.getByRole("heading", { name: "Sign in to FlowFabric" }).waitFor();
  await checkAccess(tab.page, "sign in");
  await tab.page.getByLabel("API token").fill("wrong");
  await tab.page.getByRole("button", { name: "Sign in" }).click();
  await tab.page.getByRole("alert").waitFor();
  assert.equal(await tab.page.getByRole("alert").innerText(), "This token is not valid: it was mistyped or revoked, or its time is over.");
  await tab.close();
});

test("a token without an end says so, and one that is made for no namespace reaches every one", async () => {
  const tab = await signIn("/system/tokens", ADMIN);
  const { page } = tab;
  await page.getByRole("row", { name: /a-reader/ }).getByText("no end").waitFor();
  await page.getByRole("button", { name: "Make a token" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Name", { exact: true }).fill("ci");
  await dialog.getByLabel("Role").selectOption("submitter");
  await dialog.getByText("ff token create ci --role submitter --everywhere").waitFor();
  await dialog.getByRole("button", { name: "Make a token" }).click();
  await page.getByRole("row", { name: /ci submitter every one/ }).waitFor();
  assert.equal((await server.call("GET", "/v1/admin/tokens")).items.find((one) => one.name === "ci").namespace, "*");
  await tab.close();
});

for (const [role, operates, administers] of [
  ["reader", false, false],
  ["submitter", false, false],
  ["worker", false, false],
  ["operator", true, false],
  ["admin", true, true],
]) {
  test(`the role ${role} decides which buttons exist`, async () => {
    const tab = await signIn(`/executions/${waiting}`, tokens[role]);
    await tab.page.getByRole("heading", { level: 1, name: "waits" }).waitFor();
    assert.equal((await tab.page.getByRole("button", { name: "Cancel", exact: true }).count()) > 0, operates);
    await tab.page.goto(`${server.url}/system`);
    await tab.page.getByRole("heading", { level: 1, name: "System" }).waitFor();
    assert.equal((await tab.page.getByRole("tab", { name: "tokens" }).count()) > 0, administers);
    // The token is nowhere that a script could read it.
    const kept = await tab.page.evaluate(() => document.cookie + JSON.stringify({ ...localStorage, ...sessionStorage }));
    assert.ok(!kept.includes(tokens[role]) && !kept.includes("ffs1_"), kept);
    await tab.close();
  });
}

test("an approver sees what waits for people, decides it, and reaches nothing else", async () => {
  const id = await server.submit("asks-an-approver", "x", { lane: "ask-approver" });
  await server.work(["ask-approver"], (task) => task.say("suspend", { condition: { any: [{ name: "approve" }] }, reason: "approval", question: "may it go out?" }));
  // Every address leads to the inbox: there is nothing else to show.
  const tab = await signIn("/executions", tokens.approver);
  const { page } = tab;
  await page.getByRole("heading", { level: 1, name: "Approvals" }).waitFor();
  await page.getByText("may it go out?").waitFor();
  await checkAccess(page, "the inbox of an approver");
  assert.deepEqual(await page.getByRole("navigation", { name: "Screens" }).getByRole("link").allInnerTexts().then((names) => names.map((name) => name.split("\n")[0])), ["Approvals"]);
  assert.equal(await page.getByRole("searchbox").count(), 0);
  assert.equal(await page.getByRole("link", { name: "the execution" }).count(), 0);
  await page.getByRole("button", { name: "Approve" }).click();
  await page.getByText("All questions are answered").waitFor();
  assert.equal((await server.call("GET", `/v1/executions/${id}/state`)).public_state, "waiting");
  const signed = (await server.call("GET", "/v1/admin/audit")).items.find((one) => one.target.includes(id));
  assert.equal(signed.who, "a-approver");
  await tab.close();
});

test("a session survives a reload, ends when one signs out, and ends with its token", async () => {
  const { secret } = await server.call("POST", "/v1/admin/tokens", { name: "short-lived", role: "operator" });
  const tab = await signIn("/executions", secret);
  await tab.page.getByRole("heading", { level: 1, name: "Executions" }).waitFor();
  await tab.page.reload();
  await tab.page.getByRole("heading", { level: 1, name: "Executions" }).waitFor();
  await tab.page.getByRole("button", { name: "Sign out" }).click();
  await tab.page.getByRole("heading", { name: "Sign in to FlowFabric" }).waitFor();
  await tab.page.getByLabel("API token").fill(secret);
  await tab.page.getByRole("button", { name: "Sign in" }).click();
  await tab.page.getByRole("heading", { level: 1, name: "Executions" }).waitFor();
  await server.call("DELETE", "/v1/admin/tokens/short-lived");
  // The open stream of events is cut within a second, and the page learns why.
  await tab.page.getByRole("heading", { name: "Sign in to FlowFabric" }).waitFor();
  await tab.close();
});

test("a link to a waitpoint acts only when its button is pressed", async (t) => {
  const server = await Deployment.start();
  t.after(() => server.stop());
  const id = await server.submit("asks-a-stranger", "x", { lane: "ask" });
  let asked;
  await server.work(["ask"], async (task) => {
    asked = await task.say("suspend", { condition: { any: [{ name: "approve" }, { name: "reject" }] }, reason: "approval", detail: "may I?" });
  });
  const path = `/waitpoints/${id}/${asked.waitpoint_id}#${encodeURIComponent(asked.token)}`;
  const tab = await open(server, path);
  await tab.page.getByRole("button", { name: "Approve" }).waitFor();
  await checkAccess(tab.page, "waitpoint");
  const state = async () => (await server.call("GET", `/v1/executions/${id}/state`)).public_state;
  assert.equal(await state(), "suspended");
  await tab.page.getByRole("button", { name: "Approve" }).click();
  await tab.page.getByText("was delivered").waitFor();
  assert.equal(await state(), "waiting");
  await tab.close();
});

test("a link whose token is missing or wrong says so and changes nothing", async () => {
  const tab = await open(server, `/waitpoints/${waiting}/0000-00000000-0000-7000-8000-000000000000`);
  await tab.page.getByText("is not complete").waitFor();
  await tab.close();
  const address = `/waitpoints/${waiting}/0000-00000000-0000-7000-8000-000000000000#k1:00`;
  const refused = "This link is not valid: a part of it is missing or wrong, or it is too old. Ask for it again.";
  // A server that does not tell what is asked says it to the answer.
  const older = await openLink(server, address, { status: 404, json: { code: "route_not_found", detail: "See /openapi.json for the routes." } });
  await older.page.getByText("A task waits for you.").waitFor();
  await older.page.getByRole("button", { name: "Reject" }).click();
  assert.equal(await older.page.getByRole("alert").innerText(), refused);
  await older.close();
  const wrong = await openLink(server, address, { status: 401, json: { code: "invalid_token", detail: "no", advice: "no" } });
  await wrong.page.getByRole("alert").waitFor();
  assert.equal(await wrong.page.getByRole("alert").innerText(), refused);
  assert.equal(await wrong.page.getByRole("button", { name: "Approve" }).count(), 0);
  await wrong.close();
});

/** A link, opened where the server says this to what is asked. */
async function openLink(server, address, said) {
  const tab = await open(server, "/favicon.svg");
  await tab.page.route("**/v1/signals/*/question", (route) => route.fulfill(said));
  await tab.page.goto(server.url + address);
  return tab;
}

test("a link shows its question and who is asked, and its form becomes the answer", async (t) => {
  const server = await Deployment.start();
  t.after(() => server.stop());
  const id = await server.submit("refund", "x", { lane: "ask" });
  const schema = { type: "object", required: ["amount"], properties: { amount: { type: "integer", title: "Amount", maximum: 500 } } };
  const question = { question: `Refund how much?${XSS}`, detail: "Order 4711", schema };
  let asked;
  await server.work(["ask"], async (task) => {
    asked = await task.say("suspend", { condition: { any: [{ name: "approve" }] }, reason: "approval", ...question });
  });
  const address = `/waitpoints/${id}/${asked.waitpoint_id}#${encodeURIComponent(asked.token)}`;
  const told = { execution_id: id, kind: "refund", ...question, assignees: ["ann", "bob"], reason: "approval", since: Date.now() - 120_000, deadline: Date.now() + 7_200_000, open: true };
  const tab = await openLink(server, address, { json: told });
  const { page } = tab;
  await page.getByText(question.question).waitFor();
  await page.getByText("Order 4711").waitFor();
  await page.getByText("ann, bob").waitFor();
  const due = page.locator("time", { hasText: /^in (2 h|1 h 59 min)$/ });
  assert.match(await due.getAttribute("title"), /^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d/);
  await checkAccess(page, "a link with a form");
  const state = async () => (await server.call("GET", `/v1/executions/${id}/state`)).public_state;
  await page.getByRole("button", { name: "Approve" }).click();
  await page.getByRole("alert").getByText("Amount:").waitFor();
  assert.equal(await state(), "suspended");
  await page.getByLabel("Amount").fill("40");
  await page.getByRole("button", { name: "Approve" }).click();
  await page.getByText("was delivered").waitFor();
  let answered;
  await server.work(["ask"], async (task, claimed) => {
    answered = JSON.parse(Buffer.from(claimed.resume_signals[0].payload_base64, "base64").toString());
    await task.say("complete", { result: 1 });
  });
  assert.deepEqual(answered, { amount: 40 });
  await tab.close();

  const over = await openLink(server, address, { json: { ...told, open: false } });
  await over.page.getByText("The question was answered, or it is over.").waitFor();
  assert.equal(await over.page.getByRole("button").count(), 0);
  await checkAccess(over.page, "a link whose question is over");
  await over.close();
});
