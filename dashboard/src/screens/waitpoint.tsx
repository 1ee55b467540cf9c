// The public page of a waitpoint link, for people without an account. Opening it does nothing; only a button acts. The
// token stands behind the `#`, which a browser sends to no server.

import type { ComponentChildren } from "preact";
import { useSignal } from "@preact/signals";
import { Problem, answer, api, isLinkTokenRefused } from "../api/client";
import { fetchLinkQuestion } from "../approvals";
import type { LinkQuestion } from "../approvals";
import { Decision } from "../execution/answer";
import { words } from "../format";
import { useAsk } from "../live";
import { Countdown, type Fact, Facts, Loading, Refusal, When } from "../ui/basics";

export function Waitpoint({ execution, waitpoint }: { execution: string; waitpoint: string }) {
  const token = tokenOfAddress();
  const decided = useSignal<string | undefined>(undefined);
  if (decided.value !== undefined) {
    return (
      <Page title="Thank you">
        <p role="status">Your answer, {words(decided.value)}, was delivered. You can close this page.</p>
      </Page>
    );
  }
  if (token === "") {
    return (
      <Page title="Your decision is asked for">
        <p>This link is not complete: the part behind the # is missing. Ask for it again.</p>
      </Page>
    );
  }
  return <Asked execution={execution} waitpoint={waitpoint} token={token} done={(name) => (decided.value = name)} />;
}

/** The token behind the `#`, or nothing where that cannot be read. */
function tokenOfAddress(): string {
  try {
    return decodeURIComponent(window.location.hash.slice(1));
  } catch {
    return "";
  }
}

function Page({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <main class="centre" id="main">
      <section class="card">
        <header>
          <img class="logo" src="/favicon.svg" alt="" />
          <h1>{title}</h1>
        </header>
        <div class="body stack">{children}</div>
      </section>
    </main>
  );
}

interface AskedProps {
  execution: string;
  waitpoint: string;
  token: string;
  done: (name: string) => void;
}

/** What is asked, and the answers to it. */
function Asked({ execution, waitpoint, token, done }: AskedProps) {
  // `null` where a server does not tell what is asked.
  const asked = useAsk(waitpoint, (signal) => fetchLinkQuestion(waitpoint, token, signal));
  const note = useSignal("");
  const question = asked.data.value;
  if (question === undefined) {
    return <Page title="Your decision is asked for">{asked.error.value === undefined ? <Loading /> : <Refusal error={inPlainWords(asked.error.value)} />}</Page>;
  }
  if (question !== null && !question.open) {
    return (
      <Page title="There is nothing left to decide">
        <p class="question">{titleOf(question)}</p>
        <p role="status">The question was answered, or it is over. Nothing has happened by opening this page.</p>
      </Page>
    );
  }
  const schema = question?.schema;
  const send = async (name: string, payload: unknown) => {
    const written = note.value.trim();
    const content = payload ?? (written ? { note: written } : undefined);
    const body = { waitpoint_id: waitpoint, token, name, source_type: "link", ...(content === undefined ? {} : { payload: content }) };
    try {
      await answer(api.POST("/v1/executions/{execution_id}/signal", { params: { path: { execution_id: execution } }, body: body as never }));
    } catch (caught) {
      throw inPlainWords(caught);
    }
    done(name);
  };
  return (
    <Page title="Your decision is asked for">
      {question ? <Question question={question} /> : <Unknown waitpoint={waitpoint} />}
      <p class="small muted">Nothing has happened by opening this page.</p>
      <Decision names={["approve", "reject"]} schema={schema} send={send}>
        {/* An answer that has a shape has no room for a note. */}
        {(schema === undefined || schema === null) && (
          <label class="labelled">
            A note, if you like
            <textarea class="field" rows={3} maxLength={4_000} value={note.value} onInput={(event) => (note.value = event.currentTarget.value)} />
          </label>
        )}
      </Decision>
    </Page>
  );
}

function titleOf(question: LinkQuestion): string {
  return question.question || question.detail || "A task waits for your decision.";
}

function Question({ question }: { question: LinkQuestion }) {
  const facts: Fact[] = [["asked by", question.kind]];
  if (question.reason !== "approval") facts.push(["it waits for", words(question.reason)]);
  facts.push(["since", <When at={question.since} />]);
  if (question.deadline) facts.push(["answer due", <Countdown to={question.deadline} />]);
  if (question.assignees.length > 0) facts.push(["for", question.assignees.join(", ")]);
  return (
    <>
      <p class="question">{titleOf(question)}</p>
      {question.question && question.detail && question.detail !== question.question && <p>{question.detail}</p>}
      <Facts facts={facts} />
    </>
  );
}

/** Stands where the server does not tell what is asked. */
function Unknown({ waitpoint }: { waitpoint: string }) {
  return (
    <>
      <p>A task waits for you.</p>
      <Facts facts={[["waitpoint", <code>{waitpoint}</code>]]} />
    </>
  );
}

/** A refusal as a person with a link understands it. */
function inPlainWords(error: unknown): unknown {
  if (!(error instanceof Problem)) return error;
  if (error.status === 0) return new Error("The server does not answer. Load this page again in a while; your answer was not delivered yet.");
  if (isLinkTokenRefused(error.code) || error.status === 403) return new Error("This link is not valid: a part of it is missing or wrong, or it is too old. Ask for it again.");
  if (["waitpoint_closed", "target_not_signalable", "execution_not_suspended", "execution_terminal"].includes(error.code)) return new Error("The question was answered already, or it is over.");
  return error;
}
