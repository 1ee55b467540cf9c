// The list of flows.

import { answer, api } from "../api/client";
import { count, many, span, words } from "../format";
import { useRows } from "../keys";
import { POLL_MS, useEvents, useSoon } from "../live";
import { More, usePages } from "../pages";
import { link, namespace, query, setQuery } from "../router";
import { Card, Command, Copy, Empty, Refusal, State, Tags, When } from "../ui/basics";
import { Table } from "../ui/table";

/** Flows that a page brings. */
const PAGE = 100;
const STATES = ["open", "running", "blocked", "completed", "failed", "cancelled"] as const;

export function Flows() {
  const state = STATES.find((one) => one === query.value.get("state"));
  const flows = usePages(
    `flows ${state} ${namespace() ?? ""}`,
    (cursor, signal) => answer(api.GET("/v1/flows", { params: { query: { namespace: namespace(), state, limit: PAGE, cursor } }, ...(signal ? { signal } : {}) })),
    (flow) => flow.flow_id,
    POLL_MS,
  );
  const again = useSoon(flows.refresh, 400, 2_000, true);
  useEvents((event) => event.event.flow_id && again());
  useRows("main td a.open");
  const { items } = flows;
  return (
    <>
      <h1>Flows</h1>
      <div class="row" role="group" aria-label="States">
        {STATES.map((one) => (
          <button type="button" class="chip" aria-pressed={state === one} onClick={() => setQuery({ state: state === one ? undefined : one })}>
            {words(one)}
          </button>
        ))}
        <span class="grow" />
        <Command line={`ff flow ls${state ? ` --state ${state}` : ""}`} />
      </div>
      {flows.error !== undefined && <Refusal error={flows.error} />}
      <Card title={items && !flows.more ? `${many(items.length, "flow")}, newest first` : "Newest first"} flush>
        <Table
          label="Flows"
          items={items}
          keyOf={(flow) => flow.flow_id}
          empty={
            <Empty title={state ? "No flow is in this state" : "There is no flow yet"} command="ff flow submit flow.yaml">
              A flow is a graph of executions: what depends on what, and what becomes of the rest when one fails.
            </Empty>
          }
          columns={[
            { name: "State", cell: (flow) => <State state={flow.state} /> },
            { name: "Kind", cell: (flow) => <a class="open" href={link(["flows", flow.flow_id])}>{flow.kind || "flow"}</a> },
            {
              name: "Id",
              cell: (flow) => (
                <span class="nowrap">
                  <code title={flow.flow_id}>…{flow.flow_id.slice(-12)}</code>
                  <Copy text={flow.flow_id} what="the id" />
                </span>
              ),
            },
            { name: "Members", num: true, cell: (flow) => count(flow.member_count) },
            { name: "Where they are", cell: (flow) => <MemberCounts counts={flow.counts} /> },
            { name: "Tags", cell: (flow) => <Tags tags={flow.tags} /> },
            { name: "Created", cell: (flow) => <When at={flow.created_at} /> },
            { name: "Took", cell: (flow) => (flow.ended_at ? span(flow.ended_at - flow.created_at) : <span class="muted">–</span>) },
          ]}
        />
        <More pages={flows} />
      </Card>
    </>
  );
}

/** How many members are in each state; a link each where a flow is named. */
export function MemberCounts({ counts, flow }: { counts: Record<string, number>; flow?: string }) {
  const found = Object.entries(counts).filter(([, n]) => n > 0);
  const inner = (name: string, n: number) => (
    <>
      <i aria-hidden="true" />
      {count(n)} {words(name)}
    </>
  );
  return (
    <span class="row small">
      {found.map(([name, n]) =>
        flow ? (
          <a class={`state s-${name}`} href={link(["executions"], { flow, state: name })}>
            {inner(name, n)}
          </a>
        ) : (
          <span class={`state s-${name}`}>{inner(name, n)}</span>
        ),
      )}
    </span>
  );
}
