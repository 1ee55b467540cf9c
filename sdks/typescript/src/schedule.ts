/** A schedule: what creates an execution or a flow again and again. */
import { type Schemas, submission, type SubmitOptions } from "./client.js";
import { FlowBuilder } from "./flow.js";
import type { Args } from "./operations.js";
import { present } from "./schema.js";
import type { AnyTask } from "./task.js";
import { milliseconds, type Span } from "./time.js";

/** When it runs: exactly one of `cron`, `every` and `at` is given. */
export interface When {
  /** A cron expression of five fields, or of six with the seconds first. */
  cron?: string;
  /** The time zone of the expression; `UTC` when absent. */
  zone?: string;
  every?: Span;
  at?: readonly Date[];
  startsAt?: Date;
  endsAt?: Date;
  /** Each run starts up to so much later. */
  jitter?: Span;
  /** How it takes an instant at which the latest run has not ended; `allow` when absent. */
  overlap?: Schemas["Overlap"];
  /** How it makes up for instants that no server saw to in time; a number runs so many of them at most. */
  catchUp?: "none" | "last" | number;
  /** So many failed runs in a row pause it. */
  pauseAfterFailures?: number;
}

/** The work that a run creates: a task or a kind with its input, or a flow. */
export type Template = FlowBuilder | { task: AnyTask | string; input?: unknown; options?: SubmitOptions };

/**
 * The definition of a schedule, for the operations that create and update one:
 * `client.call("POST", "/v1/schedules", { name: "nightly", ...schedule({ cron: "0 2 * * *" }, { task: report }) })`.
 */
export function schedule(when: When, template: Template): Omit<Args<"POST", "/v1/schedules">, "name"> {
  const span = (given: Span | undefined) => (given === undefined ? undefined : milliseconds(given));
  const { cron, zone, every, at, catchUp } = when;
  const once = () => ("task" in template ? submission(template.task, template.input, template.options ?? {}, undefined) : undefined);
  return present({
    spec: present({ cron, time_zone: zone, every_ms: span(every), at: at?.map((one) => one.getTime()) }),
    template: template instanceof FlowBuilder ? { flow: template.body() } : { execution: once() },
    starts_at: when.startsAt?.getTime(),
    ends_at: when.endsAt?.getTime(),
    jitter_ms: span(when.jitter),
    overlap: when.overlap,
    catch_up: typeof catchUp === "number" ? { all: { max: catchUp } } : catchUp,
    pause_after_failures: when.pauseAfterFailures,
  }) as Omit<Args<"POST", "/v1/schedules">, "name">;
}
