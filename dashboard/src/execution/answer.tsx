// The answer that a suspended execution waits for: approve, reject, or a form made from the schema that the task gave.

import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import type { Ask } from "../approvals";
import { decide, signalNames } from "../approvals";
import { words } from "../format";
import { may, session } from "../session";
import { Refusal } from "../ui/basics";
import { say } from "../ui/dialog";
import type { View } from "../screens/execution";
import { SchemaForm, readForm } from "../ui/form";

/** The decision on what an execution asks, where it stands. */
export function Answer({ execution, done }: { execution: View; done: () => void }) {
  const suspension = execution.suspension as (View["suspension"] & { question?: string; schema?: unknown }) | null | undefined;
  const counted = suspension ? signalNames(suspension.condition) : [];
  // A question can always be answered with a no; a wait for a signal of a program cannot.
  const reason: string = execution.state.blocking_reason ?? "";
  const asks = reason === "waiting_for_approval" || reason === "waiting_for_decision";
  const names = asks && counted.length > 0 ? [...new Set([...counted, "reject"])] : counted;
  if (!may("approver") && !may("operator")) return null;
  if (suspension?.condition === "operator_only" || suspension?.condition === "timeout_only") return null;
  return (
    <section class="notice s-suspended stack" aria-label="The answer it waits for">
      <strong>{suspension?.question || execution.blocking_detail || "It waits for a signal"}</strong>
      <Decision ask={{ execution_id: execution.execution_id, names, schema: suspension?.schema }} done={done} />
    </section>
  );
}

/** Buttons for each answer, and a form if the answer has a shape. */
export function Decision({ ask, done }: { ask: Pick<Ask, "execution_id" | "names" | "schema">; done: () => void }) {
  const busy = useSignal(false);
  const error = useSignal<unknown>(undefined);
  const sent = useSignal<string | undefined>(undefined);
  const form = useRef<HTMLFormElement>(null);
  const names = ask.names.length > 0 ? ask.names : ["approve", "reject"];
  const send = async (name: string) => {
    busy.value = true;
    error.value = undefined;
    try {
      const payload = form.current ? readForm(form.current, ask.schema) : undefined;
      await decide(ask, name, payload, session.value?.name ?? "dashboard");
      sent.value = name;
      say(`${words(name)}: sent.`);
      done();
    } catch (caught) {
      error.value = caught;
    }
    busy.value = false;
  };
  return (
    <form ref={form} class="stack" onSubmit={(event) => (event.preventDefault(), void send(names[0] ?? "approve"))}>
      <SchemaForm schema={ask.schema} />
      {error.value !== undefined && <Refusal error={error.value} />}
      <div class="row">
        {names.map((name, index) => (
          <button
            type={index === 0 ? "submit" : "button"}
            data-answer={name}
            class={`button ${index === 0 ? "primary" : ""} ${name === "reject" ? "danger" : ""}`}
            disabled={busy.value || sent.value !== undefined}
            onClick={index === 0 ? undefined : () => void send(name)}
          >
            {words(name).replace(/^./, (letter) => letter.toUpperCase())}
          </button>
        ))}
        {sent.value !== undefined && <span class="small muted">{words(sent.value)} was sent.</span>}
      </div>
    </form>
  );
}
