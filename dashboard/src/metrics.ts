// What the server that answers counts, from its page for Prometheus. Other servers of the deployment have pages of their own.

import { useSignal } from "@preact/signals";
import type { ReadonlySignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { POLL_MS, useAsk } from "./live";

export interface Sample {
  name: string;
  labels: Record<string, string>;
  value: number;
}

const LINE = /^([a-z_]+)(?:\{(.*)\})? ([0-9.e+-]+)$/;
const LABEL = /([a-z_]+)="((?:[^"\\]|\\.)*)"/g;

/** Takes the text format of Prometheus apart. Exported for its test. */
export function parseMetrics(text: string): Sample[] {
  const samples: Sample[] = [];
  for (const line of text.split("\n")) {
    const [, name, labels, value] = LINE.exec(line) ?? [];
    if (name === undefined) continue;
    const found = [...(labels ?? "").matchAll(LABEL)].map(([, key, inner]) => [key, (inner ?? "").replace(/\\(.)/g, (_, after: string) => (after === "n" ? "\n" : after))]);
    samples.push({ name, labels: Object.fromEntries(found) as Record<string, string>, value: Number(value) });
  }
  return samples;
}

export async function fetchMetrics(signal: AbortSignal): Promise<Sample[]> {
  const response = await fetch("/metrics", { signal, credentials: "same-origin" });
  if (!response.ok) throw new Error(`The server does not show its metrics to this token (status ${response.status}).`);
  return parseMetrics(await response.text());
}

/** The sum of every sample of a name. */
export function total(samples: Sample[], name: string): number {
  return samples.filter((sample) => sample.name === name).reduce((sum, sample) => sum + sample.value, 0);
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
