// The overview: what waits, runs, asks and fails, and whether everything is well. Every number leads to the list behind it.

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { answer, api } from "../api/client";
import type { Schemas } from "../api/client";
import { listAsks, openApprovals } from "../approvals";
import { count, roughly, short } from "../format";
import { POLL_MS, now, useAsk, useEvents, useSoon } from "../live";
import { link, namespace } from "../router";
import { approverOnly } from "../session";
import { ENDED } from "../states";
import { Card, Empty, Loading, Meter, NEAR, Refusal, State, When } from "../ui/basics";
import { Chart, Spark } from "../ui/spark";

type Count = Schemas["Count"];

export type Counts = Schemas["GetCountsOutcome"];

/** The counts. The server shares a reading among those that ask within two seconds. */
export async function fetchCounts(signal: AbortSignal): Promise<Counts> {
  return await answer(api.GET("/v1/counts", { params: { query: { namespace: namespace() } }, signal }));
}

/** A number that may be a lower bound. */
export function shown(value: Count | undefined): string {
  return value === undefined ? "–" : `${count(value.value)}${value.more ? "+" : ""}`;
}

const BUCKET_MS = 2_000;
const BUCKETS = 60;

interface Rates {
  times: number[];
  started: number[];
  ended: number[];
}

/** Starts and ends that this page has seen, in buckets of two seconds. They live as long as the page. */
const rates = signal<Rates>(empty(Date.now()));

function empty(at: number): Rates {
  const last = Math.floor(at / BUCKET_MS) * BUCKET_MS;
  const times = Array.from({ length: BUCKETS }, (_, index) => last - (BUCKETS - 1 - index) * BUCKET_MS);
  return { times, started: times.map(() => 0), ended: times.map(() => 0) };
}

function moved(current: Rates, at: number): Rates {
  const last = Math.floor(at / BUCKET_MS) * BUCKET_MS;
  const newest = current.times[BUCKETS - 1] ?? 0;
  const steps = Math.min(BUCKETS, Math.max(0, (last - newest) / BUCKET_MS));
  if (steps === 0) return current;
  const zeros = Array.from({ length: steps }, () => 0);
  const times = Array.from({ length: BUCKETS }, (_, index) => last - (BUCKETS - 1 - index) * BUCKET_MS);
  return { times, started: [...current.started.slice(steps), ...zeros], ended: [...current.ended.slice(steps), ...zeros] };
}

function counted(type: string, happenedAt: number): void {
  const next = moved(rates.value, Math.max(Date.now(), happenedAt));
  const index = next.times.findLastIndex((at) => at <= happenedAt);
  if (index < 0) return;
  const started = [...next.started];
  const ended = [...next.ended];
  if (type === "lease_acquired" || type === "lease_reclaimed") started[index] = (started[index] ?? 0) + 1;
  if (ENDED.has(type)) ended[index] = (ended[index] ?? 0) + 1;
  rates.value = { times: next.times, started, ended };
}

function perSecond(values: number[]): number {
  const recent = values.slice(-5);
  return recent.reduce((sum, value) => sum + value, 0) / ((recent.length * BUCKET_MS) / 1_000);
}

