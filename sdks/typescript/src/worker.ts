/** A worker: takes tasks, runs their functions, renews their leases, and ends them. */
import { Worker as Thread } from "node:worker_threads";

import { Client, type Schemas } from "./client.js";
import { Context, StepFailure } from "./context.js";
import { type EndingName, Exchange } from "./exchange.js";
import { Interrupted, inWords, isLost, refusesContent, stackOf, TaskError, withCauses } from "./errors.js";
import { FrameWriter } from "./frames.js";
import { type CallOptions, path } from "./http.js";
import { uuid7 } from "./ids.js";
import { Journal, StartOver, type TaskLink } from "./journal.js";
import type { FromRenewer, HeldLease, RenewerData, ToRenewer } from "./renewer.js";
import { checked, encoded, valueOf } from "./schema.js";
import type { AnyTask } from "./task.js";
import { milliseconds, pause, type Span, waitWithin } from "./time.js";
import { inTrace } from "./trace.js";

export interface WorkerOptions {
  /** The tasks it serves; it is never handed another kind. */
  tasks: readonly AnyTask[];
  /** What agents are told about its tasks, from `tool`. */
  tools?: readonly Schemas["ToolDefinition"][];
  lanes?: readonly string[];
  capabilities?: readonly string[];
  /** How many tasks it runs at once; 10 when absent. */
  concurrency?: number;
  /** How many tasks it takes ahead of free places; none when absent. They wait in its hands, so this is for short tasks. */
  prefetch?: number;
  /** A crash is noticed after this time; 30 seconds when absent. */
  leaseTtl?: Span;
  /** The name that processes which do the same work share. */
  workerId?: string;
  /** The name of this very process. */
  instanceId?: string;
  /** Its version, as people see it. */
  version?: string;
  /** Names the build: executions with the policy `pin_build` are run to their end by the build that started them. */
  buildId?: string;
  /** How long a task may go on after the worker was told to stop; 30 seconds when absent. */
  drain?: Span;
}

/** How a call of a function ended. */
type End = { how: "completed"; result: unknown } | { how: "failed"; error: unknown } | { how: "released" | "start_over" };

const CLAIM_WAIT_MS = 20_000;
/** The error of a branch that goes on after its function has ended. Made once, because an error costs its stack. */
const ENDED = new Interrupted("the task is no longer in the hands of this call");
/** The longest wait that a failure may ask for. */
const RETRY_AFTER_MAX_MS = 10 * 366 * 86_400_000;

export class Worker {
  readonly instanceId: string;
  readonly #client: Client;
  readonly #route: string;
  readonly #registration: RenewerData["registration"];
  readonly #drainMs: number;
  readonly #tasks: Map<string, AnyTask>;
  /** Tasks whose functions run, or whose ends are on their way, by their leases. */
  readonly #running = new Map<string, HeldTask>();
  /** Tasks that were taken ahead and wait for a place, by their leases. */
  readonly #waiting = new Map<string, HeldTask>();
  /** Leases that are no longer held, and of which the renewer has not been told. */
  readonly #released: string[] = [];
  readonly #concurrency: number;
  readonly #exchange: Exchange;
  readonly #stopping = new AbortController();
  /** Functions that run. */
  #working = 0;
  #renewer: Thread | undefined;
  #freed: () => void = () => undefined;

