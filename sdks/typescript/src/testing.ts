/**
 * Tests against the real server: it is started for the test, keeps everything in memory, and its clock stands still
 * until the test moves it.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { createServer } from "node:net";

import { Client } from "./client.js";
import type { ConnectOptions } from "./http.js";
import { milliseconds, pause, type Span } from "./time.js";

export interface ServerOptions {
  /** Where it keeps things, on real time. Without one it is `ff dev --memory --test-clock`. */
  store?: string;
  /** The program; `FF_PROGRAM`, then `ff` from the path when absent. */
  program?: string;
  /** Variables that are set for it. */
  environment?: Record<string, string>;
}

/** A server that does not answer after this time has not started. */
const START_TIMEOUT_MS = 30_000;

/** A server of its own for a test, on a free port of the loopback address. */
export class Server {
  readonly url: string;
  readonly #address: string;
  #process: ChildProcess | undefined;

  private constructor(private readonly options: ServerOptions, port: number) {
    this.#address = `127.0.0.1:${port}`;
    this.url = `http://${this.#address}`;
  }

  static async start(options: ServerOptions = {}): Promise<Server> {
    const server = new Server(options, await freePort());
    await server.restart();
    return server;
  }

  client(options: Omit<ConnectOptions, "server"> = {}): Client {
    return new Client({ ...options, server: this.url });
  }

  /** Moves its clock, and lets happen what is due by then. */
  async advance(span: Span): Promise<void> {
    if (this.options.store !== undefined) throw new Error("this server runs on real time; start it without a store");
    await this.client().call("POST", "/v1/test/clock", { advance_ms: milliseconds(span) });
  }

  /** Waits until nothing happens any more by itself: nothing is leased or claimable, and no timer is due. */
  async untilIdle(timeout: Span = "30s"): Promise<void> {
    const { idle, ...busy } = await this.client().call("POST", "/v1/test/idle", { timeout_ms: milliseconds(timeout) });
    if (!idle) throw new Error(`the server is busy: ${JSON.stringify(busy)}`);
  }

  /** Starts it, also again at the same address, and waits until it answers. */
  async restart(): Promise<void> {
    const { store, environment, program = process.env["FF_PROGRAM"] ?? "ff" } = this.options;
    const how = store === undefined ? ["dev", "--memory", "--test-clock"] : ["server", "--store", store, "--log-level", "error"];
    const inherited = Object.entries(process.env).filter(([name]) => !name.startsWith("FF_"));
    const env = { ...Object.fromEntries(inherited), ...environment };
    const started = spawn(program, [...how, "--listen", this.#address], { env, stdio: ["ignore", "ignore", "inherit"] });
    this.#process = started;
    const failed = new Promise<never>((_, reject) => {
      started.once("error", (cause) => { reject(new Error(`${program} cannot be started; name it in FF_PROGRAM`, { cause })); });
      started.once("exit", (code) => { reject(new Error(`the server ended with ${code ?? "a signal"} when it was started`)); });
    });
    failed.catch(() => undefined);
    const answers = () => fetch(`${this.url}/livez`).then(({ ok }) => ok, () => false);
    const deadline = Date.now() + START_TIMEOUT_MS;
    while (!(await Promise.race([answers(), failed]))) {
      if (Date.now() > deadline) throw new Error(`the server does not answer after ${START_TIMEOUT_MS} ms`);
      await pause(20);
    }
  }

  /** Lets it end in good order. */
  stop(): Promise<void> {
    return this.#end("SIGTERM");
  }

  /** Ends it as a crash does; `restart` starts it again. */
  kill(): Promise<void> {
    return this.#end("SIGKILL");
  }

  async #end(how: "SIGTERM" | "SIGKILL"): Promise<void> {
    const running = this.#process;
    if (running === undefined || running.exitCode !== null || running.signalCode !== null) return;
    const ended = new Promise((resolve) => running.once("exit", resolve));
    running.kill(how);
    await ended;
  }
}

/** A port of the loopback address that was free a moment ago. */
export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const probe = createServer().once("error", reject);
    probe.listen(0, "127.0.0.1", () => {
      const address = probe.address();
      probe.close(() => { resolve(typeof address === "object" && address !== null ? address.port : 0); });
    });
  });
}
