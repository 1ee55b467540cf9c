// The journal of an execution: what it did, step by step, and the places from which it can be forked.

import { useSignal } from "@preact/signals";
import { answer, api } from "../api/client";
import { many, span } from "../format";
import { useAsk } from "../live";
import { More } from "../pages";
import type { Pages } from "../pages";
import { link } from "../router";
import { may } from "../session";
import { Card, Command, Empty, Refusal, State, When } from "../ui/basics";
import { propose } from "../ui/dialog";
import { Folded } from "../ui/payload";
import { Table } from "../ui/table";
import { forkOf } from "./actions";
import type { Step, View } from "../screens/execution";

/** The last record of each entry is what holds. */
export function entries(items: Step[]): Step[] {
  const last = new Map<number, Step>();
  for (const item of items) last.set(item.number, item);
  return [...last.values()].sort((one, other) => one.number - other.number);
}

function identity(step: Step) {
  return { name: step.name, ...(step.key ? { key: step.key } : { occurrence: step.occurrence ?? 0 }) };
}

/** From this many steps on, they can be looked for. */
const SEARCHED_FROM = 15;

export function Steps({ execution, pages, generation }: { execution: View; pages: Pages<Step>; generation: number }) {
  const id = execution.execution_id;
  const wanted = useSignal("");
  const all = pages.items && entries(pages.items);
  const found = all?.filter((step) => `${step.name} ${step.key ?? ""} ${step.state}`.toLowerCase().includes(wanted.value.toLowerCase()));
  return (
    <div class="stack">
      {generation > 0 && <p class="small muted">Run {generation + 1} of this execution: each replay begins a journal of its own.</p>}
      {pages.error !== undefined && <Refusal error={pages.error} />}
      {(all?.length ?? 0) >= SEARCHED_FROM && (
        <label class="row tight small muted">
          Find
          <input class="field" type="search" size={26} placeholder="a name, a key or a state" value={wanted.value} onInput={(event) => (wanted.value = event.currentTarget.value)} />
          {wanted.value !== "" && <span role="status">{many(found?.length ?? 0, "step")}</span>}
        </label>
      )}
      <Table
        label="Steps"
        items={found}
        keyOf={(step) => String(step.number)}
        empty={
          <Empty title={wanted.value === "" ? "It has no steps" : "No step is like that"} command="ff task step fetch -- curl -s https://example.com">
            A step runs once and its result is kept: a task that is called again finds what it did.
          </Empty>
        }
        columns={[
          { name: "State", cell: (step) => <State state={step.state} /> },
          { name: "Step", cell: (step) => <Name step={step} /> },
          {
            name: "Recorded",
            cell: (step) => (
              <>
                <When at={step.recorded_at} />
                {step.took_ms !== null && step.took_ms !== undefined && <div class="small muted nowrap">took {span(step.took_ms)}</div>}
              </>
            ),
          },
          { name: "Result", cell: (step) => <Result step={step} /> },
          {
            name: "Actions",
            when: may("operator"),
            cell: (step) => (
              <button type="button" class="button small nowrap" onClick={() => propose(forkOf(id, identity(step)))}>
                Fork before
              </button>
            ),
          },
        ]}
      />
      <More pages={pages} />
      <Forks id={id} />
    </div>
  );
}

function Name({ step }: { step: Step }) {
  return (
    <>
      <span class="step-name">
        {step.child_id ? <a href={link(["executions", step.child_id])}>{step.name}</a> : step.name}
        {step.key && <span class="muted"> {step.key}</span>} {step.inherited && <span class="tag">inherited</span>}
      </span>
      <div class="small muted">
        {step.kind}
        {step.tries > 1 ? `, ${step.tries} tries` : ""}
      </div>
    </>
  );
}

function Result({ step }: { step: Step }) {
  return (
    <>
      {step.message && (
        <div class="small">
          {step.category ? `${step.category}: ` : ""}
          {step.message}
        </div>
      )}
      {step.result?.payload_base64 !== undefined ? <Folded base64={step.result.payload_base64} contentType={step.result.content_type} /> : null}
    </>
  );
}

/** The executions that were forked from this one. */
function Forks({ id }: { id: string }) {
  const forks = useAsk(`forks ${id}`, (signal) => answer(api.GET("/v1/executions/{execution_id}/forks", { params: { path: { execution_id: id } }, signal })));
  const items = forks.data.value?.items ?? [];
  if (items.length === 0) return null;
  return (
    <Card title="Forks of it" flush>
      <Table
        label="Forks"
        items={items}
        empty={null}
        columns={[
          { name: "State", cell: (fork) => <State state={fork.public_state} /> },
          { name: "Execution", cell: (fork) => <a href={link(["executions", fork.execution_id])}>…{fork.execution_id.slice(-12)}</a> },
          { name: "Created", cell: (fork) => <When at={fork.created_at} /> },
          { name: "What differs", cell: (fork) => <Command line={`ff diff ${id} ${fork.execution_id}`} /> },
        ]}
      />
    </Card>
  );
}
