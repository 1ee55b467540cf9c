// The list of flows.

import { answer, api } from "../api/client";
import { count, words } from "../format";
import { POLL_MS, useAsk, useEvents, useSoon } from "../live";
import { link, namespace, query, setQuery } from "../router";
import { Card, Command, Copy, Empty, Loading, Refusal, State, Tags, When } from "../ui/basics";

const STATES = ["open", "running", "blocked", "completed", "failed", "cancelled"] as const;

export function Flows() {
  const state = STATES.find((one) => one === query.value.get("state"));
  const flows = useAsk(`flows ${state} ${namespace() ?? ""}`, (signal) => answer(api.GET("/v1/flows", { params: { query: { namespace: namespace(), state, limit: 100 } }, signal })), POLL_MS);
  const again = useSoon(flows.refresh, 400, 2_000, true);
  useEvents((event) => event.event.flow_id && again());
  const items = flows.data.value?.items;
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
      {flows.error.value !== undefined && <Refusal error={flows.error.value} />}
      <Card title={items ? `${count(items.length)} flows, newest first` : "Flows"} flush>
        {items === undefined ? (
          <div class="body">
            <Loading lines={5} />
          </div>
        ) : items.length === 0 ? (
          <Empty title={state ? "No flow is in this state" : "There is no flow yet"} command="ff flow submit flow.yaml">
            A flow is a graph of executions: what depends on what, and what becomes of the rest when one fails.
          </Empty>
        ) : (
          <div class="scroll" tabIndex={0} role="region" aria-label="Flows">
            <table>
              <thead>
                <tr>
                  <th>State</th>
                  <th>Kind</th>
                  <th>Id</th>
                  <th class="num">Members</th>
                  <th>Where they are</th>
                  <th>Tags</th>
                  <th>Created</th>
                </tr>
              </thead>
              <tbody>
                {items.map((flow) => (
                  <tr>
                    <td>
                      <State state={flow.state} />
                    </td>
                    <td>
                      <a href={link(["flows", flow.flow_id])}>{flow.kind || "flow"}</a>
                    </td>
                    <td class="nowrap">
                      <code title={flow.flow_id}>…{flow.flow_id.slice(-12)}</code>
                      <Copy text={flow.flow_id} what="the id" />
                    </td>
                    <td class="num">{count(flow.member_count)}</td>
                    <td>
                      <span class="row small">
                        {Object.entries(flow.counts)
                          .filter(([, n]) => Number(n) > 0)
                          .map(([name, n]) => (
                            <span class={`state s-${name}`}>
                              <i aria-hidden="true" />
                              {count(Number(n))} {words(name)}
                            </span>
                          ))}
                      </span>
                    </td>
                    <td>
                      <Tags tags={flow.tags} />
                    </td>
                    <td>
                      <When at={flow.created_at} />
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </Card>
    </>
  );
}
