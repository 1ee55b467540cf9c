// The system: events as they come, the audit, tokens, the deployment.

import { signal, useSignal } from "@preact/signals";
import { answer, api } from "../api/client";
import { count, exact, words } from "../format";
import { useAsk, useEvents } from "../live";
import type { DeploymentEvent } from "../live";
import { go, link, namespace } from "../router";
import { may } from "../session";
import { Card, Command, Copy, Empty, Loading, Refusal, When } from "../ui/basics";
import { propose } from "../ui/dialog";

const TABS = ["events", "audit", "tokens", "deployment"] as const;

/** Events this page has seen, the newest first. */
const seen = signal<DeploymentEvent[]>([]);
const SEEN_MAX = 300;

export function System({ tab }: { tab: string }) {
  const here = TABS.find((one) => one === tab) ?? "events";
  useEvents((event) => {
    if (!seen.value.some((one) => one.event_id === event.event_id)) seen.value = [event, ...seen.value].slice(0, SEEN_MAX);
  });
  const shown = TABS.filter((one) => one === "events" || one === "deployment" || may("admin"));
  return (
    <>
      <h1>System</h1>
      <section class="card">
        <div class="tabs" role="tablist" aria-label="About the system">
          {shown.map((name) => (
            <button type="button" role="tab" id={`tab-${name}`} aria-selected={here === name} aria-controls="tabpanel" onClick={() => go(link(["system", name]))}>
              {words(name)}
            </button>
          ))}
        </div>
        <div id="tabpanel" role="tabpanel" aria-labelledby={`tab-${here}`} tabIndex={0}>
          {here === "events" && <Events />}
          {here === "audit" && <Audit />}
          {here === "tokens" && <Tokens />}
          {here === "deployment" && <Deployment />}
        </div>
      </section>
    </>
  );
}

