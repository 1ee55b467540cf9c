// The timeline of an execution: attempts and their leases, steps, sleeps, waits. Idle time is compressed.

import { clock, exact, span, words } from "../format";
import { now } from "../live";
import { Empty } from "../ui/basics";
import type { Attempt, Step, View } from "../screens/execution";
import { entries } from "./steps";
import { ENDED } from "../states";
import { pieces, place } from "./scale";
import type { Piece, Span } from "./scale";

/** Steps that are drawn; the rest is in the list of steps. */
const STEPS_MAX = 100;

interface Bar extends Span {
  tone: string;
  look: "" | "thin" | "wait";
  title: string;
}

interface Line {
  name: string;
  step: boolean;
  bars: Bar[];
}

const TONES: Record<string, string> = {
  success: "completed",
  failed: "failed",
  timed_out: "failed",
  interrupted_reclaimed: "waiting",
  cancelled: "cancelled",
  expired: "expired",
};

const WAITS: Record<string, [string, string]> = {
  suspended: ["suspended", "suspended"],
  parked: ["suspended", "parked"],
  delayed: ["delayed", "delayed"],
  waiting_children: ["waiting_children", "waits for children"],
  failed: ["waiting", "waits for the retry"],
  expired: ["waiting", "the lease ran out"],
  revoked: ["waiting", "the lease was revoked"],
};

function describe(bar: Span, what: string): string {
  return `${what}: ${exact(bar.from)}, ${span(bar.to - bar.from)}`;
}

function attemptLines(attempts: Attempt[], until: number): Line[] {
  return attempts.map((attempt) => {
    const bars: Bar[] = [];
    const leases = attempt.leases ?? [];
    leases.forEach((lease, index) => {
      const to = lease.ended_at ?? (attempt.ended_at || until);
      const last = index === leases.length - 1;
      const tone = last && attempt.outcome ? (TONES[attempt.outcome] ?? "active") : lease.end === "expired" || lease.end === "revoked" ? "waiting" : "active";
      const held = { from: lease.acquired_at, to };
      bars.push({ ...held, tone, look: "", title: describe(held, `held by ${lease.worker_id}${lease.end ? `, ${words(lease.end)}` : ""}`) });
      const wait = WAITS[lease.end ?? ""];
      const next = leases[index + 1]?.acquired_at ?? (last && !attempt.ended_at ? until : attempt.ended_at);
      if (wait && lease.ended_at && next && next > lease.ended_at) {
        const waited = { from: lease.ended_at, to: next };
        bars.push({ ...waited, tone: wait[0], look: "wait", title: describe(waited, wait[1]) });
      }
    });
    return { name: `attempt ${attempt.index} · ${attempt.kind}`, step: false, bars };
  });
}

function stepLines(steps: Step[], until: number): Line[] {
  // An entry without a duration of its own, a wait, lasted from its first record to its last.
  const begun = new Map<number, number>();
  for (const step of steps) if (!begun.has(step.number)) begun.set(step.number, step.recorded_at);
  return entries(steps)
    .slice(0, STEPS_MAX)
    .map((step, index, all) => {
      const done = step.state === "completed" || step.state === "failed";
      const to = done ? step.recorded_at : until;
      const waits = step.kind === "sleep" || step.kind === "signal" || step.kind === "child";
      const first = begun.get(step.number) ?? to;
      // A short wait leaves one record, at its end: it began when the entry before it was there.
      const before = waits && done && first === to ? all[index - 1]?.recorded_at : undefined;
      const from = step.took_ms ? to - step.took_ms : (before ?? first);
      const tone = step.state === "failed" ? "failed" : waits ? (step.kind === "sleep" ? "delayed" : step.kind === "signal" ? "suspended" : "waiting_children") : done ? "completed" : "active";
      const bar = { from, to };
      return { name: step.key ? `${step.name} ${step.key}` : step.name, step: true, bars: [{ ...bar, tone, look: waits ? "wait" : "thin", title: describe(bar, `${step.kind} ${step.name}, ${step.state}`) }] };
    });
}

export function Timeline({ execution, attempts, steps }: { execution: View; attempts: Attempt[]; steps: Step[] }) {
  const over = ENDED.has(execution.public_state);
  const until = execution.completed_at ?? (over ? execution.updated_at : now.value);
  const from = execution.created_at;
  const lines = [...attemptLines(attempts, until), ...stepLines(steps, until)];
  if (lines.length === 0) {
    return (
      <Empty title="It has not begun yet" command={`ff explain ${execution.execution_id}`}>
        When a worker takes it, its attempts, leases and steps are drawn here.
      </Empty>
    );
  }
  const busy = attempts.flatMap((attempt) => (attempt.leases ?? []).map((lease) => ({ from: lease.acquired_at, to: lease.ended_at ?? attempt.ended_at ?? until })));
  const axis = pieces(from, until, busy);
  return (
    <div class="timeline" tabIndex={0} role="region" aria-label="Timeline">
      <div class="tl">
        <div class="tl-row tl-head">
          <span class="name small">
            {span(until - from)} in all
          </span>
          <Axis axis={axis} from={from} until={until} />
        </div>
        {lines.map((line) => (
          <div class={`tl-row ${line.step ? "step" : ""}`}>
            <span class="name" title={line.name}>
              {line.name}
            </span>
            <div class="tl-track">
              {axis.filter((piece) => piece.compressed).map((piece) => (
                <span class="tl-gap" style={{ left: `${piece.left * 100}%`, width: `${piece.width * 100}%` }} />
              ))}
              {line.bars.map((bar) => {
                const left = place(axis, bar.from);
                const width = Math.max(0, place(axis, bar.to) - left);
                const labelled = bar.look !== "thin" && width > 0.09;
                return (
                  <span
                    class={`tl-bar ${bar.look} s-${bar.tone} ${labelled ? "labelled" : ""}`}
                    role="img"
                    title={bar.title}
                    aria-label={bar.title}
                    style={{ left: `min(${left * 100}%, calc(100% - 3px))`, width: `${width * 100}%` }}
                  >
                    {labelled && <span class="tl-span">{span(bar.to - bar.from)}</span>}
                  </span>
                );
              })}
            </div>
          </div>
        ))}
        {entries(steps).length > STEPS_MAX && <p class="small muted">The first {STEPS_MAX} steps are drawn.</p>}
      </div>
    </div>
  );
}

function Axis({ axis, from, until }: { axis: Piece[]; from: number; until: number }) {
  return (
    <div class="tl-axis">
      <span style={{ left: 0 }} title={exact(from)}>
        {clock(from)}
      </span>
      {axis
        .filter((piece) => piece.compressed && piece.left > 0.03 && piece.left + piece.width < 0.97)
        .map((piece) => (
          <span class="gap" style={{ left: `${(piece.left + piece.width / 2) * 100}%` }} title={`${span(piece.to - piece.from)} in which nothing ran`}>
            {span(piece.to - piece.from)}
          </span>
        ))}
      <span style={{ left: "100%", transform: "translateX(-100%)" }} title={exact(until)}>
        {clock(until)}
      </span>
    </div>
  );
}
