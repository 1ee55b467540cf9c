/**
 * Where a worker takes work and hands in endings. Endings that gather while a call is under way go together in the
 * next, with a request for as many tasks as there is room for then. Beside them at most one call waits for work, so
 * that no ending waits behind it.
 */
import type { Schemas } from "./client.js";
import { inWords } from "./errors.js";
import { Gatherer } from "./gather.js";
import { type CallOptions, type Connection, path } from "./http.js";
import { uuid7 } from "./ids.js";
import { pause } from "./time.js";

/** Calls after which a task is no longer in hand. */
export type EndingName = "complete" | "fail" | "delay" | "park";

export interface ExchangeOptions {
  instanceId: string;
  /** Fields of every claim. */
  asks: Record<string, unknown>;
  /** How many tasks the worker may hold. */
  capacity: number;
  inHand: () => number;
  take: (tasks: Schemas["Task"][]) => void;
}

interface Ending {
  name: EndingName;
  body: Record<string, unknown>;
  /** Its task counts as in hand until it is answered, or the lease is lost. */
  inHand: boolean;
}

const ENDINGS_MAX = 100;
const CLAIM_TASKS_MAX = 256;
const CLAIM_PAUSE_MS = 1_000;
/** A worker that stops waits for so long to hear what its claim has brought. */
const LAST_CLAIM_MS = 5_000;

export class Exchange {
  readonly #endings = new Gatherer<Ending, unknown>((batch) => this.#send(batch), ENDINGS_MAX);
  /** Tasks that calls under way ask for, and endings that one of them carries. */
  #asked = 0;
  #leaving: Ending[] = [];
  /** Claims nothing more. */
  closed = false;

  constructor(
    private readonly connection: Connection,
    private readonly options: ExchangeOptions,
  ) {}

  /** How many tasks the worker could take beside those that it has asked for. */
  get room(): number {
    const leaving = this.#leaving.filter(({ inHand }) => inHand).length;
    const room = this.options.capacity - this.options.inHand() - this.#asked + leaving;
    return this.closed ? 0 : Math.max(0, Math.min(room, CLAIM_TASKS_MAX));
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

  /** Ends a task, or parts from it. An ending that the shared call did not take has no answer. */
  async end(name: EndingName, body: Record<string, unknown>, lost: Promise<never>): Promise<unknown> {
    const ending = { name, body, inHand: true };
    return Promise.race([lost, this.#endings.put(ending)]).finally(() => { ending.inHand = false; });
  }

  async #send(batch: Ending[]): Promise<unknown[]> {
    try {
      const { end } = await this.#exchange(batch, { retryForMs: Infinity });
      return batch.map(({ name }, place) => (end[place] as Record<string, unknown> | undefined)?.[name]);
    } catch (error) {
      // It is too large, or one of them cannot be written: each of them is told by itself.
      console.warn(`flowfabric: an exchange was refused; its endings are handed in one by one: ${inWords(error).message}`);
      return [];
    }
  }

  /** The lease ids tell a repeat of a claim, and the fences one of an ending. */
  async #exchange(batch: Ending[], options: CallOptions): Promise<Schemas["ExchangeOutcome"]> {
    const { instanceId, asks, take } = this.options;
    // Endings go one call after another.
    if (batch.length > 0) this.#leaving = batch;
    const max_tasks = this.room;
    this.#asked += max_tasks;
    const lease_ids = Array.from({ length: max_tasks }, () => uuid7());
    const end = batch.map(({ name, body }) => ({ [name]: body }));
    const claim = { ...asks, max_tasks, lease_ids, wait_ms: options.waitMs ?? 0 };
    const saying = (more: object) => ({ end, ...(max_tasks > 0 && { claim: { ...claim, ...more } }), ...this.connection.scope });
    const call = (body: object, said: CallOptions) =>
      this.connection.call<Schemas["ExchangeOutcome"]>("POST", path`/v1/workers/${instanceId}/exchange`, { ...options, idempotencyKey: null, body, ...said });
    let answer: Schemas["ExchangeOutcome"];
    try {
      answer = await call(saying({}), { onRepeat: () => saying({ retry: true }) }).catch((error: unknown) => {
        if (!options.signal?.aborted) throw error;
        // The claim may have brought tasks whose answer is lost with the call: they would stay leased.
        return call(saying({ retry: true, wait_ms: 0 }), { waitMs: 0, signal: AbortSignal.timeout(LAST_CLAIM_MS) });
      });
    } finally {
      this.#asked -= max_tasks;
      // A task that its ending has not taken away stays in hand.
      if (batch.length > 0) this.#leaving = [];
    }
    take(answer.claim?.tasks ?? []);
    return answer;
  }
}
