// Lanes: how much waits in each, since when, and whether work is handed out.

import { answer, api } from "../api/client";
import type { Schemas } from "../api/client";
import { POLL_MS, useAsk, useEvents, useSoon } from "../live";
import { link, namespace } from "../router";
import { may, session } from "../session";
import { Card, Empty, Refusal, State, When } from "../ui/basics";
import { Table } from "../ui/table";
import { ActButtons } from "../ui/dialog";
import type { Act } from "../ui/dialog";
import { count, many, option, quote, span } from "../format";
import { useRows } from "../keys";
import { useClaimRates } from "../metrics";
import { fetchCounts, shown } from "./overview";

const ACTS = [
  { name: "Pause", path: "/v1/lanes/{lane}/pause", from: ["active", "draining", "disabled"], word: "pause", effect: "Running work goes on, nothing new is handed out. Submissions are still taken." },
  { name: "Drain", path: "/v1/lanes/{lane}/drain", from: ["active", "paused"], word: "drain", effect: "What is there is worked off, nothing new is taken." },
  { name: "Disable", path: "/v1/lanes/{lane}/disable", from: ["active", "paused", "draining"], word: "disable", effect: "Nothing is handed out, and submissions are refused." },
  { name: "Open", path: "/v1/lanes/{lane}/resume", from: ["paused", "draining", "disabled"], word: "resume", effect: "Work is handed out again." },
] as const;

type Lane = Schemas["LaneView"];
type Waiting = Schemas["WaitingCount"];

function sum(waiting: Waiting[]): Schemas["Count"] {
  return { value: waiting.reduce((all, one) => all + one.value, 0), more: waiting.some((one) => one.more) };
}

function earliest(waiting: Waiting[]): number | undefined {
  return waiting.reduce<number | undefined>((least, { next_created_at: at }) => (at && (!least || at < least) ? at : least), undefined);
}

export function Lanes() {
  const ns = namespace();
  const lanes = useAsk(`lanes ${ns ?? ""}`, (signal) => answer(api.GET("/v1/lanes", { params: { query: { namespace: ns, limit: 500 } }, signal })));
  const counts = useAsk(`counts ${ns ?? ""}`, fetchCounts, POLL_MS);
  const again = useSoon(counts.refresh, 800, 3_000, true);
  useEvents(again);
  const workers = useAsk(`workers ${ns ?? ""}`, (signal) => answer(api.GET("/v1/workers", { params: { query: { namespace: ns, limit: 500 } }, signal })));
  const claimed = useClaimRates();
  const rateOf = (lane: Lane) => {
    const rate = claimed.value?.get(lane.name);
    return rate === undefined ? "–" : `${rate.toFixed(1)} a second`;
  };
  const named = lanes.data.value?.items;
  // A lane that nobody has closed yet has no record: it is known by its workers and by what waits in it.
  const used = new Set([...(counts.data.value?.waiting ?? []).map((one) => one.lane), ...(workers.data.value?.items ?? []).flatMap((worker) => worker.lanes)]);
  for (const lane of named ?? []) used.delete(lane.name);
  const implied = [...used].map((name): Lane => ({ namespace: ns ?? session.value?.namespace ?? "default", name, state: "active", created_at: 0 }));
  const items =
    named &&
    [...named, ...implied]
      .sort((one, other) => (one.name < other.name ? -1 : 1))
      .map((lane) => ({ lane, waiting: (counts.data.value?.waiting ?? []).filter((one) => one.lane === lane.name) }));
  useRows("main td a.open");
  return (
    <>
      <h1>Lanes</h1>
      {lanes.error.value !== undefined && <Refusal error={lanes.error.value} />}
      <Card title={items ? many(items.length, "lane") : "Lanes"} flush>
        <Table
          label="Lanes"
          items={items}
          keyOf={({ lane }) => lane.name}
          empty={
            <Empty title="There is no lane yet" command={`ff submit shout '"hello"' --lane fast`}>
              A lane is a queue with a name. Using one creates it.
            </Empty>
          }
          columns={[
            { name: "Lane", cell: ({ lane }) => <a class="open" href={link(["executions"], { lane: lane.name })}>{lane.name}</a> },
            {
              name: "State",
              cell: ({ lane }) => (
                <>
                  <State state={lane.state} />
                  {lane.reason && <div class="small muted remark">{lane.reason}</div>}
                  {lane.aging_ms && <div class="small muted remark">{span(lane.aging_ms)} of age are worth one step of priority</div>}
                </>
              ),
            },
            { name: "Waiting", num: true, cell: ({ waiting }) => (counts.data.value ? shown(sum(waiting)) : "–") },
            {
              name: "By kind",
              cell: ({ lane, waiting }) => waiting.some((one) => one.kind) && (
                <span class="row tight">
                  {waiting.filter((one) => one.kind).map((one) => (
                    <a class="tag" href={link(["executions"], { lane: lane.name, kind: one.kind ?? undefined, state: "waiting" })}>
                      {one.kind} {shown(one)}
                    </a>
                  ))}
                </span>
              ),
            },
            { name: "Next in line since", cell: ({ waiting }) => <When at={earliest(waiting)} /> },
            { name: "Claims here", num: true, cell: ({ lane }) => <span title="claims that took work at this server, over the last ten seconds">{rateOf(lane)}</span> },
            { name: "Workers", num: true, cell: ({ lane }) => (workers.data.value ? count(workers.data.value.items.filter((worker) => worker.lanes.includes(lane.name)).length) : "–") },
            {
              name: "Changed",
              minor: true,
              cell: ({ lane }) => (
                <>
                  <When at={lane.changed_at} none="never" />
                  {lane.changed_by && <div class="small muted">by {lane.changed_by}</div>}
                </>
              ),
            },
            { name: "Actions", when: may("operator"), cell: ({ lane }) => <div class="pairs"><ActButtons label={`Actions on ${lane.name}`} acts={actsOf(lane)} done={lanes.refresh} /></div> },
          ]}
        />
      </Card>
    </>
  );
}

/** The acts that make sense in the state that a lane is in. */
function actsOf(lane: Lane): Act[] {
  const changes = ACTS.filter((act) => (act.from as readonly string[]).includes(lane.state)).map((act): Act => ({
    name: act.name,
    effect: act.effect,
    danger: act.name === "Disable",
    command: (values) => `ff lane ${act.word} ${quote(lane.name)}${option("reason", values["reason"])}`,
    fields: [{ name: "reason", label: "Reason, for the audit log", optional: true }],
    run: async (values) => {
      const body = { namespace: lane.namespace, ...(values["reason"] ? { reason: values["reason"] } : {}) };
      const changed = await answer(api.POST(act.path, { params: { path: { lane: lane.name } }, body }));
      return `${lane.name} is ${changed.state} now.`;
    },
  }));
  // A lane that nobody has closed yet has no record that could be forgotten.
  return lane.created_at > 0 ? [...changes, removalOf(lane)] : changes;
}

function removalOf(lane: Lane): Act {
  return {
    name: "Forget",
    effect: "The lane goes, with its state and who set it. A lane that is used again is active.",
    command: `ff lane rm ${quote(lane.name)}`,
    danger: true,
    forced: "If you forget it all the same, executions stay in it, and it is active for them.",
    run: async (_, force) => {
      const query = { namespace: lane.namespace, ...(force ? { force } : {}) };
      await answer(api.DELETE("/v1/lanes/{lane}", { params: { path: { lane: lane.name }, query } }));
      return `${lane.name} is forgotten.`;
    },
  };
}
