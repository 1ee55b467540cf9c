// No screen may shut anybody out: axe-core looks at each one.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import assert from "node:assert/strict";

const source = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export async function checkAccess(page, name) {
  // The script goes in through the browser's own door, so the policy of the page stays as it is.
  await page.evaluate(source);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const told = violations.map((one) => `${one.id} (${one.impact}): ${one.help}\n    ${one.nodes.map((node) => `${node.target.join(" ")} ${node.failureSummary?.split("\n").slice(1, 2).join("")}`).join("\n    ")}`);
  assert.deepEqual(told, [], name);
}
