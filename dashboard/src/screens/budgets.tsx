// Budgets and quotas: what is used of what is allowed, how fast it burns, and when a limit will be reached.

import { signal } from "@preact/signals";
import { answer, api } from "../api/client";
import type { Schemas } from "../api/client";
import { count, quote, relative, span } from "../format";
import { POLL_MS, now, useAsk, useEvents, useSoon } from "../live";
import { link, namespace, query } from "../router";
import { may } from "../session";
import { Card, Countdown, Empty, Loading, Meter, Refusal, State, When } from "../ui/basics";
import { ActButtons } from "../ui/dialog";
import type { Act } from "../ui/dialog";
import { BudgetQuestion } from "../budget/question";
import { Reservations } from "../budget/reservations";
import { Chart } from "../ui/spark";
import { Table } from "../ui/table";

type Budget = Schemas["BudgetStatus"];

/** Samples of each dimension that this page has seen, oldest first. */
const history = signal<Record<string, { at: number; used: number }[]>>({});
const SAMPLES_MAX = 360;

function remember(budgets: Budget[]): void {
  const next = { ...history.value };
  const at = Date.now();
  for (const budget of budgets) {
    for (const [dimension, used] of Object.entries(budget.usage ?? {})) {
      const key = `${budget.namespace}/${budget.name}/${dimension}`;
      next[key] = [...(next[key] ?? []), { at, used }].slice(-SAMPLES_MAX);
    }
  }
  history.value = next;
}

/** When a limit is reached if it goes on as in the samples. */
export function forecast(samples: { at: number; used: number }[], limit: number): number | undefined {
  const first = samples[0];
  const last = samples[samples.length - 1];
  if (!first || !last || limit <= 0 || last.used >= limit) return undefined;
  const spent = last.used - first.used;
  const took = last.at - first.at;
  if (spent <= 0 || took < 5_000) return undefined;
  return last.at + ((limit - last.used) / spent) * took;
}

export function Budgets() {
  const ns = namespace();
  const budgets = useAsk(
    `budgets ${ns ?? ""}`,
    async (signal) => {
      const page = await answer(api.GET("/v1/budgets", { params: { query: { namespace: ns, limit: 500 } }, signal }));
      remember(page.items);
      return page;
    },
    POLL_MS,
  );
  const quotas = useAsk(`quotas ${ns ?? ""}`, (signal) => answer(api.GET("/v1/quotas", { params: { query: { namespace: ns, limit: 500 } }, signal })), POLL_MS);
  const again = useSoon(() => (budgets.refresh(), quotas.refresh()), 800, 3_000, true);
  useEvents(again);
  const wanted = query.value.get("name");
  // A budget is shown with everything that stands under it.
  const items = budgets.data.value?.items.filter((one) => !wanted || one.name === wanted || one.name.startsWith(`${wanted}/`));
  return (
    <>
      <div class="title">
        <h1>Budgets and quotas</h1>
        {wanted && (
          <a class="chip" aria-pressed="true" href={link(["budgets"])}>
            {wanted} ✕
          </a>
        )}
      </div>
      {budgets.error.value !== undefined && <Refusal error={budgets.error.value} />}
      {(items ?? []).flatMap((budget) => (budget.question ? [<BudgetQuestion key={budget.name} question={budget.question} done={budgets.refresh} />] : []))}
      {items === undefined ? (
        <Loading />
      ) : items.length === 0 ? (
        <Card title="Budgets">
          <Empty title="There is no budget yet" command="ff budget create team-a --hard tokens=1000000 --soft tokens=800000">
            A budget limits what executions spend together: tokens, money, requests, in dimensions of your own.
          </Empty>
        </Card>
      ) : (
        <div class="grid2">
          {items.map((budget) => (
            <BudgetCard key={budget.name} budget={budget} done={budgets.refresh} />
          ))}
        </div>
      )}
      <Card title="Quotas" flush>
        <Table
          label="Quotas"
          items={quotas.data.value?.items}
          keyOf={(quota) => quota.name}
          empty={
            <Empty title="There is no quota yet" command="ff quota create model-api --requests 60 --concurrent 8">
              A quota limits how many attempts start in a window, and how many run at once.
            </Empty>
          }
          columns={[
            { name: "Quota", cell: (quota) => quota.name },
            {
              name: "Started in the window",
              cell: (quota) => (
                <Share value={quota.started_in_window} max={quota.definition.max_requests} label={`${quota.name} requests`} rest={` in ${span((quota.definition.window_seconds ?? 0) * 1_000)}`} />
              ),
            },
            { name: "Running at once", cell: (quota) => <Share value={quota.in_use} max={quota.definition.max_concurrent} label={`${quota.name} at once`} /> },
            { name: "Opens", cell: (quota) => (quota.opens_at ? <Countdown to={quota.opens_at} /> : <span class="muted">open</span>) },
          ]}
        />
      </Card>
    </>
  );
}

/** How much of a limit is taken. */
function Share({ value, max, label, rest = "" }: { value: number; max: number | undefined; label: string; rest?: string }) {
  if (!max) return <span class="muted">no limit</span>;
  return (
    <>
      {count(value)} of {count(max)}
      {rest}
      <Meter value={value} max={max} label={label} />
    </>
  );
}

