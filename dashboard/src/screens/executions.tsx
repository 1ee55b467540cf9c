// The list of executions: filters in the address, rows drawn only where they can be seen, and for everything that does
// not run the first line of `explain`.

import type { ComponentChildren } from "preact";
import { useSignal } from "@preact/signals";
import { elementScroll, observeElementOffset, observeElementRect, Virtualizer } from "@tanstack/virtual-core";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { answer, api } from "../api/client";
import type { Schemas } from "../api/client";
import { shortId, words } from "../format";
import { POLL_MS, useAsk, useEvents, useSoon } from "../live";
import { isForPage, useRows } from "../keys";
import { More, usePages } from "../pages";
import type { Page } from "../pages";
import { link, namespace, query, setQuery } from "../router";
import { may } from "../session";
import { Command, Empty, Loading, Refusal, State, When } from "../ui/basics";
import { STATES } from "../states";
import { Bulk } from "../executions/bulk";
import { BulkStart } from "../bulk/start";
import { ColumnChoice, gridOf, shownColumns } from "../executions/columns";
import type { Shown } from "../executions/columns";
import { CHIPS, SPANS, asFilter, filters, optionsOf } from "../executions/filter";
import type { Filters } from "../executions/filter";
import { fetchCounts, shown } from "./overview";

export type Summary = Schemas["ExecutionSummary"];

/** Executions that a page brings. */
const PAGE = 100;
const ROW_PX = 44;

async function fetchPage(filter: Filters, cursor: string | undefined, signal?: AbortSignal): Promise<Page<Summary>> {
  const wanted: Record<string, unknown> = { ...asFilter(filter), namespace: namespace(), limit: PAGE, cursor };
  if (filter.order === "oldest") wanted["order"] = "oldest";
  const params = { query: wanted as never };
  return await answer(api.GET("/v1/executions", signal ? { params, signal } : { params }));
}

