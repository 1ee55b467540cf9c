// The acts of an operator on a provider.

import { answer, api } from "../api/client";
import type { Schemas } from "../api/client";
import { quote } from "../format";
import type { Act } from "../ui/dialog";

export type Provider = Schemas["ProviderStatus"];

function changeOf(provider: Provider): Act {
  const { max_requests: requests = 0, max_tokens: tokens = 0, max_concurrent: concurrent = 0, window_ms: window = 0 } = provider.definition;
  return {
    name: "Change",
    effect: "The limits are replaced. 0 means no limit. What is counted now counts for a whole window of the new length.",
    command: (values) =>
      `ff provider update ${quote(provider.name)} --requests ${Number(values["requests"])} --tokens ${Number(values["tokens"])} --concurrent ${Number(values["concurrent"])} --window ${Number(values["window"]) * 1_000}ms`,
    fields: [
      { name: "requests", label: "Requests within the window", type: "number", value: String(requests) },
      { name: "tokens", label: "Tokens within the window", type: "number", value: String(tokens) },
      { name: "concurrent", label: "Calls at once", type: "number", value: String(concurrent) },
      { name: "window", label: "Length of the window, in seconds", type: "number", value: String(window / 1_000) },
    ],
    run: async (values) => {
      const body = {
        namespace: provider.namespace,
        max_requests: Number(values["requests"]),
        max_tokens: Number(values["tokens"]),
        max_concurrent: Number(values["concurrent"]),
        window_ms: Number(values["window"]) * 1_000,
      };
      await answer(api.PUT("/v1/providers/{name}", { params: { path: { name: provider.name } }, body }));
      return `${provider.name} is changed.`;
    },
  };
}

function throttleOf(provider: Provider): Act {
  return {
    name: "Throttle",
    effect: "No call is let through for this long, and the limits are halved, as if the provider had said that it was too much. With each window after that a tenth of them comes back.",
    command: (values) => `ff provider throttle ${quote(provider.name)} --retry-after ${Number(values["seconds"])}s`,
    danger: true,
    fields: [{ name: "seconds", label: "Seconds to leave it alone", type: "number", value: "30" }],
    run: async (values) => {
      const body = { namespace: provider.namespace, retry_after_ms: Number(values["seconds"]) * 1_000 };
      await answer(api.POST("/v1/providers/{name}/throttle", { params: { path: { name: provider.name } }, body }));
      return `${provider.name} is left alone.`;
    },
  };
}

function removalOf(provider: Provider): Act {
  return {
    name: "Delete",
    effect: "The provider goes, with what it counted. A task that asks for it afterwards is told that it does not exist.",
    command: `ff provider rm ${quote(provider.name)}`,
    danger: true,
    forced: "If you delete it all the same, calls that are under way go on, and places in the line are lost.",
    run: async (_, force) => {
      const query = { namespace: provider.namespace, ...(force ? { force } : {}) };
      await answer(api.DELETE("/v1/providers/{name}", { params: { path: { name: provider.name }, query } }));
      return `${provider.name} is deleted.`;
    },
  };
}

export function providerActs(provider: Provider): Act[] {
  return [changeOf(provider), throttleOf(provider), removalOf(provider)];
}
