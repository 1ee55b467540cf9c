// On whose behalf the page acts, and what that allows.

import { computed, signal } from "@preact/signals";
import { answer, api, tokenWanted } from "./api/client";
import type { Schemas } from "./api/client";

/** `undefined` until the server has said who we are. */
export const session = signal<Schemas["SessionView"] | undefined>(undefined);

/** The roles that each role includes; all but approver may read. */
const GRANTS: Record<string, string[]> = {
  reader: [],
  submitter: ["submitter"],
  worker: ["worker"],
  approver: ["approver"],
  operator: ["submitter", "worker", "operator", "approver"],
  admin: ["submitter", "worker", "operator", "approver", "admin"],
};

/** Whether buttons exist that need this role. The server decides again when one is pressed. */
export function may(role: "operator" | "admin" | "approver" | "submitter"): boolean {
  return GRANTS[session.value?.role ?? ""]?.includes(role) ?? false;
}

/** Whether this page sees nothing but what waits for people. */
export const approverOnly = computed(() => session.value?.role === "approver");

/** Asks the server who we are. */
export async function loadSession(): Promise<void> {
  try {
    session.value = await answer(api.GET("/v1/session"));
    tokenWanted.value = false;
  } catch {
    session.value = undefined;
  }
}

/** Exchanges a token for a session. The token is not kept. */
export async function signIn(token: string): Promise<void> {
  session.value = await answer(api.POST("/v1/session", { body: { token } }));
  tokenWanted.value = false;
}

/** Ends the session of this browser. */
export async function signOut(): Promise<void> {
  await answer(api.DELETE("/v1/session"));
  session.value = undefined;
  tokenWanted.value = true;
}
