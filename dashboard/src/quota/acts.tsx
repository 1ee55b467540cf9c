// The acts of an operator on a quota.

import { answer, api } from "../api/client";
import type { Schemas } from "../api/client";
import { quote } from "../format";
import type { Act } from "../ui/dialog";

type Quota = Schemas["QuotaStatus"];

function changeOf(quota: Quota): Act {
  const { max_requests: requests = 0, window_seconds: window = 0, max_concurrent: concurrent = 0, jitter_ms: jitter = 0 } = quota.definition;
  return {
    name: "Change",
    effect: "The limits are replaced. A raised limit releases what was blocked by it. 0 means no limit.",
    command: (values) =>
      `ff quota update ${quote(quota.name)} --requests ${Number(values["requests"])} --window ${Number(values["window"])} --concurrent ${Number(values["concurrent"])} --jitter ${Number(values["jitter"])}ms`,
    fields: [
      { name: "requests", label: "Attempts that may start within the window", type: "number", value: String(requests) },
      { name: "window", label: "Length of the window, in seconds", type: "number", value: String(window) },
      { name: "concurrent", label: "Attempts that may run at once", type: "number", value: String(concurrent) },
      { name: "jitter", label: "What was parked comes back spread over, in milliseconds", type: "number", value: String(jitter) },
    ],
    run: async (values) => {
      const body = {
        namespace: quota.namespace,
        max_requests: Number(values["requests"]),
        window_seconds: Number(values["window"]),
        max_concurrent: Number(values["concurrent"]),
        jitter_ms: Number(values["jitter"]),
      };
      await answer(api.PUT("/v1/quotas/{name}", { params: { path: { name: quota.name } }, body }));
      return `${quota.name} is changed.`;
    },
  };
}

function removalOf(quota: Quota): Act {
  return {
    name: "Delete",
    effect: "The quota goes. What names it afterwards waits until a quota of this name exists again.",
    command: `ff quota rm ${quote(quota.name)}`,
    danger: true,
    forced: "If you delete it all the same, what runs goes on, and what has not started waits until a quota of this name exists again.",
    run: async (_, force) => {
      const query = { namespace: quota.namespace, ...(force ? { force } : {}) };
      await answer(api.DELETE("/v1/quotas/{name}", { params: { path: { name: quota.name }, query } }));
      return `${quota.name} is deleted.`;
    },
  };
}

export function quotaActs(quota: Quota): Act[] {
  return [changeOf(quota), removalOf(quota)];
}
