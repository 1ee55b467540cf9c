/** Spans of time: a number of milliseconds, or text such as `"90s"`, `"1h 30m"`. */
import { setTimeout } from "node:timers/promises";

export type Span = number | string;

/** Waits up to this long are waited under the lease. */
export const SHORT_WAIT_MS = 5_000;

const UNITS: Record<string, number> = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };
const PART = /^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)/;

/** The span in whole milliseconds. Text that is no span throws a `TypeError` that says so. */
export function milliseconds(span: Span): number {
  if (typeof span === "number") {
    if (!Number.isFinite(span) || span < 0) throw new TypeError(`${span} is no span of time`);
    return Math.round(span);
  }
  let rest = span;
  let total = 0;
  do {
    const part = PART.exec(rest);
    const unit = UNITS[part?.[2] ?? ""];
    if (part === null || unit === undefined) {
      throw new TypeError(`${JSON.stringify(span)} is no span of time; write for example "90s" or "1h 30m"`);
    }
    total += Number(part[1]) * unit;
    rest = rest.slice(part[0].length);
  } while (rest.trim() !== "");
  return Math.round(total);
}

/** A wait that somebody asks for, as the server takes it: whole, and within its limit; none where it is no number. */
export function waitWithin(ms: number | undefined, maxMs: number): number | undefined {
  return ms === undefined || Number.isNaN(ms) ? undefined : Math.round(Math.min(Math.max(ms, 0), maxMs));
}

/** Timers of Node that are longer than this act at once. */
const TIMER_MAX_MS = 2 ** 31 - 1;

/** Resolves after a pause, however long it is, or at once when the signal fires. */
export async function pause(ms: number, signal?: AbortSignal): Promise<void> {
  let left = ms;
  do {
    await setTimeout(Math.min(left, TIMER_MAX_MS), undefined, signal === undefined ? {} : { signal }).catch(() => undefined);
    left -= TIMER_MAX_MS;
  } while (left > 0 && signal?.aborted !== true);
}