export function Executions() {
  const filter = filters();
  const key = JSON.stringify([filter, namespace()]);
  const pages = usePages(key, (cursor, signal) => fetchPage(filter, cursor, signal), (item) => item.execution_id, POLL_MS);
  const counts = useAsk(`counts ${namespace() ?? ""}`, fetchCounts, POLL_MS);
  const chosen = useSignal<ReadonlySet<string>>(new Set());
  const columns = shownColumns();
  const grid = gridOf(columns);
  const again = useSoon(() => (pages.refresh(), counts.refresh()), 400, 2_000, true);
  // An event of another kind changes nothing of what is shown.
  const kinds = filter.chips.kind;
  useEvents((event) => (kinds.length === 0 || kinds.includes(event.event.execution_kind ?? "")) && again());
  useRows(".vrow.item a.open");
  useChoice();

  const items = pages.items ?? [];
  const toggle = (id: string) => {
    const next = new Set(chosen.value);
    if (!next.delete(id)) next.add(id);
    chosen.value = next;
  };
  return (
    <>
      <div class="title">
        <h1>Executions</h1>
        <div class="row">
          <Command line={lsCommand(filter)} />
        </div>
      </div>
      <section class="card">
        <div class="body stack">
          <div class="row" role="group" aria-label="States">
            {STATES.map((state) => {
              const on = filter.states.includes(state);
              const n = counts.data.value?.states[state];
              return (
                <button
                  type="button"
                  class={`chip s-${state}`}
                  aria-pressed={on}
                  onClick={() => setQuery({ state: on ? filter.states.filter((one) => one !== state) : [...filter.states, state] })}
                >
                  {words(state)}
                  {n !== undefined && <span class="n">{shown(n)}</span>}
                </button>
              );
            })}
          </div>
          <div class="row">
            {CHIPS.map((chip) => (
              <Filter key={chip.name} {...chip} values={filter.chips[chip.name]} known={chip.name === "kind" || chip.name === "lane" ? known(counts.data.value?.waiting ?? [], chip.name) : []} />
            ))}
            <Filter name="schedule" label="Schedule" placeholder="nightly" values={filter.schedule ? [filter.schedule] : []} single />
            <label class="row tight small muted">
              Created
              <select class="field" value={filter.since} onChange={(event) => setQuery({ since: event.currentTarget.value })}>
                {SPANS.map(([value, label]) => <option value={value}>{label}</option>)}
              </select>
            </label>
            <label class="row tight small muted">
              Order
              <select class="field" value={filter.order} onChange={(event) => setQuery({ order: event.currentTarget.value })}>
                <option value="">newest first</option>
                <option value="oldest">oldest first</option>
              </select>
            </label>
            {filter.flow && <Chip text={`flow ${shortId(filter.flow)}`} remove={() => setQuery({ flow: undefined })} />}
            {filter.worker && <Chip text={`held by ${shortId(filter.worker)}`} remove={() => setQuery({ worker: undefined })} />}
            {query.value.size > (namespace() ? 1 : 0) && (
              <a class="button quiet small" href={link(["executions"])}>
                Clear
              </a>
            )}
            <div class="row right">
              {may("operator") && <BulkStart filter={filter} />}
              <ColumnChoice columns={columns} />
            </div>
          </div>
        </div>
      </section>
      {pages.error !== undefined && <Refusal error={pages.error} />}
      {chosen.value.size > 0 && <Bulk ids={[...chosen.value]} items={items} done={() => ((chosen.value = new Set()), pages.refresh())} />}
      <section class="card" aria-label="List of executions" style={{ "--columns": grid.columns, "--list-width": grid.width }}>
        <Rows items={items} columns={columns} chosen={chosen.value} toggle={may("operator") ? toggle : undefined} end={pages.loadMore}>
        <div class="vrow head">
          <span>
            {may("operator") && items.length > 0 && (
              <input type="checkbox" aria-label="Choose all that are shown" checked={chosen.value.size >= items.length} onChange={() => (chosen.value = new Set(chosen.value.size >= items.length ? [] : items.map((item) => item.execution_id)))} />
            )}
            State
          </span>
          <span>Kind</span>
          {columns.map((column) => (
            <span class="wide">{column.label}</span>
          ))}
          <span>Created</span>
        </div>
        </Rows>
        {pages.items === undefined && pages.error === undefined ? (
          <div class="body">
            <Loading lines={6} />
          </div>
        ) : items.length === 0 ? (
          <Nothing filtered={query.value.size > 0} more={pages.more} />
        ) : null}
        <More pages={pages} />
      </section>
    </>
  );
}

/** Stands there instead of no rows. A page looks at a bounded number of executions, so there may be some further back. */
function Nothing({ filtered, more }: { filtered: boolean; more: boolean }) {
  const [title, words] = more
    ? ["None of those that were looked at matches", "Load more looks further back. A tag, a state or a schedule narrows what is looked at."]
    : filtered
      ? ["Nothing matches these filters", "Take a filter away, or submit something that fits."]
      : ["Nothing was submitted yet", "An execution is one piece of work: a kind, an input, and in the end a result."];
  return (
    <Empty title={title} command={`ff submit shout '"hello"' --wait`}>
      {words}
    </Empty>
  );
}

function lsCommand(filter: Filters): string {
  return ["ff ls", ...optionsOf(filter), ...(filter.order === "oldest" ? ["--oldest"] : [])].join(" ");
}

function Chip({ text, remove }: { text: string; remove: () => void }) {
  return (
    <button type="button" class="chip set" title="Take this filter away" onClick={remove}>
      {text} <span aria-hidden="true">✕</span>
      <span class="sr">: take this filter away</span>
    </button>
  );
}

interface FilterProps {
  name: string;
  label: string;
  placeholder: string;
  values: string[];
  /** Values to offer. */
  known?: string[];
  /** It takes one value at most. */
  single?: boolean;
}

/** The kinds or lanes in which something waits: they cost no question. */
function known(waiting: Schemas["WaitingCount"][], name: "kind" | "lane"): string[] {
  return [...new Set(waiting.flatMap((one) => one[name] ?? []))].sort();
}

