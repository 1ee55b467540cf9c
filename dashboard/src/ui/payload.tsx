// Bytes of a user's: as a tree where they are JSON, as text where they are text, and otherwise their size.

import { useSignal } from "@preact/signals";
import { bytes as sized, fromBase64, textOf } from "../format";
import { Copy } from "./basics";

/** Entries of one level that are drawn; the rest is in the raw form. */
const ENTRIES_MAX = 200;
const DEPTH_MAX = 40;

/** A JSON value as a tree. */
export function Json({ value, name, open = 2, depth = 0 }: { value: unknown; name?: string; open?: number; depth?: number }) {
  const label = name === undefined ? null : <span class="k">{name}: </span>;
  if (value === null || typeof value !== "object" || depth > DEPTH_MAX) {
    const text = typeof value === "string" ? JSON.stringify(value) : String(value);
    return (
      <div class="leaf">
        {label}
        <span class={typeof value === "string" ? "s" : "v"}>{text}</span>
      </div>
    );
  }
  const list = Array.isArray(value);
  const entries = list ? value.map((item, index) => [String(index), item] as const) : Object.entries(value);
  if (entries.length === 0) return <div class="leaf">{label}{list ? "[]" : "{}"}</div>;
  return (
    <details open={depth < open}>
      <summary>
        {label}
        <span class="muted">{list ? `[${entries.length}]` : `{${entries.length}}`}</span>
      </summary>
      {entries.slice(0, ENTRIES_MAX).map(([key, item]) => (
        <Json name={key} value={item} open={open} depth={depth + 1} />
      ))}
      {entries.length > ENTRIES_MAX && <div class="leaf muted">… {entries.length - ENTRIES_MAX} more</div>}
    </details>
  );
}

/** Parsed JSON, if the text is some. */
export function parsed(text: string): { value: unknown } | undefined {
  try {
    return { value: JSON.parse(text) as unknown };
  } catch {
    return undefined;
  }
}

/** A payload is shown in one line while it is folded, and this much of it. */
const PREVIEW_MAX = 90;

/** A payload in one line, which opens to all of it; a short one is shown as it is. */
export function Folded({ base64, contentType }: { base64: string; contentType: string }) {
  const open = useSignal(false);
  const data = fromBase64(base64);
  const text = textOf(data);
  const line = text?.replaceAll(/\s+/g, " ").trim() ?? `${sized(data.length)} that are not text`;
  if (text !== undefined && text.length <= PREVIEW_MAX && !text.includes("\n") && typeof parsed(text)?.value !== "object") return <code>{line}</code>;
  return (
    <details class="folded" onToggle={(event) => (open.value = event.currentTarget.open)}>
      <summary>
        <code>{line.length > PREVIEW_MAX ? `${line.slice(0, PREVIEW_MAX)}…` : line}</code>
      </summary>
      {open.value && <Payload base64={base64} contentType={contentType} />}
    </details>
  );
}

/** A payload with its content type, as tree or raw. */
export function Payload({ base64, contentType }: { base64: string; contentType: string }) {
  const raw = useSignal(false);
  const data = fromBase64(base64);
  const text = textOf(data);
  const json = text === undefined ? undefined : parsed(text);
  const tree = json !== undefined && typeof json.value === "object" && json.value !== null;
  return (
    <div class="stack">
      <div class="row small muted">
        <span>{contentType || "application/octet-stream"}</span>
        <span>{sized(data.length)}</span>
        {tree && (
          <button type="button" class="button quiet small" onClick={() => (raw.value = !raw.value)}>
            {raw.value ? "As a tree" : "Raw"}
          </button>
        )}
        {text !== undefined && <Copy text={text} what="the content" />}
      </div>
      {text === undefined ? (
        <p class="muted">These bytes are not text.</p>
      ) : tree && !raw.value ? (
        <div class="json">
          <Json value={json.value} />
        </div>
      ) : (
        <pre tabIndex={0}>{json && typeof json.value === "string" ? json.value : text}</pre>
      )}
    </div>
  );
}
