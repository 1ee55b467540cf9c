// Light or dark: as the system says, unless the reader has chosen.

import { effect, signal } from "@preact/signals";

export type Theme = "light" | "dark";

const KEY = "flowfabric.theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");

function stored(): Theme | undefined {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : undefined;
  } catch {
    return undefined;
  }
}

let chosen = stored();

/** The theme that is shown. */
export const theme = signal<Theme>(chosen ?? (system.matches ? "dark" : "light"));

/** Shows the other theme, and remembers that. */
export function toggleTheme(): void {
  chosen = theme.value === "dark" ? "light" : "dark";
  theme.value = chosen;
  try {
    localStorage.setItem(KEY, chosen);
  } catch {
    // A browser that stores nothing shows it until the page is left.
  }
}

/** Keeps the page in its theme. */
export function startTheme(): void {
  system.addEventListener("change", () => {
    if (!chosen) theme.value = system.matches ? "dark" : "light";
  });
  effect(() => document.documentElement.setAttribute("data-theme", theme.value));
}
