/** The context, which a task's function is called with: steps, waits, children, and its stream. */
import { type Schemas, submission, type SubmitOptions } from "./client.js";
import { BudgetExceeded, BudgetRefused, inWords, NotDone, TaskError, type TaskErrorOptions, Throttled } from "./errors.js";
import type { FrameWriter } from "./frames.js";
import { allItems, path } from "./http.js";
import { childId, derived, draw, inputHash, type StepIdentity } from "./ids.js";
import { isChanged, isEnded, type Journal, type StepEntry, type StepView, type TaskLink } from "./journal.js";
import { checked, encoded, type StandardSchema, valueOf } from "./schema.js";
import type { AnyTask, TaskDefinition } from "./task.js";
import { milliseconds, pause, SHORT_WAIT_MS, type Span } from "./time.js";
import { Turn, type TurnOptions } from "./turn.js";

export interface StepOptions {
  /** Tells calls of one name apart. Parallel calls need one. */
  key?: string;
  /**
   * The body has an effect that must not happen twice. The journal says that it begins before it runs; when nobody
   * knows whether it happened, a person is asked, or it fails, or it runs again.
   */
  once?: boolean | "ask" | "fail" | "run_again";
  /** Tries in one attempt, with a wait that doubles up to 5 seconds. */
  retry?: { times: number; wait?: Span };
  /** How long each try may take. */
  timeout?: Span;
  /** The value that the body works on. A person is asked about a counted step whose input is not the recorded one. */
  input?: unknown;
  /** How a step with a key takes another input than the recorded one; the recorded result stands when absent. */
  onChange?: "keep" | "run_again" | "fail";
  /** The body undoes this step: once both have completed, a retry of the attempt runs both again. */
  compensates?: string | { name: string; key: string };
}

export interface SignalOptions<T> {
  /** Checks the payload. */
  schema?: StandardSchema<T>;
  /** How long to wait; the instant is fixed when the wait begins. */
  timeout?: Span;
  /** Tells waits for one name apart. Parallel waits need one. */
  key?: string;
}

/** The code of a step. The signal fires when it takes too long, or the lease is lost. */
export type Body<T> = (signal: AbortSignal) => T | Promise<T>;

/** The value of a piece of work, and its real cost by dimension. */
export interface Spent<T> {
  value: T;
  spent: Record<string, number>;
}

/** The digest of what a step works on, as its entries have it. */
type Input = Pick<StepEntry, "input_hash">;

/** A body that runs longer than this is shown to people as begun. */
const SHOWN_AFTER_MS = 1_000;

export class Context {
  readonly executionId: string;
  readonly kind: string;
  readonly tags: Record<string, string>;
  /** The number of this attempt, from 0. */
  readonly attempt: number;
  /** The submitter's W3C trace context. */
  readonly traceContext: string | undefined;
  readonly #link: TaskLink;
  readonly #journal: Journal;
  readonly #frames: FrameWriter;
  readonly #generation: number;
  #spends = 0;

  constructor(link: TaskLink, journal: Journal, frames: FrameWriter) {
    const { task } = link;
    ({ execution_id: this.executionId, kind: this.kind, tags: this.tags } = task);
    this.attempt = task.fence.attempt;
    this.traceContext = task.trace_context ?? undefined;
    this.#link = link;
    this.#journal = journal;
    this.#frames = frames;
    this.#generation = task.generation ?? 0;
  }

  /** Fires when the execution is cancelled or its lease is lost: give it to `fetch` and the like. */
  get signal(): AbortSignal {
    return this.#link.signal;
  }

  /** Writes to the console and names the execution. */
  get log(): Pick<Console, "debug" | "info" | "warn" | "error"> {
    const named = (level: keyof Context["log"]) => (...said: unknown[]) => { console[level](`${this.kind} ${this.executionId}:`, ...said); };
    return { debug: named("debug"), info: named("info"), warn: named("warn"), error: named("error") };
  }

  /** Runs the body and records its result, or brings back what it did before. Results are JSON, or bytes. */
  async step<T>(name: string, body: Body<T>, options: StepOptions = {}): Promise<T> {
    return this.#step(name, body, options);
  }

