// Charts of a few numbers over time.

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { clock, exact, short } from "../format";
import { theme } from "../theme";

/** A small line that shows how a number went. */
export function Spark({ values, tone }: { values: number[]; tone: string }) {
  if (values.length < 2) return null;
  const max = Math.max(1, ...values);
  const step = 100 / (values.length - 1);
  const points = values.map((value, index) => `${(index * step).toFixed(2)},${(30 - (value / max) * 26).toFixed(2)}`);
  return (
    <svg class={`spark s-${tone}`} viewBox="0 0 100 32" preserveAspectRatio="none" aria-hidden="true">
      <polygon points={`0,32 ${points.join(" ")} 100,32`} fill="var(--c)" opacity=".12" />
      <polyline points={points.join(" ")} fill="none" stroke="var(--c)" stroke-width="1.6" vector-effect="non-scaling-stroke" />
    </svg>
  );
}

export interface Series {
  label: string;
  /** The name of a colour token, without its dashes. */
  colour: string;
  values: (number | null)[];
}

/** A chart shows at least this stretch of time, in seconds. */
const STRETCH_MIN_S = 60;
/** Times in a stretch longer than this are shown with their day. */
const DAY_S = 86_400;

/** The steps between two numbers along an axis: each can be told in one digit. */
const STEPS = Array.from({ length: 15 }, (_, power) => [1, 2, 5].map((digit) => digit * 10 ** (power - 1))).flat();

/** The words along the axis of time, short enough for their places. */
function moments(splits: number[]): string[] {
  const long = (splits[splits.length - 1] ?? 0) - (splits[0] ?? 0) > DAY_S;
  return splits.map((at) => (long ? exact(at * 1_000).slice(5, 16) : clock(at * 1_000)));
}

interface ChartProps {
  /** In milliseconds. */
  times: number[];
  series: Series[];
  height?: number;
  label: string;
  /** Stands behind each number along the axis. */
  unit?: string;
}

/** A chart over time. */
export function Chart({ times, series, height = 160, label, unit = "" }: ChartProps) {
  const host = useRef<HTMLDivElement>(null);
  const chart = useRef<uPlot | undefined>(undefined);
  const colours = theme.value;
  useEffect(() => {
    const element = host.current;
    if (!element) return;
    const token = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
    const axis = { stroke: token("text-3"), grid: { stroke: token("line-soft"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    chart.current = new uPlot(
      {
        width: Math.max(200, element.clientWidth),
        height,
        legend: { show: false },
        cursor: { show: false },
        padding: [8, 24, 0, 0],
        axes: [
          { ...axis, space: 90, size: 26, values: (_, splits) => moments(splits) },
          { ...axis, size: 52, incrs: STEPS, values: (_, splits) => splits.map((value) => `${short(value)}${unit}`) },
        ],
        scales: {
          x: { range: (_, min, max) => [Math.min(min, max - STRETCH_MIN_S), max] },
          y: { range: (_, __, max) => [0, Math.max(1, max * 1.1)] },
        },
        series: [{}, ...series.map((one) => ({ label: one.label, stroke: token(one.colour), fill: `${token(one.colour)}22`, width: 1.6, points: { show: false } }))],
      },
      [times.map((at) => at / 1_000), ...series.map((one) => one.values)],
      element,
    );
    const resized = new ResizeObserver(() => chart.current?.setSize({ width: Math.max(200, element.clientWidth), height }));
    resized.observe(element);
    return () => {
      resized.disconnect();
      chart.current?.destroy();
    };
  }, [colours, series.length, height]);
  useEffect(() => {
    chart.current?.setData([times.map((at) => at / 1_000), ...series.map((one) => one.values)]);
  }, [times, series]);
  return (
    <figure>
      <div ref={host} class="uplot-host" role="img" aria-label={label} />
      <figcaption class="legend">
        {series.map((one) => (
          <span class="state" style={{ "--c": `var(--${one.colour})` }}>
            <i aria-hidden="true" />
            {one.label}
          </span>
        ))}
      </figcaption>
    </figure>
  );
}
