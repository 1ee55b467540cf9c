// The list of executions: filters in the address, rows drawn only where they can be seen, and for everything that does
// not run the first line of `explain`.

import { useSignal } from "@preact/signals";
import { elementScroll, observeElementOffset, observeElementRect, Virtualizer } from "@tanstack/virtual-core";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { answer, api } from "../api/client";
import type { Schemas } from "../api/client";
import { count, exact, quote, span, words } from "../format";
import { POLL_MS, useAsk, useEvents, useSoon } from "../live";
import { useRows } from "../keys";
import { link, namespace, query, setQuery } from "../router";
import { may } from "../session";
import { Command, Copy, Empty, Loading, Refusal, State, When, Words } from "../ui/basics";
import { propose } from "../ui/dialog";
import { fetchCounts, shown } from "./overview";
import { firstReason } from "./explain";

export type Summary = Schemas["ExecutionSummary"];

export const STATES = ["waiting", "active", "suspended", "delayed", "rate_limited", "waiting_children", "completed", "failed", "cancelled", "expired", "skipped"] as const;
export const ENDED = new Set<string>(["completed", "failed", "cancelled", "expired", "skipped"]);
const SPANS: [string, string, number][] = [
  ["", "any time", 0],
  ["15m", "last 15 minutes", 900_000],
  ["1h", "last hour", 3_600_000],
  ["24h", "last day", 86_400_000],
  ["7d", "last week", 604_800_000],
];
const PAGE = 100;
const ROW_PX = 44;

interface Filters {
  states: string[];
  kind: string;
  lane: string;
  tag: string;
  since: string;
  flow: string;
  failure: string;
  order: string;
}

function filters(): Filters {
  const get = (name: string) => query.value.get(name) ?? "";
  return { states: query.value.getAll("state"), kind: get("kind"), lane: get("lane"), tag: get("tag"), since: get("since"), flow: get("flow"), failure: get("failure"), order: get("order") };
}

async function fetchPage(filter: Filters, cursor: string | undefined, signal?: AbortSignal): Promise<{ items: Summary[]; next_cursor?: string | null }> {
  const back = SPANS.find(([key]) => key === filter.since)?.[2] ?? 0;
  const wanted: Record<string, unknown> = { namespace: namespace(), limit: PAGE, cursor };
  if (filter.states.length > 0) wanted["state"] = filter.states;
  if (filter.failure) wanted["failure_category"] = filter.failure;
  if (filter.order === "oldest") wanted["order"] = "oldest";
  if (filter.kind) wanted["kind"] = filter.kind;
  if (filter.lane) wanted["lane"] = filter.lane;
  if (filter.tag) wanted["tag"] = filter.tag;
  if (filter.flow) wanted["flow_id"] = filter.flow;
  if (back) wanted["created_from"] = Date.now() - back;
  const params = { query: wanted as never };
  return await answer(api.GET("/v1/executions", signal ? { params, signal } : { params }));
}

