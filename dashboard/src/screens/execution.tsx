// One execution: why it is where it is, what happened when, what it says while it runs, and what can be done about it.

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { answer, api, isMissing } from "../api/client";
import type { Schemas } from "../api/client";
import { count, shortId, span, words } from "../format";
import { now, useAsk, useEvents, useSoon } from "../live";
import { usePages } from "../pages";
import { link, query, setQuery } from "../router";
import { Card, Command, Copy, Countdown, Empty, type Fact, Facts, Loading, Meter, Refusal, State, Tags, When, Words } from "../ui/basics";
import { Payload } from "../ui/payload";
import { Table } from "../ui/table";
import { Tabs, tabId } from "../ui/tabs";
import { Actions } from "../execution/actions";
import { Stream, useStream } from "../execution/stream";
import { Timeline } from "../execution/timeline";
import { Answer } from "../execution/answer";
import { InputAndResult } from "../execution/content";
import { JournalQuestions } from "../execution/questions";
import { Steps, entries } from "../execution/steps";
import { ENDED } from "../states";

export type View = Schemas["ExecutionView"];
export type Attempt = Schemas["AttemptView"];
export type Step = Schemas["StepView"];

const TABS = ["timeline", "stream", "input and result", "steps", "signals", "usage", "events"] as const;

/** Steps that a page of the journal brings at once. */
const STEPS_MAX = 500;

export function Execution({ id }: { id: string }) {
  const params = { path: { execution_id: id } };
  const view = useAsk(id, (signal) => answer(api.GET("/v1/executions/{execution_id}", { params, signal })));
  const explained = useAsk(id, (signal) => answer(api.GET("/v1/executions/{execution_id}/explain", { params, signal })));
  const attempts = useAsk(id, (signal) => answer(api.GET("/v1/executions/{execution_id}/attempts", { params, signal })));
  const generation = useSignal(0);
  const steps = usePages(
    id,
    async (cursor, signal) => {
      const query = { limit: STEPS_MAX, ...(cursor ? { after: Number(cursor) } : {}) };
      const page = await answer(api.GET("/v1/executions/{execution_id}/steps", { params: { ...params, query }, ...(signal ? { signal } : {}) }));
      generation.value = page.generation;
      return { items: page.items, next_cursor: page.next_after === null || page.next_after === undefined ? null : String(page.next_after) };
    },
    (step) => `${step.number} ${step.state} ${step.recorded_at}`,
  );
  const again = useSoon(() => {
    view.refresh();
    explained.refresh();
    attempts.refresh();
    steps.refresh();
  });
  const stream = useStream(id, again);
  useEvents((event) => event.event.execution_id === id && again());
  useChange(explained.data.value?.next_change_at ?? undefined, again);

  const execution = view.data.value;
  if (isMissing(view.error.value)) {
    return (
      <Empty page title="There is no such execution" command="ff ls">
        It never existed, or its retention is over and it was removed. <a href={link(["executions"])}>The list of executions</a> has those that are there.
      </Empty>
    );
  }
  if (!execution) return view.error.value === undefined ? <Loading lines={8} /> : <Refusal page error={view.error.value} />;
  const tab = TABS.find((one) => one === query.value.get("tab")) ?? "timeline";
  const numbers = { stream: stream.frames.value.length, steps: entries(steps.items ?? []).length };
  return (
    <>
      <div class="title">
        <State state={execution.public_state} big />
        <h1>{execution.kind}</h1>
        <Copy text={id} what="the id" />
        <Actions execution={execution} done={again} />
      </div>
      <div class="grid-side">
        <div class="stack">
          {explained.data.value && <Explained explanation={explained.data.value} execution={execution} />}
          {execution.public_state === "suspended" && <Answer execution={execution} done={again} />}
          <JournalQuestions execution={execution} done={again} />
          <section class="card">
            <Tabs label="About this execution" names={TABS} here={tab} numbers={numbers} choose={(name) => setQuery({ tab: name === "timeline" ? undefined : name })} />
            <div id="tabpanel" role="tabpanel" aria-labelledby={tabId(tab)} tabIndex={0} class={tab === "stream" ? "" : "body"}>
              {tab === "timeline" && <Timeline execution={execution} attempts={attempts.data.value?.items ?? []} steps={steps.items ?? []} />}
              {tab === "stream" && <Stream stream={stream} ended={ENDED.has(execution.public_state)} />}
              {tab === "input and result" && <InputAndResult execution={execution} />}
              {tab === "steps" && <Steps execution={execution} pages={steps} generation={generation.value} />}
              {tab === "signals" && <Signals id={id} />}
              {tab === "usage" && <Usage execution={execution} />}
              {tab === "events" && <Events id={id} version={execution.updated_at} />}
            </div>
          </section>
        </div>
        <div class="stack">
          <Details execution={execution} />
        </div>
      </div>
    </>
  );
}

