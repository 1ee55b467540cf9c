/** The client: everything a program does with executions from outside of a worker. */
import { ExecutionFailedError, FlowFabricError } from "./errors.js";
import { FlowBuilder } from "./flow.js";
import { Gatherer } from "./gather.js";
import { allItems, type CallOptions, Connection, type ConnectOptions, path } from "./http.js";
import { labelOf, spreadId, uuid7 } from "./ids.js";
import { type Answer, type Args, type ArgsGiven, inNamespace, type Item, type Method, type Route } from "./operations.js";
import { checked, given, present, type StandardSchema, valueOf } from "./schema.js";
import { type StreamEvent, tail } from "./stream.js";
import type { AnyTask, TaskDefinition } from "./task.js";
import { milliseconds, pause, type Span } from "./time.js";
import { currentTrace } from "./trace.js";
import type { components } from "./wire.js";

export type Schemas = components["schemas"];
export type ExecutionView = Schemas["ExecutionView"];
export type ExecutionSummary = Schemas["ExecutionSummary"];
export type Explanation = Schemas["Explanation"];
export type EventView = Schemas["EventView"];

export interface SubmitOptions {
  lane?: string;
  namespace?: string;
  priority?: number;
  tags?: Record<string, string>;
  /** A repeat with the same key finds the same execution. */
  idempotencyKey?: string;
  /** How often an attempt that failed is tried again. */
  retries?: number;
  /** Starts after this time. */
  delay?: Span;
  /** Ends the execution after this time, whatever it does. */
  deadline?: Span;
  budgets?: string[];
  quota?: string;
  /** It runs only while fewer than so many others hold each of these keys. */
  concurrency?: Record<string, number>;
  /** Work of different keys takes turns in its lane, a key of weight 3 three times as often as one of weight 1. */
  fairKey?: string;
  fairWeight?: number;
  /** While one with this key waits or runs, that one is the answer. */
  singleton?: string;
  /** Of a burst only the last one runs. */
  debounce?: Schemas["Debounce"];
  capabilities?: string[];
  policy?: Partial<Schemas["Policy"]>;
  /** The W3C trace context of the submitter; the span that the caller is in when absent and the program has OpenTelemetry. */
  traceContext?: string;
}

export type ApprovalView = Schemas["ApprovalView"];
export type BudgetStatus = Schemas["BudgetStatus"];

/** A step by its name, by name and key, or by name and how many calls of it came before. */
export type Step = string | { name: string; key?: string; occurrence?: number };

/** A step that two executions did differently, as each of them has it. */
export interface Difference {
  one: Schemas["StepView"] | undefined;
  other: Schemas["StepView"] | undefined;
}

/** A page of a list, with where the next one begins. */
export interface Page<T> {
  items: T[];
  next_cursor?: string | null;
}

const WAIT_MS = 25_000;
const CREATES_MAX = 1_000;
/** How often a bulk job is looked at while somebody waits for its end. */
const BULK_LOOK_EVERY_MS = 200;
/** Fields that hold a call's identity. */
const IDENTITIES = ["command_id", "dedup_key", "idempotency_key", "signal_id"];

export class Client {
  readonly connection: Connection;
  readonly #creates: Creates;

  constructor(options: ConnectOptions | Connection = {}) {
    this.connection = options instanceof Connection ? options : new Connection(options);
    this.#creates = new Creates(this.connection);
  }

