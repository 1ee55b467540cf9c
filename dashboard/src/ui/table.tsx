// Rows of equal things: what each column shows, and what stands there while nothing has come or nothing is there.

import type { ComponentChildren } from "preact";
import { Loading } from "./basics";

export interface Column<T> {
  name: string;
  cell: (item: T) => ComponentChildren;
  /** Numbers stand on the right. */
  num?: boolean;
  /** Only where this is true; absent means always. */
  when?: boolean;
  /** The first to go where there is little room. */
  minor?: boolean;
}

interface Rows<T> {
  /** Names the rows for readers of the screen. */
  label: string;
  /** `undefined` until the answer is there. */
  items: readonly T[] | undefined;
  columns: Column<T>[];
  /** Stands there instead of no rows. */
  empty: ComponentChildren;
  keyOf?: (item: T) => string;
}

function look<T>({ num, minor }: Column<T>): string {
  return [num ? "num" : "", minor ? "minor" : ""].filter(Boolean).join(" ");
}

export function Table<T>({ label, items, columns, empty, keyOf }: Rows<T>) {
  if (items === undefined) {
    return (
      <div class="body">
        <Loading />
      </div>
    );
  }
  if (items.length === 0) return <>{empty}</>;
  const shown = columns.filter((column) => column.when !== false);
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={label}>
      <table class="rows">
        <thead>
          <tr>
            {shown.map((column) => (
              <th class={look(column)}>{column.name}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {items.map((item, index) => (
            <tr key={keyOf?.(item) ?? index}>
              {shown.map((column) => (
                <td class={look(column)} data-label={column.name}>
                  {column.cell(item)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
