// Lanes: how much waits in each, since when, and whether work is handed out.

import { answer, api } from "../api/client";
import type { Schemas } from "../api/client";
import { POLL_MS, useAsk, useEvents, useSoon } from "../live";
import { link, namespace } from "../router";
import { may, session } from "../session";
import { Card, Empty, Loading, Refusal, State, When } from "../ui/basics";
import { propose } from "../ui/dialog";
import { quote } from "../format";
import { fetchCounts, shown } from "./overview";

const ACTS = [
  { name: "Pause", path: "/v1/lanes/{lane}/pause", from: ["active", "draining", "disabled"], word: "pause", effect: "Running work goes on, nothing new is handed out. Submissions are still taken." },
  { name: "Drain", path: "/v1/lanes/{lane}/drain", from: ["active", "paused"], word: "drain", effect: "What is there is worked off, nothing new is taken." },
  { name: "Disable", path: "/v1/lanes/{lane}/disable", from: ["active", "paused", "draining"], word: "disable", effect: "Nothing is handed out, and submissions are refused." },
  { name: "Open", path: "/v1/lanes/{lane}/resume", from: ["paused", "draining", "disabled"], word: "resume", effect: "Work is handed out again." },
] as const;

type Lane = Schemas["LaneView"];

export function Lanes() {
  const ns = namespace();
  const lanes = useAsk(`lanes ${ns ?? ""}`, (signal) => answer(api.GET("/v1/lanes", { params: { query: { namespace: ns, limit: 500 } }, signal })));
  const counts = useAsk(`counts ${ns ?? ""}`, fetchCounts, POLL_MS);
  const again = useSoon(counts.refresh, 800, 3_000, true);
  useEvents(again);
  const workers = useAsk(`workers ${ns ?? ""}`, (signal) => answer(api.GET("/v1/workers", { params: { query: { namespace: ns, limit: 500 } }, signal })));
  const named = lanes.data.value?.items;
  // A lane that nobody has closed yet has no record: it is known by its workers and by what waits in it.
  const used = new Set([...(counts.data.value?.waiting ?? []).map((one) => one.lane), ...(workers.data.value?.items ?? []).flatMap((worker) => worker.lanes)]);
  for (const lane of named ?? []) used.delete(lane.name);
  const implied = [...used].map((name): Lane => ({ namespace: ns ?? session.value?.namespace ?? "default", name, state: "active", created_at: 0 }));
  const items = named && [...named, ...implied].sort((one, other) => (one.name < other.name ? -1 : 1));
  return (
    <>
      <h1>Lanes</h1>
      {lanes.error.value !== undefined && <Refusal error={lanes.error.value} />}
      <Card title={items ? `${items.length} lanes` : "Lanes"} flush>
        {items === undefined ? (
          <div class="body">
            <Loading />
          </div>
        ) : items.length === 0 ? (
          <Empty title="There is no lane yet" command={`ff submit shout '"hello"' --lane fast`}>
            A lane is a queue with a name. Using one creates it.
          </Empty>
        ) : (
          <div class="scroll" tabIndex={0} role="region" aria-label="Lanes">
            <table>
              <thead>
                <tr>
                  <th>Lane</th>
                  <th>State</th>
                  <th class="num">Waiting</th>
                  <th>By kind</th>
                  <th>Next in line since</th>
                  <th>Changed</th>
                  {may("operator") && <th>Actions</th>}
                </tr>
              </thead>
              <tbody>
                {items.map((lane) => {
                  const waiting = (counts.data.value?.waiting ?? []).filter((one) => one.lane === lane.name);
                  const total = { value: waiting.reduce((sum, one) => sum + one.value, 0), more: waiting.some((one) => one.more) };
                  const oldest = waiting.map((one) => one.next_created_at ?? Infinity).reduce((a, b) => Math.min(a, b), Infinity);
                  return (
                    <tr>
                      <td>
                        <a href={link(["executions"], { lane: lane.name })}>{lane.name}</a>
                      </td>
                      <td>
                        <State state={lane.state} />
                        {lane.reason && <div class="small muted">{lane.reason}</div>}
                      </td>
                      <td class="num">{counts.data.value ? shown(total) : "–"}</td>
                      <td>
                        <span class="row tight">
                          {waiting.filter((one) => one.kind).map((one) => (
                            <a class="tag" href={link(["executions"], { lane: lane.name, kind: one.kind ?? undefined, state: "waiting" })}>
                              {one.kind} {shown(one)}
                            </a>
                          ))}
                        </span>
                      </td>
                      <td>{oldest < Infinity ? <When at={oldest} /> : <span class="muted">–</span>}</td>
                      <td>
                        <When at={lane.changed_at} none="never" />
                        {lane.changed_by && <div class="small muted">by {lane.changed_by}</div>}
                      </td>
                      {may("operator") && (
                        <td>
                          <span class="row tight">
                            {ACTS.filter((act) => (act.from as readonly string[]).includes(lane.state)).map((act) => (
                              <button
                                type="button"
                                class={`button small ${act.name === "Disable" ? "danger" : ""}`}
                                onClick={() =>
                                  propose({
                                    name: `${act.name} ${lane.name}`,
                                    effect: act.effect,
                                    danger: act.name === "Disable",
                                    command: `ff lane ${act.word} ${quote(lane.name)}`,
                                    fields: [{ name: "reason", label: "Reason, for the audit log", optional: true }],
                                    run: async (values) => {
                                      const body = { namespace: lane.namespace, ...(values["reason"] ? { reason: values["reason"] } : {}) };
                                      const done = await answer(api.POST(act.path, { params: { path: { lane: lane.name } }, body }));
                                      lanes.refresh();
                                      return `${lane.name} is ${done.state} now.`;
                                    },
                                  })
                                }
                              >
                                {act.name}
                              </button>
                            ))}
                          </span>
                        </td>
                      )}
                    </tr>
                  );
                })}
              </tbody>
            </table>
          </div>
        )}
      </Card>
    </>
  );
}
