/**
 * The journal as one call of a task's function knows it: the entries there are, those on their way, and what its
 * branches wait for. It talks to the server through the worker, which learns from it when the function may be parked.
 */
import type { Schemas } from "./client.js";
import { inWords, refusesContent, TaskError } from "./errors.js";
import { Gatherer } from "./gather.js";
import { allItems, type CallOptions, path } from "./http.js";
import { labelOf, type StepIdentity } from "./ids.js";

export type StepView = Schemas["StepView"];
export type StepEntry = Schemas["StepEntry"];
/** A question to a person about an entry. */
export interface Question {
  step: StepIdentity;
  reason: "in_doubt" | "journal_mismatch";
  detail: string;
  kind: StepEntry["kind"];
  input_hash?: StepEntry["input_hash"] | undefined;
}

/** The link of a call of a function to the worker that holds the task. */
export interface TaskLink {
  readonly task: Schemas["Task"];
  readonly signal: AbortSignal;
  /** A call of the lease holder about the task. */
  call<T>(part: string, body: object): Promise<T>;
  /** Any call, repeated for as long as the lease lasts. */
  held<T>(method: string, at: string, options?: CallOptions): Promise<T>;
  /** The task was let go: this call of the function ends here. */
  released(why: string): Promise<never>;
}

/** A wait of a branch: the list of a park that it belongs to, and what stands there beside the entry. */
export interface Wait {
  list: "sleeps" | "waitpoints" | "children" | "questions";
  args?: object;
  /** The field of the wait's instant, once it is fixed. */
  fixedAs?: "until" | "timeout_at";
}

/** The journal moved under this run: the function starts over with what is there. */
export class StartOver extends Error {
  override readonly name = "StartOver";
}

const NAME_MAX_BYTES = 128;
const ENTRIES_PER_CALL_MAX = 100;
/** The server takes 16 MiB in a call. */
const ENTRIES_MAX_BYTES = 8 * 1024 * 1024;
const STEPS_NAMED_MAX = 100;

