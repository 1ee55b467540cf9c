// The inbox: what waits for a person. Several in a row by keyboard: j and k move, y and n decide.

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { answersOf, budgetQuestions, isAboutJournal, listAsks } from "../approvals";
import { BudgetQuestion } from "../budget/question";
import type { Ask } from "../approvals";
import { POLL_MS, useAsk, useEvents, useSoon } from "../live";
import { isForPage, isWriting, useRows } from "../keys";
import { link, namespace } from "../router";
import { approverOnly, may } from "../session";
import { Card, Command, Countdown, Empty, Loading, Refusal, Tags, When } from "../ui/basics";
import { Decision, sendAs } from "../execution/answer";
import { InputOf } from "../execution/content";
import { words } from "../format";

export function Approvals() {
  const asks = useAsk(`asks ${namespace() ?? ""}`, listAsks, POLL_MS);
  const again = useSoon(asks.refresh);
  // The role approver does not reach events; the clock tells of new questions then.
  useEvents(again, !approverOnly.value);
  useRows(".ask");
  const items = asks.data.value;
  const shown = [...budgetQuestions.value.map((question) => question.budget), ...(items ?? []).map((ask) => ask.execution_id)];
  useAnswerKeys(items === undefined ? undefined : shown.join());
  return (
    <>
      <div class="title">
        <h1>Approvals</h1>
        <span class="small muted hide-narrow">
          <kbd>j</kbd> <kbd>k</kbd> move, <kbd>y</kbd> <kbd>n</kbd> choose an answer, <kbd>Enter</kbd> sends it
        </span>
      </div>
      {asks.error.value !== undefined && <Refusal error={asks.error.value} />}
      {items === undefined ? (
        <Loading lines={5} />
      ) : items.length + budgetQuestions.value.length === 0 ? (
        <Card title="Nothing waits for a person">
          <Empty title="All questions are answered" command="ff dev --demo">
            A task that suspends with the reason approval asks here, and goes on with the answer. The demo asks one question.
          </Empty>
        </Card>
      ) : (
        <>
          {budgetQuestions.value.map((question) => (
            <BudgetQuestion key={`${question.namespace}/${question.budget}`} question={question} done={again} />
          ))}
          {items.map((ask) => (
            <Question key={ask.execution_id} ask={ask} done={again} />
          ))}
        </>
      )}
    </>
  );
}

/** The questions that the page shows. */
function questions(): HTMLElement[] {
  return [...document.querySelectorAll<HTMLElement>(".ask")];
}

/**
 * `y` and `n` choose an answer of the question that has the focus. The first question has it from the start, and when one
 * is answered, that which follows it. `shown` tells which questions there are; it is `undefined` before they have come.
 */
function useAnswerKeys(shown: string | undefined): void {
  /** Which question had the focus last. */
  const at = useRef(0);
  const begun = useRef(false);
  useEffect(() => {
    const focused = () => {
      const here = questions().findIndex((ask) => ask.contains(document.activeElement));
      if (here >= 0) at.current = here;
    };
    const pressed = (event: KeyboardEvent) => {
      const wanted = event.key === "y" ? ":not([data-answer=reject])" : event.key === "n" ? "[data-answer=reject]" : undefined;
      if (!wanted || !isForPage(event)) return;
      const here = document.activeElement?.closest(".ask") ?? questions()[at.current];
      const button = here?.querySelector<HTMLButtonElement>(`button[data-answer]${wanted}`);
      if (!button) return;
      event.preventDefault();
      // The focus moves to the answer; Enter sends it. So a slip of one key decides nothing.
      button.focus();
    };
    document.addEventListener("focusin", focused);
    document.addEventListener("keydown", pressed);
    return () => {
      document.removeEventListener("focusin", focused);
      document.removeEventListener("keydown", pressed);
    };
  }, []);
  useEffect(() => {
    const all = questions();
    const next = all[Math.min(at.current, all.length - 1)];
    if (shown === undefined || !next) return;
    const active = document.activeElement;
    // Somebody who writes, or who has gone elsewhere on the screen since it was opened, is left there.
    const free = begun.current ? active === null || active === document.body || active.id === "main" : !isWriting(active) && !active?.closest(".ask, dialog");
    begun.current = true;
    if (free) next.focus({ preventScroll: true });
  }, [shown]);
}

/** What happens at the deadline, in words. */
const AFTER: Record<string, string> = {
  fail: "it fails",
  cancel: "it is cancelled",
  expire: "it expires",
  auto_resume_with_timeout_signal: "it goes on without an answer",
  escalate: "it is escalated",
};

/** The input of the execution that asks, for those who may read it. It is asked for once somebody wants to see it. */
function Context({ id }: { id: string }) {
  const open = useSignal(false);
  return (
    <details class="folded" onToggle={(event) => (open.value = event.currentTarget.open)}>
      <summary class="small">What it was given</summary>
      {open.value && <InputOf id={id} />}
    </details>
  );
}

function Question({ ask, done }: { ask: Ask; done: () => void }) {
  return (
    <article class="card ask" tabIndex={0} aria-label={ask.question || ask.detail || ask.kind} data-execution={ask.execution_id}>
      <div class="body stack">
        <div class="row between">
          <span class="question">{ask.question || ask.detail || "It waits for a decision"}</span>
          <span class="small muted">
            asked <When at={ask.since} />
            {ask.deadline && (
              <>
                {" · answer due "}
                <Countdown to={ask.deadline} />
                {`, then ${AFTER[ask.timeout_behavior] ?? words(ask.timeout_behavior)}`}
              </>
            )}
          </span>
        </div>
        <div class="row small muted">
          <span>
            <strong>{ask.kind}</strong> asks{ask.requested_by ? ` for ${ask.requested_by}` : ""}
          </span>
          {ask.reason !== "approval" && <span>· {words(ask.reason)}</span>}
          {ask.assignees.length > 0 && <span>· assigned to {ask.assignees.join(", ")}</span>}
          {ask.signed.length > 0 && <span>· signed: {ask.signed.map((one) => `${words(one.name)} by ${one.by ?? "somebody"}`).join(", ")}</span>}
          {Object.keys(ask.tags).length > 0 && <Tags tags={ask.tags} />}
          {!approverOnly.value && <a href={link(["executions", ask.execution_id])}>the execution</a>}
        </div>
        {ask.question && ask.detail && ask.detail !== ask.question && <p>{ask.detail}</p>}
        {!approverOnly.value && <Context id={ask.execution_id} />}
        {isAboutJournal(ask.reason) ? (
          <p class="small muted">The question is about a step. {approverOnly.value ? "An operator answers it." : <a href={link(["executions", ask.execution_id])}>Answer it where the steps are.</a>}</p>
        ) : may("approver") ? (
          <Decision names={answersOf(ask.signals)} schema={ask.schema} send={sendAs(ask.execution_id, done)} />
        ) : (
          <p class="small muted">This token may look, and not decide. A token with the role approver may.</p>
        )}
        {!isAboutJournal(ask.reason) && (
          <div class="row">
            <Command line={`ff approve ${ask.execution_id}`} />
          </div>
        )}
      </div>
    </article>
  );
}
