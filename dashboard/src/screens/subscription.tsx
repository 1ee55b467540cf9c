// One subscription: its last deliveries, those that were given up, and what it is about.

import { answer, api, isMissing } from "../api/client";
import { count, quote, span, words } from "../format";
import { POLL_MS, useAsk, useEvents, useSoon } from "../live";
import { link, namespace } from "../router";
import { may } from "../session";
import { Card, Command, Empty, type Fact, Facts, LastNote, Loading, Refusal, State, When } from "../ui/basics";
import { ActButtons } from "../ui/dialog";
import { Json } from "../ui/payload";
import { Table } from "../ui/table";
import { SubscriptionActs, deliverAgain } from "../webhook/acts";
import { eventWords } from "../webhook/words";

/** Deliveries lie in every partition: they are looked for less often than events happen. */
const LOOK_MS = 3_000;

export function Subscription({ name }: { name: string }) {
  const asked = useAsk(`${name} ${namespace() ?? ""}`, (signal) => answer(api.GET("/v1/subscriptions/{name}", { params: { path: { name }, query: { namespace: namespace() } }, signal })), POLL_MS);
  const again = useSoon(asked.refresh, 1_000, LOOK_MS, true);
  useEvents(again);
  if (isMissing(asked.error.value)) {
    return (
      <Empty page title="There is no such subscription" command="ff subscription ls">
        It never existed here, or it was deleted. Its deliveries are still in the list of executions.
      </Empty>
    );
  }
  const subscription = asked.data.value;
  if (!subscription) return asked.error.value === undefined ? <Loading lines={8} /> : <Refusal page error={asked.error.value} />;
  const { target, retry } = subscription;
  const webhook = "webhook" in target ? target.webhook : undefined;
  const facts: Fact[] = [
    ["events", eventWords(subscription.filter)],
    ["leads to", webhook ? <>a request to <code>{webhook.url}</code></> : "an execution"],
    ["events delivered", count(subscription.delivery_count)],
    ["could not be created", count(subscription.refused_count)],
    ["gaps in the log of events", count(subscription.gaps)],
    ["created", <><When at={subscription.created_at} /> by {subscription.created_by}</>],
  ];
  if (webhook) facts.splice(2, 0, ["tried again", retryWords(retry)]);
  const givenUp = subscription.deliveries.filter((delivery) => delivery.public_state === "failed").length;
  return (
    <>
      <div class="title">
        <State state={subscription.state} big />
        <h1>{subscription.name}</h1>
        {may("operator") && <SubscriptionActs subscription={subscription} done={asked.refresh} all />}
      </div>
      <LastNote state={subscription.state} note={subscription.note} />
      {subscription.gaps > 0 && (
        <section class="notice s-bad" aria-label="Lost events">
          The log of events no longer reached back to where this subscription was, {subscription.gaps === 1 ? "once" : `${count(subscription.gaps)} times`}: events were lost to it.
        </section>
      )}
      <div class="grid-side">
        <Card
          title={givenUp > 0 ? `Last deliveries, ${count(givenUp)} given up` : "Last deliveries"}
          tools={webhook ? <a href={link(["executions"], { lane: "ff:deliveries" })}>Deliveries of every subscription</a> : undefined}
          flush
        >
          <Table
            label="Last deliveries"
            items={subscription.deliveries}
            keyOf={(delivery) => delivery.execution_id}
            empty={
              <Empty title="Nothing was delivered yet" command={`ff subscription test ${quote(subscription.name)}`}>
                Each event that it is about leads to one delivery, which stands here with what became of it.
              </Empty>
            }
            columns={[
              { name: "Delivery", cell: (delivery) => <a class="open" href={link(["executions", delivery.execution_id])}><State state={delivery.public_state} /></a> },
              { name: "Event", cell: (delivery) => words(delivery.event_type) },
              { name: "Attempts", num: true, cell: (delivery) => count(delivery.attempts) },
              { name: "Went wrong last", cell: (delivery) => delivery.failure ?? "" },
              { name: "Created", cell: (delivery) => <When at={delivery.created_at} /> },
              { name: "Ended", minor: true, cell: (delivery) => <When at={delivery.ended_at} none="not yet" /> },
              {
                name: "Actions",
                when: may("operator") && givenUp > 0,
                cell: (delivery) => delivery.public_state === "failed" && <ActButtons label={`Actions on ${delivery.execution_id}`} acts={[deliverAgain(delivery)]} done={asked.refresh} />,
              },
            ]}
          />
        </Card>
        <div class="stack">
          <Card title="Details">
            <Facts facts={facts} />
          </Card>
          {"execution" in target && (
            <Card title="What it creates">
              <div class="json">
                <Json value={target.execution} open={3} />
              </div>
            </Card>
          )}
          <Card title="From a terminal">
            <Command line={`ff subscription get ${quote(subscription.name)}`} />
          </Card>
        </div>
      </div>
    </>
  );
}

function retryWords({ max_retries: times = 0, backoff }: { max_retries?: number; backoff?: unknown }): string {
  if (times === 0) return "never";
  const said = backoff as { fixed?: { delay_ms: number }; exponential?: { initial_ms?: number; max_ms?: number } } | undefined;
  const often = `up to ${count(times)} times`;
  if (said?.fixed) return `${often}, after ${span(said.fixed.delay_ms)}`;
  return said?.exponential ? `${often}, after ${span(said.exponential.initial_ms ?? 0)} and up to ${span(said.exponential.max_ms ?? 0)}` : often;
}
