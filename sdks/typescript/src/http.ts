/** Calls over HTTP. Each call has its identity before its first try, and is repeated while no server can be reached. */
import { FlowFabricError, type Problem, UnreachableError } from "./errors.js";
import { uuid7 } from "./ids.js";
import { pause } from "./time.js";

export interface ConnectOptions {
  /** Where the server is; `FF_SERVER`, then `http://127.0.0.1:7171` when absent. */
  server?: string;
  /** The API token; `FF_TOKEN` when absent. */
  token?: string | undefined;
  /** The namespace of everything that names none; `FF_NAMESPACE` when absent. */
  namespace?: string | undefined;
  /** How long a call is repeated while no server answers; 30 seconds when absent, 0 for never. */
  retryForMs?: number;
}

export interface CallOptions {
  query?: Record<string, string | number | boolean | readonly string[] | undefined>;
  body?: unknown;
  /** Names the call, so that a repeat is the same call. Minted for every POST that brings none; `null` sends none. */
  idempotencyKey?: string | null | undefined;
  /** How long the server may wait before it answers. */
  waitMs?: number;
  signal?: AbortSignal | undefined;
  /** How long this call is repeated, instead of what the connection says. */
  retryForMs?: number;
  /** The body of a repeat, where it is another one: a claim says that it is repeated. */
  onRepeat?: () => unknown;
}

/** The outcome of one try: an answer, or a failure that a repeat may mend. */
type Tried = { answer: unknown } | { error: Error; waitMs: number };

/** A server that has not answered so long after it should have is taken for gone. */
const ANSWER_WITHIN_MS = 30_000;
const FIRST_BACKOFF_MS = 50;
const LAST_BACKOFF_MS = 2_000;

export class Connection {
  readonly server: string;
  readonly token: string | undefined;
  readonly namespace: string | undefined;
  readonly #retryForMs: number;

  constructor(options: ConnectOptions = {}) {
    // An option or a variable that is empty says nothing.
    const { FF_SERVER, FF_TOKEN, FF_NAMESPACE } = process.env;
    this.server = (options.server || FF_SERVER || "http://127.0.0.1:7171").replace(/\/+$/, "");
    this.token = options.token || FF_TOKEN || undefined;
    this.namespace = options.namespace || FF_NAMESPACE || undefined;
    this.#retryForMs = options.retryForMs ?? 30_000;
    const { protocol, hostname } = new URL(this.server);
    const loopback = ["localhost", "127.0.0.1", "[::1]"].includes(hostname);
    if (this.token !== undefined && protocol === "http:" && !loopback) {
      console.warn(`flowfabric: the token goes to ${hostname} over plain HTTP; use https:// for another machine`);
    }
  }

  /** The namespace of this connection, as a field of a call. */
  get scope(): { namespace?: string } {
    return this.namespace === undefined ? {} : { namespace: this.namespace };
  }

  /** Calls and answers with the parsed body; `undefined` for an answer without one. */
  async call<T>(method: string, path: string, options: CallOptions = {}): Promise<T> {
    const key = options.idempotencyKey === undefined && method === "POST" ? uuid7() : options.idempotencyKey;
    const started = Date.now();
    // A body that cannot be written throws here: it would not become writable by a repeat.
    let text = JSON.stringify(options.body) as string | undefined;
    for (let repeats = 0; ; repeats++) {
      const failure = await this.#once(method, path, key, { ...options, text });
      if ("answer" in failure) return failure.answer as T;
      const backoff = Math.min(FIRST_BACKOFF_MS * 2 ** Math.min(repeats, 16), LAST_BACKOFF_MS);
      const wait = Math.max(backoff * (0.5 + Math.random() / 2), failure.waitMs);
      if (options.signal?.aborted || Date.now() - started + wait >= (options.retryForMs ?? this.#retryForMs)) throw failure.error;
      await pause(wait, options.signal);
      if (options.onRepeat !== undefined) text = JSON.stringify(options.onRepeat());
    }
  }

  /** One try. A failure that a repeat cannot mend is thrown. */
  async #once(method: string, path: string, key: string | null | undefined, options: CallOptions & { text: string | undefined }): Promise<Tried> {
    const limit = AbortSignal.timeout(ANSWER_WITHIN_MS + (options.waitMs ?? 0));
    const signal = options.signal === undefined ? limit : AbortSignal.any([limit, options.signal]);
    let response: Response;
    let text: string;
    try {
      response = await this.open(method, path, { ...options, signal, ...(key != null && { idempotencyKey: key }) });
      text = await response.text();
    } catch (error) {
      if (options.signal?.aborted) throw options.signal.reason;
      const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
      return { error: new UnreachableError(`${this.server} does not answer: ${String(cause)}`, { cause: error }), waitMs: 0 };
    }
    if (response.ok) return { answer: (text === "" ? undefined : JSON.parse(text)) as unknown };
    const error = new FlowFabricError(problemOf(response.status, text));
    const unavailable = error.status >= 502 && error.status <= 504;
    const passing = error.retryable && (unavailable || error.code === "concurrency_limit_exceeded");
    if (passing) return { error, waitMs: error.problem.retry_after_ms ?? 0 };
    throw error;
  }

  /** Sends one request and answers with the response as it is. */
  open(method: string, path: string, options: CallOptions & { headers?: Record<string, string>; text?: string | undefined } = {}): Promise<Response> {
    const url = new URL(this.server + path);
    for (const [name, value] of Object.entries(options.query ?? {})) {
      if (typeof value === "object") for (const each of value) url.searchParams.append(name, each);
      else if (value !== undefined) url.searchParams.set(name, String(value));
    }
    const headers: Record<string, string> = { accept: "application/json", ...options.headers };
    if (this.token !== undefined) headers["authorization"] = `Bearer ${this.token}`;
    if (options.idempotencyKey != null) headers["idempotency-key"] = options.idempotencyKey;
    const init: RequestInit = { method, headers, signal: options.signal ?? null, redirect: "error" };
    if (options.text !== undefined || method === "POST") {
      headers["content-type"] = "application/json";
      init.body = options.text ?? "{}";
    }
    return fetch(url, init);
  }
}

/** The problem in an answer. An answer that is no problem document (a proxy's page) becomes one. */
export function problemOf(status: number, text: string): Problem {
  try {
    const problem = JSON.parse(text) as Partial<Problem> | null;
    if (typeof problem?.code === "string") return { details: {}, detail: "", retryable: false, status, ...problem, code: problem.code };
  } catch {
    // A proxy between us and the server wrote no JSON.
  }
  return { code: `http_${status}`, status, detail: text.slice(0, 500), retryable: status >= 502 && status <= 504, details: {} };
}

/** Everything that a list has, read page by page; the next page begins at a cursor, or after a number. */
export async function allItems<T, At>(read: (at?: At) => Promise<{ items: T[]; next_cursor?: At | null; next_after?: At | null }>): Promise<T[]> {
  const items: T[] = [];
  for (let at: At | null | undefined; at !== null; ) {
    const page = await read(at);
    items.push(...page.items);
    at = page.next_cursor ?? page.next_after ?? null;
  }
  return items;
}

/** A path with its parts escaped. */
export function path(strings: TemplateStringsArray, ...parts: (string | number)[]): string {
  return String.raw(strings, ...parts.map((part) => encodeURIComponent(part)));
}
