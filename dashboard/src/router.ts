// The place that the page shows: the path and the query of its address, as signals. Every screen has an address that can be shared.

import { computed, signal } from "@preact/signals";

const address = signal(read());

function read(): URL {
  return new URL(window.location.href);
}

/** The path, in parts that were decoded. */
export const path = computed(() => address.value.pathname.split("/").filter(Boolean).map(decode));
/** The part of the address behind the question mark. */
export const query = computed(() => address.value.searchParams);

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** An address inside of the page. */
export function link(parts: string[], search: Record<string, string | string[] | undefined> = {}): string {
  const params = new URLSearchParams();
  // The namespace goes along: an address that is shared shows the same.
  const namespace = address.peek().searchParams.get("ns");
  if (namespace && search["ns"] === undefined) params.set("ns", namespace);
  for (const [name, value] of Object.entries(search)) {
    for (const one of Array.isArray(value) ? value : value === undefined || value === "" ? [] : [value]) params.append(name, one);
  }
  const text = params.toString();
  return "/" + parts.map(encodeURIComponent).join("/") + (text ? `?${text}` : "");
}

/** Goes to an address inside of the page. */
export function go(to: string, replace = false): void {
  if (replace) window.history.replaceState(null, "", to);
  else window.history.pushState(null, "", to);
  address.value = read();
  if (!replace) window.scrollTo(0, 0);
}

/** Changes parts of the query; `undefined` removes one. */
export function setQuery(change: Record<string, string | string[] | undefined>): void {
  const next = read();
  for (const [name, value] of Object.entries(change)) {
    next.searchParams.delete(name);
    for (const one of Array.isArray(value) ? value : value === undefined || value === "" ? [] : [value]) next.searchParams.append(name, one);
  }
  go(next.pathname + next.search, true);
}

/** Follows links without loading the page again. */
export function startRouter(): void {
  window.addEventListener("popstate", () => (address.value = read()));
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    // Links inside of a drawing are elements of another kind, so the attribute is what both have.
    const anchor = (event.target as Element | null)?.closest?.("a[href]");
    const to = anchor && !anchor.getAttribute("target") ? new URL(anchor.getAttribute("href") ?? "", window.location.href) : undefined;
    if (!to || to.origin !== window.location.origin) return;
    event.preventDefault();
    go(to.pathname + to.search + to.hash);
  });
}

/** The namespace that the address names; `undefined` means the caller's own. */
export function namespace(): string | undefined {
  return query.value.get("ns") ?? undefined;
}