  /** Submits work. A task gives its input and result their types; a kind in plain text gives none. */
  async submit<I, O>(task: TaskDefinition<I, O>, input: I, options?: SubmitOptions): Promise<Execution<O>>;
  async submit(kind: string, input?: unknown, options?: SubmitOptions): Promise<Execution>;
  async submit(task: string | AnyTask, input?: unknown, options: SubmitOptions = {}): Promise<Execution> {
    const body = submission(task, input, options, this.connection.namespace);
    return this.execution(await this.#creates.create(body), typeof task === "string" ? undefined : task.output);
  }

  /** Submits many in one call. A refused one is a `FlowFabricError` at its place; the others are not concerned. */
  async submitBatch<I, O>(task: TaskDefinition<I, O>, inputs: readonly I[], options: SubmitOptions = {}): Promise<(Execution<O> | FlowFabricError)[]> {
    // Each is known by the key of the batch and its place in it.
    const { idempotencyKey, ...each } = options;
    const executions = inputs.map((input) => submission(task, input, each, this.connection.namespace));
    const sent = { body: { executions }, idempotencyKey };
    const answer = await this.connection.call<Schemas["CreateExecutionsOutcome"]>("POST", "/v1/executions/batch", sent);
    return answer.results.map((result) => {
      if ("execution_id" in result) return this.execution<O>(result.execution_id, task.output);
      return new FlowFabricError({ status: 0, retryable: false, details: {}, ...result.error });
    });
  }

  /** An execution that was submitted before. */
  execution<O = unknown>(id: string, output?: StandardSchema<O>): Execution<O> {
    return new Execution<O>(this.connection, id, output);
  }

  /** Lists executions, newest first; `state`, `kind`, `lane` and `tag` take one value or several. */
  list(filter: Record<string, string | number | string[] | undefined> = {}): Promise<Page<ExecutionSummary>> {
    return this.connection.call("GET", "/v1/executions", { query: { ...this.connection.scope, ...filter } });
  }

  /** Begins a flow: nodes and edges, created together in one call. */
  flow(options: { kind?: string; tags?: Record<string, string>; idempotencyKey?: string } = {}): FlowBuilder {
    return new FlowBuilder(this.connection, options);
  }

  /** Events from a cursor on, for as long as the caller asks for more. An event may come twice, under the same id. */
  async *events(filter: { cursor?: string; kinds?: string[]; flow_id?: string; tag?: string; signal?: AbortSignal } = {}): AsyncGenerator<EventView> {
    const { signal, cursor: first, ...query } = filter;
    let cursor = first;
    while (!signal?.aborted) {
      const asked = { ...this.connection.scope, ...query, cursor, wait_ms: WAIT_MS };
      const page: Schemas["ListEventsOutcome"] = await this.connection.call("GET", "/v1/events", { query: asked, waitMs: WAIT_MS, signal });
      yield* page.items;
      cursor = page.next_cursor;
    }
  }

  /** Questions that wait for people, the oldest first. */
  approvals(filter: { execution_id?: string; assignee?: string; kind?: string[]; tag?: string } = {}): AsyncGenerator<ApprovalView> {
    return this.items("/v1/approvals", filter);
  }

  /** Creates a budget. The name may be a path: `acme/ada` stands under `acme`. */
  createBudget(name: string, definition: Partial<Schemas["BudgetDefinition"]>): Promise<Schemas["CreateBudgetOutcome"]> {
    return this.connection.call("POST", "/v1/budgets", { body: { name, ...definition, ...this.connection.scope } });
  }

  /** A budget and its usage; `standing` says what is held and left, how fast it goes, and where that ends. */
  budget(name: string): Promise<BudgetStatus> {
    return this.connection.call("GET", path`/v1/budgets/${name}`, { query: this.connection.scope });
  }

  /** Calls any operation of the API: `client.call("POST", "/v1/lanes/{lane}/pause", { lane: "gpu" })`. */
  async call<M extends Method, R extends Route<M>>(method: M, route: R, ...[args]: ArgsGiven<M, R>): Promise<Answer<M, R>> {
    const rest = inNamespace(this.connection.scope, `${method} ${route}`, present({ ...(args as object | undefined) }));
    const at = route.replace(/\{(\w+)\}/g, (_, name: string) => {
      const part = rest[name] as string | number | null | undefined;
      if (part === undefined || part === null || part === "") throw new TypeError(`${method} ${route} needs ${JSON.stringify(name)}`);
      Reflect.deleteProperty(rest, name);
      return encodeURIComponent(String(part));
    });
    if (method === "GET" || method === "DELETE") return this.connection.call(method, at, { query: rest as NonNullable<CallOptions["query"]> });
    const identified = IDENTITIES.some((field) => field in rest);
    return this.connection.call(method, at, { body: rest, ...(identified && { idempotencyKey: null }) });
  }

  /** Everything that a list has, page by page: `client.items("/v1/schedules")`. */
  async *items<R extends Route<"GET">>(route: R, ...[args]: ArgsGiven<"GET", R>): AsyncGenerator<Item<R>> {
    let cursor: string | null | undefined;
    do {
      const asked = [{ ...(args as object | undefined), ...(cursor != null && { cursor }) }] as unknown as ArgsGiven<"GET", R>;
      const page = (await this.call("GET", route, ...asked)) as Page<Item<R>>;
      yield* page.items;
      cursor = page.next_cursor;
    } while (cursor != null);
  }

  /** Does something to everything that a filter matches, and waits until it is done: `client.bulk("replay", { state: ["failed"] })`. */
  async bulk(action: Schemas["BulkAction"], filter: Schemas["BulkFilter"], options: Partial<Args<"POST", "/v1/bulk">> = {}): Promise<Schemas["BulkView"]> {
    let job = await this.call("POST", "/v1/bulk", { ...options, action, filter });
    while (job.ended_at == null) {
      await pause(BULK_LOOK_EVERY_MS);
      job = await this.call("GET", "/v1/bulk/{bulk_id}", { bulk_id: job.bulk_id });
    }
    return job;
  }
}

/** Submissions that are made at the same time share a call. Each has its id or key, so that a repeat finds its execution. */
class Creates {
  #partitions: Promise<number> | undefined;
  /** One that the shared call did not take has no answer there. */
  readonly #shared = new Gatherer<object, object | undefined>((executions) => this.#send(executions), CREATES_MAX);

