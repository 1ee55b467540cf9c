/** Calls to a provider that allows so many: each waits for its turn, and tells afterwards what it really cost. */
import type { Schemas } from "./client.js";
import type { Body, Spent } from "./context.js";
import { Throttled } from "./errors.js";
import { path } from "./http.js";
import type { StepIdentity } from "./ids.js";
import type { Journal, TaskLink } from "./journal.js";
import { milliseconds, pause, SHORT_WAIT_MS, type Span, waitWithin } from "./time.js";

/** A provider is left alone for this long at the most. */
const THROTTLE_MAX_MS = 86_400_000;

export interface TurnOptions {
  /** The tokens that the call is expected to cost. */
  tokens?: number;
  /** How long the call may take: after that another one may be made in its stead. Ten minutes when absent. */
  ttl?: Span;
}

/** The right to make one call. */
export class Turn {
  #naps = 0;
  #key = "";

  constructor(
    private readonly link: TaskLink,
    private readonly journal: Journal,
    private readonly provider: string,
    private readonly options: TurnOptions,
  ) {}

  /** Resolves when the call may be made. A long wait lets go of the task, which keeps its place in the line. */
  async wait({ name, key }: StepIdentity): Promise<void> {
    const { provider, options: { tokens = 0, ttl } } = this;
    this.#key = key === undefined ? name : `${name}[${key}]`;
    const asked = { provider, key: this.#key, cost: { tokens }, ...(ttl !== undefined && { ttl_ms: milliseconds(ttl) }) };
    for (;;) {
      const acquired = await this.journal.while(this.link.call<Schemas["Acquired"]>("/providers/acquire", asked));
      if (acquired.granted) return;
      if (acquired.wait_ms <= SHORT_WAIT_MS) {
        await this.journal.while(pause(acquired.wait_ms, this.link.signal));
        this.link.signal.throwIfAborted();
        continue;
      }
      // A wait that an earlier run of the function has been through is over at once.
      const args = { sleep_ms: acquired.wait_ms, provider };
      await this.journal.call(`wait for ${provider}`, `${this.#key} ${this.#naps++}`, (nap) =>
        this.journal.untilEnded(nap, { list: "sleeps", args, fixedAs: "until" }));
    }
  }

  /** Makes the call, and settles what it cost. One that throws counts as expected. */
  async make<T>(body: Body<Spent<T>>, signal: AbortSignal): Promise<T> {
    try {
      const { value, spent } = await body(signal);
      await this.#settle(spent["tokens"] ?? 0);
      return value;
    } catch (error) {
      if (error instanceof Throttled) {
        const said = { namespace: this.link.task.namespace, retry_after_ms: waitWithin(error.retryAfterMs, THROTTLE_MAX_MS) };
        await this.link.held("POST", path`/v1/providers/${this.provider}/throttle`, { body: said });
      }
      await this.#settle(error instanceof Throttled ? 0 : (this.options.tokens ?? 0));
      throw error;
    }
  }

  #settle(tokens: number): Promise<unknown> {
    return this.link.call("/providers/settle", { provider: this.provider, key: this.#key, actual: { requests: 1, tokens } });
  }
}