export function Executions() {
  const filter = filters();
  const key = JSON.stringify([filter, namespace()]);
  const first = useAsk(key, (signal) => fetchPage(filter, undefined, signal), POLL_MS);
  const counts = useAsk(`counts ${namespace() ?? ""}`, fetchCounts, POLL_MS);
  const more = useSignal<{ key: string; items: Summary[]; cursor: string | null | undefined }>({ key, items: [], cursor: undefined });
  const busy = useSignal(false);
  const chosen = useSignal<ReadonlySet<string>>(new Set());
  const again = useSoon(() => (first.refresh(), counts.refresh()), 400, 2_000, true);
  useEvents(again);
  useRows(".vrow.item a.open");

  const page = first.data.value;
  const older = more.value.key === key ? more.value : { key, items: [], cursor: undefined };
  const seen = new Set<string>();
  const items = [...(page?.items ?? []), ...older.items].filter((item) => !seen.has(item.execution_id) && seen.add(item.execution_id));
  const cursor = older.items.length > 0 || older.cursor === null ? older.cursor : page?.next_cursor;
  const loadMore = async () => {
    if (!cursor || busy.value) return;
    busy.value = true;
    try {
      const next = await fetchPage(filter, cursor);
      more.value = { key, items: [...older.items, ...next.items], cursor: next.next_cursor ?? null };
    } finally {
      busy.value = false;
    }
  };
  const toggle = (id: string) => {
    const next = new Set(chosen.value);
    if (!next.delete(id)) next.add(id);
    chosen.value = next;
  };
  return (
    <>
      <div class="title">
        <h1>Executions</h1>
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
            <Filter name="kind" label="Kind" value={filter.kind} />
            <Filter name="lane" label="Lane" value={filter.lane} />
            <Filter name="tag" label="Tag" value={filter.tag} placeholder="key=value" />
            <label class="row tight small muted">
              Created
              <select class="field" value={filter.since} onChange={(event) => setQuery({ since: event.currentTarget.value })}>
                {SPANS.map(([value, label]) => <option value={value}>{label}</option>)}
              </select>
            </label>
            <Filter name="failure" label="Failure" value={filter.failure} placeholder="category" />
            <label class="row tight small muted">
              Order
              <select class="field" value={filter.order} onChange={(event) => setQuery({ order: event.currentTarget.value })}>
                <option value="">newest first</option>
                <option value="oldest">oldest first</option>
              </select>
            </label>
            {filter.flow && (
              <button type="button" class="chip" aria-pressed="true" onClick={() => setQuery({ flow: undefined })}>
                flow {filter.flow.slice(-8)} ✕
              </button>
            )}
            {query.value.size > (namespace() ? 1 : 0) && (
              <a class="button quiet small" href={link(["executions"])}>
                Clear
              </a>
            )}
            <span class="grow" />
            <Command line={lsCommand(filter)} />
          </div>
        </div>
      </section>
      {first.error.value !== undefined && <Refusal error={first.error.value} />}
      {chosen.value.size > 0 && <Bulk ids={[...chosen.value]} items={items} done={() => ((chosen.value = new Set()), first.refresh())} />}
      <section class="card" aria-label="List of executions">
        <div class="vrow head">
          <span>State</span>
          <span>Kind</span>
          <span class="wide">Id</span>
          <span class="wide">Lane</span>
          <span class="wide">Why, or how far</span>
          <span>Created</span>
        </div>
        {page === undefined && first.error.value === undefined ? (
          <div class="body">
            <Loading lines={6} />
          </div>
        ) : items.length === 0 ? (
          <Empty title={query.value.size > 0 ? "Nothing matches these filters" : "Nothing was submitted yet"} command={`ff submit shout '"hello"' --wait`}>
            {query.value.size > 0 ? "Take a filter away, or submit something that fits." : "An execution is one piece of work: a kind, an input, and in the end a result."}
          </Empty>
        ) : (
          <Rows items={items} chosen={chosen.value} toggle={may("operator") ? toggle : undefined} end={() => void loadMore()} />
        )}
        {cursor && (
          <div class="row body between">
            <span class="small muted">{count(items.length)} shown</span>
            <button type="button" class="button small" disabled={busy.value} onClick={() => void loadMore()}>
              Load more
            </button>
          </div>
        )}
      </section>
    </>
  );
}

function lsCommand(filter: Filters): string {
  const parts = ["ff ls"];
  const ns = namespace();
  if (ns) parts.push(`--namespace ${quote(ns)}`);
  for (const state of filter.states) parts.push(`--state ${state}`);
  if (filter.kind) parts.push(`--kind ${quote(filter.kind)}`);
  if (filter.lane) parts.push(`--lane ${quote(filter.lane)}`);
  if (filter.tag) parts.push(`--tag ${quote(filter.tag)}`);
  return parts.join(" ");
}

function Filter({ name, label, value, placeholder }: { name: string; label: string; value: string; placeholder?: string }) {
  return (
    <label class="row tight small muted">
      {label}
      <input class="field" size={12} key={value} defaultValue={value} placeholder={placeholder} onChange={(event) => setQuery({ [name]: event.currentTarget.value.trim() })} />
    </label>
  );
}

