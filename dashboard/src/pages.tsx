// Lists that come in pages: the first page follows what happens, later ones are fetched when somebody wants them.

import { useSignal } from "@preact/signals";
import { count } from "./format";
import { useAsk } from "./live";

export interface Page<T> {
  items: T[];
  next_cursor?: string | null;
}

export interface Pages<T> {
  /** What has come so far; `undefined` before the first page. */
  items: T[] | undefined;
  error: unknown;
  /** Whether there is more than what has come. */
  more: boolean;
  busy: boolean;
  loadMore: () => void;
  /** Asks for the first page again. */
  refresh: () => void;
}

/** Asks for the first page of a list, again whenever `key` changes and every `every` milliseconds, and for more on demand. */
export function usePages<T>(key: string, fetchPage: (cursor: string | undefined, signal?: AbortSignal) => Promise<Page<T>>, idOf: (item: T) => string, every = 0): Pages<T> {
  const first = useAsk(key, (signal) => fetchPage(undefined, signal), every);
  const later = useSignal<{ key: string; items: T[]; cursor: string | null | undefined }>({ key, items: [], cursor: undefined });
  const busy = useSignal(false);
  const failed = useSignal<unknown>(undefined);
  const page = first.data.value;
  const older = later.value.key === key ? later.value : { key, items: [], cursor: undefined };
  const cursor = older.cursor === undefined ? page?.next_cursor : older.cursor;
  // What is new moves the rest on: an item may be on the first page and on a later one.
  const seen = new Set<string>();
  const items = page && [...page.items, ...older.items].filter((item) => !seen.has(idOf(item)) && seen.add(idOf(item)));
  const loadMore = async () => {
    if (!cursor || busy.value) return;
    busy.value = true;
    failed.value = undefined;
    try {
      const next = await fetchPage(cursor);
      later.value = { key, items: [...older.items, ...next.items], cursor: next.next_cursor ?? null };
    } catch (error) {
      failed.value = error;
    }
    busy.value = false;
  };
  return { items, error: first.error.value ?? failed.value, more: Boolean(cursor), busy: busy.value, loadMore: () => void loadMore(), refresh: first.refresh };
}

/** Stands below a list of which there is more. */
export function More<T>({ pages }: { pages: Pages<T> }) {
  if (!pages.more) return null;
  return (
    <div class="row body between">
      <span class="small muted">{count(pages.items?.length ?? 0)} shown</span>
      <button type="button" class="button small" disabled={pages.busy} onClick={pages.loadMore}>
        Load more
      </button>
    </div>
  );
}
