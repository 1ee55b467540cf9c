/** What several tests need: a server with a store of its own, a worker for as long as something takes, and waiting. */
import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type IncomingMessage } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { type AnyTask, type Client, Worker, type WorkerOptions } from "../src/index.js";
import { freePort, Server } from "../src/testing.js";

/** A server on a new SQLite file, whose folder leaves with it; on Valkey where `STORE` says so. */
export async function startServer(environment: Record<string, string> = {}): Promise<{ server: Server; folder: string; end: () => Promise<void> }> {
  if (process.env["STORE"] === "valkey") return startServerOnValkey(environment);
  const folder = await mkdtemp(join(tmpdir(), "flowfabric-"));
  const server = await Server.start({ store: `sqlite://${folder}/ff.db`, environment });
  const end = async () => {
    await server.kill();
    await rm(folder, { recursive: true, force: true });
  };
  return { server, folder, end };
}

/** The same on a Valkey of its own, which leaves with it. */
export async function startServerOnValkey(environment: Record<string, string> = {}): Promise<Awaited<ReturnType<typeof startServer>>> {
  const folder = await mkdtemp(join(tmpdir(), "flowfabric-"));
  const port = String(await freePort());
  const valkey = spawn("valkey-server", ["--port", port, "--save", "", "--dir", folder, "--maxmemory-policy", "noeviction"], { stdio: "ignore" });
  const server = await Server.start({ store: `valkey://127.0.0.1:${port}`, environment });
  const end = async () => {
    await server.kill();
    valkey.kill("SIGKILL");
    await rm(folder, { recursive: true, force: true });
  };
  return { server, folder, end };
}

/** Runs a worker for as long as the body takes. */
export async function withWorker<T>(client: Client, tasks: AnyTask[], body: (worker: Worker) => Promise<T>, options: Partial<WorkerOptions> = {}): Promise<T> {
  const worker = new Worker(client, { tasks, drain: 1_000, ...options });
  const running = worker.run();
  try {
    return await Promise.race([body(worker), running.then(() => new Promise<never>((_, reject) => { setTimeout(reject, 5_000, new Error("the worker ended")).unref(); }))]);
  } finally {
    worker.stop();
    await running;
  }
}

/** Waits until an execution is in a state; it is an error if the execution ends in another. */
export async function untilState(client: Client, id: string, state: string): Promise<void> {
  for (;;) {
    const view = await client.execution(id).get();
    if (view.public_state === state) return;
    if (["completed", "failed"].includes(view.public_state)) throw new Error(`the execution is ${view.public_state}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

/** A body of a call, as far as tests look at it. */
export interface Said {
  execution_id?: string;
  end?: unknown[];
  category?: string;
  entries?: unknown[];
  claim?: { retry?: boolean; lease_ids: string[] };
}

/** What stands between a worker and its server. `fate` may lose an answer, hold it back, or give one itself: a status. */
export interface Proxy {
  url: string;
  calls: { name: string; body: Said }[];
  fate: (name: string, body: Said) => "lose" | number | Promise<void> | undefined;
  close: () => void;
}

export async function startProxy(target: string): Promise<Proxy> {
  const port = await freePort();
  const proxy: Proxy = { url: `http://127.0.0.1:${port}`, calls: [], fate: () => undefined, close: () => { server.close(); server.closeAllConnections(); } };
  const server = createServer((request, response) => {
    void (async () => {
      const text = await textOf(request);
      const name = new URL(request.url ?? "", target).pathname.split("/").at(-1) ?? "";
      const body = JSON.parse(text === "" ? "{}" : text) as Said;
      proxy.calls.push({ name, body });
      const fate = proxy.fate(name, body);
      if (typeof fate === "number") {
        response.writeHead(fate).end(JSON.stringify({ code: "route_not_found", status: fate, detail: "says the proxy" }));
        return;
      }
      const headers = { "content-type": "application/json" };
      const carried = await fetch(target + (request.url ?? ""), { method: request.method ?? "GET", headers, ...(text !== "" && { body: text }) });
      const answer = Buffer.from(await carried.arrayBuffer());
      await (typeof fate === "object" ? fate : undefined);
      if (fate === "lose") request.socket.destroy();
      else response.writeHead(carried.status).end(answer);
    })().catch(() => { request.socket.destroy(); });
  }).listen(port, "127.0.0.1");
  return proxy;
}

async function textOf(request: IncomingMessage): Promise<string> {
  const parts: Buffer[] = [];
  for await (const part of request) parts.push(part as Buffer);
  return Buffer.concat(parts).toString("utf8");
}

/** Waits until something is so. */
export async function until(what: () => boolean | Promise<boolean>, patienceMs = 30_000): Promise<void> {
  for (const deadline = Date.now() + patienceMs; !(await what()); ) {
    if (Date.now() > deadline) throw new Error("it did not become so");
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
