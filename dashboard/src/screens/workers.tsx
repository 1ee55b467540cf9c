// Workers: which are alive, what each can do and holds, and which waiting work none of them can take.

import { answer, api } from "../api/client";
import type { Schemas } from "../api/client";
import { count, quote, roughly, shortId } from "../format";
import { POLL_MS, now, useAsk } from "../live";
import { link, namespace } from "../router";
import { may } from "../session";
import { Card, Copy, Empty, Meter, Refusal, State, When } from "../ui/basics";
import { ActButtons } from "../ui/dialog";
import type { Act } from "../ui/dialog";
import { Table } from "../ui/table";
import { fetchCounts, shown } from "./overview";

/** Waiting executions that are asked why they wait. */
const LOOKED_AT_MAX = 20;
/** Reasons that mean that no live worker can take it. */
const UNSERVED = new Set(["no_worker", "kind_not_served", "no_capable_worker", "pinned_to_build"]);

type Worker = Schemas["WorkerView"];

/** Waiting work that no live worker can take. */
interface Unserved {
  kind: string;
  lane: string;
  why: string;
  /** One execution, or how many of them wait. */
  id?: string;
  waiting?: Schemas["WaitingCount"];
}

/** Whole kinds that no worker serves, as far as the counts tell: they cost no question. */
export function unservedKinds(waiting: Schemas["WaitingCount"][], workers: Worker[]): Unserved[] {
  return waiting.flatMap((one) => {
    const inLane = workers.filter((worker) => worker.lanes.includes(one.lane));
    const serves = (worker: Worker) => !one.kind || (worker.kinds ?? []).length === 0 || (worker.kinds ?? []).includes(one.kind);
    if (one.value === 0 || inLane.some(serves)) return [];
    const why = inLane.length === 0 ? `no live worker serves the lane ${one.lane}` : `no live worker in the lane ${one.lane} serves this kind`;
    return [{ kind: one.kind ?? "any kind", lane: one.lane, why, waiting: one }];
  });
}

/** Among the oldest that wait, those that no worker is capable of. */
async function incapable(abort: AbortSignal): Promise<Unserved[]> {
  const query = { namespace: namespace(), state: ["waiting" as const], order: "oldest" as const, limit: LOOKED_AT_MAX };
  const page = await answer(api.GET("/v1/executions", { params: { query }, signal: abort }));
  const found: Unserved[] = [];
  for (const item of page.items) {
    const why = await answer(api.GET("/v1/executions/{execution_id}/explain", { params: { path: { execution_id: item.execution_id } }, signal: abort })).catch(() => undefined);
    const reason = why?.reasons.find((one) => UNSERVED.has(one.code));
    if (reason) found.push({ id: item.execution_id, kind: item.kind, lane: item.lane, why: reason.message });
  }
  return found;
}

export function Workers() {
  const ns = namespace();
  const workers = useAsk(`workers ${ns ?? ""}`, (signal) => answer(api.GET("/v1/workers", { params: { query: { namespace: ns, limit: 500 } }, signal })), POLL_MS);
  const counts = useAsk(`counts ${ns ?? ""}`, fetchCounts, POLL_MS);
  const oldest = useAsk(`oldest ${ns ?? ""}`, incapable, POLL_MS * 6);
  const items = workers.data.value?.items;
  const groups = items && counts.data.value && unservedKinds(counts.data.value.waiting, items);
  const known = new Set(groups?.map((group) => `${group.lane} ${group.kind}`));
  const unserved = groups && oldest.data.value && [...groups, ...oldest.data.value.filter((one) => !known.has(`${one.lane} ${one.kind}`))];
  return (
    <>
      <h1>Workers</h1>
      {workers.error.value !== undefined && <Refusal error={workers.error.value} />}
      <Card title={items ? `${count(items.length)} alive` : "Workers"} flush>
        <Table
          label="Workers"
          items={items}
          keyOf={(worker) => worker.instance_id}
          empty={
            <Empty title="No worker is alive" command="ff worker --kind shout -- tr a-z A-Z">
              Any program can be a worker. One that stops, or whose machine is gone, leaves this list by itself.
            </Empty>
          }
          columns={[
            { name: "Worker", cell: (worker) => worker.worker_id },
            {
              name: "Instance",
              cell: (worker) => (
                <span class="nowrap">
                  <code title={worker.instance_id}>{shortId(worker.instance_id)}</code>
                  <Copy text={worker.instance_id} what="the instance" />
                </span>
              ),
            },
            { name: "Lanes", cell: (worker) => <span class="row tight">{worker.lanes.map((lane) => <a class="tag" href={link(["executions"], { lane })}>{lane}</a>)}</span> },
            { name: "Kinds", cell: (worker) => (worker.kinds ?? []).join(", ") || <span class="muted">every kind</span> },
            { name: "Capabilities", cell: (worker) => (worker.capabilities ?? []).join(", ") || <span class="muted">none</span> },
            { name: "Build", cell: (worker) => worker.version || <span class="muted">–</span> },
            {
              name: "Leases",
              cell: (worker) => (
                <>
                  {count(worker.leases_held)} of {count(worker.capacity)}
                  <Meter value={worker.leases_held} max={worker.capacity} label={`Leases of ${worker.instance_id}`} tone="s-active" />
                </>
              ),
            },
            { name: "Heartbeat", cell: (worker) => <Heartbeat worker={worker} /> },
            { name: "Since", minor: true, cell: (worker) => <When at={worker.registered_at} /> },
            {
              name: "Actions",
              when: may("operator"),
              cell: (worker) => <ActButtons label={`Actions on ${worker.instance_id}`} acts={[removalOf(worker)]} done={workers.refresh} />,
            },
          ]}
        />
      </Card>
      <Card title="Waiting work that no live worker can take" flush>
        <Table
          label="Waiting work that no live worker can take"
          items={unserved}
          empty={
            <Empty title="Every kind that waits has a worker" command="ff worker --kind shout -- tr a-z A-Z">
              The {LOOKED_AT_MAX} oldest that wait were asked for their capabilities, too.
            </Empty>
          }
          columns={[
            {
              name: "Kind",
              cell: (one) => <a href={one.id ? link(["executions", one.id]) : link(["executions"], { state: "waiting", lane: one.lane, kind: one.waiting?.kind ?? undefined })}>{one.kind}</a>,
            },
            { name: "Lane", cell: (one) => one.lane },
            { name: "Waiting", num: true, cell: (one) => (one.waiting ? shown(one.waiting) : "1") },
            { name: "Why", cell: (one) => one.why },
          ]}
        />
      </Card>
    </>
  );
}

/** How long ago a worker was heard of; a warning comes before it counts as gone. */
function Heartbeat({ worker }: { worker: Worker }) {
  const age = Math.max(0, now.value - worker.last_heartbeat_at);
  const life = worker.expires_at - worker.last_heartbeat_at;
  return (
    <span class="nowrap">
      <State state={life > 0 && age > life * 0.75 ? "warn" : "ok"} /> <span class="small muted">{roughly(age)} ago</span>
    </span>
  );
}

function removalOf(worker: Worker): Act {
  return {
    name: "Remove",
    effect: "Its registration goes, so that another process may use the name. Its leases run out by themselves. A worker that is alive registers again.",
    command: `ff worker rm ${quote(worker.instance_id)}`,
    danger: true,
    run: async () => {
      await answer(api.DELETE("/v1/workers/{instance_id}", { params: { path: { instance_id: worker.instance_id }, query: { namespace: worker.namespace } } }));
      return `${worker.instance_id} is removed.`;
    },
  };
}