/** Asks again when something is due to change. */
function useChange(at: number | undefined, again: () => void): void {
  useEffect(() => {
    if (at === undefined) return;
    const left = at - now.peek();
    if (left < 0 || left > 3_600_000) return;
    const timer = setTimeout(again, left + 400);
    return () => clearTimeout(timer);
  }, [at]);
}

function Explained({ explanation, execution }: { explanation: Schemas["Explanation"]; execution: View }) {
  const failure = execution.last_failure ?? undefined;
  // The countdown of a reason says the same as the next change.
  const told = explanation.reasons.some((reason) => reason.until === explanation.next_change_at);
  return (
    <section class={`notice s-${execution.public_state} stack`} aria-label="Why it is where it is">
      <ol>
        {explanation.reasons.map((reason, index) => (
          <li class={index === 0 ? "" : "muted small"}>
            <Words text={firstLine(reason.message)} />
            {reason.until && !saysInstant(reason.message, reason.until) && (
              <span class="muted">
                {" · the next change by itself "}
                <Countdown to={reason.until} />
              </span>
            )}
          </li>
        ))}
      </ol>
      {explanation.next_change_at && !told && (
        <span class="small muted">
          The next change by itself <Countdown to={explanation.next_change_at} />
        </span>
      )}
      {failure && <Failure failure={failure} said={explanation.reasons.some((reason) => reason.message.includes(failure.reason))} />}
      {execution.cancellation && (
        <div class="small">
          <strong>Cancelled</strong> by {execution.cancellation.source}
          {execution.cancellation.reason ? `: ${execution.cancellation.reason}` : ""}
        </div>
      )}
      {execution.progress && (
        <div class="stack">
          <span class="small">
            {execution.progress.pct ?? 0} % {execution.progress.message ?? ""}
          </span>
          <Meter value={execution.progress.pct ?? 0} max={100} label="Progress" tone="s-active" />
        </div>
      )}
    </section>
  );
}

/** Whether a text of the server has an instant in it, to the second. */
function saysInstant(text: string, at: number): boolean {
  return text.includes(String(at)) || text.includes(new Date(at).toISOString().slice(0, 19));
}

/** A line of a reason is at most this long; a failure is shown whole below it. */
const LINE_MAX = 240;

function firstLine(text: string): string {
  const line = text.split("\n", 1)[0] ?? "";
  return line.length > LINE_MAX ? `${line.slice(0, LINE_MAX)}…` : line.length < text.length ? `${line} …` : line;
}

/** The last failure. One that was said already in a line says only its category; a long one keeps its lines. */
function Failure({ failure, said }: { failure: NonNullable<View["last_failure"]>; said: boolean }) {
  const long = failure.reason.length > LINE_MAX || failure.reason.includes("\n");
  return (
    <div class="small stack tight">
      <span>
        <strong>Last failure</strong>
        {failure.category ? ` (${words(failure.category)})` : ""}
        {long || said ? "" : `: ${failure.reason}`} <When at={failure.failed_at} /> {long && <Copy text={failure.reason} what="the failure" />}
      </span>
      {long && (
        <pre class="failure" tabIndex={0} role="region" aria-label="The failure in full">
          {failure.reason}
        </pre>
      )}
    </div>
  );
}

/** How often it was tried, and why. */
function attemptWords({ attempt, retry_count: retries, reclaim_count: reclaims, replay_count: replays }: View): string {
  const counted: [number, string][] = [
    [retries, retries === 1 ? "retry" : "retries"],
    [reclaims, reclaims === 1 ? "reclaim" : "reclaims"],
    [replays, replays === 1 ? "replay" : "replays"],
  ];
  const said = counted.filter(([n]) => n > 0).map(([n, noun]) => `${count(n)} ${noun}`);
  return `${attempt}${said.length > 0 ? ` (${said.join(", ")})` : ""}`;
}

