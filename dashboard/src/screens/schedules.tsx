// The list of schedules: what is created again and again, and when.

import { answer, api } from "../api/client";
import type { Schemas } from "../api/client";
import { count, exact, many, span, words } from "../format";
import { useRows } from "../keys";
import { POLL_MS, useAsk, useEvents, useSoon } from "../live";
import { link, namespace } from "../router";
import { may } from "../session";
import { ScheduleActs } from "../schedule/acts";
import { Card, Command, Countdown, Empty, Refusal, State, When } from "../ui/basics";
import { Table } from "../ui/table";

export type Run = Schemas["ScheduleRunView"];

/** When a schedule runs, in words. */
export function specWords(spec: Schemas["ScheduleSpec"]): string {
  if (spec.cron) return `${spec.cron} in ${spec.time_zone ?? "UTC"}`;
  if (spec.every_ms) return `every ${span(spec.every_ms)}`;
  const instants = spec.at ?? [];
  return instants.length === 1 ? `once, at ${exact(instants[0] ?? 0)}` : `at ${many(instants.length, "instant")}`;
}

/** An instant that ran: what became of it, with a link to what was created. */
export function RunState({ run }: { run: Run }) {
  const state = run.public_state ?? run.flow_state;
  const to = run.execution_id ? link(["executions", run.execution_id]) : run.flow_id ? link(["flows", run.flow_id]) : undefined;
  const shown = state ? <State state={state} /> : <State state={run.outcome === "refused" || run.outcome === "missed" ? "bad" : "none"} word={words(run.refused ? `refused: ${run.refused}` : run.outcome)} />;
  return to ? <a href={to}>{shown}</a> : shown;
}

export function Schedules() {
  const ns = namespace();
  const schedules = useAsk(`schedules ${ns ?? ""}`, (signal) => answer(api.GET("/v1/schedules", { params: { query: { namespace: ns, limit: 200 } }, signal })), POLL_MS);
  const again = useSoon(schedules.refresh, 400, 2_000, true);
  useEvents(again);
  useRows("main td a.open");
  const items = schedules.data.value?.items;
  return (
    <>
      <div class="title">
        <h1>Schedules</h1>
        <div class="row">
          <Command line="ff schedule ls" />
        </div>
      </div>
      {schedules.error.value !== undefined && <Refusal error={schedules.error.value} />}
      <Card title={items ? many(items.length, "schedule") : "Schedules"} flush>
        <Table
          label="Schedules"
          items={items}
          keyOf={(schedule) => schedule.schedule_id}
          empty={
            <Empty title="There is no schedule yet" command="ff schedule create nightly report --cron '0 2 * * *' --zone Europe/Berlin">
              A schedule creates an execution or a whole flow again and again: by a cron expression in a time zone, at an interval, or at given instants.
            </Empty>
          }
          columns={[
            { name: "Schedule", cell: (schedule) => <a class="open" href={link(["schedules", schedule.name])}>{schedule.name}</a> },
            {
              name: "State",
              cell: (schedule) => (
                <>
                  <State state={schedule.state} />
                  {schedule.state === "paused" && schedule.note && (
                    <div class="small muted">
                      {schedule.note.text} ({schedule.note.by})
                    </div>
                  )}
                </>
              ),
            },
            { name: "Runs", cell: (schedule) => specWords(schedule.spec) },
            { name: "Next", cell: (schedule) => (schedule.next_at ? <Countdown to={schedule.next_at} /> : <span class="muted">–</span>) },
            {
              name: "Last",
              cell: (schedule) =>
                schedule.last_run ? (
                  <>
                    <RunState run={schedule.last_run} /> <When at={schedule.last_run.scheduled_for} />
                  </>
                ) : (
                  <span class="muted">never</span>
                ),
            },
            { name: "Started", num: true, cell: (schedule) => count(schedule.run_count) },
            { name: "Failed in a row", num: true, cell: (schedule) => count(schedule.failures) },
            { name: "Actions", when: may("operator"), cell: (schedule) => <ScheduleActs schedule={schedule} done={schedules.refresh} /> },
          ]}
        />
      </Card>
    </>
  );
}