function Events() {
  if (seen.value.length === 0) {
    return (
      <Empty title="Nothing has happened since this page was opened" command="ff events --follow">
        Completions, leases and signals of the whole deployment show up here as they happen.
      </Empty>
    );
  }
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Rows">
      <table>
        <thead>
          <tr>
            <th>When</th>
            <th>What</th>
            <th>Execution</th>
            <th>Namespace</th>
            <th>Worker</th>
            <th>Detail</th>
          </tr>
        </thead>
        <tbody>
          {seen.value.map((item) => (
            <tr key={item.event_id}>
              <td>
                <When at={item.happened_at} />
              </td>
              <td>{words(item.event.event_type ?? "")}</td>
              <td>
                <a href={link(["executions", item.event.execution_id ?? ""])}>{item.event.execution_kind || "execution"}</a>
              </td>
              <td>{item.event.namespace}</td>
              <td>{item.event.worker_id ?? ""}</td>
              <td>{item.event.detail ?? ""}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Audit() {
  const more = useSignal<string | undefined>(undefined);
  const audit = useAsk(`audit ${namespace() ?? ""} ${more.value ?? ""}`, (signal) => answer(api.GET("/v1/admin/audit", { params: { query: { limit: 100, cursor: more.value } }, signal })));
  if (audit.error.value !== undefined) return <Refusal error={audit.error.value} />;
  if (!audit.data.value) return <div class="body"><Loading /></div>;
  if (audit.data.value.items.length === 0) {
    return (
      <Empty title="No administrative act yet" command="ff lane pause default">
        Everything an operator does leaves a record: who, what, on what, with which outcome.
      </Empty>
    );
  }
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Rows">
      <table>
        <thead>
          <tr>
            <th>When</th>
            <th>Who</th>
            <th>What</th>
            <th>Target</th>
            <th>Outcome</th>
            <th>Detail</th>
          </tr>
        </thead>
        <tbody>
          {audit.data.value.items.map((item) => (
            <tr>
              <td>
                <When at={item.at} />
              </td>
              <td>{item.who}</td>
              <td>{words(item.what ?? "")}</td>
              <td>
                <code>{item.target}</code>
              </td>
              <td>{words(item.outcome ?? "")}</td>
              <td>{item.detail}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {audit.data.value.next_cursor && (
        <div class="body">
          <button type="button" class="button small" onClick={() => (more.value = audit.data.value?.next_cursor ?? undefined)}>
            Older
          </button>
        </div>
      )}
    </div>
  );
}

function Tokens() {
  const tokens = useAsk("tokens", (signal) => answer(api.GET("/v1/admin/tokens", { params: { query: { limit: 500 } }, signal })));
  const fresh = useSignal<{ name: string; secret: string } | undefined>(undefined);
  const create = () =>
    propose({
      name: "Make a token",
      effect: "A new token with this role. Its secret is shown once, on this page, and never again.",
      command: "ff token create NAME --role reader",
      fields: [
        { name: "name", label: "Name" },
        { name: "role", label: "Role", type: "select", options: ["reader", "submitter", "worker", "approver", "operator", "admin"], value: "reader" },
        { name: "namespace", label: "Namespace (every one if empty)", optional: true },
      ],
      run: async (values) => {
        const done = await answer(api.POST("/v1/admin/tokens", { body: { name: values["name"] ?? "", role: values["role"] as never, namespace: values["namespace"] || null } }));
        fresh.value = { name: done.token.name ?? "", secret: done.secret };
        tokens.refresh();
        return `The token ${done.token.name} is made.`;
      },
    });
  if (tokens.error.value !== undefined) return <Refusal error={tokens.error.value} />;
  const items = tokens.data.value?.items;
  return (
    <div class="stack">
      <div class="body row">
        <button type="button" class="button small" onClick={create}>
          Make a token
        </button>
      </div>
      {fresh.value && (
        <div class="body">
          <div class="notice stack">
            <strong>The secret of {fresh.value.name}, shown once</strong>
            <span class="row tight">
              <code>{fresh.value.secret}</code>
              <Copy text={fresh.value.secret} what="the token" />
            </span>
          </div>
        </div>
      )}
      {items === undefined ? (
        <Loading />
      ) : items.length === 0 ? (
        <Empty title="There is no token yet" command="ff token create ci --role submitter">
          A token says who calls and what it may do. Those of the configuration are not listed.
        </Empty>
      ) : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Rows">
          <table>
            <thead>
              <tr>
                <th>Name</th>
                <th>Role</th>
                <th>Namespace</th>
                <th>Made</th>
                <th>Good until</th>
                <th>Actions</th>
              </tr>
            </thead>
            <tbody>
              {items.map((token) => (
                <tr>
                  <td>{token.name}</td>
                  <td>{token.role}</td>
                  <td>{token.namespace}</td>
                  <td>
                    <When at={token.created_at} /> <span class="small muted">by {token.created_by}</span>
                  </td>
                  <td>{token.revoked_at ? <>revoked <When at={token.revoked_at} /></> : <When at={token.expires_at} none="it is revoked" />}</td>
                  <td>
                    {!token.revoked_at && (
                      <button
                        type="button"
                        class="button small danger"
                        onClick={() =>
                          propose({
                            name: `Revoke ${token.name}`,
                            effect: "Everything that uses this token is refused within a second, sessions of browsers, too.",
                            command: `ff token revoke ${token.name}`,
                            danger: true,
                            run: async () => {
                              await answer(api.DELETE("/v1/admin/tokens/{name}", { params: { path: { name: token.name ?? "" } } }));
                              tokens.refresh();
                              return `${token.name} is revoked.`;
                            },
                          })
                        }
                      >
                        Revoke
                      </button>
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </div>
  );
}

function Deployment() {
  const deployment = useAsk("deployment", (signal) => answer(api.GET("/v1/deployment", { signal })));
  const health = useAsk("readyz", async (signal) => (await (await fetch("/readyz", { signal })).text()).trim());
  const found = deployment.data.value;
  if (deployment.error.value !== undefined) return <Refusal error={deployment.error.value} />;
  if (!found) return <div class="body"><Loading /></div>;
  return (
    <div class="body stack">
      <dl class="facts">
        <dt>program</dt>
        <dd>{found.version}</dd>
        <dt>store</dt>
        <dd>
          {found.store} {found.store_version}
        </dd>
        <dt>an acknowledged change survives</dt>
        <dd>{found.durability}</dd>
        <dt>partitions</dt>
        <dd>
          {count(found.partitions.flow)} of executions and flows, {count(found.partitions.budget)} of budgets, {count(found.partitions.quota)} of quotas
        </dd>
        <dt>time of the store</dt>
        <dd>{exact(found.now)}</dd>
        <dt>this server</dt>
        <dd>
          <pre>{health.data.value ?? ""}</pre>
        </dd>
        <dt>documents that cannot be read</dt>
        <dd>{count(found.undecodable ?? 0)}</dd>
      </dl>
      {(found.undecodable_entries ?? []).length > 0 && (
        <Card title="They cannot be read" flush>
          <table>
            <tbody>
              {(found.undecodable_entries ?? []).map((entry) => (
                <tr>
                  <td>
                    <code>{entry.key}</code>
                  </td>
                  <td>{entry.error}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Card>
      )}
      <div class="row">
        <Command line="ff doctor" />
        <a href="/metrics" target="_blank" rel="noopener">
          Metrics
        </a>
      </div>
    </div>
  );
}