/** The values of a filter as chips, and a field for one more. */
function Filter({ name, label, placeholder, values, known = [], single = false }: FilterProps) {
  const add = (event: Event) => {
    const field = event.currentTarget as HTMLInputElement;
    const value = field.value.trim();
    field.value = "";
    if (value !== "" && !values.includes(value)) setQuery({ [name]: single ? [value] : [...values, value] });
  };
  return (
    <>
      {values.map((value) => (
        <Chip key={value} text={`${label.toLowerCase()} ${value}`} remove={() => setQuery({ [name]: values.filter((one) => one !== value) })} />
      ))}
      <label class="row tight small muted">
        {label}
        <input class="field" size={8} placeholder={placeholder} list={known.length > 0 ? `known-${name}` : undefined} onChange={add} />
        {known.length > 0 && (
          <datalist id={`known-${name}`}>
            {known.map((one) => (
              <option value={one} />
            ))}
          </datalist>
        )}
      </label>
    </>
  );
}

interface RowsProps {
  items: Summary[];
  columns: Shown[];
  chosen: ReadonlySet<string>;
  toggle: ((id: string) => void) | undefined;
  end: () => void;
  /** The heads of the columns, which move sideways with them. */
  children: ComponentChildren;
}

/** Rows of equal height, of which only those in sight exist. */
function Rows({ items, columns, chosen, toggle, end, children }: RowsProps) {
  const host = useRef<HTMLDivElement>(null);
  const drawn = useSignal(0);
  const virtual = useRef<Virtualizer<HTMLDivElement, Element> | undefined>(undefined);
  const options = {
    count: items.length,
    getScrollElement: () => host.current,
    estimateSize: () => ROW_PX,
    overscan: 8,
    scrollToFn: elementScroll,
    observeElementRect,
    observeElementOffset,
    onChange: () => (drawn.value += 1),
  };
  virtual.current ??= new Virtualizer(options);
  virtual.current.setOptions(options);
  useLayoutEffect(() => virtual.current?._didMount(), []);
  useLayoutEffect(() => virtual.current?._willUpdate());
  void drawn.value;
  const rows = virtual.current.getVirtualItems();
  const lastDrawn = rows[rows.length - 1]?.index ?? 0;
  useEffect(() => {
    // Only somebody who scrolled gets more by itself.
    if ((host.current?.scrollTop ?? 0) > 0 && lastDrawn >= items.length - 5) end();
  }, [lastDrawn, items.length]);
  return (
    <div class={`vlist ${items.length === 0 ? "none" : ""}`} ref={host} tabIndex={0} role="region" aria-label="Executions">
      {children}
      <div class="vinner" style={{ height: `${virtual.current.getTotalSize()}px` }}>
        {rows.map((row) => {
          const item = items[row.index];
          return item && <Row key={item.execution_id} item={item} columns={columns} top={row.start} chosen={chosen.has(item.execution_id)} toggle={toggle} />;
        })}
      </div>
    </div>
  );
}

interface RowProps {
  item: Summary;
  columns: Shown[];
  top: number;
  chosen: boolean;
  toggle: ((id: string) => void) | undefined;
}

function Row({ item, columns, top, chosen, toggle }: RowProps) {
  return (
    <div class="vrow item" style={{ transform: `translateY(${top}px)` }}>
      <span>
        {toggle && <input type="checkbox" checked={chosen} aria-label={`Choose ${item.execution_id}`} onChange={() => toggle(item.execution_id)} />}
        <State state={item.public_state} />
      </span>
      <span>
        <a class="open" href={link(["executions", item.execution_id])} title={item.kind}>
          {item.kind}
        </a>
        {item.node && item.node !== item.kind && <span class="muted"> · {item.node}</span>}
      </span>
      {columns.map((column) => (
        <span class={`wide ${column.name}`}>{column.cell(item)}</span>
      ))}
      <When at={item.created_at} />
    </div>
  );
}

/** `x` chooses the row that has the focus. */
function useChoice(): void {
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      if (event.key !== "x" || !isForPage(event)) return;
      document.activeElement?.closest(".vrow")?.querySelector<HTMLInputElement>("input[type=checkbox]")?.click();
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, []);
}
