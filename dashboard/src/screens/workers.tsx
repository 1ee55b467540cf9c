// Workers: who is alive, what each can do and holds, and which waiting work nobody can run.

import { answer, api } from "../api/client";
import { count, span } from "../format";
import { POLL_MS, now, useAsk } from "../live";
import { link, namespace } from "../router";
import { may } from "../session";
import { Card, Copy, Empty, Loading, Meter, Refusal, State, When } from "../ui/basics";
import { propose } from "../ui/dialog";

/** Waiting executions that are asked why they wait. */
const LOOKED_AT_MAX = 20;

interface Stuck {
  id: string;
  kind: string;
  lane: string;
  message: string;
}

/** Waiting work that no live worker can take, among the oldest of each page. */
async function stuck(abort: AbortSignal): Promise<Stuck[]> {
  const page = await answer(api.GET("/v1/executions", { params: { query: { namespace: namespace(), state: ["waiting"], order: "oldest", limit: LOOKED_AT_MAX } }, signal: abort }));
  const found: Stuck[] = [];
  for (const item of page.items) {
    const why = await answer(api.GET("/v1/executions/{execution_id}/explain", { params: { path: { execution_id: item.execution_id } }, signal: abort })).catch(() => undefined);
    const reason = why?.reasons.find((one) => one.code === "no_worker" || one.code === "no_capable_worker");
    if (reason) found.push({ id: item.execution_id, kind: item.kind, lane: item.lane, message: reason.message });
  }
  return found;
}

export function Workers() {
  const ns = namespace();
  const workers = useAsk(`workers ${ns ?? ""}`, (signal) => answer(api.GET("/v1/workers", { params: { query: { namespace: ns, limit: 500 } }, signal })), POLL_MS);
  const nobody = useAsk(`stuck ${ns ?? ""}`, stuck, POLL_MS * 6);
  const items = workers.data.value?.items as (Worker & { build_id?: string })[] | undefined;
  return (
    <>
      <h1>Workers</h1>
      {workers.error.value !== undefined && <Refusal error={workers.error.value} />}
      <Card title={items ? `${items.length} alive` : "Workers"} flush>
        {items === undefined ? (
          <div class="body">
            <Loading />
          </div>
        ) : items.length === 0 ? (
          <Empty title="No worker is alive" command="ff worker --kind shout -- tr a-z A-Z">
            Any program is a worker. A worker that stops hearing from the server, or whose machine is gone, leaves this list by itself.
          </Empty>
        ) : (
          <div class="scroll" tabIndex={0} role="region" aria-label="Workers">
            <table>
              <thead>
                <tr>
                  <th>Worker</th>
                  <th>Instance</th>
                  <th>Lanes</th>
                  <th>Can do</th>
                  <th>Build</th>
                  <th>Leases</th>
                  <th>Heartbeat</th>
                  <th>Since</th>
                  {may("operator") && <th>Actions</th>}
                </tr>
              </thead>
              <tbody>
                {items.map((worker) => {
                  const age = now.value - worker.last_heartbeat_at;
                  const life = worker.expires_at - worker.last_heartbeat_at;
                  return (
                    <tr>
                      <td>{worker.worker_id}</td>
                      <td>
                        <span class="row tight">
                          <code>{worker.instance_id}</code>
                          <Copy text={worker.instance_id} what="the instance" />
                        </span>
                      </td>
                      <td>
                        <span class="row tight">{worker.lanes.map((lane) => <a class="tag" href={link(["executions"], { lane })}>{lane}</a>)}</span>
                      </td>
                      <td>{(worker.capabilities ?? []).length > 0 ? (worker.capabilities ?? []).join(", ") : <span class="muted">what needs nothing</span>}</td>
                      <td>{worker.build_id || worker.version || <span class="muted">–</span>}</td>
                      <td>
                        {count(worker.leases_held)} of {count(worker.capacity)}
                        <Meter value={worker.leases_held} max={worker.capacity} label={`Leases of ${worker.instance_id}`} tone="s-active" />
                      </td>
                      <td>
                        <State state={life > 0 && age > life * 0.75 ? "warn" : "ok"} /> <span class="small muted">{span(Math.max(0, age))} ago</span>
                      </td>
                      <td>
                        <When at={worker.registered_at} />
                      </td>
                      {may("operator") && (
                        <td>
                          <button
                            type="button"
                            class="button small danger"
                            onClick={() =>
                              propose({
                                name: `Remove ${worker.instance_id}`,
                                effect: "Its registration goes, so that another process may use the name. Its leases run out by themselves. A worker that is alive registers again.",
                                danger: true,
                                run: async () => {
                                  await answer(api.DELETE("/v1/workers/{instance_id}", { params: { path: { instance_id: worker.instance_id }, query: { namespace: worker.namespace } } }));
                                  workers.refresh();
                                  return "Removed.";
                                },
                              })
                            }
                          >
                            Remove
                          </button>
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
      <Card title="Waiting work that nobody here can run" flush>
        {nobody.data.value === undefined ? (
          <div class="body">
            <Loading lines={2} />
          </div>
        ) : nobody.data.value.length === 0 ? (
          <Empty title="Every waiting execution has a worker">The {LOOKED_AT_MAX} oldest that wait were asked.</Empty>
        ) : (
          <table>
            <tbody>
              {nobody.data.value.map((one) => (
                <tr>
                  <td>
                    <a href={link(["executions", one.id])}>{one.kind}</a> <span class="muted small">in lane {one.lane}</span>
                  </td>
                  <td>{one.message}</td>
                </tr>
              ))}
            </tbody>
          </table>
        )}
      </Card>
    </>
  );
}

interface Worker {
  namespace: string;
  worker_id: string;
  instance_id: string;
  lanes: string[];
  capabilities?: string[];
  capacity: number;
  version?: string;
  registered_at: number;
  last_heartbeat_at: number;
  expires_at: number;
  leases_held: number;
}
