/** A worker: claims tasks, runs their functions, renews their leases, and ends them. */
import { Worker as Thread } from "node:worker_threads";

import { Client, type Schemas } from "./client.js";
import { Context, StepFailure, type TaskLink } from "./context.js";
import { FlowFabricError, inWords, TaskError } from "./errors.js";
import { FrameWriter } from "./frames.js";
import { path } from "./http.js";
import { uuid7 } from "./ids.js";
import { Interrupted, Journal, StartOver } from "./journal.js";
import type { FromRenewer, RenewerData, ToRenewer } from "./renewer.js";
import { checked, type Content, valueOf } from "./schema.js";
import type { AnyTask } from "./task.js";
import { milliseconds, pause, type Span } from "./time.js";

export interface WorkerOptions {
  /** The tasks it serves; it is never handed another kind. */
  tasks: readonly AnyTask[];
  lanes?: readonly string[];
  capabilities?: readonly string[];
  /** How many tasks it runs at once; 10 when absent. */
  concurrency?: number;
  /** A crash is noticed after this time; 30 seconds when absent. */
  leaseTtl?: Span;
  /** The name that processes which do the same work share. */
  workerId?: string;
  /** The name of this very process. */
  instanceId?: string;
  /** What it calls its version. */
  version?: string;
  /** How long a task may go on after the worker was told to stop; 30 seconds when absent. */
  drain?: Span;
}

interface Running {
  task: Schemas["Task"];
  lose: (reason: string) => void;
  ended: Promise<void>;
}

/** How a call of a function ended. */
type End =
  | { how: "completed"; result: unknown }
  | { how: "failed"; error: unknown }
  | { how: "released" }
  | { how: "start_over" };

const CLAIM_WAIT_MS = 20_000;
const CLAIM_PAUSE_MS = 1_000;
const CLAIM_TASKS_MAX = 100;
const LOST = new Set(["stale_lease", "lease_expired", "lease_revoked", "execution_not_active", "execution_not_found"]);

export class Worker {
  readonly instanceId: string;
  readonly #client: Client;
  readonly #options: WorkerOptions;
  readonly #tasks: Map<string, AnyTask>;
  readonly #running = new Map<string, Running>();
  readonly #stopping = new AbortController();
  readonly #leaseTtlMs: number;
  #renewer: Thread | undefined;
  #freed: () => void = () => undefined;

