/** Errors: refusals of the server, servers out of reach, and the ways in which a task ends without a result. */
import { StringDecoder } from "node:string_decoder";

import type { components } from "./wire.js";

/** A problem as the server describes it. Codes and fields that this version does not know are kept. */
export interface Problem {
  code: string;
  status: number;
  detail: string;
  retryable: boolean;
  details: Record<string, unknown>;
  advice?: string;
  retry_after_ms?: number | null;
  [field: string]: unknown;
}

/** The server refused a call. `code` is one of the table in the documentation, or one that a newer server invented. */
export class FlowFabricError extends Error {
  override readonly name = "FlowFabricError";
  readonly code: string;
  readonly status: number;
  readonly retryable: boolean;

  constructor(readonly problem: Problem) {
    super(`${problem.code}: ${problem.detail}`);
    ({ code: this.code, status: this.status, retryable: this.retryable } = problem);
  }
}

/** No server answered in time. The call may have had its effect; a repeat under the same key is safe. */
export class UnreachableError extends Error {
  override readonly name = "UnreachableError";
}

/** An execution ended without a result. */
export class ExecutionFailedError extends Error {
  override readonly name = "ExecutionFailedError";

  constructor(readonly executionId: string, readonly state: string, readonly category: string | undefined, reason: string) {
    super(reason);
  }
}

/** The function was parked, or its lease is gone: its context takes no more calls. */
export class Interrupted extends Error {
  override readonly name = "Interrupted";
}

export interface TaskErrorOptions {
  /** The retry policy decides by the category whether there is another attempt. */
  category?: string;
  /** How long to wait before the retry, instead of the policy's backoff. */
  retryAfterMs?: number | undefined;
  cause?: unknown;
}

/** A failure with a category. Any other error that a task throws fails the attempt with the category `error`. */
export class TaskError extends Error {
  override readonly name: string = "TaskError";
  static readonly category: string = "error";
  readonly category: string;
  readonly retryAfterMs: number | undefined;

  constructor(message: string, options: TaskErrorOptions = {}) {
    super(message, { cause: options.cause });
    this.category = options.category ?? new.target.category;
    this.retryAfterMs = options.retryAfterMs;
  }
}

/** The body of a `once` step says for certain that nothing happened, so the body may be tried again. */
export class NotDone extends TaskError {
  override readonly name = "NotDone";
  static override readonly category = "not_done";
}

/** The function that `ctx.acquire` calls learned that the provider had too many calls (429), and perhaps for how long it wants to be left alone. */
export class Throttled extends TaskError {
  override readonly name = "Throttled";
  static override readonly category = "throttled";
}

/** A hard limit of a budget forbids what a task has reported. */
export class BudgetExceeded extends TaskError {
  override readonly name: string = "BudgetExceeded";
  static override readonly category: string = "budget_exceeded";

  constructor(readonly budget: string, readonly dimension: string | undefined, message?: string) {
    super(message ?? `budget ${budget}: the limit of ${dimension ?? "it"} is reached`);
  }
}

/** A budget has no room for what a task was about to spend: nothing was begun. `refusal` says what is left, and when it resets. */
export class BudgetRefused extends BudgetExceeded {
  override readonly name = "BudgetRefused";
  static override readonly category = "budget_refused";

  constructor(what: string, readonly refusal: components["schemas"]["SpendRefusal"]) {
    const { budget, dimension, left, limit, requested } = refusal;
    super(budget, dimension, `${what}: budget ${budget} has ${left} ${dimension} left of ${limit}, ${requested} were asked for`);
  }
}

const MESSAGE_MAX_BYTES = 4_096;
const CATEGORY_MAX_BYTES = 256;

/** Category and message of anything that was thrown, in words that the server takes, and the wait that it asks for. */
export function inWords(thrown: unknown): { category: string; message: string; retryAfterMs: number | undefined } {
  let [category, message] = ["error", thrown instanceof Error ? thrown.constructor.name : typeof thrown];
  let retryAfterMs: number | undefined;
  try {
    if (thrown instanceof TaskError) ({ category, message, retryAfterMs } = thrown);
    else if (thrown instanceof FlowFabricError) ({ code: category, message } = thrown);
    else message = thrown instanceof Error ? thrown.message || thrown.name : String(thrown);
  } catch {
    // The error of somebody else may be unable to say what it is.
  }
  category = category.replace(/(?![ \u200c\u200d])[\p{Cc}\p{Cf}\s]/gu, "");
  return { category: cut(category, CATEGORY_MAX_BYTES) || "error", message: cut(message, MESSAGE_MAX_BYTES), retryAfterMs };
}

/** Text cut after a whole character. Half of a surrogate pair, which has no bytes, is spelled out. */
function cut(text: string, maxBytes: number): string {
  const whole = text.replaceAll("\0", "").replace(/\p{Surrogate}/gu, (half) => `\\u${half.charCodeAt(0).toString(16)}`);
  return new StringDecoder("utf8").write(Buffer.from(whole).subarray(0, maxBytes));
}

/** What was thrown and its causes, but no more of them than so many: they may be a circle. */
export function withCauses(thrown: unknown, causesMax = 8): unknown[] {
  const isLast = !(thrown instanceof Error) || thrown.cause === undefined || causesMax === 0;
  return isLast ? [thrown] : [thrown, ...withCauses(thrown.cause, causesMax - 1)];
}

/** The stack of an error, or the words of anything else. Other fields are left out, because they may hold secrets. */
export function stackOf(thrown: unknown): string {
  const { message } = inWords(thrown);
  try {
    return thrown instanceof Error ? (thrown.stack ?? message) : message;
  } catch {
    return message;
  }
}

const LOST = new Set(["stale_lease", "lease_expired", "lease_revoked", "execution_not_active", "execution_not_found"]);

/** Whether the lease behind a task is lost, so that its work is somebody else's by now. */
export function isLost(error: unknown): boolean {
  return error instanceof FlowFabricError && LOST.has(error.code);
}

/** Whether a call was refused for what it says, so that saying it again would be refused again. */
export function refusesContent(error: unknown): boolean {
  if (!(error instanceof FlowFabricError)) return !(error instanceof UnreachableError || error instanceof Interrupted);
  const byContent = error.status >= 400 && error.status < 500 && error.status !== 401 && error.status !== 403;
  return byContent && !error.retryable && !isLost(error);
}
