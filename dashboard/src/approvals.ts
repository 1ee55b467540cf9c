// What waits for a person.

import { signal } from "@preact/signals";
import { api, answer, call, isMissing } from "./api/client";
import type { Schemas } from "./api/client";
import { namespace } from "./router";

/** A question that waits for a person. */
export interface Ask {
  execution_id: string;
  kind: string;
  tags: Record<string, string>;
  question: string;
  reason: string;
  since: number;
  deadline: number | undefined;
  requested_by: string | undefined;
  assignees: string[];
  /** The JSON schema of the answer, if the task gave one. */
  schema: unknown;
  /** Names of the signals it waits for. */
  names: string[];
  signed: string[];
  flow_id: string | undefined;
}

/** How many questions are open, as far as this page knows. */
export const openApprovals = signal<number | undefined>(undefined);

/** Reasons that mean a person, and not a program, is waited for. */
const PERSONAL = new Set(["waiting_for_approval", "waiting_for_decision", "paused_by_operator", "paused_by_policy"]);
/** Suspended executions that are looked into where the server has no list of questions. */
const LOOKED_AT_MAX = 50;

/** A question as the server lists it. */
interface ApprovalView {
  execution_id: string;
  kind: string;
  tags: Record<string, string>;
  reason: string;
  question?: string | null;
  detail?: string | null;
  schema?: unknown;
  assignees?: string[];
  requested_by?: string | null;
  since: number;
  deadline?: number | null;
  signals?: string[];
  signed?: { name?: string; by?: string; delivered_by?: string; source_identity?: string }[];
}

function fromApproval(view: ApprovalView): Ask {
  const counted = view.signals ?? [];
  const names = counted.length > 0 ? [...new Set([...counted, "reject"])] : ["approve", "reject"];
  return {
    execution_id: view.execution_id,
    kind: view.kind,
    tags: view.tags ?? {},
    question: view.question || view.detail || "",
    reason: view.reason,
    since: view.since,
    deadline: view.deadline ?? undefined,
    requested_by: view.requested_by ?? undefined,
    assignees: view.assignees ?? [],
    schema: view.schema,
    names,
    signed: (view.signed ?? []).map((one) => [one.name, one.source_identity || one.delivered_by || one.by].filter(Boolean).join(" by ")),
    flow_id: undefined,
  };
}

/** The open questions, the oldest first. */
export async function listAsks(abort: AbortSignal): Promise<Ask[]> {
  const ns = namespace();
  try {
    const page = await call<{ items: ApprovalView[] }>("GET", `/v1/approvals?limit=100${ns ? `&namespace=${encodeURIComponent(ns)}` : ""}`, undefined, abort);
    openApprovals.value = page.items.length;
    return page.items.map(fromApproval);
  } catch (error) {
    if (!isMissing(error)) throw error;
  }
  return await searchAsks(abort);
}

/** The same from the list of executions, for a server without a list of questions. */
async function searchAsks(abort: AbortSignal): Promise<Ask[]> {
  const query = { namespace: namespace(), state: ["suspended" as const], limit: LOOKED_AT_MAX };
  const page = await answer(api.GET("/v1/executions", { params: { query }, signal: abort }));
  const found = await Promise.all(
    page.items.map((item) =>
      answer(api.GET("/v1/executions/{execution_id}", { params: { path: { execution_id: item.execution_id } }, signal: abort })).catch(() => undefined),
    ),
  );
  const asks = found.filter((one) => one !== undefined && PERSONAL.has(one.state.blocking_reason ?? "")).map((one) => fromExecution(one as Schemas["ExecutionView"]));
  asks.sort((one, other) => one.since - other.since);
  openApprovals.value = asks.length;
  return asks;
}

function fromExecution(execution: Schemas["ExecutionView"]): Ask {
  const suspension = execution.suspension ?? undefined;
  return {
    execution_id: execution.execution_id,
    kind: execution.kind,
    tags: execution.tags ?? {},
    question: execution.blocking_detail ?? "",
    reason: execution.state.blocking_reason ?? "",
    since: suspension?.suspended_at ?? execution.updated_at,
    deadline: suspension?.timeout_at ?? undefined,
    requested_by: suspension?.requested_by ?? undefined,
    assignees: [],
    schema: undefined,
    names: suspension ? signalNames(suspension.condition) : [],
    signed: [],
    flow_id: execution.flow_id ?? undefined,
  };
}

/** The names of signals that a condition asks for. */
export function signalNames(condition: unknown): string[] {
  const names = new Set<string>();
  const look = (value: unknown, depth: number): void => {
    if (depth > 8 || value === null || typeof value !== "object") return;
    if (Array.isArray(value)) {
      for (const one of value) look(one, depth + 1);
      return;
    }
    for (const [key, inner] of Object.entries(value)) {
      if (key === "name" && typeof inner === "string" && inner !== "") names.add(inner);
      else look(inner, depth + 1);
    }
  };
  look(condition, 0);
  return [...names];
}

/** Sends a decision. The server knows who we are; the identity is for conditions that count people where it does not. */
export async function decide(ask: { execution_id: string }, name: string, payload: unknown, identity: string): Promise<string> {
  const body: Record<string, unknown> = { name, source_type: "person", source_identity: identity };
  if (payload !== undefined) body["payload"] = payload;
  const outcome = await answer(
    api.POST("/v1/executions/{execution_id}/signal", { params: { path: { execution_id: ask.execution_id } }, body: body as never }),
  );
  return outcome.outcome;
}
