// Questions that wait for people.

import { signal } from "@preact/signals";
import { answer, api, isMissing } from "./api/client";
import type { Schemas } from "./api/client";
import { namespace } from "./router";

/** A question that waits for a person. */
export type Ask = Schemas["ApprovalView"];

/** How many questions are open, as far as this page knows. */
export const openApprovals = signal<number | undefined>(undefined);

/** What budgets without room ask, as far as this page knows. */
export const budgetQuestions = signal<Schemas["BudgetQuestionView"][]>([]);

/** Questions that a page brings. */
const PAGE = 100;

/** The open questions, the oldest first. */
export async function listAsks(abort: AbortSignal): Promise<Ask[]> {
  const page = await answer(api.GET("/v1/approvals", { params: { query: { namespace: namespace(), limit: PAGE } }, signal: abort }));
  budgetQuestions.value = page.budgets ?? [];
  openApprovals.value = page.items.length + budgetQuestions.value.length;
  return page.items;
}

/** Whether a question is about an entry of the journal: those have answers of their own. */
export function isAboutJournal(reason: string): boolean {
  return reason === "in_doubt" || reason === "journal_mismatch" || reason === "no_progress";
}

/** The names of the signals that answer a question. It can be answered with a no, whatever it counts. */
export function answersOf(names: string[]): string[] {
  return names.length > 0 ? [...new Set([...names, "reject"])] : ["approve", "reject"];
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

/** What a link to a waitpoint asks. */
export interface LinkQuestion {
  execution_id: string;
  kind: string;
  question?: string | null;
  detail?: string | null;
  /** The JSON schema of the answer. */
  schema?: unknown;
  assignees: string[];
  reason: string;
  since: number;
  deadline?: number | null;
  /** Whether an answer still counts. */
  open: boolean;
}

/** Asks what a link asks, which changes nothing; `null` where the server does not tell. The token of the link is all it takes. */
export async function fetchLinkQuestion(waitpoint: string, token: string, signal: AbortSignal): Promise<LinkQuestion | null> {
  const path = "/v1/signals/{waitpoint_id}/question" as "/v1/signals/{waitpoint_id}";
  try {
    return (await answer(api.POST(path, { params: { path: { waitpoint_id: waitpoint } }, body: { token } as never, signal }))) as unknown as LinkQuestion;
  } catch (error) {
    if (isMissing(error)) return null;
    throw error;
  }
}

/** Sends a decision. With tokens on the server knows who we are; without, the identity tells people apart. */
export async function decide(executionId: string, name: string, payload: unknown, identity: string): Promise<void> {
  const body = { name, source_type: "person", source_identity: identity, ...(payload === undefined ? {} : { payload }) };
  await answer(api.POST("/v1/executions/{execution_id}/signal", { params: { path: { execution_id: executionId } }, body: body as never }));
}
