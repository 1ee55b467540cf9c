// The answer that a suspended execution waits for: approve, reject, or a form made from the schema that the task gave.

import type { ComponentChildren } from "preact";
import { useSignal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { answersOf, decide, isAboutJournal, signalNames } from "../approvals";
import { words } from "../format";
import { may, session } from "../session";
import { Refusal } from "../ui/basics";
import { say } from "../ui/dialog";
import type { View } from "../screens/execution";
import { SchemaForm, readForm } from "../ui/form";

/** The decision on what an execution asks, where it stands. */
export function Answer({ execution, done }: { execution: View; done: () => void }) {
  const suspension = execution.suspension ?? undefined;
  if (!suspension || !may("approver") || isAboutJournal(suspension.reason)) return null;
  if (suspension.condition === "operator_only" || suspension.condition === "timeout_only") return null;
  const counted = signalNames(suspension.condition);
  // A question can always be answered with a no; a wait for a signal of a program cannot.
  const asks = suspension.reason === "approval" || Boolean(suspension.question);
  return (
    <section class="notice s-suspended stack" aria-label="The answer it waits for">
      <strong>{suspension.question || execution.blocking_detail || "It waits for a signal"}</strong>
      <Decision names={asks ? answersOf(counted) : counted} schema={suspension.schema} send={sendAs(execution.execution_id, done)} />
    </section>
  );
}

/** Sends answers as the person that uses this page, and calls `done` after each. */
export function sendAs(executionId: string, done: () => void) {
  return async (name: string, payload: unknown) => {
    await decide(executionId, name, payload, session.value?.name ?? "dashboard");
    say(`${words(name)}: sent.`);
    done();
  };
}

interface DecisionProps {
  names: string[];
  /** The JSON schema of the answer, if it has a shape. */
  schema: unknown;
  send: (name: string, payload: unknown) => Promise<void>;
  /** Stands between the form and the buttons. */
  children?: ComponentChildren;
}

/** Buttons for each answer, and a form if the answer has a shape. */
export function Decision({ names, schema, send: deliver, children }: DecisionProps) {
  const busy = useSignal(false);
  const error = useSignal<unknown>(undefined);
  const sent = useSignal<string | undefined>(undefined);
  const form = useRef<HTMLFormElement>(null);
  const offered = names.length > 0 ? names : ["approve", "reject"];
  const send = async (name: string) => {
    if (busy.value || sent.value !== undefined) return;
    busy.value = true;
    error.value = undefined;
    try {
      // The schema is that of a yes: a no needs no answer to the questions of the form.
      const payload = form.current && name !== "reject" ? readForm(form.current, schema) : undefined;
      await deliver(name, payload);
      sent.value = name;
    } catch (caught) {
      error.value = caught;
    }
    busy.value = false;
  };
  return (
    <form ref={form} class="stack" noValidate onSubmit={(event) => (event.preventDefault(), void send(offered[0] ?? "approve"))}>
      <SchemaForm schema={schema} />
      {children}
      {error.value !== undefined && <Refusal error={error.value} />}
      <div class="row">
        {offered.map((name, index) => (
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
