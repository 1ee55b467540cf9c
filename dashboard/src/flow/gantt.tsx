// The members of a flow over time, idle time compressed.

import { pieces, place } from "../execution/scale";
import { clock, exact, span, words } from "../format";
import { now } from "../live";
import { link } from "../router";
import { Empty } from "../ui/basics";
import type { GraphView } from "./layout";

/** States in which a member has begun, and no worker holds it. */
const WAITS: ReadonlySet<string> = new Set(["suspended", "delayed", "waiting", "waiting_children", "rate_limited"]);
/** A bar of this part of the width has room for its span. */
const LABELLED_FROM = 0.09;
/** Members that are drawn. */
const MEMBERS_MAX = 300;

export function Gantt({ graph, critical }: { graph: GraphView; critical: ReadonlySet<string> }) {
  const from = graph.flow.created_at;
  const until = graph.flow.ended_at ?? now.value;
  const started = graph.nodes.filter((node) => node.started_at).sort((one, other) => (one.started_at ?? 0) - (other.started_at ?? 0));
  if (started.length === 0) return <Empty title="No member has begun yet">Each one gets a line here when a worker takes it.</Empty>;
  const axis = pieces(
    from,
    until,
    started.filter((node) => node.public_state !== "suspended").map((node) => ({ from: node.started_at ?? from, to: node.completed_at ?? until })),
  );
  return (
    <div class="timeline" tabIndex={0} role="region" aria-label="Members over time">
      <div class="tl">
        <div class="tl-row tl-head">
          <span class="name small">{span(until - from)} in all</span>
          <div class="tl-axis">
            <span style={{ left: 0 }}>{clock(from)}</span>
            <span style={{ left: "100%", transform: "translateX(-100%)" }}>{clock(until)}</span>
          </div>
        </div>
        {started.slice(0, MEMBERS_MAX).map((node) => {
          const bar = { from: node.started_at ?? from, to: node.completed_at ?? until };
          const left = place(axis, bar.from);
          const width = Math.max(0, place(axis, bar.to) - left);
          const labelled = width > LABELLED_FROM;
          const look = WAITS.has(node.public_state) ? "wait" : "";
          const title = `${node.node ?? node.kind}, ${words(node.public_state)}: ${exact(bar.from)}, ${span(bar.to - bar.from)}`;
          return (
            <div class="tl-row">
              <span class="name">
                <a href={link(["executions", node.execution_id])}>{node.node ?? node.kind}</a>
                {critical.has(node.execution_id) && <span class="on-path" title="on the chain that decides how long it takes"> ●</span>}
              </span>
              <div class="tl-track">
                {axis.filter((piece) => piece.compressed).map((piece) => (
                  <span class="tl-gap" style={{ left: `${piece.left * 100}%`, width: `${piece.width * 100}%` }} />
                ))}
                <span
                  class={`tl-bar ${look} s-${node.public_state} ${labelled ? "labelled" : ""}`}
                  role="img"
                  aria-label={title}
                  title={title}
                  style={{ left: `min(${left * 100}%, calc(100% - 3px))`, width: `${width * 100}%` }}
                >
                  {labelled && <span class="tl-span">{span(bar.to - bar.from)}</span>}
                </span>
              </div>
            </div>
          );
        })}
        {started.length > MEMBERS_MAX && <p class="small muted">The first {MEMBERS_MAX} are drawn.</p>}
      </div>
    </div>
  );
}
