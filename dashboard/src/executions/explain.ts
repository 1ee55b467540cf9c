// The first line of `explain`, for rows of a list.

import { answer, api } from "../api/client";

/** Questions that are under way at once: a list must not become a load. */
const AT_ONCE = 4;
let running = 0;
const line: (() => void)[] = [];

async function place(): Promise<void> {
  if (running < AT_ONCE) {
    running += 1;
    return;
  }
  await new Promise<void>((resolve) => line.push(resolve));
}

function leave(): void {
  const next = line.shift();
  if (next) next();
  else running -= 1;
}

/** Why an execution does not run, in one line. */
export async function firstReason(id: string, signal: AbortSignal): Promise<string> {
  await place();
  try {
    if (signal.aborted) return "";
    const explained = await answer(api.GET("/v1/executions/{execution_id}/explain", { params: { path: { execution_id: id } }, signal }));
    return explained.reasons[0]?.message ?? "";
  } catch {
    return "";
  } finally {
    leave();
  }
}
