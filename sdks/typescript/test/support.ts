/** What several tests need: a server with a store of its own, a worker for as long as something takes, and waiting. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { type AnyTask, type Client, Worker, type WorkerOptions } from "../src/index.js";
import { Server } from "../src/testing.js";

/** A server on a new SQLite file, whose folder leaves with it. */
export async function startServer(environment: Record<string, string> = {}): Promise<{ server: Server; folder: string; end: () => Promise<void> }> {
  const folder = await mkdtemp(join(tmpdir(), "flowfabric-"));
  const server = await Server.start({ store: `sqlite://${folder}/ff.db`, environment });
  const end = async () => {
    await server.kill();
    await rm(folder, { recursive: true, force: true });
  };
  return { server, folder, end };
}

/** Runs a worker for as long as the body takes. */
export async function withWorker<T>(client: Client, tasks: AnyTask[], body: () => Promise<T>, options: Partial<WorkerOptions> = {}): Promise<T> {
  const worker = new Worker(client, { tasks, drain: 1_000, ...options });
  const running = worker.run();
  try {
    return await Promise.race([body(), running.then(() => { throw new Error("the worker ended"); })]);
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
