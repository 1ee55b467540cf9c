/** A task: the function of a kind, with its input and its result. */
import type { Context } from "./context.js";
import type { StandardSchema } from "./schema.js";

export interface TaskOptions<I, O> {
  /** Checks the input before the function is called. */
  input?: StandardSchema<I>;
  /** Checks the result, at the worker and at the client that asks for it. */
  output?: StandardSchema<O>;
  /** How often an attempt that failed is tried again, for submissions of this task that say nothing else. */
  retries?: number;
  /** Where submissions of this task wait, unless they say otherwise. */
  lane?: string;
}

type Run<I, O> = (ctx: Context, input: I) => O | Promise<O>;

export interface TaskDefinition<I, O> extends TaskOptions<I, O> {
  readonly kind: string;
  readonly run: Run<I, O>;
}

/** A task of any input and result. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any -- `unknown` would refuse every task whose input has a type
export type AnyTask = TaskDefinition<any, any>;

/** Defines a task. The function may be called again from its first line: what it did in steps is not done again. */
export function task<I = unknown, O = unknown>(kind: string, run: Run<I, O>): TaskDefinition<I, O>;
export function task<I = unknown, O = unknown>(kind: string, options: TaskOptions<I, O>, run: Run<I, O>): TaskDefinition<I, O>;
export function task<I, O>(kind: string, second: TaskOptions<I, O> | Run<I, O>, third?: Run<I, O>): TaskDefinition<I, O> {
  if (typeof second === "function") return { kind, run: second };
  if (third === undefined) throw new TypeError(`the task ${JSON.stringify(kind)} has no function`);
  return { ...second, kind, run: third };
}
