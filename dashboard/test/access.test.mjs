// Access: tokens, sessions, roles, and links for people without an account.

import { after, before, test } from "node:test";
import assert from "node:assert/strict";
import { Deployment, closeBrowser, open } from "./support.mjs";
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
  const wrong = await open(server, `/waitpoints/${waiting}/0000-00000000-0000-7000-8000-000000000000#k1:00`);
  await wrong.page.getByRole("button", { name: "Reject" }).click();
  await wrong.page.getByRole("alert").waitFor();
  await wrong.close();
});
