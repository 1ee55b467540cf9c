// The filters of the list of executions: as the address holds them, as the API takes them, and as options of `ff`.

import type { Schemas } from "../api/client";
import { quote } from "../format";
import { namespace, query } from "../router";

/** Spans of creation: the word in the address and in `ff`, words for people, and their length. */
export const SPANS: [string, string, number][] = [
  ["", "any time", 0],
  ["15m", "last 15 minutes", 900_000],
  ["1h", "last hour", 3_600_000],
  ["24h", "last day", 86_400_000],
  ["7d", "last week", 604_800_000],
];

/** Filters that take several values, as chips: the name in the address, the name in the API, and words for people. */
export const CHIPS = [
  { name: "kind", parameter: "kind", label: "Kind", placeholder: "render" },
  { name: "lane", parameter: "lane", label: "Lane", placeholder: "default" },
  { name: "tag", parameter: "tag", label: "Tag", placeholder: "key=value" },
  { name: "failure", parameter: "failure_category", label: "Failure", placeholder: "timeout" },
] as const;

export interface Filters {
  states: string[];
  chips: Record<(typeof CHIPS)[number]["name"], string[]>;
  since: string;
  flow: string;
  worker: string;
  schedule: string;
  order: string;
}

/** The filters that the address holds. */
export function filters(): Filters {
  const get = (name: string) => query.value.get(name) ?? "";
  const all = (name: string) => query.value.getAll(name);
  const chips = { kind: all("kind"), lane: all("lane"), tag: all("tag"), failure: all("failure") };
  return { states: all("state"), chips, since: get("since"), flow: get("flow"), worker: get("worker"), schedule: get("schedule"), order: get("order") };
}

/** The filters as the API takes them, in a list and in a bulk job. */
export function asFilter(filter: Filters): Schemas["BulkFilter"] {
  const back = SPANS.find(([key]) => key === filter.since)?.[2] ?? 0;
  const wanted: Record<string, unknown> = {};
  if (filter.states.length > 0) wanted["state"] = filter.states;
  for (const { name, parameter } of CHIPS) if (filter.chips[name].length > 0) wanted[parameter] = filter.chips[name];
  if (filter.flow) wanted["flow_id"] = filter.flow;
  if (filter.worker) wanted["worker"] = filter.worker;
  if (filter.schedule) wanted["schedule"] = filter.schedule;
  if (back) wanted["created_from"] = Date.now() - back;
  return wanted as Schemas["BulkFilter"];
}

/** The filters as options of `ff ls` and of `ff bulk`. */
export function optionsOf(filter: Filters): string[] {
  const options: string[] = [];
  const ns = namespace();
  if (ns) options.push(`--namespace ${quote(ns)}`);
  for (const state of filter.states) options.push(`--state ${quote(state)}`);
  for (const name of ["kind", "lane", "tag", "failure"] as const) for (const value of filter.chips[name]) options.push(`--${name} ${quote(value)}`);
  if (filter.schedule) options.push(`--schedule ${quote(filter.schedule)}`);
  if (filter.flow) options.push(`--flow ${quote(filter.flow)}`);
  if (filter.worker) options.push(`--worker ${quote(filter.worker)}`);
  if (filter.since) options.push(`--since ${quote(filter.since)}`);
  return options;
}