function BudgetCard({ budget, done }: { budget: Budget; done: () => void }) {
  const dimensions = Object.entries(budget.definition.dimensions ?? {});
  const series = dimensions
    .map(([dimension], index) => ({ dimension, colour: ["c-active", "c-suspended", "c-limited", "c-delayed"][index % 4] ?? "c-active", samples: history.value[`${budget.namespace}/${budget.name}/${dimension}`] ?? [] }))
    .filter((one) => one.samples.length > 1);
  const times = series[0]?.samples.map((sample) => sample.at) ?? [];
  return (
    <Card
      title={
        <>
          {budget.name} {(budget.exhausted ?? []).length > 0 && <State state="bad" />}
        </>
      }
      tools={may("operator") && <ActButtons label={`Actions on ${budget.name}`} acts={[limitsOf(budget), resetOf(budget)]} done={done} />}
    >
      <div class="stack">
        {dimensions.map(([dimension, limits]) => {
          const used = budget.usage?.[dimension] ?? 0;
          const standing = budget.standing?.[dimension];
          const granted = budget.granted?.[dimension] ?? 0;
          const hard = limits.hard ? limits.hard + granted : 0;
          const hit = forecast(history.value[`${budget.namespace}/${budget.name}/${dimension}`] ?? [], hard) ?? standing?.exhausted_at;
          return (
            <div>
              <div class="row between">
                <span>{dimension}</span>
                <span class="nowrap">
                  {count(used)}
                  {standing?.reserved ? ` and ${count(standing.reserved)} held` : ""} of {hard ? count(hard) : "no hard limit"}
                </span>
              </div>
              <Meter value={used} held={standing?.reserved ?? 0} max={hard || limits.soft || Math.max(1, used)} mark={limits.soft} label={`${budget.name} ${dimension}`} />
              <span class="small muted">
                {limits.soft ? `soft limit ${count(limits.soft)}. ` : ""}
                {granted > 0 ? `${count(granted)} were granted on top. ` : ""}
                {standing?.per_hour ? `${count(standing.per_hour)} an hour. ` : ""}
                {standing?.overrun ? `${count(standing.overrun)} were spent beyond what was reserved. ` : ""}
                {hit ? `At this pace the limit is reached ${relative(hit, now.value)}.` : ""}
              </span>
            </div>
          );
        })}
        {series.length > 0 && (
          <Chart times={times} series={series.map((one) => ({ label: one.dimension, colour: one.colour, values: times.map((_, index) => one.samples[index]?.used ?? null) }))} height={110} label={`Use of ${budget.name} since this page was opened`} />
        )}
        <Reservations namespace={budget.namespace} name={budget.name} version={budget.updated_at} />
        <dl class="facts">
          <dt>at a hard limit</dt>
          <dd>
            {budget.definition.enforcement === "observe" ? "only counts" : (budget.definition.on_hard ?? "block")}
            {budget.breach_count > 0 && ` · ${count(budget.breach_count)} times`}
            {budget.last_breach_at && (
              <>
                {" · last "}
                <When at={budget.last_breach_at} />
              </>
            )}
          </dd>
          {budget.next_reset_at && (
            <>
              <dt>begins anew</dt>
              <dd>
                <Countdown to={budget.next_reset_at} />
              </dd>
            </>
          )}
        </dl>
      </div>
    </Card>
  );
}

function limitsOf(budget: Budget): Act {
  const dimensions = Object.entries(budget.definition.dimensions ?? {});
  return {
    name: "Limits",
    effect: "The limits are replaced. A raised limit releases what was blocked by it. 0 means no limit.",
    command: `ff budget limits ${quote(budget.name)} ${dimensions.map(([dimension, limits]) => `--hard ${quote(dimension)}=${limits.hard ?? 0}`).join(" ")}`,
    fields: dimensions.flatMap(([dimension, limits]) => [
      { name: `hard ${dimension}`, label: `Hard limit of ${dimension}`, type: "number" as const, value: String(limits.hard ?? 0) },
      { name: `soft ${dimension}`, label: `Soft limit of ${dimension}`, type: "number" as const, value: String(limits.soft ?? 0) },
    ]),
    run: async (values) => {
      const next = Object.fromEntries(dimensions.map(([dimension]) => [dimension, { hard: Number(values[`hard ${dimension}`]), soft: Number(values[`soft ${dimension}`]) }]));
      await answer(api.PUT("/v1/budgets/{name}/limits", { params: { path: { name: budget.name } }, body: { namespace: budget.namespace, dimensions: next } }));
      return `The limits of ${budget.name} are changed.`;
    },
  };
}

function resetOf(budget: Budget): Act {
  return {
    name: "Reset",
    effect: "What was used counts as nothing from now on, and what was blocked is released.",
    command: `ff budget reset ${quote(budget.name)}`,
    danger: true,
    run: async () => {
      await answer(api.POST("/v1/budgets/{name}/reset", { params: { path: { name: budget.name } }, body: { namespace: budget.namespace } }));
      return `${budget.name} begins anew.`;
    },
  };
}