export class Journal {
  readonly #entries = new Map<string, StepView>();
  readonly #counts = new Map<string, number>();
  readonly #visited = new Set<string>();
  /** Entries with a key that stand although this run gave them another input. */
  readonly changed: StepIdentity[] = [];
  /** Completed entries, those of this run included, with the entry that each of them undoes. */
  readonly #completed = new Map<string, { identity: StepIdentity; number: number; compensates: StepIdentity | undefined }>();
  /** Names without a key whose last call has not ended. */
  readonly #unfinished = new Set<string>();
  readonly #waits = new Map<string, { identity: StepIdentity; wait: Wait; resolve: (entry: StepView) => void }>();
  readonly #records = new Gatherer<StepEntry, undefined>((entries) => this.#send(entries), ENTRIES_PER_CALL_MAX, (error) =>
    // None of the entries is stored, and some of them can be recorded without the others.
    !(error instanceof StartOver) && refusesContent(error));
  #reading: Promise<void> | undefined;
  #complete: boolean;
  nextNumber: number;
  /** Bodies that run, and entries that are sent. */
  #busy = 0;
  #closed: Error | undefined;
  /** Called when nothing runs any more and something is waited for. */
  onIdle: () => void = () => undefined;

  constructor(private readonly link: TaskLink) {
    const { journal } = link.task;
    this.nextNumber = Math.max(journal?.next_number ?? 1, 1);
    this.#complete = journal?.complete ?? true;
    for (const entry of journal?.entries ?? []) this.#note(entry);
  }

  /** From now on every call is refused: what a forgotten branch does has no effect. */
  close(why: Error): void {
    this.#closed ??= why;
  }

  /** A call of an entry. It is counted when it is made, in the order of the code, and ends with its body. */
  async call<T>(name: string, key: string | undefined, body: (identity: StepIdentity) => Promise<T>): Promise<T> {
    const identity = this.#begin(name, key);
    try {
      return await body(identity);
    } finally {
      if (key === undefined) this.#unfinished.delete(name);
    }
  }

  #begin(name: string, key: string | undefined): StepIdentity {
    if (this.#closed !== undefined) throw this.#closed;
    const bytes = Buffer.byteLength(name);
    if (bytes === 0 || bytes > NAME_MAX_BYTES) {
      throw new TaskError(`a step's name has 1 to ${NAME_MAX_BYTES} bytes, not ${bytes}`, { category: "invalid" });
    }
    if (key === undefined && this.#unfinished.has(name)) {
      const reason = `another call of step ${JSON.stringify(name)} has not ended; give each a key`;
      throw new TaskError(reason, { category: "step_key_required" });
    }
    const occurrence = this.#counts.get(name) ?? 0;
    const identity = key === undefined ? { name, occurrence } : { name, key };
    const label = labelOf(identity);
    if (this.#visited.has(label)) throw new TaskError(`step ${label} is called twice in one run`, { category: "duplicate_step" });
    this.#visited.add(label);
    if (key === undefined) {
      this.#counts.set(name, occurrence + 1);
      this.#unfinished.add(name);
    }
    return identity;
  }

  /**
   * An entry as the journal has it. The rest of a large journal is read when it is first asked for. A counted entry
   * of another kind or input is asked about, and never comes back.
   */
  async find(identity: StepIdentity, kind: NonNullable<StepEntry["kind"]>, hash?: string): Promise<StepView | undefined> {
    if (!this.#complete) await this.while((this.#reading ??= this.#readRest()));
    const known = this.#entries.get(labelOf(identity));
    if (known === undefined || identity.key !== undefined || !isChanged(known, kind, hash)) return known;
    const detail = `${kind} ${JSON.stringify(identity.name)} is not what the journal recorded: the program has changed under it`;
    return this.ask({ step: identity, reason: "journal_mismatch", detail, kind, input_hash: hash });
  }

  /** Asks a person. The function is called again when there is an answer; this call of it ends here. */
  ask(question: Question): Promise<never> {
    this.#waits.set(labelOf(question.step), { identity: question.step, wait: { list: "questions", args: question }, resolve: () => undefined });
    this.#mayIdle();
    return new Promise(() => undefined);
  }

  /** The entries that a finished run did not ask for, or gave another input. */
  runNotes(): { run?: { steps_not_visited: StepIdentity[]; steps_changed: StepIdentity[] } } {
    const unasked = [...this.#entries].filter(([label]) => this.#complete && !this.#visited.has(label));
    const steps_not_visited = unasked.slice(0, STEPS_NAMED_MAX).map(([, entry]) => identityOf(entry));
    const steps_changed = this.changed.slice(0, STEPS_NAMED_MAX);
    return steps_not_visited.length + steps_changed.length === 0 ? {} : { run: { steps_not_visited, steps_changed } };
  }

  /** Completed steps that a completed compensation has undone, and these compensations: a retry runs them again. */
  undone(): StepIdentity[] {
    const undone = new Map<string, StepIdentity>();
    for (const [label, { identity, number, compensates }] of this.#completed) {
      if (compensates === undefined) continue;
      const step = this.#completed.get(labelOf(compensates));
      if (step === undefined || step.number >= number) continue;
      undone.set(labelOf(compensates), compensates).set(label, identity);
    }
    return [...undone.values()].slice(0, STEPS_NAMED_MAX);
  }

  async #readRest(): Promise<void> {
    const last = [...this.#entries.values()].reduce((last, { number }) => Math.max(last, number), 0);
    const at = path`/v1/executions/${this.link.task.execution_id}/steps`;
    const rest = await allItems((after: number = last) => this.link.held<Schemas["ListStepsOutcome"]>("GET", at, { query: { after, limit: 1_000 } }));
    for (const entry of rest) this.#note(entry);
    this.#complete = true;
  }

  /** Keeps the function from being parked while something runs. */
  async while<T>(running: Promise<T>): Promise<T> {
    this.#busy += 1;
    try {
      return await running;
    } finally {
      this.#busy -= 1;
      this.#mayIdle();
    }
  }

  /** Stores an entry. Entries of parallel steps that wait together share a call. */
  record(entry: StepEntry): Promise<undefined> {
    if (this.#closed !== undefined) return Promise.reject(this.#closed);
    return this.while(this.#records.put(entry));
  }

  async #send(entries: StepEntry[]): Promise<[]> {
    const first = this.nextNumber;
    if (entries.length > 1 && Buffer.byteLength(JSON.stringify(entries)) > ENTRIES_MAX_BYTES) throw new RangeError("too large for one call");
    try {
      const recorded = await this.link.call<Schemas["RecordStepsOutcome"]>("/steps", { first_number: first, entries });
      // The policy `no_progress` ended the run, or asks a person about it: the task was let go.
      if (recorded.loop_detected) await this.link.released("the same steps are done again and again");
      this.nextNumber = recorded.next_number;
    } catch (error) {
      const { category, message } = inWords(error);
      if (category === "journal_conflict") throw new StartOver(message);
      throw category === "journal_full" ? new TaskError(message, { category }) : error;
    }
    entries.forEach((entry, place) => { this.#noteState(identityOf(entry), first + place, entry); });
    return [];
  }

  /** Resolves when the journal says that the entry has ended. While every branch waits, the function is parked. */
  untilEnded(identity: StepIdentity, wait: Wait): Promise<StepView> {
    const known = this.#entries.get(labelOf(identity));
    if (known !== undefined && isEnded(known)) return Promise.resolve(known);
    return new Promise((resolve) => {
      this.#waits.set(labelOf(identity), { identity, wait, resolve });
      this.#mayIdle();
    });
  }

  /** Whether nothing runs and something is waited for. */
  mayPark(): boolean {
    return this.#busy === 0 && this.#waits.size > 0 && this.#closed === undefined;
  }

  #mayIdle(): void {
    if (this.mayPark()) this.onIdle();
  }

  /** The arguments of a park of the function as it stands. The instant of a wait is fixed the first time. */
  parkArgs(): Record<string, unknown> {
    const lists: Record<Wait["list"], object[]> = { sleeps: [], waitpoints: [], children: [], questions: [] };
    for (const [label, { identity: step, wait }] of this.#waits) {
      const fixed = this.#entries.get(label)?.next_at;
      lists[wait.list].push({ step, ...(wait.fixedAs !== undefined && fixed != null ? { [wait.fixedAs]: fixed } : wait.args) });
    }
    return { first_number: this.nextNumber, entries: [], ...lists };
  }

  /** Something that was waited for had happened before the park: the branches that wait for it go on. */
  satisfied(entries: StepView[], nextNumber: number): void {
    this.nextNumber = nextNumber;
    for (const entry of entries) this.#note(entry);
    for (const [label, { wait, resolve }] of [...this.#waits]) {
      const entry = this.#entries.get(label);
      if (wait.list === "questions" || entry === undefined || !isEnded(entry)) continue;
      this.#waits.delete(label);
      resolve(entry);
    }
  }

  #note(entry: StepView): void {
    this.#entries.set(labelOf(entry), entry);
    this.#noteState(identityOf(entry), entry.number, entry);
  }

  #noteState(identity: StepIdentity, number: number, entry: StepEntry | StepView): void {
    const label = labelOf(identity);
    if (entry.state !== "completed") this.#completed.delete(label);
    else this.#completed.set(label, { identity, number, compensates: entry.compensates == null ? undefined : identityOf(entry.compensates) });
  }
}

/** Which entry a record speaks of. */
function identityOf(entry: { name: string; key?: string | null; occurrence?: number | null }): StepIdentity {
  return entry.key == null ? { name: entry.name, occurrence: entry.occurrence ?? 0 } : { name: entry.name, key: entry.key };
}

/** Whether the program asks for something else than the journal recorded. */
export function isChanged(known: StepView, kind: NonNullable<StepEntry["kind"]>, hash: string | undefined): boolean {
  return known.kind !== kind || (hash !== undefined && known.input_hash != null && known.input_hash !== hash);
}

export function isEnded(entry: StepView): boolean {
  return entry.state === "completed" || entry.state === "failed";
}
