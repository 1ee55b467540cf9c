/** A schedule: what creates an execution or a flow again and again. */
import { type Schemas, submission, type SubmitOptions } from "./client.js";
import { FlowBuilder } from "./flow.js";
import { type Connection, path } from "./http.js";
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
  /** What happens while the latest run has not ended; `allow` when absent. */
  overlap?: Schemas["Overlap"];
  /** What becomes of instants that no server saw to in time; a number runs so many of them at most. */
  catchUp?: "none" | "last" | number;
  /** So many failed runs in a row pause it. */
  pauseAfterFailures?: number;
}

/** What a run creates: a task or a kind with its input, or a flow. */
export type Template = FlowBuilder | { task: AnyTask | string; input?: unknown; options?: SubmitOptions };

type Summary = Schemas["ScheduleSummary"];

export class Schedule {
  constructor(
    private readonly connection: Connection,
    readonly name: string,
  ) {}

  /** Creates it, unless it is there. */
  create(when: When, template: Template): Promise<Schemas["CreateScheduleOutcome"]> {
    return this.connection.call("POST", "/v1/schedules", { body: { name: this.name, ...this.#definition(when, template) } });
  }

  /** Replaces all of its definition, if it still has this revision. It goes on from now. */
  update(when: When, template: Template, expectedRevision?: number): Promise<Summary> {
    const body = present({ expected_revision: expectedRevision, ...this.#definition(when, template) });
    return this.connection.call("PUT", this.#at(), { body });
  }

  /** Its definition, its next instants and its last runs. */
  get(): Promise<Schemas["ScheduleView"]> {
    return this.connection.call("GET", this.#at(), { query: this.connection.scope });
  }

  /** Passes over the instants from now on. The note is kept. */
  pause(note?: string): Promise<Summary> {
    return this.#post("/pause", { note });
  }

  /** Goes on from now. */
  resume(note?: string): Promise<Summary> {
    return this.#post("/resume", { note });
  }

  /** Runs it once, now, whether it is paused or not. */
  trigger(overlap?: Schemas["Overlap"]): Promise<Schemas["TriggerScheduleOutcome"]> {
    return this.#post("/trigger", { overlap });
  }

  /** Runs the instants of a stretch once more. */
  backfill(first: Date, last: Date, overlap?: Schemas["Overlap"]): Promise<Schemas["BackfillScheduleOutcome"]> {
    return this.#post("/backfill", { from: first.getTime(), to: last.getTime(), overlap });
  }

  /** Removes it. Its runs stay and go on. */
  async delete(): Promise<void> {
    await this.connection.call("DELETE", this.#at(), { query: this.connection.scope });
  }

  #post<T>(part: string, body: Record<string, unknown>): Promise<T> {
    return this.connection.call("POST", this.#at(part), { body: present({ ...body, ...this.connection.scope }) });
  }

  #definition(when: When, template: Template): Record<string, unknown> {
    const span = (given: Span | undefined) => (given === undefined ? undefined : milliseconds(given));
    const { cron, zone, every, at, catchUp } = when;
    return present({
      spec: present({ cron, time_zone: zone, every_ms: span(every), at: at?.map((one) => one.getTime()) }),
      template: template instanceof FlowBuilder ? { flow: template.body() } : { execution: submission(template.task, template.input, template.options ?? {}, undefined) },
      starts_at: when.startsAt?.getTime(),
      ends_at: when.endsAt?.getTime(),
      jitter_ms: span(when.jitter),
      overlap: when.overlap,
      catch_up: typeof catchUp === "number" ? { all: { max: catchUp } } : catchUp,
      pause_after_failures: when.pauseAfterFailures,
      ...this.connection.scope,
    });
  }

  #at(part = ""): string {
    return path`/v1/schedules/${this.name}` + part;
  }
}
