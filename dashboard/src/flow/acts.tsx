// The acts on a flow.

import { answer, api } from "../api/client";
import type { Schemas } from "../api/client";
import { option, quote, words } from "../format";
import { go, link } from "../router";
import { may } from "../session";
import { ActButtons } from "../ui/dialog";
import type { Act } from "../ui/dialog";

type Flow = Schemas["FlowView"];

const ENDED: ReadonlySet<string> = new Set(["completed", "failed", "cancelled"]);
const POLICIES = ["cancel_all", "cancel_pending", "flow_only"] as const;

function closeOf(flow: Flow): Act {
  return {
    name: "Close",
    effect: "A flow that is made step by step is complete with this: it takes no more members, and ends with its last one. One that was created with its graph is closed already.",
    command: `ff call close_flow ${quote(JSON.stringify({ flow_id: flow.flow_id }))}`,
    run: async () => {
      const done = await answer(api.POST("/v1/flows/{flow_id}/close", { params: { path: { flow_id: flow.flow_id } }, body: {} }));
      return done.changed ? `Closed; it is ${words(done.state)}.` : "It was closed before.";
    },
  };
}

function cancelOf(flow: Flow): Act {
  return {
    name: "Cancel",
    effect: "No member starts after this. cancel_all ends those that run, too; cancel_pending lets them finish; flow_only leaves all members alone.",
    command: (values) => `ff flow cancel ${flow.flow_id}${option("policy", values["policy"] === "cancel_all" ? "" : values["policy"])}${option("reason", values["reason"])}`,
    danger: true,
    fields: [
      { name: "policy", label: "What becomes of its members", type: "select", options: [...POLICIES], value: "cancel_all" },
      { name: "reason", label: "Reason, for the audit log", optional: true },
    ],
    run: async (values) => {
      const body = { wait: false, policy: values["policy"] as (typeof POLICIES)[number], ...(values["reason"] ? { reason: values["reason"] } : {}) };
      const done = await answer(api.POST("/v1/flows/{flow_id}/cancel", { params: { path: { flow_id: flow.flow_id } }, body }));
      return `${words(done.outcome)}.`;
    },
  };
}

function removalOf(flow: Flow): Act {
  return {
    name: "Remove",
    effect: "It is gone for good, with its members and everything they have: inputs, results, steps, streams.",
    command: `ff flow rm ${flow.flow_id}`,
    danger: true,
    run: async () => {
      await answer(api.DELETE("/v1/flows/{flow_id}", { params: { path: { flow_id: flow.flow_id } } }));
      go(link(["flows"]));
      return "Removed.";
    },
  };
}

/** The acts that make sense in the state it is in, and that the role allows. */
export function FlowActs({ flow, done }: { flow: Flow; done: () => void }) {
  const ended = ENDED.has(flow.state);
  const acts = [...(!ended && may("submitter") ? [closeOf(flow)] : []), ...(may("operator") ? [ended ? removalOf(flow) : cancelOf(flow)] : [])];
  return acts.length > 0 ? <ActButtons label="Actions" acts={acts} done={done} /> : null;
}
