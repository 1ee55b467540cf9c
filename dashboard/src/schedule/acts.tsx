// The acts of an operator on a schedule.

import { answer, api } from "../api/client";
import { exact, many, option, quote, words } from "../format";
import { go, link } from "../router";
import { ActButtons } from "../ui/dialog";
import type { Act, Field, Values } from "../ui/dialog";

/** The parts of a schedule that acts need. */
interface Named {
  namespace: string;
  name: string;
  state: string;
}

const OVERLAPS = ["allow", "skip", "buffer_one", "cancel_previous"] as const;
type Overlap = (typeof OVERLAPS)[number];

/** What happens at an instant while the latest run has not ended. */
export const OVERLAP_WORDS: Record<Overlap, string> = {
  allow: "another one starts beside it",
  skip: "the instant is skipped",
  buffer_one: "one waits for its end",
  cancel_previous: "it is cancelled for the new one",
};

const OVERLAP: Field = { name: "overlap", label: "While the latest run has not ended", type: "select", options: [...OVERLAPS], value: "allow" };
const NOTE: Field = { name: "note", label: "Why, for those who look at it", optional: true };
/** A backfill is offered for the day before. */
const DAY_MS = 86_400_000;

function pauseOf(schedule: Named): Act {
  return {
    name: "Pause",
    effect: "It starts no runs until it is resumed; instants that pass meanwhile are passed over. Runs that have begun go on.",
    command: (values) => `ff schedule pause ${quote(schedule.name)}${option("note", values["note"])}`,
    fields: [NOTE],
    run: async (values) => {
      const body = { namespace: schedule.namespace, ...(values["note"] ? { note: values["note"] } : {}) };
      await answer(api.POST("/v1/schedules/{name}/pause", { params: { path: { name: schedule.name } }, body }));
      return `${schedule.name} is paused.`;
    },
  };
}

function resumeOf(schedule: Named): Act {
  return {
    name: "Resume",
    effect: "It goes on from now with its next instant.",
    command: (values) => `ff schedule resume ${quote(schedule.name)}${option("note", values["note"])}`,
    fields: [NOTE],
    run: async (values) => {
      const body = { namespace: schedule.namespace, ...(values["note"] ? { note: values["note"] } : {}) };
      await answer(api.POST("/v1/schedules/{name}/resume", { params: { path: { name: schedule.name } }, body }));
      return `${schedule.name} goes on.`;
    },
  };
}

/** The choice as an option of `ff`, whose own is to start another one. */
function overlapOf(values: Values): string {
  return option("overlap", values["overlap"] === "allow" ? "" : values["overlap"]);
}

function triggerOf(schedule: Named): Act {
  return {
    name: "Trigger",
    effect: "One more run starts now, whether the schedule is paused or not. Its own instants stay as they are.",
    command: (values) => `ff schedule trigger ${quote(schedule.name)}${overlapOf(values)}`,
    fields: [OVERLAP],
    run: async (values) => {
      const body = { namespace: schedule.namespace, overlap: values["overlap"] as Overlap };
      const done = await answer(api.POST("/v1/schedules/{name}/trigger", { params: { path: { name: schedule.name } }, body }));
      return done.refused ? `Refused: ${words(done.refused)}.` : `${words(done.outcome)}: the run of ${exact(done.scheduled_for)}.`;
    },
  };
}

/** An instant as the fields of a form take it, in the time zone of the reader. */
function local(at: number): string {
  return exact(at).slice(0, 16).replace(" ", "T");
}

function instant(text: string | undefined, field: string): number {
  const at = Date.parse(text ?? "");
  if (Number.isNaN(at)) throw new Error(`${field}: this is no instant. Write it as 2026-11-01T02:00.`);
  return at;
}

function stretchOf(values: Values): { from: number; to: number } {
  return { from: instant(values["from"], "The first instant"), to: instant(values["to"], "The last instant") };
}

function backfillOf(schedule: Named): Act {
  const now = Date.now();
  return {
    name: "Backfill",
    effect: "Every instant of the stretch runs once more, beside what ran already. The times are those of your time zone.",
    command: (values) => {
      const { from, to } = stretchOf(values);
      return `ff schedule backfill ${quote(schedule.name)} --from ${new Date(from).toISOString()} --to ${new Date(to).toISOString()}${overlapOf(values)}`;
    },
    fields: [{ name: "from", label: "The first instant that counts", value: local(now - DAY_MS) }, { name: "to", label: "The last instant that counts", value: local(now) }, OVERLAP],
    run: async (values) => {
      const body = { namespace: schedule.namespace, ...stretchOf(values), overlap: values["overlap"] as Overlap };
      const done = await answer(api.POST("/v1/schedules/{name}/backfill", { params: { path: { name: schedule.name } }, body }));
      return `${many(done.instants, "instant")} will run once more.`;
    },
  };
}

function removalOf(schedule: Named): Act {
  return {
    name: "Delete",
    effect: "The schedule goes. Its runs stay, and those that have begun go on.",
    command: `ff schedule rm ${quote(schedule.name)}`,
    danger: true,
    run: async () => {
      await answer(api.DELETE("/v1/schedules/{name}", { params: { path: { name: schedule.name }, query: { namespace: schedule.namespace } } }));
      go(link(["schedules"]));
      return `${schedule.name} is deleted.`;
    },
  };
}

/** The acts that make sense in the state it is in; with `all`, those that are seldom wanted, too. */
export function ScheduleActs({ schedule, done, all = false }: { schedule: Named; done: () => void; all?: boolean }) {
  const paused = schedule.state === "paused";
  const acts = [...(schedule.state === "active" ? [pauseOf] : paused ? [resumeOf] : []), triggerOf, ...(all ? [backfillOf, removalOf] : [])].map((of) => of(schedule));
  return <ActButtons label={`Actions on ${schedule.name}`} acts={acts} done={done} />;
}
