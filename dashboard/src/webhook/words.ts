// Subscriptions and inbound hooks in words.

import type { Schemas } from "../api/client";
import { many, shortId, words } from "../format";

/** Which events a subscription is about. */
export function eventWords(filter: Schemas["EventFilter"]): string {
  const types = filter.event_types ?? [];
  const said = [types.length > 0 ? types.map(words).join(", ") : "every end"];
  if ((filter.kinds ?? []).length > 0) said.push(`of kind ${(filter.kinds ?? []).join(" or ")}`);
  for (const [key, value] of Object.entries(filter.tags ?? {})) said.push(`with ${key}=${value}`);
  if (filter.flow_id) said.push(`in the flow ${shortId(filter.flow_id)}`);
  return said.join(" ");
}

/** How a sender signs. */
export const SCHEME_WORDS: Record<Schemas["HookScheme"], string> = { standard: "Standard Webhooks", github: "GitHub", slack: "Slack" };

/** What a message to a hook leads to. */
export function hookWords(target: Schemas["HookTarget"]): string {
  if ("execution" in target) return `creates ${target.execution.kind}${target.execution.lane ? ` in the lane ${target.execution.lane}` : ""}`;
  if ("flow" in target) return `creates a flow of ${many(target.flow.nodes?.length ?? 0, "node")}`;
  return `signals ${target.signal.name} to the execution whose ${target.signal.tag ?? "correlation_id"} stands at ${target.signal.correlation_id}`;
}
