// Keys that work everywhere, except where somebody writes.

import { useEffect } from "preact/hooks";
import { go, link } from "./router";
import { toggleTheme } from "./theme";

/** How long after `g` the letter of a screen may come. */
const CHORD_MS = 1_200;

/** Whether an element takes what is written. */
export function isWriting(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

/** Whether a key press is meant for the page and not for a field or a window. */
export function isForPage(event: KeyboardEvent): boolean {
  return !event.ctrlKey && !event.metaKey && !event.altKey && !isWriting(event.target) && !document.querySelector("dialog[open]");
}

export function useKeys(screens: readonly { path: string; key: string }[], showKeys: () => void): void {
  useEffect(() => {
    let chordUntil = 0;
    const pressed = (event: KeyboardEvent) => {
      if (!isForPage(event)) return;
      if (Date.now() < chordUntil) {
        chordUntil = 0;
        const screen = screens.find((one) => one.key === event.key);
        if (screen) {
          event.preventDefault();
          go(link(screen.path ? [screen.path] : []));
          return;
        }
      }
      if (event.key === "/") {
        event.preventDefault();
        document.querySelector<HTMLInputElement>("#search")?.focus();
      } else if (event.key === "?") showKeys();
      else if (event.key === "g") chordUntil = Date.now() + CHORD_MS;
      else if (event.key === "t") toggleTheme();
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, [screens]);
}

/** `j` and `k` move the focus between the elements that a selector names. */
export function useRows(selector: string): void {
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      if ((event.key !== "j" && event.key !== "k") || !isForPage(event)) return;
      const rows = [...document.querySelectorAll<HTMLElement>(selector)];
      const at = rows.findIndex((row) => row === document.activeElement || row.contains(document.activeElement));
      const next = rows[event.key === "j" ? Math.min(at + 1, rows.length - 1) : Math.max(at - 1, 0)];
      if (next) {
        event.preventDefault();
        next.focus();
        next.scrollIntoView({ block: "nearest" });
      }
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, [selector]);
}
