/**
 * Where a worker takes work and hands in endings. Endings that gather while a call is under way go together in the
 * next, with a request for as many tasks as there is room for then. Beside them at most one call waits for work, so
 * that no ending waits behind it.
 */
import type { Schemas } from "./client.js";
import { FlowFabricError, inWords } from "./errors.js";
import { type CallOptions, type Connection, path } from "./http.js";
import { uuid7 } from "./ids.js";
import { pause } from "./time.js";

/** Calls after which a task is no longer in hand. */
export type EndingName = "complete" | "fail" | "delay" | "park";

export interface DeskOptions {
  instanceId: string;
  /** What every claim says. */
  asks: Record<string, unknown>;
  scope: { namespace?: string };
  /** How many tasks the worker may hold. */
  capacity: number;
  inHand: () => number;
  take: (tasks: Schemas["Task"][]) => void;
}

interface Ending {
  name: EndingName;
  body: Record<string, unknown>;
  /** Answers with what the shared call says; without an answer the ending is handed in by itself. */
  answered: (answer?: unknown) => void;
}

const ENDINGS_MAX = 100;
const CLAIM_TASKS_MAX = 256;
const CLAIM_PAUSE_MS = 1_000;

export class Desk {
  #endings: Ending[] = [];
  #sending = false;
  /** Tasks that calls under way ask for, and those whose endings they carry. */
  #asked = 0;
  #leaving = 0;
  #exchanges = true;
  #closed = false;

  constructor(
    private readonly connection: Connection,
    private readonly options: DeskOptions,
  ) {}

  /** How many tasks the worker could take beside those that it has asked for. */
  get room(): number {
    const room = this.options.capacity - this.options.inHand() - this.#asked + this.#leaving;
    return this.#closed ? 0 : Math.max(0, Math.min(room, CLAIM_TASKS_MAX));
  }

  /** Claims nothing more. */
  close(): void {
    this.#closed = true;
  }

  /** Takes tasks for the room there is, waiting for the first of them. */
  async claim(waitMs: number, signal: AbortSignal): Promise<void> {
    try {
      const { claim } = await this.#exchange([], { waitMs, signal });
      if (claim?.problem != null) throw new Error(`${claim.problem.code}: ${claim.problem.detail}`);
    } catch (error) {
      if (signal.aborted) return;
      console.warn(`flowfabric: a claim failed: ${inWords(error).message}`);
      await pause(CLAIM_PAUSE_MS, signal);
    }
  }

  /** Ends a task, or parts from it. The call is repeated for as long as the signal lets it. */
  async end<T>(name: EndingName, body: Record<string, unknown> & { execution_id: string }, signal: AbortSignal): Promise<T> {
    const shared = new Promise<unknown>((resolve, reject) => {
      signal.throwIfAborted();
      signal.addEventListener("abort", () => { reject(signal.reason as Error); }, { once: true });
      this.#endings.push({ name, body, answered: resolve });
    });
    if (!this.#sending) void this.#sendAll();
    const answer = await shared;
    if (answer !== undefined) return answer as T;
    // Its own answer says all there is to say about an ending that the shared call did not take.
    const { execution_id, ...own } = body;
    const options = { body: own, signal, idempotencyKey: null, retryForMs: Infinity };
    return this.connection.call<T>("POST", path`/v1/executions/${execution_id}/${name}`, options);
  }

  async #sendAll(): Promise<void> {
    this.#sending = true;
    // Those who are about to hand something in in this turn do so first.
    await new Promise((resolve) => setImmediate(resolve));
    while (this.#endings.length > 0) {
      const batch = this.#endings.splice(0, ENDINGS_MAX);
      const ended = this.#exchanges ? await this.#send(batch) : [];
      batch.forEach(({ name, answered }, place) => { answered((ended[place] as Record<string, unknown> | undefined)?.[name]); });
    }
    this.#sending = false;
  }

  async #send(batch: Ending[]): Promise<Schemas["ExchangeEnded"][]> {
    this.#leaving += batch.length;
    try {
      return (await this.#exchange(batch, { retryForMs: Infinity })).end;
    } catch (error) {
      // It is too large, or one of them cannot be written: each of them is told by itself.
      console.warn(`flowfabric: an exchange was refused; its endings are handed in one by one: ${inWords(error).message}`);
      return [];
    } finally {
      this.#leaving -= batch.length;
    }
  }

  async #exchange(batch: Ending[], options: CallOptions): Promise<Schemas["ExchangeOutcome"]> {
    const max_tasks = this.room;
    this.#asked += max_tasks;
    const lease_ids = Array.from({ length: max_tasks }, () => uuid7());
    const claim = { ...this.options.asks, max_tasks, lease_ids, wait_ms: options.waitMs ?? 0 };
    try {
      const answer = await this.#call(batch.map(({ name, body }) => ({ [name]: body })), max_tasks === 0 ? undefined : claim, options);
      this.#asked -= max_tasks;
      this.options.take(answer.claim?.tasks ?? []);
      return answer;
    } catch (error) {
      this.#asked -= max_tasks;
      if (!(error instanceof FlowFabricError) || error.code !== "route_not_found" || !this.#exchanges) throw error;
      console.warn("flowfabric: the server does not know exchange; claims and endings are calls of their own");
      this.#exchanges = false;
      return { end: [], renew: [] };
    }
  }

  /** The lease ids tell a repeat of a claim, and the fences one of an ending. */
  async #call(end: object[], claim: object | undefined, options: CallOptions): Promise<Schemas["ExchangeOutcome"]> {
    const { instanceId, scope } = this.options;
    const at = path`/v1/workers/${instanceId}`;
    if (!this.#exchanges) {
      const onRepeat = (body: unknown) => ({ ...(body as object), retry: true });
      const body = { ...claim, ...scope };
      const tasks = (await this.connection.call<Schemas["ClaimOutcome"] | undefined>("POST", `${at}/claim`, { ...options, body, idempotencyKey: null, onRepeat }))?.tasks;
      return { end: [], renew: [], claim: { tasks: tasks ?? [], grants: [] } };
    }
    const body = { end, ...(claim !== undefined && { claim }), ...scope };
    const onRepeat = (body: unknown) => ({ ...(body as object), ...(claim !== undefined && { claim: { ...claim, retry: true } }) });
    return this.connection.call("POST", `${at}/exchange`, { ...options, body, idempotencyKey: null, onRepeat });
  }
}
