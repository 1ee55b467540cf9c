// The states of an execution.

export const STATES = ["waiting", "active", "suspended", "delayed", "rate_limited", "waiting_children", "completed", "failed", "cancelled", "expired", "skipped"] as const;

/** States that nothing but a replay leaves. */
export const ENDED: ReadonlySet<string> = new Set(["completed", "failed", "cancelled", "expired", "skipped"]);
