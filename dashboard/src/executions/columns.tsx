// The columns of the list of executions that a reader can choose.

import type { ComponentChildren } from "preact";
import { count, exact, span } from "../format";
import { useAsk } from "../live";
import { query, setQuery } from "../router";
import { ENDED } from "../states";
import { Copy, Tags, When, Words } from "../ui/basics";
import { firstReason } from "./explain";
import type { Summary } from "../screens/executions";

/** A column beside those that always stand: state, kind and creation. */
export interface Shown {
  name: string;
  label: string;
  /** The least width, in pixels, and its part of what is left; 0 takes nothing of that. */
  width: number;
  grow: number;
  cell: (item: Summary) => ComponentChildren;
}

const COLUMNS: Shown[] = [
  {
    name: "id",
    label: "Id",
    width: 130,
    grow: 0.8,
    cell: (item) => (
      <>
        <code title={item.execution_id}>…{item.execution_id.slice(-12)}</code>
        <Copy text={item.execution_id} what="the id" />
      </>
    ),
  },
  { name: "lane", label: "Lane", width: 80, grow: 0.6, cell: (item) => <span title={item.lane}>{item.lane}</span> },
  { name: "why", label: "Why, or how far", width: 160, grow: 2, cell: (item) => <span class="small"><Why item={item} /></span> },
  { name: "tags", label: "Tags", width: 130, grow: 1, cell: (item) => <Tags tags={item.tags} /> },
  { name: "priority", label: "Priority", width: 70, grow: 0, cell: (item) => count(item.priority) },
  { name: "attempt", label: "Attempt", width: 70, grow: 0, cell: (item) => item.attempt ?? "–" },
  { name: "started", label: "Started", width: 92, grow: 0, cell: (item) => <When at={item.started_at} /> },
  { name: "ended", label: "Ended", width: 92, grow: 0, cell: (item) => <When at={item.completed_at} /> },
];
const USUAL = ["id", "lane", "why"];

/** The columns that the address names, or the usual ones. */
export function shownColumns(): Shown[] {
  const named = query.value.get("columns")?.split(",") ?? USUAL;
  return COLUMNS.filter((column) => named.includes(column.name));
}

/** The columns around those that can be chosen: the state and the kind before them, the instant of creation behind. */
const FIRST: Pick<Shown, "width" | "grow">[] = [
  { width: 176, grow: 0 },
  { width: 120, grow: 1.1 },
];
const LAST = { width: 92, grow: 0 };
/** Between two columns, and on both sides together. */
const GAP_PX = 12;
const SIDES_PX = 32;

/** The widths of a row, for the stylesheet, and the least that all of them take. */
export function gridOf(columns: Shown[]): { columns: string; width: string } {
  const all = [...FIRST, ...columns, LAST];
  const least = all.reduce((sum, column) => sum + column.width, SIDES_PX + GAP_PX * (all.length - 1));
  return { columns: all.map(({ width, grow }) => (grow > 0 ? `minmax(${width}px, ${grow}fr)` : `${width}px`)).join(" "), width: `${least}px` };
}

export function ColumnChoice({ columns }: { columns: Shown[] }) {
  const names = columns.map((column) => column.name);
  const toggle = (name: string) => {
    const next = COLUMNS.map((column) => column.name).filter((one) => (one === name ? !names.includes(one) : names.includes(one)));
    setQuery({ columns: next.join() === USUAL.join() ? undefined : next.join() || "none" });
  };
  return (
    <details class="menu hide-narrow">
      <summary class="button small">Columns</summary>
      <div>
        {COLUMNS.map((column) => (
          <label>
            <input type="checkbox" checked={names.includes(column.name)} onChange={() => toggle(column.name)} />
            {column.label}
          </label>
        ))}
      </div>
    </details>
  );
}

/** Why it does not run, or how far it is; asked only for rows in sight. */
function Why({ item }: { item: Summary }) {
  const asks = !ENDED.has(item.public_state) && item.public_state !== "active";
  const reason = useAsk(`${item.execution_id} ${item.public_state}`, async (signal) => (asks ? await firstReason(item.execution_id, signal) : ""));
  if (asks) return <span class="muted" title={reason.data.value}>{reason.data.value ? <Words text={reason.data.value} /> : ""}</span>;
  if (item.public_state === "active" && item.progress) {
    const pct = item.progress.pct;
    return <span class="muted">{[pct === null || pct === undefined ? "" : `${pct} %`, item.progress.message ?? ""].filter(Boolean).join(" · ")}</span>;
  }
  if (item.failure_category) return <span class="muted">{item.failure_category}</span>;
  if (item.completed_at) return <span class="muted" title={exact(item.completed_at)}>after {span(item.completed_at - item.created_at)}</span>;
  return null;
}