/** Rows of equal height, of which only those in sight exist. */
function Rows({ items, chosen, toggle, end }: { items: Summary[]; chosen: ReadonlySet<string>; toggle: ((id: string) => void) | undefined; end: () => void }) {
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
    <div class="vlist" ref={host} tabIndex={0} role="region" aria-label="Executions">
      <div class="vinner" style={{ height: `${virtual.current.getTotalSize()}px` }}>
        {rows.map((row) => {
          const item = items[row.index];
          return item && <Row key={item.execution_id} item={item} top={row.start} chosen={chosen.has(item.execution_id)} toggle={toggle} />;
        })}
      </div>
    </div>
  );
}

function Row({ item, top, chosen, toggle }: { item: Summary; top: number; chosen: boolean; toggle: ((id: string) => void) | undefined }) {
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
      <span class="wide">
        <code title={item.execution_id}>…{item.execution_id.slice(-12)}</code>
        <Copy text={item.execution_id} what="the id" />
      </span>
      <span class="wide" title={item.lane}>
        {item.lane}
      </span>
      <span class="wide small">
        <Why item={item} />
      </span>
      <When at={item.created_at} />
    </div>
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

/** The same act on all that were chosen: first what it would do, then how far it is. */
function Bulk({ ids, items, done }: { ids: string[]; items: Summary[]; done: () => void }) {
  const at = useSignal<{ name: string; done: number; refused: string[] } | undefined>(undefined);
  const states = new Map(items.map((item) => [item.execution_id, item.public_state as string]));
  const acts = [
    { name: "Cancel", fits: (state: string) => !ENDED.has(state), path: "/v1/executions/{execution_id}/cancel" as const, danger: true, effect: "cancelled; a worker that holds one loses its lease at once" },
    { name: "Replay", fits: (state: string) => ENDED.has(state), path: "/v1/executions/{execution_id}/replay" as const, danger: false, effect: "run once more, as a new attempt" },
    { name: "Hold", fits: (state: string) => !ENDED.has(state), path: "/v1/executions/{execution_id}/hold" as const, danger: false, effect: "kept from being claimed until they are released" },
    { name: "Release", fits: (state: string) => !ENDED.has(state), path: "/v1/executions/{execution_id}/release" as const, danger: false, effect: "released, if an operator held them" },
  ];
  return (
    <section class="notice row" aria-label="What to do with those chosen">
      <strong>{count(ids.length)} chosen</strong>
      {acts.map((act) => {
        const fit = ids.filter((id) => act.fits(states.get(id) ?? ""));
        return (
          <button
            type="button"
            class={`button small ${act.danger ? "danger" : ""}`}
            disabled={fit.length === 0}
            onClick={() =>
              propose({
                name: `${act.name} ${count(fit.length)}`,
                effect: `${count(fit.length)} of ${count(ids.length)} chosen executions will be ${act.effect}. ${fit.length < ids.length ? "The others are in a state where that means nothing and stay as they are." : ""} Each is audited.`,
                danger: act.danger,
                run: async () => {
                  const refused: string[] = [];
                  at.value = { name: act.name, done: 0, refused };
                  for (const id of fit) {
                    try {
                      await answer(api.POST(act.path, { params: { path: { execution_id: id } }, body: {} as never }));
                    } catch (error) {
                      refused.push(`${id}: ${error instanceof Error ? error.message : String(error)}`);
                    }
                    at.value = { name: act.name, done: (at.value?.done ?? 0) + 1, refused };
                  }
                  done();
                  return refused.length === 0 ? `${act.name}: ${fit.length} done.` : `${act.name}: ${fit.length - refused.length} done, ${refused.length} refused. First: ${refused[0]}`;
                },
              })
            }
          >
            {act.name} {fit.length > 0 && fit.length < ids.length ? count(fit.length) : ""}
          </button>
        );
      })}
      {at.value && (
        <span class="small muted" role="status">
          {at.value.name}: {at.value.done} of {ids.length}
        </span>
      )}
    </section>
  );
}
