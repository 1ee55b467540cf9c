// Counters of the server that answers, from its page for Prometheus. Other servers of the deployment have pages of their own.

import { useSignal } from "@preact/signals";
import type { ReadonlySignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { POLL_MS, useAsk } from "./live";
import { parseMetrics } from "./prometheus";
import type { Sample } from "./prometheus";

export async function fetchMetrics(signal: AbortSignal): Promise<Sample[]> {
  const response = await fetch("/metrics", { signal, credentials: "same-origin" });
  if (!response.ok) throw new Error(`The server does not show its metrics to this token (status ${response.status}).`);
  return parseMetrics(await response.text());
}

/** Claims a second that took work from each lane, between the last two looks of this page; absent before the second look. */
export function useClaimRates(): ReadonlySignal<ReadonlyMap<string, number> | undefined> {
  const rates = useSignal<ReadonlyMap<string, number> | undefined>(undefined);
  const before = useSignal<{ at: number; counts: Map<string, number> } | undefined>(undefined);
  const asked = useAsk("metrics", fetchMetrics, POLL_MS);
  const samples = asked.data.value;
  useEffect(() => {
    if (!samples) return;
    const taken = samples.filter((sample) => sample.name === "flowfabric_claim_seconds_count" && sample.labels["exit"] === "taken");
    const now = { at: Date.now(), counts: new Map(taken.map((sample) => [sample.labels["lane"] ?? "", sample.value])) };
    const last = before.peek();
    before.value = now;
    if (!last || now.at <= last.at) return;
    const seconds = (now.at - last.at) / 1_000;
    rates.value = new Map([...now.counts].map(([lane, count]) => [lane, Math.max(0, count - (last.counts.get(lane) ?? 0)) / seconds]));
  }, [samples]);
  return rates;
}
