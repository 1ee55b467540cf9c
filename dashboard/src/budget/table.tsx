// Budgets as a tree: each stands behind the one it is under, and is shown a step to the right.

import type { ComponentChildren } from "preact";
import { span } from "../format";
import { link } from "../router";
import { may } from "../session";
import { Countdown, State } from "../ui/basics";
import { ActButtons } from "../ui/dialog";
import { Table } from "../ui/table";
import { budgetActs } from "./acts";
import { DimensionUse, Hit, dimensionsOf } from "./use";
import type { Budget } from "./use";

/** How far a level of the tree is moved to the right. */
const LEVEL_PX = 18;

/** In the order of their paths, part by part, so that `a/b` comes before `a-b`. */
export function inOrder(budgets: Budget[]): Budget[] {
  const parts = new Map(budgets.map((budget) => [budget, budget.name.split("/")]));
  return [...budgets].sort((one, other) => {
    const [first, second] = [parts.get(one) ?? [], parts.get(other) ?? []];
    const at = first.findIndex((part, index) => part !== second[index]);
    if (at < 0) return first.length - second.length;
    return (first[at] ?? "") < (second[at] ?? "") ? -1 : 1;
  });
}

interface Budgets {
  label: string;
  items: Budget[] | undefined;
  /** The budget under which all of these stand. */
  below?: string;
  /** Called after an act; where absent, there are none. */
  done?: () => void;
  empty: ComponentChildren;
}

export function BudgetTable({ label, items, below, done, empty }: Budgets) {
  const shown = items && inOrder(items);
  const names = new Set([...(items?.map((budget) => budget.name) ?? []), ...(below ? [below] : [])]);
  return (
    <Table
      label={label}
      items={shown}
      keyOf={(budget) => budget.name}
      empty={empty}
      columns={[
        { name: "Budget", cell: (budget) => <Name name={budget.name} known={names} above={below} exhausted={(budget.exhausted ?? []).length > 0} /> },
        {
          name: "Used",
          cell: (budget) => (
            <div class="stack tight uses">
              {dimensionsOf(budget).map((dimension) => (
                <DimensionUse key={dimension.name} budget={budget.name} dimension={dimension} />
              ))}
            </div>
          ),
        },
        {
          name: "A limit is reached",
          cell: (budget) => {
            const hits = dimensionsOf(budget).flatMap((dimension) => (dimension.hitAt === undefined ? [] : [dimension.hitAt]));
            return hits.length > 0 ? <Hit at={Math.min(...hits)} /> : <span class="muted">–</span>;
          },
        },
        { name: "Begins anew", cell: anew },
        { name: "Actions", when: done !== undefined && may("operator"), cell: (budget) => <ActButtons label={`Actions on ${budget.name}`} acts={budgetActs(budget, () => {})} done={done ?? (() => {})} /> },
      ]}
    />
  );
}

/** The last part of a name whose parent is in sight, and otherwise all of it. */
function Name({ name, known, above, exhausted }: { name: string; known: ReadonlySet<string>; above: string | undefined; exhausted: boolean }) {
  const cut = name.lastIndexOf("/");
  const inSight = cut > 0 && known.has(name.slice(0, cut));
  const depth = inSight ? name.split("/").length - 1 - (above ? above.split("/").length : 0) : 0;
  return (
    <span class="nowrap" style={{ paddingLeft: `${depth * LEVEL_PX}px` }}>
      <a class="open" href={link(["budgets", name])} title={name}>
        {inSight ? name.slice(cut + 1) : name}
      </a>{" "}
      {exhausted && <State state="bad" word="used up" />}
    </span>
  );
}

function anew(budget: Budget) {
  if (budget.definition.rolling_ms) return <span class="muted">bit by bit, in {span(budget.definition.rolling_ms)}</span>;
  return budget.next_reset_at ? <Countdown to={budget.next_reset_at} /> : <span class="muted">never</span>;
}
