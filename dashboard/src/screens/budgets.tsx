// Budgets, quotas and providers: what is used of what is allowed, and when a limit will be reached.

import { answer, api } from "../api/client";
import { count, many, span } from "../format";
import { POLL_MS, useEvents, useSoon } from "../live";
import { useRows } from "../keys";
import { More, usePages } from "../pages";
import { namespace } from "../router";
import { may } from "../session";
import { BudgetQuestion } from "../budget/question";
import { BudgetTable } from "../budget/table";
import { remember } from "../budget/use";
import { ProviderCard, useProviders } from "../provider/table";
import { quotaActs } from "../quota/acts";
import { Card, Countdown, Empty, Meter, Refusal } from "../ui/basics";
import { ActButtons } from "../ui/dialog";
import { Table } from "../ui/table";

/** Budgets, or quotas, that a page brings. */
const PAGE = 200;

export function Budgets() {
  const ns = namespace();
  const budgets = usePages(
    `budgets ${ns ?? ""}`,
    async (cursor, signal) => {
      const page = await answer(api.GET("/v1/budgets", { params: { query: { namespace: ns, limit: PAGE, cursor } }, ...(signal ? { signal } : {}) }));
      remember(page.items);
      return page;
    },
    (budget) => budget.name,
    POLL_MS,
  );
  const quotas = usePages(
    `quotas ${ns ?? ""}`,
    (cursor, signal) => answer(api.GET("/v1/quotas", { params: { query: { namespace: ns, limit: PAGE, cursor } }, ...(signal ? { signal } : {}) })),
    (quota) => quota.name,
    POLL_MS,
  );
  const providers = useProviders();
  const again = useSoon(() => (budgets.refresh(), quotas.refresh(), providers.refresh()), 800, 3_000, true);
  useEvents(again);
  useRows("main td a.open");
  const questions = (budgets.items ?? []).flatMap((budget) => (budget.question ? [budget.question] : []));
  return (
    <>
      <h1>Budgets and quotas</h1>
      {budgets.error !== undefined && <Refusal error={budgets.error} />}
      {questions.map((question) => (
        <BudgetQuestion key={question.budget} question={question} done={budgets.refresh} />
      ))}
      <Card title={budgets.items && !budgets.more ? many(budgets.items.length, "budget") : "Budgets"} flush>
        <BudgetTable
          label="Budgets"
          items={budgets.items}
          done={budgets.refresh}
          empty={
            <Empty title="There is no budget yet" command="ff budget create team-a --hard tokens=1000000 --soft tokens=800000">
              A budget limits what executions spend together: tokens, money, requests, in dimensions of your own.
            </Empty>
          }
        />
        <More pages={budgets} />
      </Card>
      {quotas.error !== undefined && <Refusal error={quotas.error} />}
      <Card title={quotas.items && !quotas.more ? many(quotas.items.length, "quota") : "Quotas"} flush>
        <Table
          label="Quotas"
          items={quotas.items}
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
            { name: "Actions", when: may("operator"), cell: (quota) => <ActButtons label={`Actions on ${quota.name}`} acts={quotaActs(quota)} done={quotas.refresh} /> },
          ]}
        />
        <More pages={quotas} />
      </Card>
      <ProviderCard providers={providers} />
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
