// How numbers, times and bytes look.

const UNITS: [number, string][] = [
  [86_400_000, "d"],
  [3_600_000, "h"],
  [60_000, "min"],
  [1_000, "s"],
];

/** A span in its two largest units: `2 h 5 min`, `1.4 s`, `120 ms`. */
export function span(ms: number): string {
  const abs = Math.abs(ms);
  if (abs < 1_000) return `${Math.round(abs)} ms`;
  if (abs < 10_000 && abs % 1_000 !== 0) return `${(abs / 1_000).toFixed(1)} s`;
  for (const [index, [size, name]] of UNITS.entries()) {
    if (abs < size) continue;
    const whole = Math.floor(abs / size);
    const next = UNITS[index + 1];
    const rest = next ? Math.floor((abs - whole * size) / next[0]) : 0;
    return next && rest > 0 && whole < 10 ? `${whole} ${name} ${rest} ${next[1]}` : `${whole} ${name}`;
  }
  return `${Math.round(abs)} ms`;
}

/** A span in its largest unit, for places where the exact one is a pointer away: `2 h`, `45 s`. */
export function roughly(ms: number): string {
  const [size, name] = UNITS.find(([size]) => ms >= size) ?? [1_000, "s"];
  return `${size === 1_000 ? Math.round(ms / size) : Math.floor(ms / size)} ${name}`;
}

/** How far an instant is from now, in words. */
export function relative(at: number, now: number): string {
  const ms = at - now;
  if (Math.abs(ms) < 1_500) return "now";
  return ms < 0 ? `${roughly(-ms)} ago` : `in ${roughly(ms)}`;
}

/** A number with its noun: `1 lane`, `2 lanes`. */
export function many(value: number, noun: string): string {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** An instant in full, in the time zone of the reader. */
export function exact(at: number): string {
  const date = new Date(at);
  const pad = (value: number, width = 2) => String(value).padStart(width, "0");
  const day = `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())}`;
  return `${day} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}.${pad(date.getMilliseconds(), 3)}`;
}

/** The time of day. */
export function clock(at: number): string {
  return exact(at).slice(11, 19);
}

export function bytes(size: number): string {
  if (size < 1_024) return `${size} B`;
  if (size < 1_048_576) return `${(size / 1_024).toFixed(1)} KiB`;
  return `${(size / 1_048_576).toFixed(1)} MiB`;
}

const GROUPED = new Intl.NumberFormat("en-US");

export function count(value: number): string {
  return GROUPED.format(value);
}

/** A number that fits into a small place: `1,234`, `12.3k`, `4.5M`. */
export function short(value: number): string {
  const abs = Math.abs(value);
  if (abs < 10_000) return Number.isInteger(value) ? GROUPED.format(value) : value.toFixed(abs < 10 ? 1 : 0);
  if (abs < 1_000_000) return `${(value / 1_000).toFixed(1)}k`;
  return `${(value / 1_000_000).toFixed(1)}M`;
}

/** A word of the API as people write it. */
export function words(name: string): string {
  return name.replaceAll("_", " ");
}

/** The end of an id, which is what tells it from its neighbours. */
export function shortId(id: string): string {
  return id.length > 14 ? `…${id.slice(-10)}` : id;
}

/** The bytes of a base64 text. */
export function fromBase64(text: string): Uint8Array {
  const raw = atob(text);
  const out = new Uint8Array(raw.length);
  for (let index = 0; index < raw.length; index += 1) out[index] = raw.charCodeAt(index);
  return out;
}

/** The text of some bytes, if they are text. */
export function textOf(data: Uint8Array): string | undefined {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(data);
  } catch {
    return undefined;
  }
}

/** JSON that a person wrote; where it is none, the error says in which field and what to do. */
export function parseJson(text: string, field: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    throw new Error(`${field}: this is not JSON. A text has quotes around it, as in "done".`);
  }
}

/** A word of a shell command that means itself. */
export function quote(word: string): string {
  return /^[A-Za-z0-9_./:=@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}

/** An option of a command with a value that somebody wrote; nothing where it is empty. It begins with a space. */
export function option(name: string, value: string | undefined): string {
  if (!value) return "";
  // A value that begins with a dash would be taken for an option of its own.
  return ` --${name}${value.startsWith("-") ? "=" : " "}${quote(value)}`;
}

/** The tags that lines of `key=value` say. */
export function parseTags(text: string): Record<string, string> {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  return Object.fromEntries(
    lines.map((line) => {
      const at = line.indexOf("=");
      if (at <= 0) throw new Error(`Tags: “${line}” is not key=value.`);
      return [line.slice(0, at), line.slice(at + 1)];
    }),
  );
}