  constructor(client: Client, options: WorkerOptions) {
    this.#client = client;
    this.#options = options;
    this.#tasks = new Map(options.tasks.map((task) => [task.kind, task]));
    if (this.#tasks.size === 0) throw new TypeError("a worker needs at least one task");
    this.#leaseTtlMs = milliseconds(options.leaseTtl ?? "30s");
    const name = options.workerId ?? "typescript";
    this.instanceId = options.instanceId ?? `${name.slice(0, 27)}-${uuid7()}`;
  }

  /** Works until it is told to stop, by `stop()`, SIGTERM or SIGINT; then lets its tasks end, and hands back the rest. */
  async run(): Promise<void> {
    const stop = () => { this.stop(); };
    process.once("SIGTERM", stop);
    process.once("SIGINT", stop);
    const registration = this.#registration();
    try {
      await this.#client.connection.call("PUT", this.#at(""), { body: registration, signal: this.#stopping.signal });
      this.#renewer = this.#startRenewer(registration);
      while (!this.#stopping.signal.aborted) await this.#claim();
      await this.#drain();
    } catch (error) {
      if (!this.#stopping.signal.aborted) throw error;
    } finally {
      process.off("SIGTERM", stop);
      process.off("SIGINT", stop);
      await this.#renewer?.terminate();
      await this.#deregister(registration.nonce);
    }
  }

  /** Claims nothing more. `run` ends when the tasks in hand have ended. */
  stop(): void {
    this.#stopping.abort(new Interrupted("the worker stops"));
  }

  async #claim(): Promise<void> {
    const free = (this.#options.concurrency ?? 10) - this.#running.size;
    if (free <= 0) {
      await new Promise<void>((resolve) => {
        this.#freed = resolve;
        this.#stopping.signal.addEventListener("abort", () => { resolve(); }, { once: true });
      });
      return;
    }
    const max_tasks = Math.min(free, CLAIM_TASKS_MAX);
    const body = {
      lanes: this.#options.lanes ?? ["default"],
      kinds: [...this.#tasks.keys()],
      max_tasks,
      wait_ms: CLAIM_WAIT_MS,
      lease_ttl_ms: this.#leaseTtlMs,
      lease_ids: Array.from({ length: max_tasks }, () => uuid7()),
      ...(this.#options.capabilities !== undefined && { capabilities: this.#options.capabilities }),
      ...this.#scope(),
    };
    try {
      const claimed = await this.#client.connection.call<Schemas["ClaimOutcome"] | undefined>("POST", this.#at("/claim"), {
        body,
        waitMs: CLAIM_WAIT_MS,
        signal: this.#stopping.signal,
        // The lease ids tell a repeat.
        idempotencyKey: null,
        onRepeat: (body) => ({ ...(body as object), retry: true }),
      });
      for (const task of claimed?.tasks ?? []) this.#start(task);
    } catch (error) {
      if (this.#stopping.signal.aborted) return;
      console.warn(`flowfabric: a claim failed: ${inWords(error).message}`);
      await pause(CLAIM_PAUSE_MS, this.#stopping.signal);
    }
  }

  #start(task: Schemas["Task"]): void {
    const leaseId = task.fence.lease_id;
    const lost = new AbortController();
    this.#tell({ hold: { executionId: task.execution_id, fence: task.fence, ttlMs: task.lease_ttl_ms } });
    const held = new HeldTask(this.#client, task, this.#tasks.get(task.kind), lost.signal);
    const ended = held.work().finally(() => {
      this.#tell({ release: leaseId });
      this.#running.delete(leaseId);
      this.#freed();
    });
    this.#running.set(leaseId, { task, lose: (reason) => { lost.abort(new Interrupted(reason)); }, ended });
  }

  /** Lets tasks end for a while; those that do not are handed back, so that others need not wait for their leases. */
  async #drain(): Promise<void> {
    const all = () => [...this.#running.values()];
    const limit = milliseconds(this.#options.drain ?? "30s");
    const drained = new AbortController();
    const ended = Promise.all(all().map(({ ended }) => ended)).then(() => { drained.abort(); });
    await Promise.race([ended, pause(limit, drained.signal)]);
    await Promise.all(
      all().map(async ({ task, lose }) => {
        lose("the worker stops");
        await this.#client.connection
          .call("POST", path`/v1/executions/${task.execution_id}/delay`, { body: { fence: task.fence, delay_ms: 0 } })
          .catch(() => undefined);
      }),
    );
  }

  #registration(): RenewerData["registration"] {
    return {
      worker_id: this.#options.workerId ?? "typescript",
      lanes: this.#options.lanes ?? ["default"],
      kinds: [...this.#tasks.keys()],
      capabilities: this.#options.capabilities ?? [],
      capacity: this.#options.concurrency ?? 10,
      lease_ttl_ms: this.#leaseTtlMs,
      nonce: uuid7(),
      ...(this.#options.version !== undefined && { version: this.#options.version }),
      ...this.#scope(),
    };
  }

  #startRenewer(registration: RenewerData["registration"]): Thread {
    const { server, token } = this.#client.connection;
    const workerData: RenewerData = { server, token, instanceId: this.instanceId, registration, leaseTtlMs: this.#leaseTtlMs };
    const thread = new Thread(new URL("./renewer.js", import.meta.url), { workerData });
    thread.on("message", (message: FromRenewer) => {
      if ("lost" in message) this.#running.get(message.lost)?.lose(message.reason);
      else if ("trouble" in message) console.warn(`flowfabric: a heartbeat failed: ${message.trouble}`);
      else {
        console.error("flowfabric: another process has taken this worker's instance id; it claims nothing more");
        this.stop();
      }
    });
    thread.on("error", (error) => {
      console.error("flowfabric: leases cannot be renewed; the worker stops", error);
      this.stop();
    });
    return thread;
  }

  async #deregister(nonce: string): Promise<void> {
    const query = { nonce, ...this.#scope() };
    // The registration runs out by itself if this fails.
    await this.#client.connection.call("DELETE", this.#at(""), { query, signal: AbortSignal.timeout(2_000) }).catch(() => undefined);
  }

  #tell(message: ToRenewer): void {
    this.#renewer?.postMessage(message);
  }

  #scope(): { namespace?: string } {
    const { namespace } = this.#client.connection;
    return namespace === undefined ? {} : { namespace };
  }

  #at(part: string): string {
    return path`/v1/workers/${this.instanceId}` + part;
  }
}

/** One task in hand. */
class HeldTask implements TaskLink {
  readonly #journal: Journal;
  readonly #frames: FrameWriter;
  #release: (end: End) => void = () => undefined;

  constructor(
    private readonly client: Client,
    readonly task: Schemas["Task"],
    private readonly definition: AnyTask | undefined,
    readonly signal: AbortSignal,
  ) {
    const holder = {
      executionId: task.execution_id,
      generation: task.generation ?? 0,
      record: (first_number: number, entries: Schemas["StepEntry"][]) =>
        this.call<Schemas["RecordStepsOutcome"]>("/steps", { first_number, entries }),
      list: (after: number) =>
        this.client.connection.call<Schemas["ListStepsOutcome"]>("GET", this.#at("/steps"), { query: { after, limit: 1_000 } }),
    };
    this.#journal = new Journal(holder, task.journal);
    this.#frames = new FrameWriter((first_sequence, frames) => this.call("/frames", { first_sequence, frames }), task.next_frame_sequence);
  }

  call<T>(part: string, body: Record<string, unknown>): Promise<T> {
    // The fence, and the numbers or keys in the body, tell a repeat.
    const options = { body: { fence: this.task.fence, ...body }, signal: this.signal, idempotencyKey: null };
    return this.client.connection.call<T>("POST", this.#at(part), options);
  }

  submit(body: Record<string, unknown>): Promise<unknown> {
    return this.client.connection.call("POST", "/v1/executions", { body, signal: this.signal, idempotencyKey: null });
  }

  result(executionId: string): Promise<Content> {
    return this.client.connection.call("GET", path`/v1/executions/${executionId}/result`, { signal: this.signal });
  }

  async continueAsNew(input: unknown): Promise<never> {
    await this.#frames.flush();
    await this.call("/continue-as-new", inputOf(input));
    this.#journal.close(new Interrupted("the execution has begun anew"));
    this.#release({ how: "released" });
    return new Promise(() => undefined);
  }

  /** Runs the function and ends the task as it says. Trouble that leaves the task to its lease is only logged. */
  async work(): Promise<void> {
    try {
      await this.#end(await this.#run());
    } catch (error) {
      const lost = this.signal.aborted || (error instanceof FlowFabricError && LOST.has(error.code));
      const what = lost ? "its lease is lost" : `its end could not be reported: ${inWords(error).message}`;
      console.warn(`flowfabric: ${this.task.execution_id}: ${what}`);
    }
  }

  async #run(): Promise<End> {
    const { definition } = this;
    if (definition === undefined) {
      return { how: "failed", error: new TaskError("this worker does not know the kind", { category: "no_handler" }) };
    }
    const released = new Promise<End>((resolve, reject) => {
      this.#release = resolve;
      this.#journal.onIdle = () => { this.#parkSoon(reject); };
      this.signal.addEventListener("abort", () => { reject(this.signal.reason as Error); }, { once: true });
    });
    const called = this.#call(definition);
    try {
      const end = await Promise.race([called, released]);
      if (end.how === "completed") await this.#frames.flush();
      else await this.#frames.flush().catch(() => undefined);
      return end;
    } catch (error) {
      if (this.signal.aborted || (error instanceof FlowFabricError && LOST.has(error.code))) throw error;
      return { how: "failed", error };
    } finally {
      this.#journal.close(new Interrupted("the task is no longer in the hands of this call"));
      called.catch(() => undefined);
    }
  }

  async #call(definition: AnyTask): Promise<End> {
    try {
      const context = new Context(this, this.#journal, this.#frames);
      const input: unknown = await checked<unknown>(definition.input, valueOf(this.task.input as Content | null), "the input").catch((error: unknown) => {
        throw new TaskError(inWords(error).message, { category: "invalid_input", cause: error });
      });
      const result: unknown = await definition.run(context, input);
      return { how: "completed", result: await checked<unknown>(definition.output, result, "the result") };
    } catch (error) {
      return error instanceof StartOver ? { how: "start_over" } : { how: "failed", error };
    }
  }

  /** Parks when every branch still waits after what is ready has had its turn. */
  #parkSoon(reject: (error: unknown) => void): void {
    setImmediate(() => {
      setImmediate(() => {
        if (!this.#journal.mayPark()) return;
        this.#journal.while(this.#park()).catch(reject);
      });
    });
  }

  async #park(): Promise<void> {
    const parked = await this.call<Schemas["ParkOutcome"]>("/park", { ...this.#journal.parkArgs() });
    if (parked.outcome === "parked") {
      this.#journal.close(new Interrupted("the task is parked"));
      this.#release({ how: "released" });
    } else {
      this.#journal.satisfied(parked.entries, parked.next_number);
    }
  }

  async #end(end: End): Promise<void> {
    switch (end.how) {
      case "released":
        return;
      case "start_over":
        await this.call("/delay", { delay_ms: 0 });
        return;
      case "failed":
        await this.#fail(end.error);
        return;
      case "completed":
        try {
          await this.call("/complete", { ...resultOf(end.result), ...this.#notes() });
        } catch (error) {
          if (!refusesContent(error)) throw error;
          await this.#fail(new TaskError(inWords(error).message, { category: "refused" }));
        }
    }
  }

  async #fail(error: unknown): Promise<void> {
    const { category, message } = inWords(error);
    const undone = this.#journal.undone();
    const retryAfter = error instanceof TaskError ? error.retryAfterMs : undefined;
    await this.call("/fail", {
      reason: message,
      category,
      ...(retryAfter !== undefined && { retry_after_ms: retryAfter }),
      ...(error instanceof StepFailure && error.category !== "in_doubt" && { cause: error.step, first_number: this.#journal.nextNumber }),
      ...(undone.length > 0 && { undone }),
      ...this.#notes(),
    });
  }

  #notes(): { run?: object } {
    const run = this.#journal.runNotes();
    return run === undefined ? {} : { run };
  }

  #at(part: string): string {
    return path`/v1/executions/${this.task.execution_id}` + part;
  }
}

function inputOf(input: unknown): Record<string, unknown> {
  if (input instanceof Uint8Array) {
    return { input_base64: Buffer.from(input).toString("base64"), content_type: "application/octet-stream" };
  }
  return { input: input ?? null };
}

function resultOf(result: unknown): Record<string, unknown> {
  if (result instanceof Uint8Array) {
    return { result_base64: Buffer.from(result).toString("base64"), content_type: "application/octet-stream" };
  }
  return { result: result ?? null };
}

/** Whether a call was refused for what it says, so that saying it again would be refused again. */
function refusesContent(error: unknown): boolean {
  if (error instanceof TypeError) return true;
  return error instanceof FlowFabricError && error.status >= 400 && error.status < 500 && !error.retryable && !LOST.has(error.code);
}
