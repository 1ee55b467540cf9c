// How much of a budget is used, how fast that grows, and when a limit will be reached.

import { signal } from "@preact/signals";
import type { Schemas } from "../api/client";
import { count, exact, relative } from "../format";
import { now } from "../live";
import { Meter } from "../ui/basics";
import { Chart } from "../ui/spark";

export type Budget = Schemas["BudgetStatus"];

interface Sample {
  at: number;
  used: number;
}

/** Samples of each dimension that this page has seen, oldest first. */
const history = signal<Record<string, Sample[]>>({});
const SAMPLES_MAX = 360;
/** A pace over less than this says nothing. */
const PACE_MIN_MS = 60_000;
/** A limit that is reached later than this is not worth a word. */
const FORECAST_MAX_MS = 90 * 86_400_000;

function keyOf(budget: Budget, dimension: string): string {
  return `${budget.namespace}/${budget.name}/${dimension}`;
}

/** Keeps what budgets have used at this moment. */
export function remember(budgets: Budget[]): void {
  const next = { ...history.value };
  const at = Date.now();
  for (const budget of budgets) {
    for (const [dimension, used] of Object.entries(budget.usage ?? {})) {
      const key = keyOf(budget, dimension);
      next[key] = [...(next[key] ?? []), { at, used }].slice(-SAMPLES_MAX);
    }
  }
  history.value = next;
}

/** When a limit is reached if it goes on as in the samples. */
function forecast(samples: Sample[], limit: number): number | undefined {
  const first = samples[0];
  const last = samples[samples.length - 1];
  if (!first || !last || limit <= 0 || last.used >= limit) return undefined;
  const spent = last.used - first.used;
  const took = last.at - first.at;
  if (spent <= 0 || took < PACE_MIN_MS) return undefined;
  return last.at + ((limit - last.used) / spent) * took;
}

/** A dimension of a budget with its limits and where it stands. */
export interface Dimension {
  name: string;
  used: number;
  reserved: number;
  overrun: number;
  /** The hard limit with what was granted on top of it; 0 is none. */
  hard: number;
  soft: number;
  granted: number;
  /** Absent where the window is too young to tell. */
  perHour: number | undefined;
  hitAt: number | undefined;
}

export function dimensionsOf(budget: Budget): Dimension[] {
  const young = now.value - (budget.window_began_at ?? budget.created_at) < PACE_MIN_MS;
  return Object.entries(budget.definition.dimensions ?? {}).map(([name, limits]) => {
    const standing = budget.standing?.[name];
    const granted = budget.granted?.[name] ?? 0;
    const hard = limits.hard ? limits.hard + granted : 0;
    const hit = forecast(history.value[keyOf(budget, name)] ?? [], hard) ?? (young ? undefined : (standing?.exhausted_at ?? undefined));
    return {
      name,
      used: budget.usage?.[name] ?? 0,
      reserved: standing?.reserved ?? 0,
      overrun: standing?.overrun ?? 0,
      hard,
      soft: limits.soft ?? 0,
      granted,
      perHour: young ? undefined : standing?.per_hour || undefined,
      hitAt: hit !== undefined && hit - now.value < FORECAST_MAX_MS ? hit : undefined,
    };
  });
}

/** One dimension: a bar and its numbers. */
export function DimensionUse({ budget, dimension }: { budget: string; dimension: Dimension }) {
  const { name, used, reserved, hard, soft } = dimension;
  return (
    <div>
      <div class="row between">
        <span>{name}</span>
        <span class="nowrap num">
          {count(used)}
          {reserved ? ` and ${count(reserved)} held` : ""}
          {hard ? ` of ${count(hard)}` : ", no hard limit"}
        </span>
      </div>
      <Meter value={used} held={reserved} max={hard || soft || Math.max(1, used)} mark={soft} label={`${budget} ${name}`} />
    </div>
  );
}

/** The pace of one dimension, in words. */
export function Pace({ dimension }: { dimension: Dimension }) {
  const { name, soft, granted, perHour, overrun, hitAt } = dimension;
  return (
    <span class="small muted">
      {soft > 0 ? `Soft limit ${count(soft)}. ` : ""}
      {granted > 0 ? `${count(granted)} were granted on top. ` : ""}
      {perHour ? `${count(perHour)} ${name} an hour. ` : ""}
      {overrun > 0 ? `${count(overrun)} were spent beyond what was reserved. ` : ""}
      {hitAt !== undefined && (
        <>
          At this pace the limit is reached <Hit at={hitAt} />.
        </>
      )}
    </span>
  );
}

/** When a limit is reached: how soon, and in which hour. */
export function Hit({ at }: { at: number }) {
  return (
    <time dateTime={new Date(at).toISOString()} title={exact(at)}>
      {relative(at, now.value)}, around {exact(at).slice(0, 16)}
    </time>
  );
}

const COLOURS = ["c-active", "c-suspended", "c-limited", "c-delayed"];

/** The part of each hard limit that was used, from the beginning of the window on. */
export function Burn({ budget }: { budget: Budget }) {
  const limited = dimensionsOf(budget).filter((dimension) => dimension.hard > 0);
  const samples = limited.map((dimension) => history.value[keyOf(budget, dimension.name)] ?? []);
  const began = budget.window_began_at ?? budget.created_at;
  const seen = samples[0]?.map((sample) => sample.at) ?? [];
  if (limited.length === 0 || seen.length === 0) return null;
  const times = [began, ...seen].map((at, index) => (index === 0 ? Math.min(at, (seen[0] ?? at) - 1) : at));
  const series = limited.map((dimension, index) => ({
    label: dimension.name,
    colour: COLOURS[index % COLOURS.length] ?? "c-active",
    values: [0, ...seen.map((_, at) => ((samples[index]?.[at]?.used ?? 0) / dimension.hard) * 100)],
  }));
  return <Chart times={times} series={series} height={130} unit=" %" label={`Part of the hard limits of ${budget.name} that was used, since the window began`} />;
}
