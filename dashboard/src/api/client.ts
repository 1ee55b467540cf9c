// Calls of the HTTP API. The types come from the server's own OpenAPI document.

import createClient from "openapi-fetch";
import { signal } from "@preact/signals";
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];

/** A refusal as the server words it. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    detail: string,
    readonly advice: string,
    /** The argument that it is about, where it is about one. */
    readonly field?: string,
  ) {
    super(detail);
  }
}

/** Becomes true when the server asks for a token that the page does not have. */
export const tokenWanted = signal(false);

const client = createClient<paths>({ baseUrl: window.location.origin, credentials: "same-origin" });

/** The answer of a call; a refusal is thrown as a `Problem`. */
export async function answer<T>(call: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
  let result;
  try {
    result = await call;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw unreachable();
  }
  if (result.response.ok) return result.data as T;
  throw refusal(result.response, result.error);
}

function unreachable(): Problem {
  return new Problem(0, "unreachable", "The server does not answer.", "Look whether ff server or ff dev still runs there. This page asks again by itself once it does.");
}

function refusal(response: Response, body: unknown): Problem {
  const said = (typeof body === "object" && body !== null ? body : {}) as Record<string, unknown>;
  const text = (name: string, otherwise: string) => (typeof said[name] === "string" ? (said[name] as string) : otherwise);
  const code = text("code", `status_${response.status}`);
  // The token of a link to a waitpoint is none to sign in with.
  if (response.status === 401 && !isLinkTokenRefused(code)) tokenWanted.value = true;
  const { field } = (said["details"] ?? {}) as { field?: unknown };
  return new Problem(response.status, code, text("detail", response.statusText), text("advice", ""), typeof field === "string" ? field : undefined);
}

/** Whether a code says that the token of a waitpoint is wrong, or no longer good. */
export function isLinkTokenRefused(code: string): boolean {
  return code === "invalid_token" || code === "token_expired";
}

/** Whether an error says that something does not exist, or not yet. What is no id names nothing. */
export function isMissing(error: unknown): boolean {
  if (!(error instanceof Problem)) return false;
  return error.status === 404 || (error.status === 400 && ["execution_id", "flow_id", "bulk_id"].includes(error.field ?? ""));
}

export const api = client;