  /**
   * Waits until a provider lets a call through, makes it as a step, and tells what it really cost. A body that throws
   * `Throttled` (a 429) has everybody leave the provider alone, and is called again at its next turn.
   */
  async acquire<T>(provider: string, name: string, body: Body<Spent<T>>, options: StepOptions & TurnOptions = {}): Promise<T> {
    const turn = new Turn(this.#link, this.#journal, provider, options);
    return this.#step(name, (signal) => turn.make(body, signal), { ...options, turn });
  }

  async #step<T>(name: string, body: Body<T>, options: StepOptions & { turn?: Turn }): Promise<T> {
    return this.#journal.call(name, options.key, async (identity) => {
      const input = options.input === undefined ? {} : { input_hash: inputHash(options.input) };
      const known = await this.#journal.find(identity, "step", input.input_hash);
      if (known === undefined) return this.#runBody(identity, body, options, input, 0);
      if (isEnded(known) && isChanged(known, "step", input.input_hash)) {
        if (options.onChange === "run_again") return this.#runBody(identity, body, options, input, 0);
        if (options.onChange === "fail") {
          throw new TaskError(`step ${JSON.stringify(name)} has another input than the one it recorded`, { category: "journal_mismatch" });
        }
        this.#journal.changed.push(identity);
      }
      if (known.state === "completed") return valueOf(known.result) as T;
      if (known.state === "failed") throw new StepFailure(identity, known);
      if (known.state === "begun") await this.#doubt(identity, options, input);
      return this.#runBody(identity, body, options, input, known.tries);
    });
  }

  async #runBody<T>(identity: StepIdentity, body: Body<T>, options: StepOptions & { turn?: Turn }, input: Input, before: number): Promise<T> {
    const doubt = onDoubt(options);
    const times = Math.max(options.retry?.times ?? 1, 1);
    const firstWait = milliseconds(options.retry?.wait ?? 0);
    const entry = (state: StepEntry["state"], tries: number): StepEntry => ({ ...identity, state, tries, ...input });
    const undoes = options.compensates;
    const compensates = typeof undoes === "string" ? { name: undoes, occurrence: 0 } : undoes;
    for (let tried = 1; ; tried++) {
      await options.turn?.wait(identity);
      if (doubt !== undefined && tried === 1) await this.#journal.record(entry("begun", before));
      const started = performance.now();
      try {
        const shown = doubt === undefined ? entry("begun", before + tried) : undefined;
        const result = await this.#journal.while(this.#oneTry(body, options.timeout, shown));
        const took_ms = Math.round(performance.now() - started);
        const done = { ...entry("completed", before + tried), ...encoded("result", result), took_ms, ...(compensates && { compensates }) };
        await this.#journal.record(done);
        return result;
      } catch (thrown) {
        if (this.signal.aborted) throw thrown;
        if (options.turn !== undefined && thrown instanceof Throttled) {
          tried -= 1;
          continue;
        }
        if (!(thrown instanceof NotDone)) await this.#doubt(identity, options, input);
        if (tried < times) {
          await this.#journal.while(pause(Math.min(firstWait * 2 ** (tried - 1), SHORT_WAIT_MS), this.signal));
          continue;
        }
        const { category, message, retryAfterMs } = inWords(thrown);
        await this.#journal.record({ ...entry("failed", before + tried), category, message });
        throw new StepFailure(identity, { category, message, retryAfterMs }, thrown);
      }
    }
  }

  /** One try of a body, with its limit; a long one is shown as begun. */
  async #oneTry<T>(body: Body<T>, timeout: Span | undefined, shown: StepEntry | undefined): Promise<T> {
    const limit = new AbortController();
    const ended = new AbortController();
    const signal = AbortSignal.any([this.signal, limit.signal]);
    const late = new Promise<never>((_, reject) => {
      if (timeout === undefined) return;
      const ms = milliseconds(timeout);
      const error = new TaskError(`the step did not end within ${ms} ms`, { category: "timeout" });
      void pause(ms, ended.signal).then(() => {
        if (ended.signal.aborted) return;
        reject(error);
        limit.abort(error);
      });
    });
    let recorded: Promise<unknown> | undefined;
    const show = () => { recorded = shown && this.#journal.record(shown).catch(() => undefined); };
    const timer = shown && setTimeout(show, SHOWN_AFTER_MS);
    try {
      return await Promise.race([Promise.resolve(body(signal)), late]);
    } finally {
      clearTimeout(timer);
      ended.abort();
      await recorded;
    }
  }

  /** Nobody knows whether a `once` body happened. This returns when it is to run, and at once for other steps. */
  async #doubt(identity: StepIdentity, options: StepOptions, input: Input): Promise<void> {
    const doubt = onDoubt(options);
    if (doubt === undefined || doubt === "run_again") return;
    const label = identity.key === undefined ? identity.name : `${identity.name}[${identity.key}]`;
    const detail = `nobody knows whether step ${label} happened`;
    if (doubt === "ask") await this.#journal.ask({ step: identity, reason: "in_doubt", detail, kind: "step", ...input });
    await this.#journal.record({ ...identity, state: "failed", category: "in_doubt", message: detail, ...input });
    throw new TaskError(detail, { category: "in_doubt" });
  }

  /** Begins the same execution anew with another input and an empty journal; for loops that run for months. */
  continueAsNew(input: unknown): Promise<never> {
    return this.#journal.while((async () => {
      await this.#frames.flush();
      await this.#link.call("/continue-as-new", encoded("input", input));
      return this.#link.released("the execution has begun anew");
    })());
  }

  /** Sleeps. A long sleep lets go of the worker; the instant at which it ends is fixed when it begins. */
  async sleep(name: string, span: Span): Promise<void> {
    const ms = milliseconds(span);
    return this.#journal.call(name, undefined, async (identity) => {
      const known = await this.#journal.find(identity, "sleep");
      if (known !== undefined && isEnded(known)) return;
      if (ms <= SHORT_WAIT_MS && known === undefined) {
        await this.#journal.while(pause(ms, this.signal));
        await this.#journal.record({ ...identity, kind: "sleep", state: "completed" });
      } else {
        await this.#journal.untilEnded(identity, { list: "sleeps", args: { sleep_ms: ms }, fixedAs: "until" });
      }
    });
  }

  /** Waits for a signal by its name and answers with its payload; past the timeout it throws the category `timeout`. */
  async waitSignal<T = unknown>(name: string, second: StandardSchema<T> | SignalOptions<T> = {}): Promise<T> {
    const options: SignalOptions<T> = "~standard" in second ? { schema: second } : second;
    return this.#journal.call(name, options.key, async (identity) => {
      await this.#journal.find(identity, "signal");
      const args = options.timeout === undefined ? {} : { timeout_ms: milliseconds(options.timeout) };
      const ended = await this.#journal.untilEnded(identity, { list: "waitpoints", args, fixedAs: "timeout_at" });
      if (ended.state === "failed") {
        const category = ended.category ?? "timeout";
        throw new TaskError(`no signal ${JSON.stringify(name)} came in time`, { category });
      }
      return checked(options.schema, valueOf(ended.result), `the payload of signal ${JSON.stringify(name)}`);
    });
  }

  /** Spawns a child once, waits for its end and answers with its result. A child that did not succeed throws. */
  async child<I, O>(name: string, task: TaskDefinition<I, O>, input: I, options?: SubmitOptions & { key?: string }): Promise<O>;
  async child(name: string, task: string, input?: unknown, options?: SubmitOptions & { key?: string }): Promise<unknown>;
  async child(name: string, task: string | AnyTask, input?: unknown, options: SubmitOptions & { key?: string } = {}): Promise<unknown> {
    return this.#journal.call(name, options.key, async (identity) => {
      const id = childId(this.executionId, this.#generation, identity);
      let ended = await this.#journal.find(identity, "child");
      if (ended === undefined || !isEnded(ended)) {
        const body = submission(task, input, options, undefined);
        const parent = { execution_id: this.executionId, fence: this.#link.task.fence };
        await this.#journal.while(this.#link.held("POST", "/v1/executions", { body: { ...body, execution_id: id, parent }, idempotencyKey: null }));
        ended = await this.#journal.untilEnded(identity, { list: "children", args: { execution_id: id } });
      }
      if (ended.state === "failed") {
        const message = ended.message ?? `child ${JSON.stringify(name)} did not succeed`;
        throw new TaskError(message, { category: ended.category ?? "error" });
      }
      // An entry of an earlier generation keeps the child of that time; in a fork it holds the child's result itself.
      const content = ended.result ?? (await this.#journal.while(this.#link.held<Schemas["Content"]>("GET", path`/v1/executions/${ended.child_id ?? id}/result`)));
      return checked<unknown>(typeof task === "string" ? undefined : task.output, valueOf(content), "the child's result");
    });
  }

  /** The executions it depends on, with outcomes and results; also its children. */
  upstreams(): Promise<Schemas["UpstreamView"][]> {
    const at = path`/v1/executions/${this.executionId}/upstreams`;
    return allItems((cursor?: string) => this.#link.held<Schemas["ListUpstreamsOutcome"]>("GET", at, { query: { results: true, cursor } }));
  }

  /** The time in milliseconds, the same in every run. */
  async now(name = "now"): Promise<number> {
    return this.#journal.call(name, undefined, async (identity) => {
      const known = await this.#journal.find(identity, "now");
      if (known !== undefined && isEnded(known)) return valueOf(known.result) as number;
      const now = Date.now();
      await this.#journal.record({ ...identity, kind: "now", state: "completed", result: now });
      return now;
    });
  }

  /** A number from 0 up to 1, the same in every run. It needs no entry in the journal. */
  random(name = "random", key?: string): number {
    return draw(this.executionId, this.#generation, key === undefined ? { name } : { name, key });
  }

  /** A UUID, the same in every run. */
  uuid(name = "uuid", key?: string): string {
    return derived("uuid", this.executionId, this.#generation, key === undefined ? { name } : { name, key });
  }

  /** Writes a frame to the execution's stream: text, bytes, or any JSON. Frames of one turn go together. */
  emit(type: string, value: unknown): void {
    if (typeof value !== "string") this.#frames.write({ type, ...encoded("payload", value) });
    else this.#frames.write({ type, ...encoded("payload", Buffer.from(value)), content_type: "text/plain; charset=utf-8" });
  }

  /** Says how far the task is. */
  async progress(percent: number, message?: string): Promise<void> {
    await this.#link.call("/progress", { pct: Math.round(percent), message });
  }

  /**
   * Charges the execution's budgets. The same key counts once for this execution. It throws `BudgetExceeded` when the
   * hard limit of a budget forbids it; a soft limit that is passed is in the answer.
   */
  async usage(amounts: Record<string, number>, options: { key: string; budget?: string }): Promise<Schemas["ReportUsageOutcome"]> {
    const body = { usage: amounts, dedup_key: options.key, budget: options.budget };
    const answer = await this.#link.call<Schemas["ReportUsageOutcome"]>("/usage", body);
    for (const [budget, said] of Object.entries(answer.budgets)) {
      if (said.outcome === "hard_breach") throw new BudgetExceeded(budget, said.dimension);
    }
    return answer;
  }

  /**
   * Holds an estimate in the execution's budgets, does the work, and settles what it really spent. `BudgetRefused` when
   * a budget has no room: the work is not begun. A body that throws has spent the estimate, unless it throws `NotDone`;
   * so has one that dies with its worker. Work that is to happen once in all runs of the function is a step:
   * `ctx.step("ask", () => ctx.spend("ask", { tokens: 2_000 }, ask))`.
   */
  async spend<T>(name: string, estimate: Record<string, number>, body: Body<Spent<T>>, options: { budget?: string } = {}): Promise<T> {
    const key = `${name} #${++this.#spends}`;
    return this.#journal.while((async () => {
      const held = await this.#link.call<Schemas["ReserveSpendOutcome"]>("/spend/reserve", { key, amounts: estimate, ...options });
      if (held.outcome === "refused") throw new BudgetRefused(name, held);
      // The task was let go; the function is called again when a person has answered.
      if (held.outcome === "asked") return this.#link.released(`budget ${held.budget} asks a person`);
      const settle = (part: string, what: object) => (Object.keys(held.budgets).length === 0 ? undefined : this.#link.call(part, { key, ...what }));
      try {
        const { value, spent } = await body(this.signal);
        await settle("/spend/settle", { actual: spent });
        return value;
      } catch (error) {
        if (error instanceof TaskError && error.category === "not_done") await settle("/spend/release", {});
        else await settle("/spend/settle", { actual: estimate });
        throw error;
      }
    })());
  }
}

/** A step failed: what it threw first, or what the journal says of it. A retry of the attempt runs this step again. */
export class StepFailure extends TaskError {
  constructor(readonly step: StepIdentity, known: Partial<Pick<StepView, "category" | "message">> & Pick<TaskErrorOptions, "retryAfterMs">, cause?: unknown) {
    const { category, message, retryAfterMs } = known;
    super(message ?? `step ${JSON.stringify(step.name)} failed`, { category: category ?? "error", retryAfterMs, cause });
  }
}

function onDoubt({ once }: StepOptions): "ask" | "fail" | "run_again" | undefined {
  return once === true ? "ask" : once || undefined;
}
