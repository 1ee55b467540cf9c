// Real servers on free ports and a real browser. Everything that is started here is ended here.

import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { createServer } from "node:net";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import assert from "node:assert/strict";
import { chromium } from "playwright-core";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const FF = process.env.DASHBOARD_FF ?? `${ROOT}target/debug/ff`;
const BROWSERS = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
/** Longer than anything here takes on a busy machine. */
export const PATIENCE_MS = Number(process.env.DASHBOARD_PATIENCE_MS ?? 30_000);

/** Text that a page would run if it did not escape it. */
export const XSS = `<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>"'>`;

/** The same where spaces and quotes are refused. */
export const XSS_NAME = "<svg/onload=window.pwned=1>";

export async function freePort() {
  const server = createServer();
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

/** Runs a command that the page shows, in a shell as people do. What it prints is the answer; a failure is thrown. */
export async function runShown(command, deployment) {
  const [, rest] = /^ff (.*)$/s.exec(command) ?? assert.fail(`${command} is no command of ff`);
  const env = { ...process.env, FF_PROGRAM: FF, FF_SERVER: deployment?.url ?? "", NO_COLOR: "1" };
  const { stdout } = await promisify(execFile)("sh", ["-c", `"$FF_PROGRAM" ${rest}`], { env, timeout: PATIENCE_MS });
  return stdout;
}

/** For tests of acts: opens the act of a group on a page, takes the command that its dialog shows, and runs that instead of the act. */
export function shownBy(t, page, server) {
  return (path, group, name) =>
    t.test(`${path.split("/")[1]}: ${name}`, async () => {
      await page.goto(server.url + path);
      await page.getByRole("group", { name: group }).getByRole("button", { name, exact: true }).click();
      const dialog = page.getByRole("dialog");
      const command = await dialog.locator(".command code").innerText();
      await dialog.getByRole("button", { name: "Back", exact: true }).click();
      await runShown(command, server);
    });
}

/** A process whose lines can be waited for. */
class Process {
  constructor(args, { env = {}, cwd } = {}) {
    this.lines = [];
    this.waiting = [];
    this.child = spawn(FF, args, { cwd, env: { ...process.env, ...env, NO_COLOR: "1" }, stdio: ["ignore", "pipe", "pipe"] });
    let rest = "";
    const read = (chunk) => {
      const parts = (rest + chunk).split("\n");
      rest = parts.pop() ?? "";
      this.lines.push(...parts);
      for (const look of [...this.waiting]) look();
    };
    this.child.stdout.setEncoding("utf8").on("data", read);
    this.child.stderr.setEncoding("utf8").on("data", read);
    this.ended = once(this.child, "exit");
  }

  /** The first line with this text, also one that was said already. */
  async line(text) {
    return await new Promise((resolve, reject) => {
      const give = (act, value) => {
        clearTimeout(timer);
        this.waiting = this.waiting.filter((one) => one !== look);
        act(value);
      };
      const timer = setTimeout(() => give(reject, new Error(`nobody said ${text}:\n${this.lines.join("\n")}`)), PATIENCE_MS);
      const look = () => {
        const found = this.lines.find((line) => line.includes(text));
        if (found !== undefined) give(resolve, found);
      };
      this.waiting.push(look);
      look();
    });
  }

  async stop() {
    if (this.child.exitCode === null) this.child.kill("SIGTERM");
    await this.ended;
  }
}

/** A server, and calls of its API. */
export class Deployment {
  /** A server, or with `demo` the demo, on a port of its own; `args` replaces the command, which runs in `cwd`. */
  static async start({ demo = false, token, store = "memory://", port, args, cwd, env: more = {} } = {}) {
    const listen = `127.0.0.1:${port ?? (await freePort())}`;
    const deployment = new Deployment();
    deployment.url = `http://${listen}`;
    deployment.token = token;
    const command = args ?? (demo ? ["dev", "--demo", "--memory"] : ["server", "--store", store]);
    const env = token ? { FF_API_TOKEN: token, ...more } : more;
    deployment.process = new Process([...command, "--listen", listen], { env, cwd });
    await deployment.process.line("is ready");
    return deployment;
  }

  async call(method, path, body, token = this.token) {
    const headers = { accept: "application/json" };
    if (body !== undefined) headers["content-type"] = "application/json";
    if (token) headers.authorization = `Bearer ${token}`;
    const response = await fetch(this.url + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
    const text = await response.text();
    assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`);
    return text === "" ? undefined : JSON.parse(text);
  }

  async submit(kind, input, more = {}) {
    return (await this.call("POST", "/v1/executions", { kind, input, ...more })).execution_id;
  }

  /** A worker that takes what is there and does with it what a function says. */
  async work(lanes, act, { count = 1, capabilities = [] } = {}) {
    const instance = `w-${Math.random().toString(16).slice(2)}`;
    await this.call("PUT", `/v1/workers/${instance}`, { worker_id: "tester", lanes, capabilities, capacity: 10, version: "1.0", nonce: crypto.randomUUID() });
    for (let taken = 0; taken < count; ) {
      const claimed = await this.call("POST", `/v1/workers/${instance}/claim`, { lanes, capabilities, max_tasks: 1, wait_ms: 20_000 });
      for (const task of claimed?.tasks ?? []) {
        taken += 1;
        await act(new Task(this, task), task);
      }
    }
    return instance;
  }

  async stop() {
    await this.process.stop();
  }
}

/** The calls of a lease holder. */
class Task {
  constructor(deployment, task) {
    this.deployment = deployment;
    this.id = task.execution_id;
    this.fence = task.fence;
    this.sequence = 0;
  }

  say(path, body = {}) {
    return this.deployment.call("POST", `/v1/executions/${this.id}/${path}`, { fence: this.fence, ...body });
  }

  frame(type, text) {
    this.sequence += 1;
    return this.say("frames", { first_sequence: this.sequence, frames: [{ type, payload: text }] });
  }
}

let browser;

/** Files to show instead of those inside of the binary: for work on the page that does not wait for a build. */
const FILES = process.env.DASHBOARD_FILES;

function isFile(path) {
  return path === "/favicon.svg" || path.startsWith("/assets/") || !/^\/(v1|metrics|readyz|livez|openapi\.json)/.test(path);
}

async function serveFile(deployment, route) {
  const { pathname } = new URL(route.request().url());
  const name = pathname === "/favicon.svg" || pathname.startsWith("/assets/") ? pathname : "/index.html";
  // The policy is the server's own.
  const { headers } = await fetch(deployment.url + "/");
  const policy = headers.get("content-security-policy") ?? "default-src 'none'";
  await route.fulfill({ path: FILES + name, headers: { "content-security-policy": policy, "content-type": TYPES[name.split(".").pop()] ?? "text/plain" } });
}

const TYPES = { html: "text/html; charset=utf-8", js: "text/javascript", css: "text/css", svg: "image/svg+xml" };

/** The browser, started once, also for callers that ask at the same moment. */
export function launch() {
  browser ??= start();
  return browser;
}

async function start() {
  const executablePath = process.env.DASHBOARD_CHROMIUM ?? BROWSERS.find((path) => existsSync(path));
  assert.ok(executablePath, "no Chromium was found; install the package chromium, or set DASHBOARD_CHROMIUM");
  return await chromium.launch({ executablePath, headless: true, args: ["--headless", "--no-sandbox", "--disable-background-networking"] });
}

export async function closeBrowser() {
  const running = browser;
  browser = undefined;
  await (await running)?.close();
}

/** A browser of its own (cookies, storage) on a deployment, watched for what a page must never do. */
export async function open(deployment, path = "/", { theme = "light", width = 1360, height = 900, clock = false } = {}) {
  const context = await (await launch()).newContext({ colorScheme: theme, viewport: { width, height }, reducedMotion: "reduce" });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  const faults = [];
  page.on("pageerror", (error) => faults.push(`error: ${error.message}`));
  page.on("console", (message) => {
    if (/Content Security Policy|Refused to/i.test(message.text())) faults.push(`policy: ${message.text()}`);
  });
  page.on("request", (request) => {
    const { origin, protocol } = new URL(request.url());
    if (origin !== deployment.url && protocol !== "data:") faults.push(`left the origin: ${request.url()}`);
  });
  page.on("dialog", (dialog) => {
    faults.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  if (FILES) await context.route((url) => url.origin === deployment.url && isFile(url.pathname), (route) => serveFile(deployment, route));
  // A clock of the page's own, which a test can move.
  if (clock) await page.clock.install();
  await page.goto(deployment.url + path);
  return {
    page,
    context,
    /** Ends it, and says what it did that it must not do. */
    async close() {
      const pwned = await page.evaluate(() => window.pwned).catch(() => undefined);
      if (pwned !== undefined) faults.push("a text of a user was run");
      await context.close();
      assert.deepEqual(faults, []);
    },
  };
}
