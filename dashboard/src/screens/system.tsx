// The system: events as they come, the audit, tokens, the deployment.

import { useSignal } from "@preact/signals";
import { answer, api } from "../api/client";
import type { Schemas } from "../api/client";
import { count, exact, many, option, quote, shortId, span, words } from "../format";
import { type DeploymentEvent, seen, useAsk, useEvents } from "../live";
import { fetchMetrics } from "../metrics";
import { total } from "../prometheus";
import { go, link } from "../router";
import { may, session } from "../session";
import { Card, Command, Copy, Empty, type Fact, Facts, Loading, Refusal, State, When } from "../ui/basics";
import { propose } from "../ui/dialog";
import { Table } from "../ui/table";
import { Tabs, tabId } from "../ui/tabs";
import { detailOf } from "./execution";

const TABS = ["events", "audit", "tokens", "deployment"] as const;

export function System({ tab }: { tab: string }) {
  const here = TABS.find((one) => one === tab) ?? "events";
  // The stream is open while somebody listens.
  useEvents(() => undefined);
  const shown = TABS.filter((one) => one === "events" || one === "deployment" || may("admin"));
  return (
    <>
      <h1>System</h1>
      <section class="card">
        <Tabs label="About the system" names={shown} here={here} choose={(name) => go(link(["system", name]))} />
        <div id="tabpanel" role="tabpanel" aria-labelledby={tabId(here)} tabIndex={0}>
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
  return (
    <Table
      label="Events"
      items={seen.value}
      keyOf={(item) => item.event_id}
      empty={
        <Empty title="Nothing has happened since this page was opened" command="ff events --follow">
          Completions, leases, signals, suspensions and passed limits of the whole deployment show up here as they happen.
        </Empty>
      }
      columns={[
        { name: "When", cell: (item) => <When at={item.happened_at} /> },
        { name: "What", cell: (item) => words(item.event.event_type ?? "") },
        { name: "About", cell: (item) => <About event={item.event} /> },
        { name: "Namespace", cell: (item) => item.event.namespace },
        { name: "Worker", cell: (item) => item.event.worker_id ?? "" },
        { name: "Detail", cell: (item) => detailOf(item.event) },
      ]}
    />
  );
}

/** The execution that an event is about, or the budget whose limit was passed. */
function About({ event }: { event: DeploymentEvent["event"] }) {
  if (event.breach) return <a href={link(["budgets", event.breach.budget ?? ""])}>{event.breach.budget}</a>;
  return <a href={link(["executions", event.execution_id ?? ""])}>{event.execution_kind || "execution"}</a>;
}

function Audit() {
  const cursor = useSignal<string | undefined>(undefined);
  const audit = useAsk(`audit ${cursor.value ?? ""}`, (signal) => answer(api.GET("/v1/admin/audit", { params: { query: { limit: 100, cursor: cursor.value } }, signal })));
  if (audit.error.value !== undefined) return <Refusal error={audit.error.value} />;
  const next = audit.data.value?.next_cursor;
  return (
    <>
      <Table
        label="Audit"
        items={audit.data.value?.items}
        empty={
          <Empty title="No administrative act yet" command="ff lane pause default">
            Everything an operator does leaves a record: who, what, on what, with which outcome.
          </Empty>
        }
        columns={[
          { name: "When", cell: (item) => <When at={item.at} /> },
          { name: "Who", cell: (item) => item.who },
          { name: "What", cell: (item) => words(item.what ?? "") },
          { name: "Target", cell: (item) => item.target && <code>{item.target}</code> },
          { name: "Outcome", cell: (item) => words(item.outcome ?? "") },
          { name: "Detail", cell: (item) => item.detail },
        ]}
      />
      {(next || cursor.value) && (
        <div class="body row">
          {cursor.value && (
            <button type="button" class="button small" onClick={() => (cursor.value = undefined)}>
              Newest
            </button>
          )}
          {next && (
            <button type="button" class="button small" onClick={() => (cursor.value = next)}>
              Older
            </button>
          )}
        </div>
      )}
    </>
  );
}

/** The namespace of a token that reaches every one. */
const EVERYWHERE = "*";

function Tokens() {
  const tokens = useAsk("tokens", (signal) => answer(api.GET("/v1/admin/tokens", { params: { query: { limit: 500 } }, signal })));
  // A token that reaches one namespace makes tokens for that one.
  const own = session.value?.namespace;
  const fresh = useSignal<{ name: string; secret: string } | undefined>(undefined);
  const create = () =>
    propose({
      name: "Make a token",
      effect: "A new token with this role. Its secret is shown once, on this page, and never again.",
      command: (values) => `ff token create ${quote(values["name"] || "NAME")} --role ${values["role"]}${own ? "" : values["namespace"] ? option("namespace", values["namespace"]) : " --everywhere"}`,
      fields: [
        { name: "name", label: "Name" },
        { name: "role", label: "Role", type: "select", options: ["reader", "submitter", "worker", "approver", "operator", "admin"], value: "reader" },
        ...(own ? [] : [{ name: "namespace", label: "Namespace (every one if empty)", optional: true }]),
      ],
      run: async (values) => {
        const done = await answer(api.POST("/v1/admin/tokens", { body: { name: values["name"] ?? "", role: values["role"] as never, namespace: values["namespace"] || (own ? null : EVERYWHERE) } }));
        fresh.value = { name: done.token.name ?? "", secret: done.secret };
        tokens.refresh();
        return `The token ${done.token.name} is made.`;
      },
    });
  const revoke = (name: string) =>
    propose({
      name: `Revoke ${name}`,
      effect: "Everything that uses this token is refused within a second, sessions of browsers, too.",
      command: `ff token revoke ${quote(name)}`,
      danger: true,
      run: async () => {
        await answer(api.DELETE("/v1/admin/tokens/{name}", { params: { path: { name } } }));
        tokens.refresh();
        return `${name} is revoked.`;
      },
    });
  if (tokens.error.value !== undefined) return <Refusal error={tokens.error.value} />;
  return (
    <>
      <div class="body stack">
        <div class="row">
          <button type="button" class="button small" onClick={create}>
            Make a token
          </button>
        </div>
        {fresh.value && (
          <div class="notice stack">
            <strong>The secret of {fresh.value.name}, shown once</strong>
            <span class="row tight">
              <code>{fresh.value.secret}</code>
              <Copy text={fresh.value.secret} what="the token" />
            </span>
          </div>
        )}
      </div>
      <Table
        label="Tokens"
        items={tokens.data.value?.items}
        keyOf={(token) => token.name ?? ""}
        empty={
          <Empty title="There is no token yet" command="ff token create ci --role submitter">
            A token says who calls and what it may do. Those of the configuration are not listed.
          </Empty>
        }
        columns={[
          { name: "Name", cell: (token) => token.name },
          { name: "Role", cell: (token) => token.role },
          { name: "Namespace", cell: (token) => (token.namespace && token.namespace !== EVERYWHERE ? token.namespace : <span class="muted">every one</span>) },
          {
            name: "Made",
            cell: (token) => (
              <>
                <When at={token.created_at} /> <span class="small muted">by {token.created_by}</span>
              </>
            ),
          },
          { name: "Good until", cell: (token) => (token.revoked_at ? <>revoked <When at={token.revoked_at} /></> : <When at={token.expires_at} none="no end" />) },
          {
            name: "Actions",
            cell: (token) =>
              token.revoked_at ? null : (
                <button type="button" class="button small danger" onClick={() => revoke(token.name ?? "")}>
                  Revoke
                </button>
              ),
          },
        ]}
      />
    </>
  );
}

/** Counters of the server that answers, each with what it tells people. */
const COUNTERS: [string, string][] = [
  ["flowfabric_repairs_total", "things the reconcilers repaired"],
  ["flowfabric_service_restarts_total", "services that were begun again after a panic"],
  ["flowfabric_partitions_passed_over_total", "partitions that a claim could not read"],
  ["flowfabric_commit_conflicts_total", "commits that met a conflict and were tried again"],
  ["flowfabric_store_reads_total", "reads of the store"],
  ["flowfabric_commit_seconds_count", "commits"],
];

/** What the deployment tells about how it is set up, and for whom it does. */
function settingsOf(found: Schemas["GetDeploymentOutcome"]): Fact[] {
  const { partitions, caller } = found;
  const facts: Fact[] = [
    ["program", found.version],
    ["store", `${found.store} ${found.store_version}`],
    ["durability", found.durability],
    ["partitions", `${count(partitions.flow)} of executions and flows, ${count(partitions.budget)} of budgets, ${count(partitions.quota)} of quotas`],
  ];
  if (found.retention_ms) facts.push(["what has ended is kept", `${span(found.retention_ms)}, where its policy says nothing else`]);
  facts.push(["time of the store", found.test_clock ? `${exact(found.now)}, which stands still until a test moves it` : exact(found.now)]);
  if (session.value) facts.push(["API tokens", session.value.tokens_required ? "are asked for" : "are not asked for: everybody who reaches this server may do everything"]);
  if (caller) facts.push(["this page acts as", `${caller.name}, ${caller.role}${caller.namespace ? `, in ${caller.namespace}` : ", in every namespace"}${caller.lanes?.length ? `, on the lanes ${caller.lanes.join(", ")}` : ""}`]);
  return facts;
}

function Deployment() {
  const deployment = useAsk("deployment", (signal) => answer(api.GET("/v1/deployment", { signal })));
  const health = useAsk("readyz", async (signal) => (await (await fetch("/readyz", { signal })).text()).trim());
  const metrics = useAsk("metrics", fetchMetrics);
  const found = deployment.data.value;
  if (deployment.error.value !== undefined) return <Refusal error={deployment.error.value} />;
  if (!found) {
    return (
      <div class="body">
        <Loading />
      </div>
    );
  }
  const samples = metrics.data.value;
  return (
    <div class="body stack">
      <div class="grid2">
        <section class="stack">
          <h2>Settings of the deployment</h2>
          <Facts facts={settingsOf(found)} />
          <p class="small muted">A server prints all of its settings where it runs:</p>
          <div class="row">
            <Command line="ff server --print-config" />
          </div>
        </section>
        <section class="stack">
          <h2>This server, since its start</h2>
          <dl class="facts">
            <dt>health</dt>
            <dd>
              <pre>{health.data.value ?? ""}</pre>
            </dd>
            <dt>stored entries that cannot be read</dt>
            <dd>{count(found.undecodable ?? 0)}</dd>
            {samples &&
              COUNTERS.map(([name, meaning]) => (
                <>
                  <dt>{meaning}</dt>
                  <dd>{count(total(samples, name))}</dd>
                </>
              ))}
          </dl>
          {metrics.error.value !== undefined && <p class="small muted">{metrics.error.value instanceof Error ? metrics.error.value.message : ""}</p>}
        </section>
      </div>
      <Card title={many((found.servers ?? []).length, "server")} flush>
        <Table
          label="Servers"
          items={found.servers ?? []}
          keyOf={(server) => server.server_id}
          empty={
            <Empty title="This server knows of none" command="ff server --store redis://localhost">
              Servers on one store share its partitions out among them, and take over from one that goes.
            </Empty>
          }
          columns={[
            {
              name: "Server",
              cell: (server) => (
                <span class="nowrap">
                  <code title={server.server_id}>{shortId(server.server_id)}</code>
                  <Copy text={server.server_id} what="the id" />
                </span>
              ),
            },
            { name: "State", cell: (server) => <State state="ok" word={server.answers ? "alive, answers this page" : "alive"} /> },
            { name: "Listens at", cell: (server) => server.address || <span class="muted">nowhere</span> },
            { name: "Version", cell: (server) => server.version || <span class="muted">not said</span> },
            { name: "Since", cell: (server) => <When at={server.started_at} /> },
          ]}
        />
      </Card>
      {(found.undecodable_entries ?? []).length > 0 && (
        <Card title="Stored entries that cannot be read" flush>
          <Table
            label="Stored entries that cannot be read"
            items={found.undecodable_entries}
            empty={null}
            columns={[
              { name: "Key", cell: (entry) => <code>{entry.key}</code> },
              { name: "Why", cell: (entry) => entry.error },
            ]}
          />
        </Card>
      )}
      <div class="row">
        <Command line="ff doctor" />
        <a href="/metrics" target="_blank" rel="noopener">
          All metrics
        </a>
      </div>
    </div>
  );
}
