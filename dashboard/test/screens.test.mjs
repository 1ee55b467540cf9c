// Every screen, on the demo, in both themes, wide and narrow.

import { after, before, describe, test } from "node:test";
import assert from "node:assert/strict";
import { Deployment, closeBrowser, open } from "./support.mjs";
import { checkAccess } from "./axe.mjs";

let demo;
let screens;

before(async () => {
  demo = await Deployment.start({ demo: true });
  await demo.process.line("suspended review");
  const executions = (await demo.call("GET", "/v1/executions")).items;
  const id = (kind) => executions.find((one) => one.kind === kind).execution_id;
  const flow = (await demo.call("GET", "/v1/flows")).items[0].flow_id;
  const job = (await demo.call("GET", "/v1/bulk")).items.find((one) => one.action === "set_priority").bulk_id;
  screens = [
    ["overview", "/", "Overview", "publish the report?"],
    ["executions", "/executions", "Executions", "review"],
    ["executions in a state", "/executions?state=suspended", "Executions", "review"],
    ["executions with every column", "/executions?columns=id,lane,why,tags,priority,attempt,started,ended", "Executions", "review"],
    ["an execution that ended", `/executions/${id("draft")}`, "draft", "attempt 0"],
    ["its stream", `/executions/${id("draft")}?tab=stream`, "draft", "loses the right to write"],
    ["its result", `/executions/${id("draft")}?tab=input+and+result`, "draft", "Result"],
    ["its usage", `/executions/${id("draft")}?tab=usage`, "draft", "tokens"],
    ["its events", `/executions/${id("draft")}?tab=events`, "draft", "completed"],
    ["its steps", `/executions/${id("draft")}?tab=steps`, "draft", "It has no steps"],
    ["an execution that asks", `/executions/${id("review")}`, "review", "publish the report?"],
    ["its signals", `/executions/${id("review")}?tab=signals`, "review", "Waitpoints that take signals"],
    ["flows", "/flows", "Flows", "report"],
    ["a flow", `/flows/${flow}`, "report", "research-leases", "[data-node='research-leases']"],
    ["approvals", "/approvals", "Approvals", "publish the report?"],
    ["lanes", "/lanes", "Lanes", "demo"],
    ["workers", "/workers", "Workers", "1 alive"],
    ["budgets, quotas and providers", "/budgets", "Budgets and quotas", "model-api"],
    ["a budget", "/budgets/demo", "demo", "Nothing stands under it"],
    ["a budget that is not there", "/budgets/never", undefined, "There is no such budget"],
    ["schedules", "/schedules", "Schedules", "morning-digest"],
    ["a schedule", "/schedules/morning-digest", "morning-digest", "It has not run yet"],
    ["a schedule that is not there", "/schedules/never", undefined, "There is no such schedule"],
    ["bulk jobs", "/bulk", "Bulk jobs", "Change priority to 100"],
    ["a bulk job", `/bulk/${job}`, "Change priority to 100", "1 execution was given another priority"],
    ["a bulk job that is not there", "/bulk/00000000-0000-7000-8000-000000000000", undefined, "There is no such bulk job"],
    ["an address that names no bulk job", "/bulk/nonsense", undefined, "There is no such bulk job"],
    ["an address that names no execution", "/executions/xyz", undefined, "The list of executions"],
    ["an address that names no flow", "/flows/xyz", undefined, "The list of flows"],
    ["webhooks", "/webhooks", "Webhooks", "signals paid"],
    ["a subscription", "/webhooks/failures", "failures", "What it creates"],
    ["a subscription that is not there", "/webhooks/never", undefined, "There is no such subscription"],
    ["system: events", "/system", "System", ""],
    ["system: audit", "/system/audit", "System", ""],
    ["system: tokens", "/system/tokens", "System", "There is no token yet"],
    ["system: deployment", "/system/deployment", "System", "this page acts as"],
    ["nowhere", "/executions/0000-00000000-0000-7000-8000-000000000000", undefined, "There is no such execution"],
  ];
});

after(async () => {
  await closeBrowser();
  await demo?.stop();
});

for (const [theme, width] of [
  ["light", 1360],
  ["dark", 1360],
  ["dark", 900],
  ["light", 390],
]) {
  describe(`${theme}, ${width} pixels wide`, () => {
    test("every screen shows what it is for, can be used by everybody, and breaks no rule", async (t) => {
      const tab = await open(demo, "/", { theme, width });
      for (const [name, path, heading, text, selector] of screens) {
        await t.test(name, async () => {
          await tab.page.goto(demo.url + path);
          if (heading) await tab.page.getByRole("heading", { level: 1, name: heading, exact: true }).waitFor();
          if (selector) await tab.page.locator(selector).waitFor();
          else if (text) await tab.page.getByText(text).first().waitFor();
          await checkAccess(tab.page, name);
          const wider = await tab.page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
          assert.ok(wider <= 0, `${name} is ${wider} pixels wider than its window`);
        });
      }
      await tab.close();
    });
  });
}

test("a deployment in which nothing is yet says on every screen how to begin", async (t) => {
  const fresh = await Deployment.start();
  t.after(() => fresh.stop());
  const tab = await open(fresh, "/");
  for (const path of ["/", "/executions", "/flows", "/approvals", "/lanes", "/workers", "/budgets", "/schedules", "/bulk", "/webhooks", "/system", "/system/audit", "/system/tokens"]) {
    await t.test(path, async () => {
      await tab.page.goto(fresh.url + path);
      const command = tab.page.locator(".empty .command").first();
      await command.waitFor();
      assert.match(await command.innerText(), /^ff /);
      await command.getByRole("button", { name: "Copy the command" }).waitFor();
      await checkAccess(tab.page, path);
    });
  }
  await tab.close();
});
