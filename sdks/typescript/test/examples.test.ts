/** The examples, run as a user runs them. */
import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import ts from "typescript";

import { freePort } from "../src/testing.js";
import { startServer, untilState } from "./support.js";

let own: Awaited<ReturnType<typeof startServer>>;
before(async () => {
  own = await startServer();
});
after(() => own.end());

async function run(example: string): Promise<string> {
  const program = fileURLToPath(new URL(`../examples/${example}.js`, import.meta.url));
  const env = { ...process.env, FF_SERVER: own.server.url };
  const { stdout } = await promisify(execFile)(process.execPath, [program], { env, timeout: 60_000 });
  return stdout;
}

test("hello", async () => { assert.equal(await run("hello"), "Hello, world!\n"); });

test("agent: a person approves, the budget is charged, the answer comes", async () => {
  const said = await run("agent");
  assert.equal(said.match(/^turn /gm)?.length, 3);
  assert.match(said, /A weekend in Lisbon: The trip is booked\.\n$/);
  const { standing } = await own.server.client().budget("trips");
  assert.deepEqual([standing?.["tokens"]?.used, standing?.["tokens"]?.left], [120, 880]);
});

test("map_reduce", async () => { assert.match(await run("map_reduce"), /^1000 pages have 3997 words\n$/); });

test("schedule", async () => {
  const [first, ...next] = (await run("schedule")).trimEnd().split("\n");
  assert.equal(first, "The report of yesterday is written.");
  assert.equal(next.length, 3);
  for (const line of next) assert.match(line, /^next: (Mon|Tue|Wed|Thu|Fri), .* 0[45]:00:00 GMT$/);
});

test("webhook: a repeated request is one order", async () => {
  assert.equal(await run("webhook"), "one order\nlamp was shipped for 42\n");
});

test("crash_drill: what was done before the crash is not done again", async () => {
  const said = await run("crash_drill");
  assert.equal(said.match(/runs download/g)?.length, 1);
  assert.equal(said.match(/runs transcode/g)?.length, 2);
  assert.match(said, /done: download, transcode, upload\n$/);
});

/** The agent of the quickstart, checked by the compiler as it is printed; answers with where its JavaScript is. */
async function printedAgent(folder: string): Promise<string> {
  const page = await readFile(new URL("../../../../docs/quickstart.md", import.meta.url), "utf8");
  const program = /```ts agent\.ts\n([\s\S]*?)```/.exec(page)?.[1] ?? "";
  assert.ok(program.length > 0 && program.trimEnd().split("\n").length <= 40);
  const source = join(folder, "agent.ts");
  await writeFile(source, program);
  const root = fileURLToPath(new URL("../../", import.meta.url));
  const config = ts.readConfigFile(join(root, "tsconfig.json"), (path) => ts.sys.readFile(path)).config as { compilerOptions: object };
  const { options } = ts.convertCompilerOptionsFromJson(config.compilerOptions, root);
  const checked = ts.createProgram([source], { ...options, rootDir: root, outDir: folder });
  const complaints = ts.getPreEmitDiagnostics(checked).map(({ messageText }) => ts.flattenDiagnosticMessageText(messageText, " "));
  assert.deepEqual(complaints, []);
  await writeFile(join(folder, "agent.js"), ts.transpileModule(program, { compilerOptions: { ...options, module: ts.ModuleKind.ESNext } }).outputText);
  return join(folder, "agent.js");
}

test("the agent of the quickstart, as it is printed, goes on after it was killed", async () => {
  // Beside the sources, so that it finds the package as a user's program does.
  const folder = await mkdtemp(fileURLToPath(new URL("../quickstart-", import.meta.url)));
  const asked: string[] = [];
  const port = await freePort();
  const model = createServer((request, response) => {
    request.setEncoding("utf8").on("data", (text: string) => {
      const { messages } = JSON.parse(text) as { messages: { content: string }[] };
      asked.push(messages[0]?.content ?? "");
      response.end(JSON.stringify({ choices: [{ message: { content: `An answer to: ${messages[0]?.content ?? ""}` } }] }));
    });
  }).listen(port, "127.0.0.1");
  const env = { ...process.env, FF_SERVER: own.server.url, MODEL_URL: `http://127.0.0.1:${port}` };
  try {
    const program = await printedAgent(folder);
    const start = () => spawn(process.execPath, [program], { cwd: folder, env, stdio: "inherit" });
    const client = own.server.client();
    const first = start();
    const execution = await client.submit("agent", "tides");
    await untilState(client, execution.id, "suspended");
    const ended = new Promise((resolve) => first.once("exit", resolve));
    first.kill("SIGKILL");
    await ended;
    const second = start();
    await execution.signal("decision", { approved: true, by: "ann" });
    const published = String(await execution.result());
    second.kill("SIGKILL");
    assert.match(published, /^An answer to: Write a paragraph from: An answer to: What is new about tides\?/);
    assert.equal(await readFile(join(folder, "published.txt"), "utf8"), `${published}\n`);
    assert.equal(asked.length, 3);
    assert.equal(new Set(asked).size, 3);
  } finally {
    model.close();
    await rm(folder, { recursive: true, force: true });
  }
});
