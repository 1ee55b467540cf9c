// A bulk job on everything that the filters of the list match: first what it would do, then the job itself.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { answer, api } from "../api/client";
import type { Schemas } from "../api/client";
import { asFilter, optionsOf } from "../executions/filter";
import type { Filters } from "../executions/filter";
import { count, parseTags, quote } from "../format";
import { go, link, namespace } from "../router";
import { Command, Meter, Refusal } from "../ui/basics";
import { FieldInput, Modal, say } from "../ui/dialog";
import type { Field } from "../ui/dialog";
import { ACTIONS, filterWords, outcomeWords } from "./words";
import type { BulkAction, Job } from "./words";

/** How long to wait before the first look at a dry run, and at most between two looks, in milliseconds. */
const FIRST_LOOK_MS = 150;
const LOOK_MAX_MS = 2_000;

/** A job as the API takes it. */
interface Wanted {
  namespace?: string;
  filter: Schemas["BulkFilter"];
  action: BulkAction;
  reason?: string;
  priority?: number;
  tags?: Record<string, string>;
  max?: number;
  rate_per_second?: number;
}

const LIMITS: Field[] = [
  { name: "rate", label: "At most so many a second (as many as the store takes if empty)", type: "number", optional: true },
  { name: "max", label: "At most so many in all (a million if empty)", type: "number", optional: true },
];
const REASON: Field = { name: "reason", label: "Reason, for the audit log", optional: true };

/** The fields that an action takes beside the limits. */
const FIELDS: Partial<Record<BulkAction, Field[]>> = {
  cancel: [REASON],
  hold: [REASON],
  set_priority: [{ name: "priority", label: "Priority, 0 to 9000", type: "number", value: "0" }],
  set_tags: [{ name: "tags", label: "Tags in the place of theirs, as key=value, one in a line", type: "textarea" }],
};

export function BulkStart({ filter }: { filter: Filters }) {
  const open = useSignal(false);
  return (
    <>
      <button type="button" class="button small" onClick={() => (open.value = true)}>
        All that match…
      </button>
      {open.value && <Start filter={filter} onClose={() => (open.value = false)} />}
    </>
  );
}

function wantedOf(values: Record<string, string>, action: BulkAction, filter: Schemas["BulkFilter"]): Wanted {
  const ns = namespace();
  return {
    ...(ns ? { namespace: ns } : {}),
    filter,
    action,
    ...(values["reason"] ? { reason: values["reason"] } : {}),
    ...(action === "set_priority" ? { priority: Number(values["priority"]) } : {}),
    ...(action === "set_tags" ? { tags: parseTags(values["tags"] ?? "") } : {}),
    ...(values["max"] ? { max: Number(values["max"]) } : {}),
    ...(values["rate"] ? { rate_per_second: Number(values["rate"]) } : {}),
  };
}

function commandOf(wanted: Wanted, filter: Filters): string {
  const { command } = ACTIONS[wanted.action];
  const parts = [`ff bulk ${command}`];
  if (wanted.priority !== undefined) parts.push(String(wanted.priority));
  for (const [key, value] of Object.entries(wanted.tags ?? {})) parts.push(quote(`${key}=${value}`));
  parts.push(...optionsOf(filter));
  if (wanted.reason) parts.push(`--reason ${quote(wanted.reason)}`);
  if (wanted.max) parts.push(`--max ${wanted.max}`);
  if (wanted.rate_per_second) parts.push(`--rate ${wanted.rate_per_second}`);
  return [...parts, "--yes"].join(" ");
}

/** Follows a job to its end, as long as somebody waits for it. */
async function toItsEnd(begun: Job, signal: AbortSignal, show: (job: Job) => void): Promise<Job> {
  let job = begun;
  for (let wait = FIRST_LOOK_MS; !job.ended_at; wait = Math.min(LOOK_MAX_MS, wait * 2)) {
    await new Promise((done) => setTimeout(done, wait));
    job = await answer(api.GET("/v1/bulk/{bulk_id}", { params: { path: { bulk_id: job.bulk_id } }, signal }));
    show(job);
  }
  return job;
}

/** A look at what a job would do. */
interface Look {
  wanted: Wanted;
  job: Job;
}

