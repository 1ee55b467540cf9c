// The graph of a flow. Panning and zooming move one group and draw nothing again.

import { useEffect, useMemo, useRef } from "preact/hooks";
import { words } from "../format";
import { link } from "../router";
import { Icon } from "../ui/basics";
import { NODE_HEIGHT, NODE_WIDTH, place } from "./layout";
import type { GraphView, Node } from "./layout";

/** A small graph does not take the place of what stands below it. */
const HEIGHT_MIN_PX = 220;
const HEIGHT_MAX_PX = 560;
const ZOOM_MIN = 0.02;
const ZOOM_MAX = 2.5;
/** Words smaller than this cannot be read: they are not drawn. */
const ZOOM_READABLE = 0.4;
/** In a window this narrow a graph grows downwards. */
const NARROW_PX = 600;

function joinOf(node: Node): string {
  const policy = node.join?.policy as unknown;
  if (!node.join || node.join.total < 2 || policy === undefined) return "";
  const done = `${node.join.succeeded}/${node.join.total}`;
  if (policy === "all_of") return `all of ${done}`;
  if (typeof policy === "object" && policy !== null && "any_of" in policy) return `any of ${done}`;
  if (typeof policy === "object" && policy !== null && "quorum" in policy) {
    const k = (policy as { quorum?: { k?: number } }).quorum?.k;
    return `quorum ${k ?? ""} of ${done}`;
  }
  return done;
}

function fit(text: string, length: number): string {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

export function FlowGraph({ graph, critical }: { graph: GraphView; critical: ReadonlySet<string> }) {
  const shape = graph.nodes.map((node) => node.execution_id).join() + graph.edges.map((edge) => edge.edge_id).join();
  const vertical = window.innerWidth < NARROW_PX;
  const placed = useMemo(() => place(graph, vertical), [shape, vertical]);
  const host = useRef<HTMLDivElement>(null);
  const group = useRef<SVGGElement>(null);
  const view = useRef({ x: 0, y: 0, zoom: 1 });
  const apply = () => {
    const { x, y, zoom } = view.current;
    group.current?.setAttribute("transform", `translate(${x} ${y}) scale(${zoom})`);
    group.current?.classList.toggle("far", zoom < ZOOM_READABLE);
  };
  const whole = () => {
    const box = host.current?.getBoundingClientRect();
    if (!box) return;
    const zoom = Math.max(ZOOM_MIN, Math.min(1, (box.width - 32) / placed.width, (box.height - 32) / placed.height));
    view.current = { zoom, x: (box.width - placed.width * zoom) / 2, y: (box.height - placed.height * zoom) / 2 };
    apply();
  };
  const zoomAt = (factor: number, x: number, y: number) => {
    const before = view.current;
    const zoom = Math.max(ZOOM_MIN, Math.min(ZOOM_MAX, before.zoom * factor));
    view.current = { zoom, x: x - ((x - before.x) * zoom) / before.zoom, y: y - ((y - before.y) * zoom) / before.zoom };
    apply();
  };
  const centre = (factor: number) => {
    const box = host.current?.getBoundingClientRect();
    if (box) zoomAt(factor, box.width / 2, box.height / 2);
  };
  useEffect(whole, [placed]);
  useEffect(() => {
    const element = host.current;
    if (!element) return;
    let from: { x: number; y: number; view: { x: number; y: number } } | undefined;
    let dragged = false;
    const wheel = (event: WheelEvent) => {
      event.preventDefault();
      const box = element.getBoundingClientRect();
      zoomAt(Math.exp(-event.deltaY * 0.0015), event.clientX - box.left, event.clientY - box.top);
    };
    const down = (event: PointerEvent) => {
      if ((event.target as Element).closest("button")) return;
      from = { x: event.clientX, y: event.clientY, view: { x: view.current.x, y: view.current.y } };
      dragged = false;
    };
    const move = (event: PointerEvent) => {
      if (!from) return;
      const [dx, dy] = [event.clientX - from.x, event.clientY - from.y];
      if (!dragged && Math.hypot(dx, dy) < 4) return;
      dragged = true;
      view.current = { ...view.current, x: from.view.x + dx, y: from.view.y + dy };
      apply();
    };
    const up = () => (from = undefined);
    // A drag that ends on a node does not open it.
    const click = (event: MouseEvent) => {
      if (dragged) {
        event.preventDefault();
        event.stopPropagation();
        dragged = false;
      }
    };
    element.addEventListener("wheel", wheel, { passive: false });
    element.addEventListener("pointerdown", down);
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", up);
    element.addEventListener("click", click, true);
    return () => {
      element.removeEventListener("wheel", wheel);
      element.removeEventListener("pointerdown", down);
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", up);
      element.removeEventListener("click", click, true);
    };
  }, [placed]);
  const edges = new Map(graph.edges.map((edge) => [edge.edge_id, edge]));
  const shrunk = vertical ? Math.min(1, window.innerWidth / (placed.width + 64)) : 1;
  return (
    <div class="graph" ref={host} style={{ height: `${Math.max(HEIGHT_MIN_PX, Math.min(HEIGHT_MAX_PX, placed.height * shrunk + 48))}px` }}>
      <svg aria-label="Graph of the flow" role="group">
        <defs>
          <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse" orient="auto">
            <path d="M0,0 L8,4 L0,8 z" fill="var(--text-3)" />
          </marker>
        </defs>
        <g ref={group}>
          {placed.edges.map((line) => {
            const edge = edges.get(line.id);
            const hot = critical.has(line.from) && critical.has(line.to);
            return <path class={`edge ${edge?.state ?? ""} ${edge?.role ?? ""} ${hot ? "critical" : ""}`} d={line.path} marker-end="url(#arrow)" />;
          })}
          {graph.nodes.map((node) => {
            const at = placed.nodes.get(node.execution_id) ?? { x: 0, y: 0 };
            const name = node.node ?? node.kind;
            const join = joinOf(node);
            return (
              <g transform={`translate(${at.x} ${at.y})`}>
                <a
                  href={link(["executions", node.execution_id])}
                  class={`node s-${node.public_state} ${critical.has(node.execution_id) ? "critical" : ""}`}
                  data-node={name}
                  data-state={node.public_state}
                  draggable={false}
                >
                  <title>{`${name} · ${node.kind} · ${words(node.public_state)}`}</title>
                  <rect class="box" width={NODE_WIDTH} height={NODE_HEIGHT} rx="7" />
                  <rect class="strip" width="5" height={NODE_HEIGHT} rx="2.5" />
                  <text x="14" y="19">
                    {fit(name, 22)}
                  </text>
                  <text class="sub" x="14" y="36">
                    {fit(`${join && node.public_state === "waiting_children" ? "waits" : words(node.public_state)}${join ? ` · ${join}` : node.attempt ? ` · attempt ${node.attempt}` : ""}`, 28)}
                  </text>
                </a>
              </g>
            );
          })}
        </g>
      </svg>
      <div class="graph-tools">
        <button type="button" class="button small" aria-label="Zoom in" onClick={() => centre(1.3)}>
          <Icon name="plus" />
        </button>
        <button type="button" class="button small" aria-label="Zoom out" onClick={() => centre(1 / 1.3)}>
          <Icon name="minus" />
        </button>
        <button type="button" class="button small" aria-label="Show all of it" onClick={whole}>
          <Icon name="fit" />
        </button>
      </div>
    </div>
  );
}