function Details({ execution }: { execution: View }) {
  const ran = execution.started_at ? (execution.completed_at ?? now.value) - execution.started_at : undefined;
  const rows: Fact[] = [
    ["id", <><code>{execution.execution_id}</code><Copy text={execution.execution_id} what="the id" /></>],
    ["lane", <a href={link(["executions"], { lane: execution.lane })}>{execution.lane}</a>],
    ["namespace", execution.namespace],
    ["priority", count(execution.priority)],
    ["created", <When at={execution.created_at} />],
    ["started", <When at={execution.started_at} none="not yet" />],
    ["ended", <When at={execution.completed_at} none="not yet" />],
  ];
  if (ran !== undefined) rows.push([execution.completed_at ? "took" : "since its start", span(ran)]);
  if (execution.deadline_at) rows.push(["deadline", <Countdown to={execution.deadline_at} />]);
  if (execution.flow_id) rows.push(["flow", <a href={link(["flows", execution.flow_id])}>{execution.node ? `node ${execution.node} of its flow` : shortId(execution.flow_id)}</a>]);
  if (execution.schedule) rows.push(["schedule", <a href={link(["schedules", execution.schedule])}>{execution.schedule}</a>]);
  if (execution.forked_from) rows.push(["forked from", <a href={link(["executions", execution.forked_from])}>{shortId(execution.forked_from)}</a>]);
  if (execution.pinned_build) rows.push(["runs only on build", <code>{execution.pinned_build}</code>]);
  if (execution.attempt !== null && execution.attempt !== undefined) rows.push(["attempt", attemptWords(execution)]);
  if (execution.lease) rows.push(["lease", <>{execution.lease.worker_id} · {execution.lease.instance_id}{execution.lease.expires_at ? <> · <Countdown to={execution.lease.expires_at} /></> : null}</>]);
  if ((execution.required_capabilities ?? []).length > 0) rows.push(["needs", (execution.required_capabilities ?? []).join(", ")]);
  if ((execution.budget_ids ?? []).length > 0) rows.push(["budgets", <span class="row tight">{(execution.budget_ids ?? []).map((name) => <a class="tag" href={link(["budgets", name])}>{name}</a>)}</span>]);
  if (execution.quota_policy_id) rows.push(["quota", <a class="tag" href={link(["budgets"])}>{execution.quota_policy_id}</a>]);
  if ((execution.concurrency ?? []).length > 0) rows.push(["runs only while", (execution.concurrency ?? []).map(({ key = "", limit = 1 }) => <div>{limit === 1 ? "nobody else holds" : `fewer than ${count(limit)} hold`} <code>{key}</code></div>)]);
  if (execution.fair_key) rows.push(["takes turns as", <code>{execution.fair_key}</code>]);
  if (execution.singleton_key) rows.push(["singleton", <code>{execution.singleton_key}</code>]);
  if (execution.debounce_key) rows.push(["debounced as", <code>{execution.debounce_key}</code>]);
  if (execution.creator) rows.push(["creator", execution.creator]);
  if (execution.idempotency_key) rows.push(["idempotency key", <code>{execution.idempotency_key}</code>]);
  rows.push(["tags", <Tags tags={execution.tags} />]);
  return (
    <>
      <Card title="Details">
        <Facts facts={rows} />
      </Card>
      <Card title="From a terminal">
        <div class="stack">
          <Command line={`ff get ${execution.execution_id} --attempts`} />
          <Command line={`ff explain ${execution.execution_id}`} />
          <Command line={`ff tail ${execution.execution_id}`} />
        </div>
      </Card>
    </>
  );
}