export function Overview() {
  const key = namespace() ?? "";
  const counts = useAsk(`counts ${key}`, fetchCounts, POLL_MS);
  const asks = useAsk(`asks ${key}`, listAsks);
  const failed = useAsk(`failed ${key}`, (signal) => answer(api.GET("/v1/executions", { params: { query: { namespace: namespace(), state: ["failed"], limit: 6 } }, signal })));
  const budgets = useAsk(`budgets ${key}`, (signal) => answer(api.GET("/v1/budgets", { params: { query: { namespace: namespace(), limit: 200 } }, signal })));
  const workers = useAsk(`workers ${key}`, (signal) => answer(api.GET("/v1/workers", { params: { query: { namespace: namespace(), limit: 200 } }, signal })), POLL_MS * 3);
  const health = useAsk("health", async (signal) => ((await fetch("/readyz", { signal })).ok ? "ready" : "not ready"), POLL_MS * 3);
  const again = useSoon(() => {
    counts.refresh();
    asks.refresh();
    failed.refresh();
    budgets.refresh();
  }, 600, 3_000, true);
  useEvents((event) => {
    counted(event.event.event_type ?? "", event.happened_at);
    again();
  });
  useEffect(() => {
    const timer = setInterval(() => (rates.value = moved(rates.value, Date.now())), BUCKET_MS);
    return () => clearInterval(timer);
  }, []);

  if (approverOnly.value) return null;
  const states = counts.data.value?.states;
  const oldest = counts.data.value?.waiting.map((one) => one.next_created_at ?? Infinity).reduce((a, b) => Math.min(a, b), Infinity) ?? Infinity;
  const near = (budgets.data.value?.items ?? []).flatMap((budget) =>
    Object.entries(budget.definition.dimensions ?? {})
      .map(([dimension, limits]) => ({ budget, dimension, used: budget.usage?.[dimension] ?? 0, hard: limits.hard ?? 0, soft: limits.soft ?? 0 }))
      .filter((one) => (one.hard > 0 && one.used >= one.hard * NEAR) || (one.soft > 0 && one.used >= one.soft)),
  );
  const nothing = states !== undefined && Object.values(states).every((one) => one.value === 0);
  const tile = (label: string, state: keyof Counts["states"], note: string, spark?: number[]) => (
    <a class={`tile s-${state}`} href={link(["executions"], { state })}>
      <span class="label">
        <i aria-hidden="true" />
        {label}
      </span>
      <div class="value" data-count={state}>{shown(states?.[state])}</div>
      <div class="note">{note}</div>
      {spark && <Spark values={spark} tone={state} />}
    </a>
  );
  return (
    <>
      <h1>Overview</h1>
      {counts.error.value !== undefined && <Refusal error={counts.error.value} />}
      <div class="tiles">
        {tile("Waiting", "waiting", oldest < Infinity ? `the next in line has waited ${roughly(Math.max(0, now.value - oldest))}` : "nothing in line")}
        {tile("Active", "active", `${short(perSecond(rates.value.started))} started a second`, rates.value.started)}
        {tile("Suspended", "suspended", "waiting for a signal or a person")}
        {tile("Failed", "failed", "kept until their retention ends")}
        {tile("Completed", "completed", `${short(perSecond(rates.value.ended))} ended a second`, rates.value.ended)}
        <a class="tile" href={link(["workers"])}>
          <span class="label">Workers alive</span>
          <div class="value">{workers.data.value ? count(workers.data.value.items.length) : "–"}</div>
          <div class="note">{workers.data.value ? `${count(workers.data.value.items.reduce((sum, one) => sum + one.leases_held, 0))} leases held` : ""}</div>
        </a>
        <a class="tile s-suspended" href={link(["approvals"])}>
          <span class="label">Approvals open</span>
          <div class="value">{openApprovals.value === undefined ? "–" : count(openApprovals.value)}</div>
          <div class="note">{asks.data.value?.[0] ? `the oldest has waited ${roughly(Math.max(0, now.value - asks.data.value[0].since))}` : "nobody is waited for"}</div>
        </a>
        <a class="tile" href={link(["system", "deployment"])}>
          <span class="label">Server and store</span>
          <div class="value">
            <State state={health.data.value === "ready" ? "ok" : health.data.value ? "bad" : "none"} />
          </div>
          <div class="note">{health.data.value ?? "asking"}</div>
        </a>
      </div>
      {nothing && (
        <Card title="Nothing was submitted yet">
          <Empty title="Start a worker and give it something to do" command={`ff worker --kind shout -- tr a-z A-Z & ff submit shout '"hello"' --wait`}>
            Any program is a worker. This one writes its input in capital letters.
          </Empty>
        </Card>
      )}
      <div class="grid2">
        <div class="stack roomy">
          <Card title="In and out a second, as this page saw it">
            <Chart
              times={rates.value.times}
              series={[
                { label: "started", colour: "c-active", values: rates.value.started.map((n) => n / (BUCKET_MS / 1_000)) },
                { label: "ended", colour: "c-completed", values: rates.value.ended.map((n) => n / (BUCKET_MS / 1_000)) },
              ]}
              label={`Started and ended a second over the last two minutes; at present ${perSecond(rates.value.started).toFixed(1)} and ${perSecond(rates.value.ended).toFixed(1)}`}
            />
          </Card>
          <Card title="Failed last" tools={<a href={link(["executions"], { state: "failed" })}>All</a>} flush>
            {failed.data.value === undefined ? (
              <div class="body"><Loading /></div>
            ) : failed.data.value.items.length === 0 ? (
              <Empty title="Nothing failed">What fails for good shows up here, with its reason.</Empty>
            ) : (
              <table>
                <tbody>
                  {failed.data.value.items.map((item) => (
                    <tr>
                      <td>
                        <a href={link(["executions", item.execution_id])}>{item.kind}</a>
                        <div class="small muted">
                          {item.failure_category ? `${item.failure_category} · ` : ""}lane {item.lane}
                        </div>
                      </td>
                      <td class="num"><When at={item.completed_at ?? item.created_at} /></td>
                    </tr>
                  ))}
                </tbody>
              </table>
            )}
          </Card>
        </div>
        <div class="stack roomy">
          <Card title="Waiting for people" tools={<a href={link(["approvals"])}>All</a>} flush>
            {asks.data.value === undefined ? (
              <div class="body"><Loading /></div>
            ) : asks.data.value.length === 0 ? (
              <Empty title="Nobody is waited for">A task that suspends for an approval shows up here with its question.</Empty>
            ) : (
              <table>
                <tbody>
                  {asks.data.value.slice(0, 5).map((ask) => (
                    <tr>
                      <td>
                        <a href={link(["approvals"])}>{ask.question || ask.detail || ask.kind}</a>
                        <div class="small muted">{ask.kind}</div>
                      </td>
                      <td class="num"><When at={ask.since} /></td>
                    </tr>
                  ))}
                </tbody>
              </table>
            )}
          </Card>
          <Card title="Budgets near a limit" tools={<a href={link(["budgets"])}>All</a>} flush>
            {budgets.data.value === undefined ? (
              <div class="body"><Loading /></div>
            ) : near.length === 0 ? (
              <Empty title="No budget is near a limit">A budget shows up here past its soft limit, or from four fifths of its hard limit on.</Empty>
            ) : (
              <table>
                <tbody>
                  {near.slice(0, 8).map((one) => (
                    <tr>
                      <td>
                        <a href={link(["budgets", one.budget.name])}>{one.budget.name}</a>
                        <div class="small muted">
                          {one.dimension}: {count(one.used)} of {one.hard > 0 ? count(one.hard) : "no hard limit"}
                        </div>
                        <Meter value={one.used} max={one.hard || one.soft} mark={one.soft} label={`${one.budget.name} ${one.dimension}`} />
                      </td>
                    </tr>
                  ))}
                </tbody>
              </table>
            )}
          </Card>
        </div>
      </div>
    </>
  );
}
