// The time axis of a timeline. Where nothing ran for long, time is compressed: a week of waiting takes a few percent of
// the width, and what happened around it stays readable.

export interface Span {
  from: number;
  to: number;
}

export interface Piece extends Span {
  /** Where it stands, in parts of the whole width. */
  left: number;
  width: number;
  compressed: boolean;
}

/** An idle stretch gets at most this part of what the busy ones have together. */
const IDLE_PART = 0.12;
/** An idle stretch of this many milliseconds is never compressed, so that work of one millisecond does not look like the most of a day. */
const IDLE_LEAST_MS = 20;

/** Spans that overlap or touch, as one; in order. */
function merge(spans: Span[]): Span[] {
  const sorted = spans.filter((span) => span.to >= span.from).sort((one, other) => one.from - other.from);
  const out: Span[] = [];
  for (const span of sorted) {
    const last = out[out.length - 1];
    if (last && span.from <= last.to) last.to = Math.max(last.to, span.to);
    else out.push({ ...span });
  }
  return out;
}

/** Pieces from `from` to `to`, each linear in itself. */
export function pieces(from: number, to: number, busy: Span[]): Piece[] {
  const end = Math.max(to, from + 1);
  const merged = merge(busy.map((span) => ({ from: Math.max(span.from, from), to: Math.min(span.to, end) })));
  const parts: (Span & { busy: boolean })[] = [];
  let at = from;
  for (const span of merged) {
    if (span.from > at) parts.push({ from: at, to: span.from, busy: false });
    if (span.to > span.from) parts.push({ ...span, busy: true });
    at = Math.max(at, span.to);
  }
  if (at < end) parts.push({ from: at, to: end, busy: false });
  const worked = parts.filter((part) => part.busy).reduce((sum, part) => sum + part.to - part.from, 0);
  const most = worked > 0 ? Math.max(worked * IDLE_PART, IDLE_LEAST_MS) : Infinity;
  const weights = parts.map((part) => (part.busy ? part.to - part.from : Math.min(part.to - part.from, most)));
  const total = weights.reduce((sum, weight) => sum + weight, 0) || 1;
  let left = 0;
  return parts.map((part, index) => {
    const width = (weights[index] ?? 0) / total;
    const piece = { from: part.from, to: part.to, left, width, compressed: !part.busy && part.to - part.from > most * 1.5 };
    left += width;
    return piece;
  });
}

/** Where an instant stands, in parts of the whole width. */
export function place(axis: Piece[], at: number): number {
  const first = axis[0];
  if (!first || at <= first.from) return 0;
  for (const piece of axis) {
    if (at <= piece.to) return piece.left + (piece.width * (at - piece.from)) / Math.max(1, piece.to - piece.from);
  }
  return 1;
}