function Start({ filter, onClose }: { filter: Filters; onClose: () => void }) {
  const action = useSignal<BulkAction>("cancel");
  const busy = useSignal(false);
  const error = useSignal<unknown>(undefined);
  const look = useSignal<Look | undefined>(undefined);
  const leaving = useRef(new AbortController());
  useEffect(() => () => leaving.current.abort(), []);
  const ended = look.value?.job.ended_at !== undefined && look.value?.job.ended_at !== null;

  /** One thing at a time; a refusal is shown, and what was filled in stays. */
  const attempt = async (act: () => Promise<void>) => {
    busy.value = true;
    error.value = undefined;
    try {
      await act();
    } catch (caught) {
      if (!leaving.current.signal.aborted) error.value = caught;
    }
    busy.value = false;
  };
  const lookFirst = (form: HTMLFormElement) =>
    attempt(async () => {
      const values: Record<string, string> = {};
      for (const [name, value] of new FormData(form)) values[name] = String(value);
      const wanted = wantedOf(values, action.value, asFilter(filter));
      // A look is not slowed down: it changes nothing.
      const { rate_per_second: _, ...fast } = wanted;
      const begun = await answer(api.POST("/v1/bulk", { body: { ...fast, dry_run: true } as never }));
      look.value = { wanted, job: begun };
      await toItsEnd(begun, leaving.current.signal, (job) => (look.value = { wanted, job }));
    });
  const begin = ({ wanted }: Look) =>
    attempt(async () => {
      const job = await answer(api.POST("/v1/bulk", { body: wanted as never }));
      say("The job has begun.");
      onClose();
      go(link(["bulk", job.bulk_id]));
    });
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    if (look.value && ended) void begin(look.value);
    else void lookFirst(event.target as HTMLFormElement);
  };
  const chosen = filterWords(asFilter(filter));
  const { name, danger } = ACTIONS[action.value];
  return (
    <Modal title="All that match" onClose={onClose}>
      <form onSubmit={submit}>
        <h2>All that match</h2>
        <p>
          {chosen.length === 0 ? "Every execution of the namespace" : `Every execution with ${chosen.join(", ")}`}, also those that are not on this page. The job goes on by itself, on whichever server is there, and is audited.
        </p>
        {look.value === undefined ? (
          <>
            <label class="labelled">
              What to do with them
              <select class="field" value={action.value} onChange={(event) => (action.value = event.currentTarget.value as BulkAction)}>
                {Object.entries(ACTIONS).map(([value, one]) => (
                  <option value={value}>{one.name}</option>
                ))}
              </select>
            </label>
            {[...(FIELDS[action.value] ?? []), ...LIMITS].map((field) => (
              <FieldInput key={field.name} field={field} />
            ))}
          </>
        ) : (
          <LookShown look={look.value} filter={filter} ended={ended} />
        )}
        {error.value !== undefined && <Refusal error={error.value} />}
        <div class="row end">
          <button type="button" class="button" onClick={() => (look.value && ended ? (look.value = undefined) : onClose())}>
            Back
          </button>
          {look.value && ended ? (
            <button type="submit" class={`button primary ${danger ? "danger" : ""}`} disabled={busy.value || look.value.job.progress.done === 0}>
              {name} {count(look.value.job.progress.done)}
            </button>
          ) : (
            <button type="submit" class="button primary" disabled={busy.value}>
              See what it would do
            </button>
          )}
        </div>
      </form>
    </Modal>
  );
}

function LookShown({ look: { wanted, job }, filter, ended }: { look: Look; filter: Filters; ended: boolean }) {
  return (
    <>
      <div class={`notice stack ${ACTIONS[wanted.action].danger ? "s-bad" : ""}`} role="status">
        {ended ? <strong>{outcomeWords(job)}</strong> : <span>{count(job.progress.examined)} looked at so far</span>}
        {!ended && <Meter value={job.progress.partitions_done} max={job.progress.partitions} label="How far the look is" tone="s-active" />}
        <span class="small muted">Nothing was changed yet.</span>
      </div>
      <div class="stack">
        <span class="small muted">The same from a terminal:</span>
        <Command line={commandOf(wanted, filter)} />
      </div>
    </>
  );
}