  constructor(private readonly connection: Connection) {}

  async create(body: Record<string, unknown>): Promise<string> {
    // An id costs nothing; a key leaves a record. Where a key decides which execution it is, that gives the id.
    const keyed = "singleton" in body || "debounce" in body;
    const identity = async () => (keyed ? { idempotency_key: uuid7() } : { execution_id: spreadId(await this.#partitionCount()) });
    const identified = "idempotency_key" in body ? body : { ...(await identity()), ...body };
    const result = await this.#shared.put(identified);
    if (result !== undefined && "execution_id" in result) return String(result.execution_id);
    // Its own answer says all there is to say about one that the shared call did not take.
    const options = { body: identified, idempotencyKey: null };
    return (await this.connection.call<Schemas["CreateExecutionOutcome"]>("POST", "/v1/executions", options)).execution_id;
  }

  #partitionCount(): Promise<number> {
    this.#partitions ??= this.connection
      .call<Schemas["GetDeploymentOutcome"]>("GET", "/v1/deployment")
      .then(({ partitions }) => partitions.flow)
      .catch((error: unknown) => { this.#partitions = undefined; throw error; });
    return this.#partitions;
  }

  /** Nothing is answered where they are too large together, or one of them cannot be written. */
  async #send(executions: object[]): Promise<object[]> {
    if (executions.length === 1) return [];
    const options = { body: { executions }, idempotencyKey: null };
    return this.connection.call<{ results: object[] }>("POST", "/v1/executions/batch", options).then(({ results }) => results, () => []);
  }
}

/** One execution. */
export class Execution<O = unknown> {
  constructor(
    private readonly connection: Connection,
    readonly id: string,
    private readonly output?: StandardSchema<O>,
  ) {}

  get(): Promise<ExecutionView> {
    return this.connection.call("GET", this.#at(""));
  }

  /** Why it does not run, in words. */
  explain(): Promise<Explanation> {
    return this.connection.call("GET", this.#at("/explain"));
  }

  /** Waits for its end. With a limit, the last view may be of an execution that goes on. */
  async wait(options: { timeout?: Span; signal?: AbortSignal } = {}): Promise<ExecutionView> {
    const until = options.timeout === undefined ? Infinity : Date.now() + milliseconds(options.timeout);
    for (;;) {
      const waitMs = Math.max(0, Math.min(WAIT_MS, until - Date.now()));
      const asked = { query: { wait_ms: Math.round(waitMs) }, waitMs, signal: options.signal };
      const answer = await this.connection.call<Schemas["WaitExecutionOutcome"]>("GET", this.#at("/wait"), asked);
      if (answer.terminal || Date.now() >= until) return answer.execution;
    }
  }

  /** Waits for its result. An execution that ended otherwise is an `ExecutionFailedError`. */
  async result(options: { signal?: AbortSignal } = {}): Promise<O> {
    const ended = await this.wait(options);
    if (ended.public_state !== "completed") {
      const failure = ended.last_failure;
      const reason = failure?.reason ?? ended.cancellation?.reason ?? `the execution is ${ended.public_state}`;
      throw new ExecutionFailedError(this.id, ended.public_state, failure?.category ?? undefined, reason);
    }
    const content = await this.connection.call<Schemas["Content"]>("GET", this.#at("/result"), { signal: options.signal });
    return checked(this.output, valueOf(content), "the result");
  }

  async cancel(reason?: string): Promise<void> {
    await this.connection.call("POST", this.#at("/cancel"), { body: { reason } });
  }

  /** Runs an ended execution again, with a new journal, or from a step on. */
  async replay(options: { fromStep?: Step } = {}): Promise<void> {
    await this.connection.call("POST", this.#at("/replay"), { body: { from_step: stepOf(options.fromStep) } });
  }

  /** Begins a new execution with what this one did before a step, or with all of it. */
  async fork(options: { before?: Step; input?: unknown; tags?: Record<string, string>; budgets?: string[] } = {}): Promise<Execution<O>> {
    const { before, input, tags, budgets } = options;
    const body = { before_step: stepOf(before), tags, budget_ids: budgets, ...given("input", input) };
    const forked = await this.connection.call<Schemas["ForkExecutionOutcome"]>("POST", this.#at("/fork"), { body });
    return new Execution<O>(this.connection, forked.execution_id, this.output);
  }

  /** The steps that the other one did differently, or only one of them did. */
  async diff(other: Execution): Promise<Difference[]> {
    const byLabel = async (execution: { steps(): Promise<Schemas["StepView"][]> }) => new Map((await execution.steps()).map((step) => [labelOf(step), step]));
    const [mine, its] = [await byLabel(this), await byLabel(other)];
    const labels = [...new Set([...mine.keys(), ...its.keys()])];
    const pairs = labels.map((label) => ({ one: mine.get(label), other: its.get(label) }));
    return pairs.filter(({ one, other }) => essence(one) !== essence(other));
  }

  /** Says yes to what it asks people. */
  approve(payload?: unknown): Promise<Schemas["SignalOutcome"]> {
    return this.signal("approve", payload);
  }

  /** Says no to what it asks people. */
  reject(payload?: unknown): Promise<Schemas["SignalOutcome"]> {
    return this.signal("reject", payload);
  }

  /** Sends a signal by name. It is kept if the execution does not wait for it yet. */
  signal(name: string, payload?: unknown, options: { waitpoint?: string; token?: string; source?: string } = {}): Promise<Schemas["SignalOutcome"]> {
    const { waitpoint: waitpoint_id, token, source: source_identity } = options;
    return this.connection.call("POST", this.#at("/signal"), { body: { name, ...given("payload", payload), waitpoint_id, token, source_identity } });
  }

  /**
   * Answers what is asked about a step: `happened` (with its result), `did_not_happen` or `fail` for a step in doubt;
   * `keep`, `run_again` or `fail` for one that the program no longer fits.
   */
  async decide(step: Step, answer: Args<"POST", "/v1/executions/{execution_id}/steps/decide">["answer"], result?: unknown): Promise<void> {
    await this.connection.call("POST", this.#at("/steps/decide"), { body: { step: stepOf(step), answer, ...given("result", result) } });
  }

  /** Its stream while it runs. The iterator reconnects by itself after the last frame: none is missed, none comes twice. */
  tail(options: { after?: string; signal?: AbortSignal } = {}): AsyncGenerator<StreamEvent> {
    return tail(this.connection, this.id, options);
  }

  /** The records of its journal. */
  steps(generation?: number): Promise<Schemas["StepView"][]> {
    return allItems((after: number = 0) =>
      this.connection.call<Schemas["ListStepsOutcome"]>("GET", this.#at("/steps"), { query: { generation, after, limit: 1_000 } }));
  }

  #at(part: string): string {
    return path`/v1/executions/${this.id}` + part;
  }
}

/** A submission as the wire has it. */
export function submission(task: string | AnyTask, input: unknown, options: SubmitOptions, namespace: string | undefined): Record<string, unknown> {
  const defined = typeof task === "string" ? undefined : task;
  const retries = options.retries ?? defined?.retries;
  const policy = { ...options.policy };
  if (retries !== undefined) policy.retry = { ...policy.retry, max_retries: retries };
  const after = (span: Span | undefined) => (span === undefined ? undefined : Date.now() + milliseconds(span));
  return present({
    kind: defined?.kind ?? task,
    ...given("input", input),
    lane: options.lane ?? defined?.lane,
    namespace: options.namespace ?? namespace,
    idempotency_key: options.idempotencyKey,
    priority: options.priority,
    tags: options.tags,
    policy: Object.keys(policy).length > 0 ? policy : undefined,
    delay_until: after(options.delay),
    deadline_at: after(options.deadline),
    budget_ids: options.budgets,
    quota_policy_id: options.quota,
    concurrency: options.concurrency && Object.entries(options.concurrency).map(([key, limit]) => ({ key, limit })),
    fair_key: options.fairKey,
    fair_weight: options.fairWeight,
    singleton: options.singleton === undefined ? undefined : { key: options.singleton },
    debounce: options.debounce,
    required_capabilities: options.capabilities,
    trace_context: options.traceContext ?? currentTrace(),
  });
}

function stepOf(step: Step | undefined): Exclude<Step, string> | undefined {
  return typeof step === "string" ? { name: step } : step;
}

function essence(step: Schemas["StepView"] | undefined): string {
  return step === undefined ? "" : JSON.stringify([step.state, step.category, step.input_hash, step.result]);
}
