// The same act on many executions.

import { useSignal } from "@preact/signals";
import { answer, api } from "../api/client";
import { count } from "../format";
import { ENDED } from "../states";
import { propose } from "../ui/dialog";
import type { Summary } from "../screens/executions";

/** A command with more ids than this is not one that people read or copy. `ff replay` takes one. */
const COMMAND_IDS_MAX = 10;

/** The same act on all that were chosen: first what it would do, then how far it is. */
export function Bulk({ ids, items, done }: { ids: string[]; items: Summary[]; done: () => void }) {
  const at = useSignal<{ name: string; done: number; of: number } | undefined>(undefined);
  const states = new Map(items.map((item) => [item.execution_id, item.public_state as string]));
  const acts = [
    { name: "Cancel", fits: (state: string) => !ENDED.has(state), path: "/v1/executions/{execution_id}/cancel" as const, danger: true, effect: "cancelled; a worker that holds one loses its lease at once" },
    { name: "Replay", fits: (state: string) => ENDED.has(state), path: "/v1/executions/{execution_id}/replay" as const, danger: false, effect: "run once more, as a new attempt" },
    { name: "Hold", fits: (state: string) => !ENDED.has(state), path: "/v1/executions/{execution_id}/hold" as const, danger: false, effect: "kept from being claimed until they are released" },
    { name: "Release", fits: (state: string) => !ENDED.has(state), path: "/v1/executions/{execution_id}/release" as const, danger: false, effect: "released, if an operator held them" },
  ];
  return (
    <section class="notice row" aria-label="What to do with those chosen">
      <strong>{count(ids.length)} chosen</strong>
      {acts.map((act) => {
        const fit = ids.filter((id) => act.fits(states.get(id) ?? ""));
        return (
          <button
            type="button"
            class={`button small ${act.danger ? "danger" : ""}`}
            disabled={fit.length === 0}
            onClick={() =>
              propose({
                name: `${act.name} ${count(fit.length)}`,
                effect: `${count(fit.length)} of ${count(ids.length)} chosen executions will be ${act.effect}. ${fit.length < ids.length ? "The others are in a state where that means nothing and stay as they are." : ""} Each is audited.`,
                ...(fit.length <= (act.name === "Replay" ? 1 : COMMAND_IDS_MAX) ? { command: ["ff", act.name.toLowerCase(), ...fit].join(" ") } : {}),
                danger: act.danger,
                run: async () => {
                  const refused: string[] = [];
                  at.value = { name: act.name, done: 0, of: fit.length };
                  for (const id of fit) {
                    try {
                      await answer(api.POST(act.path, { params: { path: { execution_id: id } }, body: {} as never }));
                    } catch (error) {
                      refused.push(`${id}: ${error instanceof Error ? error.message : String(error)}`);
                    }
                    at.value = { name: act.name, done: (at.value?.done ?? 0) + 1, of: fit.length };
                  }
                  done();
                  return refused.length === 0 ? `${act.name}: ${fit.length} done.` : `${act.name}: ${fit.length - refused.length} done, ${refused.length} refused. First: ${refused[0]}`;
                },
              })
            }
          >
            {act.name} {fit.length > 0 && fit.length < ids.length ? count(fit.length) : ""}
          </button>
        );
      })}
      {at.value && (
        <span class="small muted" role="status">
          {at.value.name}: {count(at.value.done)} of {count(at.value.of)}
        </span>
      )}
    </section>
  );
}
