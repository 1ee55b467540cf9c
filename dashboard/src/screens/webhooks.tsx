// Webhooks in both directions: who is told what happens, and whose messages lead to work.

import { answer, api } from "../api/client";
import type { Schemas } from "../api/client";
import { many } from "../format";
import { useRows } from "../keys";
import { POLL_MS } from "../live";
import { More, usePages } from "../pages";
import { link, namespace } from "../router";
import { may } from "../session";
import { Card, Command, Copy, Empty, Refusal, State, When } from "../ui/basics";
import { ActButtons } from "../ui/dialog";
import { Table } from "../ui/table";
import { SubscriptionActs, hookRemoval } from "../webhook/acts";
import { SCHEME_WORDS, eventWords, hookWords } from "../webhook/words";

/** Subscriptions, or hooks, that a page brings. */
const PAGE = 100;

/** The path that messages to a hook are posted to. */
function pathOf(hook: Schemas["HookView"]): string {
  const namespaced = hook.namespace === "default" ? "" : `?namespace=${encodeURIComponent(hook.namespace)}`;
  return `/v1/hooks/${encodeURIComponent(hook.name)}${namespaced}`;
}

export function Webhooks() {
  const ns = namespace();
  const subscriptions = usePages(
    `subscriptions ${ns ?? ""}`,
    (cursor, signal) => answer(api.GET("/v1/subscriptions", { params: { query: { namespace: ns, limit: PAGE, cursor } }, ...(signal ? { signal } : {}) })),
    (subscription) => subscription.subscription_id,
    POLL_MS * 3,
  );
  const hooks = usePages(
    `hooks ${ns ?? ""}`,
    (cursor, signal) => answer(api.GET("/v1/hooks", { params: { query: { namespace: ns, limit: PAGE, cursor } }, ...(signal ? { signal } : {}) })),
    (hook) => hook.hook_id,
    POLL_MS * 3,
  );
  useRows("main td a.open");
  return (
    <>
      <div class="title">
        <h1>Webhooks</h1>
        <div class="row">
          <Command line="ff subscription ls" />
          <Command line="ff hook ls" />
        </div>
      </div>
      {subscriptions.error !== undefined && <Refusal error={subscriptions.error} />}
      <Card title={subscriptions.items && !subscriptions.more ? many(subscriptions.items.length, "subscription") : "Subscriptions"} tools={<a href={link(["executions"], { lane: "ff:deliveries", state: "failed" })}>Deliveries that were given up</a>} flush>
        <Table
          label="Subscriptions"
          items={subscriptions.items}
          keyOf={(subscription) => subscription.subscription_id}
          empty={
            <Empty title="Nobody is told what happens" command="ff subscription create alarms --url https://example.com/hook --event failed">
              A subscription sends a signed request, or creates an execution, for each event that it is about, once each.
            </Empty>
          }
          columns={[
            { name: "Subscription", cell: (one) => <a class="open" href={link(["webhooks", one.name])}>{one.name}</a> },
            {
              name: "State",
              cell: (one) => (
                <>
                  <State state={one.state} />
                  {one.state === "paused" && one.note?.text && (
                    <div class="small muted">
                      {one.note.text} ({one.note.by})
                    </div>
                  )}
                </>
              ),
            },
            { name: "Events", cell: (one) => eventWords(one.filter) },
            { name: "Leads to", cell: (one) => (one.url ? <>a request to <code class="break">{one.url}</code></> : <>an execution of the kind <code>{one.kind}</code></>) },
            { name: "Since", cell: (one) => <When at={one.created_at} /> },
            { name: "Actions", when: may("operator"), cell: (one) => <SubscriptionActs subscription={one} done={subscriptions.refresh} /> },
          ]}
        />
        <More pages={subscriptions} />
      </Card>
      {hooks.error !== undefined && <Refusal error={hooks.error} />}
      <Card title={hooks.items && !hooks.more ? many(hooks.items.length, "inbound hook") : "Inbound hooks"} flush>
        <Table
          label="Inbound hooks"
          items={hooks.items}
          keyOf={(hook) => hook.hook_id}
          empty={
            <Empty title="No message from outside leads to work" command="ff hook create pushes --scheme github --secret-file secret.txt --kind build">
              A message that its sender has signed creates an execution or a flow, or signals one that waits; the same message has its effect once.
            </Empty>
          }
          columns={[
            { name: "Hook", cell: (hook) => hook.name },
            {
              name: "Messages go to",
              cell: (hook) => (
                <>
                  <code class="break" title={window.location.origin + pathOf(hook)}>{pathOf(hook)}</code> <Copy text={window.location.origin + pathOf(hook)} what="the address" />
                </>
              ),
            },
            { name: "Signed like", cell: (hook) => SCHEME_WORDS[hook.scheme] },
            { name: "A message", cell: (hook) => hookWords(hook.target) },
            {
              name: "Since",
              minor: true,
              cell: (hook) => (
                <>
                  <When at={hook.created_at} />
                  <div class="small muted">by {hook.created_by}</div>
                </>
              ),
            },
            { name: "Actions", when: may("admin"), cell: (hook) => <ActButtons label={`Actions on ${hook.name}`} acts={[hookRemoval(hook)]} done={hooks.refresh} /> },
          ]}
        />
        <More pages={hooks} />
      </Card>
    </>
  );
}
