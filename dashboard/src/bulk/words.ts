// Bulk jobs in words: what one does, to which executions, and how far it is.

import type { Schemas } from "../api/client";
import { count, exact, many, shortId, words } from "../format";
import { link } from "../router";

export type Job = Schemas["BulkView"];
export type BulkAction = Schemas["BulkAction"];

interface ActionWords {
  /** On a button. */
  name: string;
  /** Behind "will be" and "were". */
  past: string;
  /** The command of `ff bulk`. */
  command: string;
  danger?: boolean;
}

export const ACTIONS: Record<BulkAction, ActionWords> = {
  cancel: { name: "Cancel", past: "cancelled", command: "cancel", danger: true },
  replay: { name: "Replay", past: "replayed", command: "replay" },
  hold: { name: "Hold", past: "held", command: "hold" },
  release: { name: "Release", past: "released", command: "release" },
  set_priority: { name: "Change priority", past: "given another priority", command: "priority" },
  set_tags: { name: "Replace tags", past: "given other tags", command: "tag" },
  remove: { name: "Remove", past: "removed", command: "rm", danger: true },
};

/** The title of a job. */
export function titleOf(job: Job): string {
  return `${ACTIONS[job.action].name}${job.action === "set_priority" ? ` to ${count(job.priority ?? 0)}` : ""}${job.dry_run ? ", dry run" : ""}`;
}

/** Which executions, one filter each. */
export function filterWords(filter: Schemas["BulkFilter"]): string[] {
  const any = (label: string, values: readonly string[] | undefined) => ((values ?? []).length > 0 ? [`${label} ${(values ?? []).map(words).join(" or ")}`] : []);
  const plain = (label: string, values: readonly string[] | undefined) => ((values ?? []).length > 0 ? [`${label} ${(values ?? []).join(" or ")}`] : []);
  const instant = (label: string, at: number | null | undefined) => (at ? [`${label} ${exact(at).slice(0, 19)}`] : []);
  return [
    ...any("state", filter.state),
    ...plain("kind", filter.kind),
    ...plain("lane", filter.lane),
    ...plain("tag", filter.tag),
    ...plain("failure", filter.failure_category),
    ...(filter.schedule ? [`schedule ${filter.schedule}`] : []),
    ...(filter.flow_id ? [`flow ${shortId(filter.flow_id)}`] : []),
    ...(filter.parent ? [`spawned by ${shortId(filter.parent)}`] : []),
    ...(filter.worker ? [`held by ${filter.worker}`] : []),
    ...instant("created since", filter.created_from),
    ...instant("created before", filter.created_to),
    ...instant("ended since", filter.ended_from),
    ...instant("ended before", filter.ended_to),
  ];
}

/** The list of executions with the same filter, as far as the list has it. */
export function listLink(filter: Schemas["BulkFilter"]): string {
  return link(["executions"], {
    state: filter.state ?? [],
    kind: filter.kind ?? [],
    lane: filter.lane ?? [],
    tag: filter.tag ?? [],
    failure: filter.failure_category ?? [],
    schedule: filter.schedule ?? undefined,
    flow: filter.flow_id ?? undefined,
    worker: filter.worker ?? undefined,
  });
}

/** What a job came to, or would come to, in a sentence or two. */
export function outcomeWords({ action, dry_run: dry, progress, reached_max: more }: Job): string {
  const { past } = ACTIONS[action];
  const said = [`${many(progress.done, "execution")} ${dry ? "would be" : progress.done === 1 ? "was" : "were"} ${past}${more ? ", and there are more" : ""}.`];
  if (progress.unchanged > 0) said.push(`${count(progress.unchanged)} ${progress.unchanged === 1 ? "is" : "are"} so already.`);
  if (progress.refused > 0) said.push(`${count(progress.refused)} ${dry ? "would refuse it" : "refused it"}: ${refusalWords(progress)}.`);
  if (progress.changed_since > 0) said.push(`${count(progress.changed_since)} changed since the job began and ${progress.changed_since === 1 ? "is" : "are"} left alone.`);
  return said.join(" ");
}

function refusalWords(progress: Schemas["BulkProgress"]): string {
  return Object.entries(progress.refused_by_code ?? {})
    .map(([code, times]) => `${words(code)} ${count(times)}`)
    .join(", ");
}
