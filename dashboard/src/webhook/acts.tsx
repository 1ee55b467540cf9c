// The acts on a subscription, on a delivery of it, and on an inbound hook.

import { answer, api } from "../api/client";
import type { Schemas } from "../api/client";
import { option, quote } from "../format";
import { go, link } from "../router";
import { may } from "../session";
import { ActButtons } from "../ui/dialog";
import type { Act, Field, Values } from "../ui/dialog";

/** The parts of a subscription that acts need. */
interface Named {
  namespace: string;
  name: string;
  state: string;
}

const NOTE: Field = { name: "note", label: "Why, for those who look at it", optional: true };

function bodyOf(subscription: Named, values: Values): { namespace: string; note?: string } {
  return { namespace: subscription.namespace, ...(values["note"] ? { note: values["note"] } : {}) };
}

function testOf(subscription: Named): Act {
  return {
    name: "Test",
    effect: "A message of the type test is delivered now, as an execution like any other delivery. It says whether the receiver takes it.",
    command: `ff subscription test ${quote(subscription.name)}`,
    run: async () => {
      await answer(api.POST("/v1/subscriptions/{name}/test", { params: { path: { name: subscription.name } }, body: { namespace: subscription.namespace } }));
      return "A test is on its way; it stands among the deliveries.";
    },
  };
}

function pauseOf(subscription: Named): Act {
  return {
    name: "Pause",
    effect: "Nothing is delivered until it is resumed. It then goes on where it stopped, as far back as the log of events reaches.",
    command: (values) => `ff subscription pause ${quote(subscription.name)}${option("note", values["note"])}`,
    fields: [NOTE],
    run: async (values) => {
      await answer(api.POST("/v1/subscriptions/{name}/pause", { params: { path: { name: subscription.name } }, body: bodyOf(subscription, values) }));
      return `${subscription.name} is paused.`;
    },
  };
}

function resumeOf(subscription: Named): Act {
  return {
    name: "Resume",
    effect: "It goes on where it stopped: events since then are delivered now.",
    command: (values) => `ff subscription resume ${quote(subscription.name)}${option("note", values["note"])}`,
    fields: [NOTE],
    run: async (values) => {
      await answer(api.POST("/v1/subscriptions/{name}/resume", { params: { path: { name: subscription.name } }, body: bodyOf(subscription, values) }));
      return `${subscription.name} goes on.`;
    },
  };
}

function removalOf(subscription: Named): Act {
  return {
    name: "Delete",
    effect: "The subscription goes, with its secret. Deliveries that were made stay until their retention ends.",
    command: `ff subscription rm ${quote(subscription.name)}`,
    danger: true,
    run: async () => {
      await answer(api.DELETE("/v1/subscriptions/{name}", { params: { path: { name: subscription.name }, query: { namespace: subscription.namespace } } }));
      go(link(["webhooks"]));
      return `${subscription.name} is deleted.`;
    },
  };
}

/** The acts that make sense in the state it is in; with `all`, those that are seldom wanted, too. */
export function SubscriptionActs({ subscription, done, all = false }: { subscription: Named; done: () => void; all?: boolean }) {
  const changes = subscription.state === "active" ? [testOf, pauseOf] : subscription.state === "paused" ? [testOf, resumeOf] : [];
  const acts = [...changes, ...(all && may("admin") && subscription.state !== "removing" ? [removalOf] : [])].map((of) => of(subscription));
  return <ActButtons label={`Actions on ${subscription.name}`} acts={acts} done={done} />;
}

/** Sends once more what was given up. */
export function deliverAgain(delivery: Schemas["DeliveryView"]): Act {
  return {
    name: "Send again",
    effect: "The delivery is tried once more from the beginning, with the same id, so that a receiver can tell it from another one.",
    command: `ff replay ${delivery.execution_id}`,
    run: async () => {
      await answer(api.POST("/v1/executions/{execution_id}/replay", { params: { path: { execution_id: delivery.execution_id } }, body: {} }));
      return "It is tried once more.";
    },
  };
}

export function hookRemoval(hook: Schemas["HookView"]): Act {
  return {
    name: "Delete",
    effect: "The hook goes, with its secret. Messages to it are refused from then on; what they led to stays.",
    command: `ff hook rm ${quote(hook.name)}`,
    danger: true,
    run: async () => {
      await answer(api.DELETE("/v1/hooks/{name}", { params: { path: { name: hook.name }, query: { namespace: hook.namespace } } }));
      return `${hook.name} is deleted.`;
    },
  };
}
