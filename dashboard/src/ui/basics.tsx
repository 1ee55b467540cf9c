// Small pieces that every screen uses.

import type { ComponentChildren } from "preact";
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { Problem } from "../api/client";
import { exact, relative, span, words } from "../format";
import { now } from "../live";
import { link } from "../router";

const RUNS = new Set(["active", "running", "begun"]);
const OPEN = new Set(["waiting", "delayed", "rate_limited", "waiting_children", "suspended", "open", "blocked", "paused", "draining", "retrying"]);

/** A state: its word, or another one, and its colour; never the colour alone. */
export function State({ state, word, big = false }: { state: string; word?: string; big?: boolean }) {
  const look = RUNS.has(state) ? "pulse" : OPEN.has(state) ? "open" : "";
  return (
    <span class={`state s-${state} ${look} ${big ? "big" : ""}`} data-state={state}>
      <i aria-hidden="true" />
      {word ?? words(state)}
    </span>
  );
}

/** An instant, relative to now, with the exact one on hover. */
export function When({ at, none = "–" }: { at: number | null | undefined; none?: string }) {
  if (at === null || at === undefined) return <span class="muted">{none}</span>;
  return (
    <time class="nowrap" dateTime={new Date(at).toISOString()} title={exact(at)}>
      {relative(at, now.value)}
    </time>
  );
}

/** The time that is left until an instant, counting down: something happens in that time, or goes on for it. */
export function Countdown({ to, word = "in" }: { to: number; word?: "in" | "for" }) {
  const left = to - now.value;
  return (
    <time class="nowrap" dateTime={new Date(to).toISOString()} title={exact(to)}>
      {left <= 0 ? (word === "in" ? "now" : "until now") : `${word} ${span(Math.ceil(left / 1_000) * 1_000)}`}
    </time>
  );
}

