// One flow: its graph beside its members over time.

import { answer, api, isMissing } from "../api/client";
import { words } from "../format";
import { POLL_MS, now, useAsk, useEvents, useSoon } from "../live";
import { link } from "../router";
import { Card, Command, Copy, Empty, Loading, Refusal, State, Tags, When } from "../ui/basics";
import { FlowActs } from "../flow/acts";
import { FlowGraph } from "../flow/graph";
import { Gantt } from "../flow/gantt";
import { criticalPath } from "../flow/layout";
import { MemberCounts } from "./flows";

export function Flow({ id }: { id: string }) {
  const graph = useAsk(id, (signal) => answer(api.GET("/v1/flows/{flow_id}/graph", { params: { path: { flow_id: id } }, signal })), POLL_MS);
  const again = useSoon(graph.refresh, 200, 1_000);
  useEvents((event) => event.event.flow_id === id && again());
  if (isMissing(graph.error.value)) {
    return (
      <Empty page title="There is no such flow" command="ff flow ls">
        It never existed, or its retention is over and it was removed. <a href={link(["flows"])}>The list of flows</a> has those that are there.
      </Empty>
    );
  }
  const found = graph.data.value;
  if (!found) return graph.error.value === undefined ? <Loading lines={8} /> : <Refusal page error={graph.error.value} />;
  const { flow } = found;
  const critical = criticalPath(found, now.peek());
  return (
    <>
      <div class="title">
        <State state={flow.state} big />
        <h1>{flow.kind || "flow"}</h1>
        <Copy text={id} what="the id" />
        <FlowActs flow={flow} done={graph.refresh} />
      </div>
      <section class={`notice row s-${flow.state}`} aria-label="About this flow">
        <MemberCounts counts={flow.counts as Record<string, number>} flow={id} />
        <span class="muted small">
          created <When at={flow.created_at} />
          {flow.ended_at && (
            <>
              , ended <When at={flow.ended_at} />
            </>
          )}
        </span>
        {Object.keys(flow.tags ?? {}).length > 0 && <Tags tags={flow.tags} />}
        {flow.cancellation && (
          <span class="small">
            cancelled ({words(flow.cancellation.policy)}){flow.cancellation.reason ? `: ${flow.cancellation.reason}` : ""}
          </span>
        )}
        <span class="grow" />
        <Command line={`ff flow get ${id}`} />
      </section>
      <Card title="Graph" tools={<span class="small muted">thick lines: the chain that decides how long it takes</span>} flush>
        {found.nodes.length === 0 ? <Empty title="It has no members yet">Members are added with the flow, or one by one.</Empty> : <FlowGraph graph={found} critical={critical} />}
      </Card>
      <Card title="Over time">
        <Gantt graph={found} critical={critical} />
      </Card>
    </>
  );
}
