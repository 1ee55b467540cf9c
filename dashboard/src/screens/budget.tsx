// One budget: what is used of what is allowed, what stands under it, and what is held in it.

import { answer, api, isMissing } from "../api/client";
import { count, quote, span } from "../format";
import { POLL_MS, useAsk, useEvents, useSoon } from "../live";
import { More, usePages } from "../pages";
import { go, link, namespace } from "../router";
import { may } from "../session";
import { budgetActs } from "../budget/acts";
import { BudgetQuestion } from "../budget/question";
import { Reservations } from "../budget/reservations";
import { BudgetTable } from "../budget/table";
import { Burn, DimensionUse, Pace, dimensionsOf, remember } from "../budget/use";
import type { Budget as Status } from "../budget/use";
import { Card, Command, Copy, Countdown, Empty, type Fact, Facts, Loading, Refusal, State, When } from "../ui/basics";
import { ActButtons } from "../ui/dialog";

/** Budgets of a tree that a page brings. */
const PAGE = 200;

export function Budget({ name }: { name: string }) {
  const ns = namespace();
  const asked = useAsk(
    `budget ${name} ${ns ?? ""}`,
    async (signal) => {
      const found = await answer(api.GET("/v1/budgets/{name}", { params: { path: { name }, query: { namespace: ns } }, signal }));
      remember([found]);
      return found;
    },
    POLL_MS,
  );
  const tree = usePages(
    `tree ${name} ${ns ?? ""}`,
    (cursor, signal) => answer(api.GET("/v1/budgets/{name}/tree", { params: { path: { name }, query: { namespace: ns, limit: PAGE, cursor } }, ...(signal ? { signal } : {}) })),
    (one) => one.name,
    POLL_MS,
  );
  const again = useSoon(() => (asked.refresh(), tree.refresh()), 800, 3_000, true);
  useEvents(again);
  const budget = asked.data.value;
  if (isMissing(asked.error.value)) {
    return (
      <Empty page title="There is no such budget" command="ff budget ls">
        It never existed here, or it was deleted. What is charged to it waits until it exists.
      </Empty>
    );
  }
  if (!budget) return asked.error.value === undefined ? <Loading lines={8} /> : <Refusal page error={asked.error.value} />;
  const under = tree.items?.filter((one) => one.name !== name);
  return (
    <>
      <div class="title">
        {(budget.exhausted ?? []).length > 0 && <State state="bad" word="used up" big />}
        <h1>
          <Path name={name} />
        </h1>
        <Copy text={name} what="the name" />
        {may("operator") && <ActButtons label={`Actions on ${name}`} acts={budgetActs(budget, () => go(link(["budgets"])))} done={again} />}
      </div>
      {budget.question && <BudgetQuestion question={budget.question} done={again} />}
      <div class="grid-side">
        <div class="stack">
          <Card title="Use">
            <div class="stack">
              {dimensionsOf(budget).map((dimension) => (
                <div key={dimension.name}>
                  <DimensionUse budget={name} dimension={dimension} />
                  <Pace dimension={dimension} />
                </div>
              ))}
              <Burn budget={budget} />
            </div>
          </Card>
          <Card title="Under it" flush>
            <BudgetTable
              label={`Budgets under ${name}`}
              items={under}
              below={name}
              empty={
                <Empty title="Nothing stands under it" command={`ff budget create ${quote(`${name}/child`)} --hard tokens=1000`}>
                  What is spent from a budget under this one counts here, too, and a limit of either refuses.
                </Empty>
              }
            />
            <More pages={tree} />
          </Card>
          <Card title="Reservations" flush>
            <Reservations namespace={budget.namespace} name={name} version={budget.updated_at} />
          </Card>
        </div>
        <div class="stack">
          <Details budget={budget} />
          <Card title="From a terminal">
            <div class="stack">
              <Command line={`ff budget get ${quote(name)}`} />
              <Command line={`ff budget tree ${quote(name)}`} />
            </div>
          </Card>
        </div>
      </div>
    </>
  );
}

/** The name with a link to each budget that this one stands under. */
function Path({ name }: { name: string }) {
  const parts = name.split("/");
  return (
    <>
      {parts.map((part, index) => {
        const path = parts.slice(0, index + 1).join("/");
        return index === parts.length - 1 ? (
          part
        ) : (
          <>
            <a href={link(["budgets", path])}>{part}</a>
            {" / "}
          </>
        );
      })}
    </>
  );
}

/** What happens at a hard limit, in words. */
const AT_HARD: Record<string, string> = {
  block: "what would spend more waits",
  fail: "what would spend more fails",
  suspend: "what would spend more is suspended",
  ask: "people are asked",
};

export function atHard(budget: Status): string {
  if (budget.definition.enforcement === "observe") return "only counts";
  const action = budget.definition.on_hard ?? "block";
  return AT_HARD[action] ?? action;
}

function Details({ budget }: { budget: Status }) {
  const { definition } = budget;
  const rows: Fact[] = [
    ["at a hard limit", atHard(budget)],
    ["past a soft limit", definition.on_soft === "none" ? "nothing happens" : "a warning is counted"],
  ];
  if (definition.rolling_ms) rows.push(["what was spent", `counts for ${span(definition.rolling_ms)}`]);
  else rows.push(["begins anew", budget.next_reset_at ? <Countdown to={budget.next_reset_at} /> : "never by itself"]);
  if (definition.per) rows.push(["one for each", definition.per.replace(":", " ")]);
  if (budget.from_template) rows.push(["made", "by its first use"]);
  if (definition.reset_interval_ms) rows.push(["every", span(definition.reset_interval_ms)]);
  if (budget.window_began_at) rows.push(["counts since", <When at={budget.window_began_at} />]);
  rows.push(
    ["hard limit met", `${times(budget.breach_count)}`],
    ["soft limit passed", `${times(budget.soft_breach_count)}`],
    ["reservations refused", count(budget.refused_count ?? 0)],
  );
  if (budget.last_breach_at) rows.push(["last met", <><When at={budget.last_breach_at} />{budget.last_breach_dimension ? ` (${budget.last_breach_dimension})` : ""}</>]);
  if (budget.declined) rows.push(["asked", "somebody said no, until it begins anew"]);
  const before = Object.entries(budget.previous_window?.usage ?? {}).map(([dimension, used]) => `${count(used)} ${dimension}`);
  if (before.length > 0) rows.push(["the window before", before.join(", ")]);
  if (definition.scope_type) rows.push(["for", `${definition.scope_type} ${definition.scope_id ?? ""}`]);
  rows.push(["namespace", budget.namespace], ["created", <When at={budget.created_at} />]);
  return (
    <Card title="Details">
      <Facts facts={rows} />
    </Card>
  );
}

function times(value: number): string {
  return value === 0 ? "never" : value === 1 ? "once" : `${count(value)} times`;
}