/** Parts of the server's words that are meant for programs: instants, ids, and words of the API. */
const SPECIAL = /(?:(\bat |\buntil )?\b(1[5-9]\d{11}|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)\b)|\b([0-9a-f]{4}-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\b|\b((?:waiting_for|paused_by|blocked_by)_[a-z_]+|in_doubt|journal_mismatch|no_progress|did_not_happen|run_again|go_on)/g;

/** Words of the server, with instants and ids as people read them. */
export function Words({ text }: { text: string }) {
  const parts: ComponentChildren[] = [];
  let from = 0;
  for (const match of text.matchAll(SPECIAL)) {
    const [all, before, instant, id, word] = match;
    parts.push(text.slice(from, match.index));
    const at = instant?.endsWith("Z") ? Date.parse(instant) : Number(instant);
    if (instant && Number.isNaN(at)) parts.push(all);
    else if (instant && before === "at ") parts.push(<When at={at} />);
    else if (instant) parts.push(before || at > now.value ? <Countdown to={at} word={before ? "for" : "in"} /> : <When at={at} />);
    else if (id) parts.push(<a href={link(["executions", id])} title={id}>{`…${id.slice(-8)}`}</a>);
    else parts.push(words(word ?? all));
    from = match.index + all.length;
  }
  parts.push(text.slice(from));
  return <>{parts}</>;
}

/** Copies a text and says so. */
export function Copy({ text, what }: { text: string; what: string }) {
  const copied = useSignal(false);
  useEffect(() => {
    if (!copied.value) return;
    const timer = setTimeout(() => (copied.value = false), 1_500);
    return () => clearTimeout(timer);
  }, [copied.value]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without TLS a page may not use the clipboard directly.
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    copied.value = true;
  };
  return (
    <button type="button" class="icon" onClick={copy} title={`Copy ${what}`} aria-label={copied.value ? "Copied" : `Copy ${what}`}>
      {copied.value ? <Icon name="check" /> : <Icon name="copy" />}
    </button>
  );
}

/** A command of `ff`, to be copied. */
export function Command({ line }: { line: string }) {
  return (
    <span class="command">
      <code>{line}</code>
      <Copy text={line} what="the command" />
    </span>
  );
}

/** An id with a link to what it names. */
export function Id({ id, href, label }: { id: string; href?: string; label?: string }) {
  return (
    <span class="row tight">
      {href ? (
        <a class="mono" href={href} title={id}>
          {label ?? id}
        </a>
      ) : (
        <code>{label ?? id}</code>
      )}
      <Copy text={id} what="the id" />
    </span>
  );
}

/** Stands where nothing is yet: what would be there, and a command that makes it. */
export function Empty({ title, children, command, page = false }: { title: string; children?: ComponentChildren; command?: string; page?: boolean }) {
  return (
    <div class="empty">
      {page ? <h1>{title}</h1> : <strong>{title}</strong>}
      {children && <div>{children}</div>}
      {command && <Command line={command} />}
    </div>
  );
}

/** A refusal, in the server's words, each of which is said once; with `page` it is all there is to show. */
export function Refusal({ error, page = false }: { error: unknown; page?: boolean }) {
  const problem = error instanceof Problem ? error : undefined;
  const message = error instanceof Error ? error.message : String(error);
  const title = problem && words(problem.code);
  const advice = problem && adviceOf(problem);
  return (
    <div class="problem" role="alert">
      {page ? <h1>This cannot be shown</h1> : title && !isSame(title, message) && <strong>{title}</strong>}
      <div>{message}</div>
      {advice && !isSame(advice, message) && <div class="muted">{advice}</div>}
    </div>
  );
}

/** Whether two texts say the same, whatever their capitals and their full stop. */
function isSame(one: string, other: string): boolean {
  const bare = (text: string) => text.trim().replace(/\.$/, "").toLowerCase();
  return bare(one) === bare(other);
}

/** The advice as people can use it: the details of a refusal are for programs, so the field that they name is said instead. */
function adviceOf({ advice, field, message }: Problem): string {
  if (!/\bdetails\b/.test(advice)) return advice;
  if (!field || message.includes(field) || message.includes(words(field))) return "";
  return `The field is ${words(field)}.`;
}

/** Stands where an answer is on its way. */
export function Loading({ lines = 3 }: { lines?: number }) {
  return (
    <div role="status" aria-label="Loading">
      {Array.from({ length: lines }, (_, index) => (
        <div class="skeleton" style={{ width: `${90 - index * 17}%` }} />
      ))}
    </div>
  );
}

/** A part of a screen with a heading. */
export function Card({ title, tools, children, flush = false }: { title: ComponentChildren; tools?: ComponentChildren; children: ComponentChildren; flush?: boolean }) {
  return (
    <section class="card">
      <header>
        <h2>{title}</h2>
        {tools && <div class="row">{tools}</div>}
      </header>
      <div class={`body ${flush ? "flush" : ""}`}>{children}</div>
    </section>
  );
}

/** What a fact is called, and what it says. */
export type Fact = [string, ComponentChildren];

/** Facts about the subject of a screen, one below the other. */
export function Facts({ facts }: { facts: Fact[] }) {
  return (
    <dl class="facts">
      {facts.map(([name, value]) => (
        <>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </>
      ))}
    </dl>
  );
}

/** The note with which a person last paused or resumed the subject of a screen. */
export function LastNote({ state, note }: { state: string; note: { text?: string | null; by: string; at: number } | null | undefined }) {
  if (!note) return null;
  return (
    <section class={`notice s-${state}`} aria-label="What was last said about it">
      {note.text || words(state)} <span class="small muted">by {note.by}</span> <When at={note.at} />
    </section>
  );
}

/** Tags, each a link to what else has it. */
export function Tags({ tags }: { tags: Record<string, string> | undefined }) {
  const entries = Object.entries(tags ?? {});
  if (entries.length === 0) return <span class="muted">none</span>;
  return (
    <span class="row tight">
      {entries.map(([key, value]) => (
        <a class="tag" href={link(["executions"], { tag: `${key}=${value}` })}>
          {key}={value}
        </a>
      ))}
    </span>
  );
}

const PATHS: Record<string, string> = {
  copy: "M6 6V3h9v9h-3M3 6h9v9H3z",
  check: "M3 9.5l4 4 8-9",
  overview: "M3 3h5v6H3zM10 3h5v3h-5zM10 8h5v7h-5zM3 11h5v4H3z",
  executions: "M3 4h12M3 9h12M3 14h8",
  flows: "M3 4h4v4H3zM11 10h4v4h-4zM5 8v4h6M11 3h4v3h-4zM7 5h4",
  approvals: "M3 9l3.5 3.5L15 4M3 15h12",
  lanes: "M3 5h8m4 0h0M3 9h12M3 13h5m4 0h3",
  workers: "M5 6a4 4 0 1 1 8 0 4 4 0 0 1-8 0zM3 16c0-3 2.5-5 6-5s6 2 6 5",
  budgets: "M3 15V9M7 15V3M11 15V7M15 15v-4",
  schedules: "M9 5v4l3 2M9 2a7 7 0 1 0 0 14A7 7 0 0 0 9 2z",
  bulk: "M3 3h9v9H3zM6 15h9V6M5.5 7.5l1.6 1.6 3-3.2",
  webhooks: "M6 3a3 3 0 0 1 2.2 5L5 13M12 4a3 3 0 1 1 .6 5.6L9.5 6M3 13a2.5 2.5 0 1 0 5 0h6",
  system: "M9 6.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5zM9 1.5v2.2M9 14.3v2.2M1.5 9h2.2M14.3 9h2.2M3.7 3.7l1.6 1.6M12.7 12.7l1.6 1.6M14.3 3.7l-1.6 1.6M5.3 12.7l-1.6 1.6",
  sun: "M9 5.5a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7zM9 1.5v1.6M9 14.9v1.6M1.5 9h1.6M14.9 9h1.6M3.7 3.7l1.1 1.1M13.2 13.2l1.1 1.1M14.3 3.7l-1.1 1.1M4.8 13.2l-1.1 1.1",
  moon: "M14.5 11A6.2 6.2 0 0 1 7 3.5a6.2 6.2 0 1 0 7.5 7.5z",
  plus: "M9 3v12M3 9h12",
  minus: "M3 9h12",
  fit: "M3 7V3h4M11 3h4v4M15 11v4h-4M7 15H3v-4",
};

/** A drawing that stands beside a word, or in a button that has a name. */
export function Icon({ name }: { name: keyof typeof PATHS | string }) {
  return (
    <svg viewBox="0 0 18 18" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="1.6" stroke-linecap="round" stroke-linejoin="round">
      <path d={PATHS[name] ?? ""} />
    </svg>
  );
}

/** From this part of a limit on, a bar warns. */
export const NEAR = 0.8;

/** A bar that shows how much of something is used and how much is held on top of that; the mark is a soft limit. */
export function Meter({ value, max, mark, held = 0, label, tone }: { value: number; max: number; mark?: number; held?: number; label: string; tone?: string }) {
  const part = max > 0 ? Math.min(1, value / max) : 0;
  const look = tone ?? (part >= 1 ? "s-bad" : part >= NEAR || (mark && value >= mark) ? "s-warn" : "s-ok");
  return (
    <div class={`meter ${look}`} role="meter" aria-label={label} aria-valuenow={Math.min(value, max)} aria-valuemin={0} aria-valuemax={max}>
      <i style={{ width: `${part * 100}%` }} />
      {held > 0 && max > 0 && <u style={{ left: `${part * 100}%`, width: `${Math.min(1 - part, held / max) * 100}%` }} />}
      {mark !== undefined && mark > 0 && max > 0 && <b style={{ left: `${Math.min(1, mark / max) * 100}%` }} />}
    </div>
  );
}
