// Pictures of every screen for the documentation, taken from the demo. `cargo xtask screenshots` runs it.

import { mkdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { Deployment, closeBrowser, open } from "./support.mjs";

/** How much work comes every two seconds while the overview is watched. */
const TIDE = [2, 5, 9, 14, 11, 6, 3, 4, 10, 17, 21, 16, 8, 5];
const TIDE_MS = 2_000;

const FOLDER = fileURLToPath(new URL("../../docs/images/", import.meta.url));

const demo = await Deployment.start({ demo: true });
try {
  await mkdir(FOLDER, { recursive: true });
  await demo.process.line("suspended review");
  const executions = (await demo.call("GET", "/v1/executions")).items;
  const id = (kind) => executions.find((one) => one.kind === kind)?.execution_id ?? "";
  const flow = (await demo.call("GET", "/v1/flows")).items[0].flow_id;
  const job = (await demo.call("GET", "/v1/bulk")).items.find((one) => one.action === "set_priority")?.bulk_id ?? "";
  const screens = [
    ["executions", "/executions", "research"],
    ["execution", `/executions/${id("agent") || id("draft")}`, "attempt 0"],
    ["stream", `/executions/${id("draft")}?tab=stream`, "goes on where it was"],
    ["flow", `/flows/${flow}`, "in all"],
    ["approvals", "/approvals", "publish the report?"],
    ["lanes", "/lanes", "demo"],
    ["workers", "/workers", "alive"],
    ["budgets", "/budgets", "tokens"],
    ["schedules", "/schedules/morning-digest", "Last runs"],
    ["job", `/bulk/${job}`, "was given another priority"],
    ["webhooks", "/webhooks", "signals paid"],
    ["system", "/system/deployment", "partitions"],
  ];
  const overview = ["overview", "/", "publish the report?"];
  // The overview comes last: the work that moves its charts would fill the other screens.
  const pictures = [...screens, overview].flatMap((screen) => ["light", "dark"].map((theme) => [theme, ...screen]));
  for (const [theme, name, path, text] of pictures) {
    const tab = await open(demo, path, { theme, width: 1280, height: 800 });
    for (const many of name === "overview" ? TIDE : []) {
      for (let n = 0; n < many; n += 1) await demo.submit("note", n, { lane: "demo" });
      await tab.page.waitForTimeout(TIDE_MS);
    }
    await tab.page.getByText(text).first().waitFor();
    await tab.page.waitForFunction(() => document.querySelectorAll("[aria-label=Loading]").length === 0);
    // The last charts are drawn in the frame after their data came.
    await tab.page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    await tab.page.screenshot({ path: `${FOLDER}${name}-${theme}.png` });
    await tab.close();
  }
} finally {
  await closeBrowser();
  await demo.stop();
}