function Signals({ id }: { id: string }) {
  const params = { path: { execution_id: id } };
  const waitpoints = useAsk(id, (signal) => answer(api.GET("/v1/executions/{execution_id}/pending-waitpoints", { params, signal })));
  const signals = useAsk(id, (signal) => answer(api.GET("/v1/executions/{execution_id}/resume-signals", { params, signal })));
  return (
    <div class="stack">
      <h2>Signals that resumed this attempt</h2>
      {(signals.data.value?.items ?? []).length === 0 ? (
        <p class="muted">None, as far as it is known now.</p>
      ) : (
        signals.data.value?.items.map((signal) => (
          <div class="stack">
            <div class="row">
              <strong>{signal.name}</strong>
              <span class="muted">
                {signal.source_type} {signal.source_identity}
              </span>
              <When at={signal.accepted_at} />
            </div>
            {signal.payload_base64 && <Payload base64={signal.payload_base64} contentType={signal.content_type ?? ""} />}
          </div>
        ))
      )}
      <h2>Waitpoints that take signals</h2>
      <Table
        label="Waitpoints"
        items={waitpoints.data.value?.items}
        empty={<p class="muted">None.</p>}
        columns={[
          { name: "State", cell: (one) => <State state={one.state === "active" ? "open" : (one.state ?? "pending")} /> },
          { name: "Key", cell: (one) => <code>{one.waitpoint_key}</code> },
          { name: "Names", cell: (one) => (one.required_names ?? []).join(", ") || "any" },
          { name: "Created", cell: (one) => <When at={one.created_at} /> },
          { name: "Expires", cell: (one) => <When at={one.expires_at} none="never" /> },
        ]}
      />
    </div>
  );
}

function Usage({ execution }: { execution: View }) {
  const names = execution.budget_ids ?? [];
  const budgets = useAsk(names.join(","), (signal) =>
    Promise.all(names.map((name) => answer(api.GET("/v1/budgets/{name}", { params: { path: { name }, query: { namespace: execution.namespace } }, signal })).catch(() => undefined))),
  );
  if (names.length === 0) {
    return (
      <Empty title="It is charged to no budget" command="ff submit KIND INPUT --budget NAME">
        A budget limits what executions may spend together, in dimensions of your own.
      </Empty>
    );
  }
  return (
    <div class="stack">
      {budgets.data.value?.map((budget, index) =>
        budget ? (
          Object.entries(budget.definition.dimensions ?? {}).map(([dimension, limits]) => (
            <div class="stack">
              <span>
                <a href={link(["budgets", budget.name])}>{budget.name}</a> {dimension}: {count(budget.usage?.[dimension] ?? 0)}
                {budget.standing?.[dimension]?.reserved ? ` and ${count(budget.standing[dimension].reserved)} held` : ""}
                {limits.hard ? ` of ${count(limits.hard)}` : ""}
              </span>
              <Meter value={budget.usage?.[dimension] ?? 0} held={budget.standing?.[dimension]?.reserved ?? 0} max={limits.hard || limits.soft || 1} mark={limits.soft} label={`${budget.name} ${dimension}`} />
            </div>
          ))
        ) : (
          <p class="muted">The budget {names[index]} does not exist.</p>
        ),
      ) ?? <Loading />}
      <p class="small muted">These are the counters of the budgets, which others may spend from, too.</p>
    </div>
  );
}

function Events({ id, version }: { id: string; version: number }) {
  const events = useAsk(`${id} ${version}`, (signal) => answer(api.GET("/v1/executions/{execution_id}/events", { params: { path: { execution_id: id }, query: { limit: 200 } }, signal })));
  if (events.error.value !== undefined) return <Refusal error={events.error.value} />;
  return (
    <Table
      label="Events"
      items={events.data.value?.items}
      empty={
        <Empty title="No events" command={`ff events --execution ${id}`}>
          Completions, leases and signals leave events, as far as the log reaches back.
        </Empty>
      }
      columns={[
        { name: "When", cell: (item) => <When at={item.happened_at} /> },
        { name: "What", cell: (item) => words(item.event.event_type ?? "") },
        { name: "Attempt", num: true, cell: (item) => item.event.attempt ?? "" },
        { name: "Worker", cell: (item) => item.event.worker_id ?? "" },
        { name: "Detail", cell: (item) => detailOf(item.event) },
      ]}
    />
  );
}

/** The detail of an event, where it has one. */
export function detailOf(event: Schemas["Event"]): string {
  return event.detail && event.detail !== "none" ? words(event.detail) : "";
}
