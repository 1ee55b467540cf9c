// How screens keep up: one stream of events for the page, and questions that are asked again only while somebody looks.

import { batch, signal, useSignal } from "@preact/signals";
import type { ReadonlySignal, Signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { follow } from "./api/sse";
import type { ServerEvent } from "./api/sse";
import type { Schemas } from "./api/client";

/** An answer of the API as a screen shows it. */
export interface Asked<T> {
  data: ReadonlySignal<T | undefined>;
  error: ReadonlySignal<unknown>;
  /** Asks again now. */
  refresh: () => void;
}

/** No question is repeated by the clock more often than this. */
export const POLL_MS = 10_000;
/** A page that nobody has touched for this long asks nothing by the clock. */
const ATTENTION_MS = 60_000;

let touchedAt = Date.now();
/** Whether questions are repeated: the page can be seen, and somebody was here lately. */
export const attended = signal(true);

function touch(): void {
  touchedAt = Date.now();
  if (!document.hidden && !attended.value) attended.value = true;
}

/** Watches for somebody at the page. */
export function watchAttention(): void {
  for (const name of ["pointermove", "pointerdown", "keydown", "wheel", "focus"]) {
    window.addEventListener(name, touch, { passive: true, capture: true });
  }
  document.addEventListener("visibilitychange", () => (document.hidden ? (attended.value = false) : touch()));
  setInterval(() => {
    if (attended.value && Date.now() - touchedAt > ATTENTION_MS) attended.value = false;
  }, 5_000);
}

/**
 * Asks, and asks again when `key` changes, every `every` milliseconds while somebody looks (never, if 0), and when told
 * to. An answer that comes after a later question is dropped.
 */
export function useAsk<T>(key: string, ask: (signal: AbortSignal) => Promise<T>, every = 0): Asked<T> {
  const data = useSignal<T | undefined>(undefined);
  const error = useSignal<unknown>(undefined);
  const latest = useRef(ask);
  latest.current = ask;
  const again = useRef<() => void>(() => {});
  useEffect(() => {
    let running: AbortController | undefined;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let stale = false;
    let over = false;
    const run = async () => {
      clearTimeout(timer);
      if (running) {
        // One question at a time: what changes meanwhile is asked about afterwards.
        stale = true;
        return;
      }
      const controller = new AbortController();
      running = controller;
      stale = false;
      try {
        const value = await latest.current(controller.signal);
        if (!over) batch(() => ((data.value = value), (error.value = undefined)));
      } catch (caught) {
        if (!over) error.value = caught;
      }
      running = undefined;
      if (over) return;
      if (stale) void run();
      else if (every > 0 && attended.value) timer = setTimeout(run, Math.max(every, POLL_MS));
    };
    batch(() => ((data.value = undefined), (error.value = undefined)));
    again.current = () => void run();
    void run();
    const stopWatching = every > 0 ? attended.subscribe((seen) => (seen && data.peek() !== undefined ? void run() : clearTimeout(timer))) : () => {};
    const begun = outages.peek();
    const stopRecovering = outages.subscribe((ended) => ended > begun && void run());
    return () => {
      over = true;
      clearTimeout(timer);
      running?.abort();
      stopWatching();
      stopRecovering();
    };
  }, [key, every]);
  const refresh = useRef(() => again.current()).current;
  return { data, error, refresh };
}

export type DeploymentEvent = Schemas["EventView"];

const listeners = new Set<(event: DeploymentEvent) => void>();
let stopFollowing: (() => void) | undefined;

/** Whether events arrive. */
export const live = signal(false);

/** How often the stream of events came back, or has a gap: what was shown before may have changed unseen. */
const outages = signal(0);

/** Events that this page has seen on any of its screens, the newest first. */
export const seen = signal<readonly DeploymentEvent[]>([]);
const SEEN_MAX = 300;

function dispatch(event: DeploymentEvent): void {
  // An event may come twice, under the same id.
  if (!seen.peek().some((one) => one.event_id === event.event_id)) seen.value = [event, ...seen.peek()].slice(0, SEEN_MAX);
  for (const listener of listeners) listener(event);
}

function followEvents(): () => void {
  let lost = false;
  const handle = (event: ServerEvent) => {
    if (event.name === "gap") outages.value += 1;
    if (event.name === "ping" || event.name === "gap" || event.name === "error") return;
    dispatch(JSON.parse(event.data) as DeploymentEvent);
  };
  return follow("/v1/events?cursor=now&limit=100", handle, (here) => {
    live.value = here;
    if (here && lost) outages.value += 1;
    lost = !here;
  });
}

/** Calls `listener` for each event while the screen is shown, if it may. The page has one stream for all of its screens. */
export function useEvents(listener: (event: DeploymentEvent) => void, allowed = true): void {
  const latest = useRef(listener);
  latest.current = listener;
  useEffect(() => {
    if (!allowed) return;
    const one = (event: DeploymentEvent) => latest.current(event);
    listeners.add(one);
    stopFollowing ??= followEvents();
    return () => {
      listeners.delete(one);
      // The next screen may want it, too; it is ended only if none does.
      setTimeout(() => {
        if (listeners.size === 0) {
          stopFollowing?.();
          stopFollowing = undefined;
          live.value = false;
        }
      }, 1_000);
    };
  }, [allowed]);
}

/**
 * Calls `run` soon after the last of many calls, and at least every `most` milliseconds. A screen whose questions concern
 * the whole deployment lets them wait until somebody is there: a wall of open tabs must not be a load.
 */
export function useSoon(run: () => void, wait = 250, most = 1_500, onlyAttended = false): () => void {
  const latest = useRef(run);
  latest.current = run;
  const state = useRef<{ timer?: ReturnType<typeof setTimeout>; since: number }>({ since: 0 });
  const owed = useRef(false);
  useEffect(() => {
    const stop = attended.subscribe((here) => {
      if (!here || !owed.current) return;
      owed.current = false;
      latest.current();
    });
    return () => {
      stop();
      clearTimeout(state.current.timer);
    };
  }, []);
  return useRef(() => {
    if (onlyAttended && !attended.peek()) {
      owed.current = true;
      return;
    }
    const now = Date.now();
    const { timer, since } = state.current;
    const begun = timer === undefined ? now : since;
    clearTimeout(timer);
    const left = Math.max(0, Math.min(wait, begun + most - now));
    state.current = {
      since: begun,
      timer: setTimeout(() => {
        state.current = { since: 0 };
        latest.current();
      }, left),
    };
  }).current;
}

/** How far the store's clock is ahead of this browser's: times are the store's. */
let aheadMs = 0;

/** The present in the store's time. It moves every second while the page can be seen. */
export const now: Signal<number> = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now() + aheadMs;
}, 1_000);

/** Goes by the store's clock. Small differences are the time of the call. */
export function setClock(storeNow: number): void {
  const ahead = storeNow - Date.now();
  aheadMs = Math.abs(ahead) < 1_000 ? 0 : ahead;
  now.value = Date.now() + aheadMs;
}
