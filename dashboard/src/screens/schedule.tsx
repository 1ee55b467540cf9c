// One schedule: its next instants, what became of the last ones, and what it creates.

import { answer, api, isMissing } from "../api/client";
import { count, exact, many, quote, span, words } from "../format";
import { POLL_MS, useAsk, useEvents, useSoon } from "../live";
import { link, namespace } from "../router";
import { may } from "../session";
import { OVERLAP_WORDS, ScheduleActs } from "../schedule/acts";
import { Card, Command, Countdown, Empty, type Fact, Facts, LastNote, Loading, Refusal, State, When } from "../ui/basics";
import { Json } from "../ui/payload";
import { Table } from "../ui/table";
import { RunState, specWords } from "./schedules";

function catchUpWords(catchUp: unknown): string {
  if (typeof catchUp === "object" && catchUp !== null && "all" in catchUp) return `the last ${(catchUp as { all: { max?: number } }).all.max ?? 100} that were missed run`;
  return catchUp === "last" ? "the last one that was missed runs" : "what was missed is passed over";
}

/** Why an instant ran. */
const ORIGINS: Record<string, string> = { regular: "the schedule", trigger: "somebody, by hand", backfill: "a backfill" };

export function Schedule({ name }: { name: string }) {
  const asked = useAsk(`${name} ${namespace() ?? ""}`, (signal) => answer(api.GET("/v1/schedules/{name}", { params: { path: { name }, query: { namespace: namespace() } }, signal })), POLL_MS);
  const again = useSoon(asked.refresh, 400, 2_000, true);
  useEvents(again);
  if (isMissing(asked.error.value)) {
    return (
      <Empty page title="There is no such schedule" command="ff schedule ls">
        It never existed here, or it was deleted. Its runs are still in the list of executions.
      </Empty>
    );
  }
  const schedule = asked.data.value;
  if (!schedule) return asked.error.value === undefined ? <Loading lines={8} /> : <Refusal page error={asked.error.value} />;
  const facts: Fact[] = [
    ["runs", specWords(schedule.spec)],
    ["while a run has not ended", OVERLAP_WORDS[schedule.overlap]],
    ["after an outage", catchUpWords(schedule.catch_up)],
    ["jitter", schedule.jitter_ms ? `up to ${span(schedule.jitter_ms)}` : "none"],
    ["started", many(schedule.run_count, "run")],
    ["failed in a row", `${count(schedule.failures)}${schedule.pause_after_failures ? `, pauses at ${schedule.pause_after_failures}` : ""}`],
    ["created", <When at={schedule.created_at} />],
  ];
  if (schedule.starts_at) facts.push(["not before", exact(schedule.starts_at)]);
  if (schedule.ends_at) facts.push(["not after", exact(schedule.ends_at)]);
  if (schedule.buffered) facts.push(["waits for the latest run", exact(schedule.buffered)]);
  return (
    <>
      <div class="title">
        <State state={schedule.state} big />
        <h1>{schedule.name}</h1>
        {may("operator") && <ScheduleActs schedule={schedule} done={asked.refresh} all />}
      </div>
      <LastNote state={schedule.state} note={schedule.note} />
      <div class="grid-side">
        <div class="stack">
          <Card title="Last runs" tools={<a href={link(["executions"], { schedule: schedule.name })}>All that are kept</a>} flush>
            <Table
              label="Last runs"
              items={schedule.runs}
              empty={<Empty title="It has not run yet">Each instant shows up here with what became of it.</Empty>}
              columns={[
                { name: "Instant", cell: (run) => <span title={exact(run.scheduled_for)}><When at={run.scheduled_for} /></span> },
                { name: "What became of it", cell: (run) => <RunState run={run} /> },
                { name: "Started by", cell: (run) => ORIGINS[run.origin] ?? words(run.origin) },
                { name: "Decided", cell: (run) => <When at={run.at} /> },
              ]}
            />
          </Card>
          <Card title="What it creates">
            <div class="json">
              <Json value={schedule.template} open={3} />
            </div>
          </Card>
        </div>
        <div class="stack">
          <Card title="Next">
            {schedule.next.length === 0 ? (
              <p class="muted">{schedule.state === "paused" ? "Nothing while it is paused." : "It has no instants left."}</p>
            ) : (
              <ol class="stack tight">
                {schedule.next.map((at) => (
                  <li class="row between">
                    <span>{exact(at).slice(0, 19)}</span>
                    <span class="small muted">
                      <Countdown to={at} />
                    </span>
                  </li>
                ))}
              </ol>
            )}
            {schedule.next.length > 0 && schedule.spec.time_zone && <p class="small muted">Shown in your time zone, {Intl.DateTimeFormat().resolvedOptions().timeZone}.</p>}
          </Card>
          {(schedule.backfills ?? []).length > 0 && (
            <Card title="Backfills under way">
              {(schedule.backfills ?? []).map((backfill) => (
                <p class="small">
                  up to {exact(backfill.done_until)} of {exact(backfill.to)}
                </p>
              ))}
            </Card>
          )}
          <Card title="Details">
            <Facts facts={facts} />
          </Card>
          <Card title="From a terminal">
            <Command line={`ff schedule get ${quote(schedule.name)}`} />
          </Card>
        </div>
      </div>
    </>
  );
}
