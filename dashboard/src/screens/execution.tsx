// One execution: why it is where it is, what happened when, what it says while it runs, and what can be done about it.

import { useEffect } from "preact/hooks";
import { answer, api, call, isMissing } from "../api/client";
import type { Schemas } from "../api/client";
import { count, span, words } from "../format";
import { now, useAsk, useEvents, useSoon } from "../live";
import { link, query, setQuery } from "../router";
import { Card, Command, Copy, Countdown, Empty, Loading, Meter, Refusal, State, Tags, When, Words } from "../ui/basics";
import { Payload } from "../ui/payload";
import { Actions } from "../execution/actions";
import { Stream, useStream } from "../execution/stream";
import { Timeline } from "../execution/timeline";
import { Answer } from "../execution/answer";
import { ENDED } from "./executions";

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
  const steps = useAsk(id, (signal) => answer(api.GET("/v1/executions/{execution_id}/steps", { params: { ...params, query: { limit: STEPS_MAX } }, signal })));
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
        It never existed, or its retention is over and it was removed.
      </Empty>
    );
  }
  if (!execution) return view.error.value === undefined ? <Loading lines={8} /> : <Refusal error={view.error.value} />;
  const tab = TABS.find((one) => one === query.value.get("tab")) ?? "timeline";
  const badge: Partial<Record<(typeof TABS)[number], number>> = { stream: stream.frames.value.length, steps: steps.data.value ? entries(steps.data.value.items).length : 0 };
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
          <section class="card">
            <div class="tabs" role="tablist" aria-label="About this execution">
              {TABS.map((name) => (
                <button type="button" role="tab" id={`tab-${name}`} aria-selected={tab === name} aria-controls="tabpanel" onClick={() => setQuery({ tab: name === "timeline" ? undefined : name })}>
                  {words(name)}
                  {(badge[name] ?? 0) > 0 && <span class="n">{count(badge[name] ?? 0)}</span>}
                </button>
              ))}
            </div>
            <div id="tabpanel" role="tabpanel" aria-labelledby={`tab-${tab}`} tabIndex={0} class={tab === "stream" ? "" : "body"}>
              {tab === "timeline" && <Timeline execution={execution} attempts={attempts.data.value?.items ?? []} steps={steps.data.value?.items ?? []} />}
              {tab === "stream" && <Stream stream={stream} ended={ENDED.has(execution.public_state)} />}
              {tab === "input and result" && <InputAndResult execution={execution} />}
              {tab === "steps" && <Steps items={steps.data.value?.items} generation={steps.data.value?.generation ?? 0} />}
              {tab === "signals" && <Signals id={id} />}
              {tab === "usage" && <Usage execution={execution} />}
              {tab === "events" && <Events id={id} version={execution.updated_at} />}
            </div>
          </section>
        </div>
        <div class="stack">
          <Facts execution={execution} />
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
  return (
    <section class={`notice s-${execution.public_state} stack`} aria-label="Why it is where it is">
      <ol>
        {explanation.reasons.map((reason, index) => (
          <li class={index === 0 ? "" : "muted small"}>
            <Words text={reason.message} />
            {reason.until && !reason.message.includes(String(reason.until)) && (
              <span class="muted">
                {" · "}
                <Countdown to={reason.until} />
              </span>
            )}
          </li>
        ))}
      </ol>
      {explanation.next_change_at && (
        <span class="small muted">
          The next change by itself <Countdown to={explanation.next_change_at} />
        </span>
      )}
      {failure && (
        <div class="small">
          <strong>Last failure</strong>
          {failure.category ? ` (${failure.category})` : ""}: {failure.reason} <When at={failure.failed_at} />
        </div>
      )}
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

function Facts({ execution }: { execution: View }) {
  const ran = execution.started_at ? (execution.completed_at ?? now.value) - execution.started_at : undefined;
  const rows: [string, preact.ComponentChildren][] = [
    ["id", <span class="row tight"><code>{execution.execution_id}</code><Copy text={execution.execution_id} what="the id" /></span>],
    ["lane", <a href={link(["executions"], { lane: execution.lane })}>{execution.lane}</a>],
    ["namespace", execution.namespace],
    ["priority", count(execution.priority)],
    ["created", <When at={execution.created_at} />],
    ["started", <When at={execution.started_at} none="not yet" />],
    ["ended", <When at={execution.completed_at} none="not yet" />],
  ];
  if (ran !== undefined) rows.push([execution.completed_at ? "took" : "since its start", span(ran)]);
  if (execution.deadline_at) rows.push(["deadline", <Countdown to={execution.deadline_at} />]);
  if (execution.flow_id) rows.push(["flow", <a href={link(["flows", execution.flow_id])}>{execution.node ?? execution.flow_id.slice(-12)}</a>]);
  if (execution.attempt !== null && execution.attempt !== undefined) rows.push(["attempt", `${execution.attempt} (retries ${execution.retry_count}, reclaims ${execution.reclaim_count}, replays ${execution.replay_count})`]);
  if (execution.lease) rows.push(["lease", <>{execution.lease.worker_id} · {execution.lease.instance_id}{execution.lease.expires_at ? <> · <Countdown to={execution.lease.expires_at} /></> : null}</>]);
  if ((execution.required_capabilities ?? []).length > 0) rows.push(["needs", (execution.required_capabilities ?? []).join(", ")]);
  if ((execution.budget_ids ?? []).length > 0) rows.push(["budgets", <span class="row tight">{(execution.budget_ids ?? []).map((name) => <a class="tag" href={link(["budgets"], { name })}>{name}</a>)}</span>]);
  if (execution.quota_policy_id) rows.push(["quota", <a class="tag" href={link(["budgets"])}>{execution.quota_policy_id}</a>]);
  if (execution.creator) rows.push(["creator", execution.creator]);
  if (execution.idempotency_key) rows.push(["idempotency key", <code>{execution.idempotency_key}</code>]);
  rows.push(["tags", <Tags tags={execution.tags} />]);
  return (
    <>
      <Card title="About it">
        <dl class="facts">
          {rows.map(([name, value]) => (
            <>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </>
          ))}
        </dl>
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

function InputAndResult({ execution }: { execution: View }) {
  const params = { path: { execution_id: execution.execution_id } };
  const key = `${execution.execution_id} ${execution.updated_at}`;
  const input = useAsk(execution.execution_id, (signal) => content(`/v1/executions/${execution.execution_id}/input`, signal));
  const result = useAsk(key, (signal) => (execution.result ? answer(api.GET("/v1/executions/{execution_id}/result", { params, headers: { accept: "application/json" }, signal })) : Promise.resolve(undefined)));
  return (
    <div class="stack">
      <h2>Input</h2>
      {input.data.value ? (
        <Payload base64={input.data.value.payload_base64} contentType={input.data.value.content_type} />
      ) : input.error.value !== undefined ? (
        <p class="muted">{isMissing(input.error.value) ? "It has no input." : input.error.value instanceof Error ? input.error.value.message : ""}</p>
      ) : (
        <Loading lines={2} />
      )}
      <h2>Result</h2>
      {execution.result ? (
        result.data.value ? (
          <Payload base64={(result.data.value as Content).payload_base64} contentType={(result.data.value as Content).content_type} />
        ) : result.error.value !== undefined ? (
          <Refusal error={result.error.value} />
        ) : (
          <Loading lines={2} />
        )
      ) : (
        <p class="muted">{ENDED.has(execution.public_state) ? "It ended without a result." : "There is none yet."}</p>
      )}
    </div>
  );
}

interface Content {
  payload_base64: string;
  content_type: string;
}

async function content(url: string, signal: AbortSignal): Promise<Content> {
  return await call<Content>("GET", url, undefined, signal);
}

/** The last record of each entry is what holds. */
export function entries(items: Step[]): Step[] {
  const last = new Map<number, Step>();
  for (const item of items) last.set(item.number, item);
  return [...last.values()].sort((one, other) => one.number - other.number);
}

function Steps({ items, generation }: { items: Step[] | undefined; generation: number }) {
  if (!items) return <Loading />;
  const all = entries(items);
  if (all.length === 0) {
    return (
      <Empty title="It has no steps" command="ff task step fetch -- curl -s https://example.com">
        A step runs once and its result is kept: a task that is called again finds what it did.
      </Empty>
    );
  }
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Steps">
      {generation > 0 && <p class="small muted">Generation {generation}</p>}
      <table>
        <thead>
          <tr>
            <th>State</th>
            <th>Name</th>
            <th>Kind</th>
            <th class="num">Tries</th>
            <th class="num">Took</th>
            <th>Recorded</th>
            <th>Result</th>
          </tr>
        </thead>
        <tbody>
          {all.map((step) => (
            <tr>
              <td><State state={step.state} /></td>
              <td>
                {step.name}
                {step.key && <span class="muted"> {step.key}</span>}
                {step.inherited && <span class="tag">inherited</span>}
              </td>
              <td>{step.kind}</td>
              <td class="num">{step.tries}</td>
              <td class="num">{step.took_ms === null || step.took_ms === undefined ? "" : span(step.took_ms)}</td>
              <td><When at={step.recorded_at} /></td>
              <td>
                {step.message && <div class="small">{step.category ? `${step.category}: ` : ""}{step.message}</div>}
                {step.result?.payload_base64 !== undefined ? <Payload base64={step.result.payload_base64} contentType={step.result.content_type} /> : null}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
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
      {(waitpoints.data.value?.items ?? []).length === 0 ? (
        <p class="muted">None.</p>
      ) : (
<div class="scroll" tabIndex={0} role="region" aria-label="Waitpoints">
        <table>
          <thead>
            <tr><th>State</th><th>Key</th><th>Names</th><th>Created</th><th>Expires</th></tr>
          </thead>
          <tbody>
            {waitpoints.data.value?.items.map((one) => (
              <tr>
                <td><State state={one.state === "active" ? "suspended" : (one.state ?? "pending")} /></td>
                <td><code>{one.waitpoint_key}</code></td>
                <td>{(one.required_names ?? []).join(", ") || "any"}</td>
                <td><When at={one.created_at} /></td>
                <td><When at={one.expires_at} none="never" /></td>
              </tr>
            ))}
          </tbody>
        </table>
        </div>
      )}
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
                <a href={link(["budgets"], { name: budget.name })}>{budget.name}</a> {dimension}: {count(budget.usage?.[dimension] ?? 0)}
                {limits.hard ? ` of ${count(limits.hard)}` : ""}
              </span>
              <Meter value={budget.usage?.[dimension] ?? 0} max={limits.hard || limits.soft || 1} mark={limits.soft} label={`${budget.name} ${dimension}`} />
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
  if (!events.data.value) return <Loading />;
  if (events.data.value.items.length === 0) return <Empty title="No events" command={`ff events --execution ${id}`}>Completions, leases and signals leave events, as far as the log reaches back.</Empty>;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Events">
      <table>
        <thead>
          <tr><th>When</th><th>What</th><th class="num">Attempt</th><th>Worker</th><th>Detail</th></tr>
        </thead>
        <tbody>
          {events.data.value.items.map((item) => (
            <tr>
              <td><When at={item.happened_at} /></td>
              <td>{words(item.event.event_type ?? "")}</td>
              <td class="num">{item.event.attempt ?? ""}</td>
              <td>{item.event.worker_id ?? ""}</td>
              <td>{item.event.detail ?? ""}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
