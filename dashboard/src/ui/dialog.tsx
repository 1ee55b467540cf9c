// Dialogs that say what an act will do before it is done, and short notes of what was done.

import type { ComponentChildren } from "preact";
import { signal, useSignal } from "@preact/signals";
import type { ReadonlySignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { Problem } from "../api/client";
import { option } from "../format";
import { namespace } from "../router";
import { Command, Refusal } from "./basics";

/** A modal window. Escape and the button close it; the focus goes back to where it was. */
export function Modal({ title, onClose, children }: { title: string; onClose: () => void; children: ComponentChildren }) {
  const element = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const before = document.activeElement;
    element.current?.showModal();
    return () => {
      element.current?.close();
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return (
    <dialog ref={element} aria-label={title} onCancel={(event) => (event.preventDefault(), onClose())}>
      {children}
    </dialog>
  );
}

export interface Act {
  /** The word on the button. */
  name: string;
  /** Says in a sentence or two what will happen. */
  effect: string;
  /** The same as a command; one with fields follows what is written into them, and throws what is wrong with that. */
  command?: string | ((values: Values) => string | undefined);
  danger?: boolean;
  /** Which answer to a question it is, for the keys that choose one. */
  answer?: "approve" | "reject";
  /** Fields that the act takes. */
  fields?: Field[];
  /** What happens if it is done although something still uses its target; where absent, that is refused for good. */
  forced?: string;
  run: (values: Values, force: boolean) => Promise<string>;
}

/** What the fields of an act hold, by their names. */
export type Values = Record<string, string>;

/** Whether a refusal says that something still uses the target of an act. */
function isInUse(error: unknown): boolean {
  return error instanceof Problem && error.code === "in_use";
}

export interface Field {
  name: string;
  label: string;
  value?: string;
  type?: "text" | "number" | "select" | "textarea";
  options?: string[];
  optional?: boolean;
}

const pending = signal<Act | undefined>(undefined);

/** Asks before an act, and carries it out when it is confirmed. */
export function propose(act: Act): void {
  pending.value = act;
}

interface ActButtonsProps {
  acts: Act[];
  /** Names the group for readers of the screen. */
  label: string;
  /** Called after an act that was carried out. */
  done: () => void;
  /** The first act is the one that is expected. */
  prominent?: boolean;
}

/** A button for each act. Each asks before it acts. */
export function ActButtons({ acts, label, done, prominent = false }: ActButtonsProps) {
  const carryOut = (act: Act) => async (values: Values, force: boolean) => {
    const said = await act.run(values, force);
    done();
    return said;
  };
  return (
    <div class="row tight" role="group" aria-label={label}>
      {acts.map((act, index) => (
        <button
          type="button"
          class={`button ${prominent ? "" : "small"} ${prominent && index === 0 ? "primary" : ""} ${act.danger ? "danger" : ""}`}
          data-answer={act.answer}
          onClick={() => propose({ ...act, run: carryOut(act) })}
        >
          {act.name}
        </button>
      ))}
    </div>
  );
}

/** Stands once in the page. */
export function Proposals() {
  const act = pending.value;
  if (!act) return null;
  return <Confirm key={act.name} act={act} onClose={() => (pending.value = undefined)} />;
}

function Confirm({ act, onClose }: { act: Act; onClose: () => void }) {
  const busy = useSignal(false);
  const error = useSignal<unknown>(undefined);
  // The server said that something still uses the target: the next click does it all the same.
  const force = act.forced !== undefined && isInUse(error.value);
  const written = useSignal<Values>(initialValues(act.fields ?? []));
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const values = valuesOf(event.currentTarget as HTMLFormElement);
    busy.value = true;
    try {
      say(await act.run(values, force));
      onClose();
    } catch (caught) {
      error.value = caught;
      busy.value = false;
    }
  };
  return (
    <Modal title={act.name} onClose={onClose}>
      <form onSubmit={submit} onInput={(event) => (written.value = valuesOf(event.currentTarget))}>
        <h2>{act.name}</h2>
        <p>{act.effect}</p>
        {act.fields?.map((field) => <FieldInput field={field} />)}
        <SameCommand act={act} written={written} force={force} />
        {error.value !== undefined && <Refusal error={error.value} />}
        {force && <p role="status">{act.forced}</p>}
        <div class="row end">
          <button type="button" class="button" onClick={onClose}>
            Back
          </button>
          <button type="submit" class={`button primary ${act.danger ? "danger" : ""}`} disabled={busy.value}>
            {force ? `${act.name} all the same` : act.name}
          </button>
        </div>
      </form>
    </Modal>
  );
}

/** What a form opens with: a field for a choice begins with its first one unless it says another. */
function initialValues(fields: Field[]): Values {
  return Object.fromEntries(fields.map((field) => [field.name, field.value ?? field.options?.[0] ?? ""]));
}

/** What the fields of a form hold. */
function valuesOf(form: HTMLFormElement): Values {
  return Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value)]));
}

/** The command that does the same as the act with what is written now. Where that makes no command, it says why. */
function SameCommand({ act, written, force }: { act: Act; written: ReadonlySignal<Values>; force: boolean }) {
  let line;
  try {
    line = typeof act.command === "function" ? act.command(written.value) : act.command;
  } catch (caught) {
    return <span class="small muted">{caught instanceof Error ? caught.message : String(caught)}</span>;
  }
  if (!line) return null;
  // A command without a namespace is about the caller's own, as an address without one.
  const place = / --(namespace|everywhere)\b/.test(line) ? "" : option("namespace", namespace());
  return (
    <div class="stack">
      <span class="small muted">The same from a terminal:</span>
      <Command line={`${line}${place}${force ? " --force" : ""}`} />
    </div>
  );
}

/** A field of a form, with its label. */
export function FieldInput({ field }: { field: Field }) {
  const shared = { class: "field", name: field.name, required: !field.optional };
  return (
    <label class="labelled">
      {field.label}
      {field.type === "select" ? (
        <select {...shared}>
          {field.options?.map((choice) => (
            <option value={choice} selected={choice === field.value}>
              {choice}
            </option>
          ))}
        </select>
      ) : field.type === "textarea" ? (
        <textarea {...shared} rows={4} defaultValue={field.value} />
      ) : (
        <input {...shared} type={field.type ?? "text"} defaultValue={field.value} />
      )}
    </label>
  );
}

const notes = signal<{ id: number; text: string; bad: boolean }[]>([]);
let nextNote = 0;

/** Says for a few seconds what was done. */
export function say(text: string, bad = false): void {
  const id = nextNote++;
  notes.value = [...notes.value, { id, text, bad }];
  setTimeout(() => (notes.value = notes.value.filter((note) => note.id !== id)), bad ? 8_000 : 4_000);
}

/** Stands once in the page. */
export function Notes() {
  return (
    <div class="toast" role="status" aria-live="polite">
      {notes.value.map((note) => (
        <div key={note.id} class={note.bad ? "bad" : ""}>
          {note.text}
        </div>
      ))}
    </div>
  );
}
