// Every command of `ff` that the source shows to people is one: its words and its options are in the program's own help.

import { test } from "node:test";
import assert from "node:assert/strict";
import { readFile, readdir } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { join } from "node:path";
import { runShown } from "./support.mjs";

const SOURCE = fileURLToPath(new URL("../src", import.meta.url));

/** What follows `ff` in texts of the source; a word stands where a value is filled in. */
async function shownCommands() {
  const names = (await readdir(SOURCE, { recursive: true })).filter((name) => name.endsWith(".tsx"));
  const texts = await Promise.all(names.map((name) => readFile(join(SOURCE, name), "utf8")));
  const found = texts.flatMap((text) => [...text.matchAll(/["`]ff ([^"`\n]+)/g)].map(([, rest]) => rest.split("&")[0].trim()));
  // The second word of some is filled in, too; the tests of acts run those.
  return [...new Set(found.filter((line) => !/^\w+ \$\{(act\.word|command)\}/.test(line)).map((line) => line.replaceAll(/\$\{[^}]*\}?/g, " VALUE")))];
}

/** The words that name a command, and its help. */
async function helpOf(line) {
  const [first, second] = line.split(" ");
  const help = await runShown(`ff ${first} --help`);
  if (!new RegExp(`^  ${second} `, "m").test(help.split("Options:")[0])) {
    assert.doesNotMatch(help.split("\n").find((one) => one.startsWith("Usage")) ?? "", /<COMMAND>/, `ff ${line}: there is no ${second}`);
    return help;
  }
  return await runShown(`ff ${first} ${second} --help`);
}

test("the page shows only commands that exist, with options that they take", async (t) => {
  const lines = await shownCommands();
  assert.ok(lines.length > 30, `${lines.length} commands were found`);
  for (const line of lines) {
    await t.test(`ff ${line}`, async () => {
      const help = await helpOf(line);
      const options = [...line.split(" -- ")[0].matchAll(/(?:^| )(--[a-z-]+)/g)].map(([, option]) => option);
      for (const option of options) assert.ok(help.includes(`${option} `) || help.includes(`${option}\n`), `${option} is not in its help`);
    });
  }
});