  constructor(client: Client, options: WorkerOptions) {
    const { lanes = ["default"], capabilities: given = [], concurrency = 10, prefetch = 0, workerId = "typescript", buildId, version, tools } = options;
    this.#client = client;
    this.#tasks = new Map(options.tasks.map((task) => [task.kind, task]));
    if (this.#tasks.size === 0) throw new TypeError("a worker needs at least one task");
    this.instanceId = options.instanceId ?? `${workerId.slice(0, 27)}-${uuid7()}`;
    this.#route = path`/v1/workers/${this.instanceId}`;
    this.#concurrency = concurrency;
    this.#drainMs = milliseconds(options.drain ?? "30s");
    const capacity = concurrency + prefetch;
    const capabilities = buildId === undefined ? given : [...given, `build:${buildId}`];
    // A registration and a claim have these in common.
    const asks = { lanes, capabilities, kinds: [...this.#tasks.keys()], lease_ttl_ms: milliseconds(options.leaseTtl ?? "30s") };
    this.#registration = { ...asks, version, tools, worker_id: workerId, capacity, nonce: uuid7(), ...client.connection.scope };
    this.#exchange = new Exchange(client.connection, {
      instanceId: this.instanceId,
      asks,
      capacity,
      inHand: () => this.#running.size + this.#waiting.size,
      take: (tasks) => { this.#take(tasks); },
    });
  }

  /** Works until it is told to stop, by `stop()`, SIGTERM or SIGINT; then lets its tasks end, and hands back the rest. */
  async run(): Promise<void> {
    const stop = () => { this.stop(); };
    process.once("SIGTERM", stop);
    process.once("SIGINT", stop);
    const { kinds, lanes } = this.#registration;
    try {
      await this.#client.connection.call("PUT", this.#route, { body: this.#registration, signal: this.#stopping.signal });
      await this.#startRenewer();
      console.warn(`flowfabric: worker ${this.instanceId} serves ${kinds.join(", ")} in the lanes ${lanes.join(", ")} at ${this.#client.connection.server}`);
      const free = () => new Promise<void>((resolve) => { this.#freed = resolve; });
      const claim = () => this.#exchange.claim(CLAIM_WAIT_MS, this.#stopping.signal);
      while (!this.#stopping.signal.aborted) await (this.#exchange.room > 0 ? claim() : free());
      await this.#drain();
    } catch (error) {
      if (!this.#stopping.signal.aborted) throw error;
    } finally {
      process.off("SIGTERM", stop);
      process.off("SIGINT", stop);
      await this.#renewer?.terminate();
      await this.#deregister();
    }
  }

  /** Takes nothing more. `run` ends when the tasks in hand have ended. */
  stop(): void {
    this.#exchange.closed = true;
    this.#stopping.abort(new Interrupted("the worker stops"));
    this.#freed();
  }

  #take(tasks: Schemas["Task"][]): void {
    this.#tell(tasks.map(({ execution_id, fence, lease_ttl_ms }) => ({ execution_id, fence, lease_ttl_ms })));
    for (const task of tasks) {
      this.#waiting.set(task.fence.lease_id, new HeldTask(this.#client, this.#exchange, task, this.#tasks.get(task.kind)));
    }
    this.#startWaiting();
  }

  #startWaiting(): void {
    for (const [leaseId, held] of this.#waiting) {
      if (this.#working >= this.#concurrency || this.#stopping.signal.aborted) break;
      this.#waiting.delete(leaseId);
      this.#running.set(leaseId, held);
      this.#working += 1;
      // A task whose end is on its way keeps no other from running.
      held.ended = held.work(() => { this.#working -= 1; this.#startWaiting(); }).finally(() => {
        this.#release(leaseId);
        this.#running.delete(leaseId);
        this.#startWaiting();
      });
    }
    this.#freed();
  }

  #lose(leaseId: string, reason: string): void {
    this.#running.get(leaseId)?.lose(reason);
    const ahead = this.#waiting.get(leaseId);
    if (ahead === undefined) return;
    this.#waiting.delete(leaseId);
    ahead.lose(reason);
    this.#freed();
  }

  /** Hands back what has not begun, lets tasks end for a while, and hands back the others, so that nobody waits for their leases. */
  async #drain(): Promise<void> {
    await this.#handBackWaiting();
    const drained = new AbortController();
    const ended = Promise.all([...this.#running.values()].map(({ ended }) => ended)).then(() => { drained.abort(); });
    await Promise.race([ended, pause(this.#drainMs, drained.signal)]);
    await Promise.all([...this.#running.values()].map((held) => held.handBack()));
    // A call that was under way may have brought tasks meanwhile.
    await this.#handBackWaiting();
  }

  async #handBackWaiting(): Promise<void> {
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    await Promise.all(waiting.map(([leaseId, held]) => held.handBack().finally(() => { this.#release(leaseId); })));
  }

  /** Starts the thread that renews leases, and waits until it is at work. */
  #startRenewer(): Promise<void> {
    const { server, token, namespace } = this.#client.connection;
    const connect = { server, token, namespace, retryForMs: 0 };
    const workerData: RenewerData = { connect, route: this.#route, registration: this.#registration };
    const thread = new Thread(new URL("./renewer.js", import.meta.url), { workerData });
    this.#renewer = thread;
    return new Promise((ready, failed) => {
      thread.on("message", (message: FromRenewer) => {
        if ("ready" in message) ready();
        else if ("lost" in message) this.#lose(message.lost, message.reason);
        else if ("trouble" in message) console.warn(`flowfabric: a heartbeat failed: ${message.trouble}`);
        else {
          console.error("flowfabric: another process has taken this worker's instance id; it claims nothing more");
          this.stop();
        }
      });
      thread.on("error", (error) => {
        console.error("flowfabric: leases cannot be renewed; the worker stops", error);
        this.stop();
        failed(error);
      });
    });
  }

  async #deregister(): Promise<void> {
    const query = { nonce: this.#registration.nonce, ...this.#client.connection.scope };
    // The registration runs out by itself if this fails.
    await this.#client.connection.call("DELETE", this.#route, { query, signal: AbortSignal.timeout(2_000) }).catch(() => undefined);
  }

  /** A lease is no longer held. The leases of one turn are told together. */
  #release(leaseId: string): void {
    if (this.#released.push(leaseId) === 1) setImmediate(() => { this.#tell([]); });
  }

  /** Tells the renewer of leases before their functions run. */
  #tell(hold: HeldLease[]): void {
    if (hold.length + this.#released.length === 0) return;
    const message: ToRenewer = { hold, release: this.#released.splice(0) };
    this.#renewer?.postMessage(message);
  }
}

/** One task in hand. */
class HeldTask implements TaskLink {
  readonly #journal: Journal;
  readonly #frames: FrameWriter;
  /** Rejects when the lease is lost. */
  readonly #lost: Promise<never>;
  #reject: (why: Interrupted) => void = () => undefined;
  #lostBy: Interrupted | undefined;
  /** Made when it is asked for: a signal costs more than everything else about a short task. */
  #signal: AbortController | undefined;
  /** Settled when its function has ended and its end was reported. */
  ended = Promise.resolve();
  #release: (end: End) => void = () => undefined;
  #ending = false;

  constructor(
    private readonly client: Client,
    private readonly exchange: Exchange,
    readonly task: Schemas["Task"],
    private readonly definition: AnyTask | undefined,
  ) {
    this.#lost = new Promise((_, reject) => { this.#reject = reject; });
    this.#lost.catch(() => undefined);
    this.#journal = new Journal(this);
    this.#frames = new FrameWriter(this);
  }

  /** Fires when the lease is lost. */
  get signal(): AbortSignal {
    if (this.#signal === undefined) {
      this.#signal = new AbortController();
      if (this.#lostBy !== undefined) this.#signal.abort(this.#lostBy);
    }
    return this.#signal.signal;
  }

  /** The lease is gone: what the function still does is in vain. */
  lose(reason: string): void {
    // A renewal that crosses the ending says so, too, and the ending's own answer is on its way then.
    if (!this.#ending || reason === "expired") this.#interrupt(new Interrupted(reason));
  }

  #interrupt(why: Interrupted): void {
    this.#lostBy ??= why;
    this.#reject(why);
    this.#signal?.abort(why);
  }

  /** Lets go of the task, so that it continues elsewhere in the same attempt. */
  async handBack(): Promise<void> {
    this.#interrupt(new Interrupted("the worker stops"));
    const body = { fence: this.task.fence, delay_ms: 0 };
    await this.client.connection.call("POST", this.#at("/delay"), { body, idempotencyKey: null }).catch((error: unknown) => {
      console.warn(`flowfabric: ${this.task.execution_id}: it could not be handed back: ${inWords(error).message}`);
    });
  }

  /** A call of the lease holder, repeated for as long as the lease lasts. */
  call<T>(part: string, body: object): Promise<T> {
    // The fence, and the numbers or keys in the body, tell a repeat.
    return this.held("POST", this.#at(part), { body: { fence: this.task.fence, ...body }, idempotencyKey: null });
  }

  held<T>(method: string, at: string, options: CallOptions = {}): Promise<T> {
    return this.client.connection.call<T>(method, at, { ...options, signal: this.signal, retryForMs: Infinity });
  }

  async #part<T>(name: EndingName, body: object): Promise<T> {
    const { execution_id, fence } = this.task;
    const answer = await this.exchange.end(name, { execution_id, fence, ...body }, this.#lost);
    // Its own answer says all there is to say about an ending that the shared call did not take.
    return answer === undefined ? this.call(`/${name}`, body) : (answer as T);
  }

  released(why: string): Promise<never> {
    this.#journal.close(new Interrupted(why));
    this.#release({ how: "released" });
    return new Promise(() => undefined);
  }

  /** Runs the function and ends the task as it says. Trouble that leaves the task to its lease is only logged. */
  async work(worked: () => void): Promise<void> {
    try {
      const end = await this.#run().finally(worked);
      this.#ending = true;
      await this.#end(end);
    } catch (error) {
      const lost = this.#lostBy !== undefined || isLost(error);
      const what = lost ? `its lease is lost: ${inWords(this.#lostBy ?? error).message}` : `its end could not be reported: ${inWords(error).message}`;
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
    });
    const called = this.#call(definition);
    try {
      const end = await Promise.race([called, released, this.#lost]);
      if (end.how === "completed") await this.#frames.flush();
      else await this.#frames.flush().catch(() => undefined);
      return end;
    } catch (error) {
      if (this.#lostBy !== undefined || isLost(error)) throw error;
      return { how: "failed", error };
    } finally {
      this.#journal.close(ENDED);
      called.catch(() => undefined);
    }
  }

  async #call(definition: AnyTask): Promise<End> {
    try {
      const context = new Context(this, this.#journal, this.#frames);
      const input: unknown = await checked<unknown>(definition.input, valueOf(this.task.input), "the input").catch((error: unknown) => {
        throw new TaskError(inWords(error).message, { category: "invalid_input", cause: error });
      });
      const result: unknown = await inTrace(context.traceContext, () => definition.run(context, input) as unknown);
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
    const parked = await this.#part<Schemas["ParkOutcome"]>("park", this.#journal.parkArgs());
    if (parked.outcome === "parked") void this.released("the task is parked");
    else this.#journal.satisfied(parked.entries, parked.next_number);
  }

  async #end(end: End): Promise<void> {
    try {
      if (end.how === "start_over") await this.#part("delay", { delay_ms: 0 });
      else if (end.how === "completed") await this.#part("complete", { ...encoded("result", end.result), ...this.#journal.runNotes() });
      else if (end.how === "failed") await this.#fail(end.error);
    } catch (error) {
      if (end.how === "start_over" || !refusesContent(error)) throw error;
      // Without this its work would be done again and again, whenever its lease has run out.
      const reason = inWords(error).message;
      console.warn(`flowfabric: ${this.task.execution_id}: its ending was refused; the attempt fails: ${reason}`);
      if (end.how === "completed") await this.#end({ how: "failed", error: new TaskError(reason, { category: "refused" }) });
      else await this.#part("fail", { reason, category: "refused" });
    }
  }

  async #fail(error: unknown): Promise<void> {
    const chain = withCauses(error);
    const stacks = chain.map(stackOf).join("\ncaused by ");
    console.warn(`flowfabric: ${this.task.execution_id}: attempt ${this.task.fence.attempt} of ${this.task.kind} failed: ${stacks}`);
    const { category, message: reason, retryAfterMs } = inWords(error);
    const undone = this.#journal.undone();
    // A step of which nobody knows whether it happened does not run again by itself.
    const cause = chain.filter((one) => one instanceof StepFailure).find((one) => one.category !== "in_doubt")?.step;
    await this.#part("fail", {
      reason, category, cause, retry_after_ms: waitWithin(retryAfterMs, RETRY_AFTER_MAX_MS),
      ...(undone.length > 0 && { undone }),
      ...((cause !== undefined || undone.length > 0) && { first_number: this.#journal.nextNumber }),
      ...this.#journal.runNotes(),
    });
  }

  #at(part: string): string {
    return path`/v1/executions/${this.task.execution_id}` + part;
  }
}
