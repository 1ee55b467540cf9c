// Tabs over one panel. The arrow keys go from one to the next, as readers of the screen expect.

import { useEffect } from "preact/hooks";
import { count, words } from "../format";

export interface TabsProps<Name extends string> {
  label: string;
  names: readonly Name[];
  here: Name;
  choose: (name: Name) => void;
  /** Numbers beside names. */
  numbers?: Partial<Record<Name, number>>;
}

export function Tabs<Name extends string>({ label, names, here, choose, numbers = {} }: TabsProps<Name>) {
  // In a narrow window tabs are one line that is wider than the window.
  useEffect(() => {
    const tab = document.getElementById(tabId(here));
    const line = tab?.parentElement;
    if (line) line.scrollLeft = tab.offsetLeft - (line.clientWidth - tab.offsetWidth) / 2;
  }, [here]);
  const pressed = (event: KeyboardEvent) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    const next = names[(names.indexOf(here) + step + names.length) % names.length];
    if (step === 0 || next === undefined) return;
    event.preventDefault();
    choose(next);
    document.getElementById(tabId(next))?.focus();
  };
  return (
    <div class="tabs" role="tablist" aria-label={label} onKeyDown={pressed}>
      {names.map((name) => (
        <button type="button" role="tab" id={tabId(name)} aria-selected={name === here} aria-controls="tabpanel" tabIndex={name === here ? 0 : -1} onClick={() => choose(name)}>
          {words(name)}{" "}
          {(numbers[name] ?? 0) > 0 && <span class="n">{count(numbers[name] ?? 0)}</span>}
        </button>
      ))}
    </div>
  );
}

/** The id of a tab, which its panel names. */
export function tabId(name: string): string {
  return `tab-${name.replaceAll(" ", "-")}`;
}
