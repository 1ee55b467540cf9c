// The journal of an execution: what it did, step by step, and the places from which it can be forked.

import { answer, api } from "../api/client";
import { span } from "../format";
import { useAsk } from "../live";
import { link } from "../router";
import { may } from "../session";
import { Card, Command, Empty, State, When } from "../ui/basics";
import { propose } from "../ui/dialog";
import { Payload } from "../ui/payload";
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

export function Steps({ execution, items, generation }: { execution: View; items: Step[] | undefined; generation: number }) {
  const id = execution.execution_id;
  return (
    <div class="stack">
      {generation > 0 && <p class="small muted">Run {generation + 1} of this execution: each replay begins a journal of its own.</p>}
      <Table
        label="Steps"
        items={items && entries(items)}
        keyOf={(step) => String(step.number)}
        empty={
          <Empty title="It has no steps" command="ff task step fetch -- curl -s https://example.com">
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
                {step.took_ms !== null && step.took_ms !== undefined && <div class="small muted">took {span(step.took_ms)}</div>}
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
      <Forks id={id} />
    </div>
  );
}

function Name({ step }: { step: Step }) {
  return (
    <>
      {step.child_id ? <a href={link(["executions", step.child_id])}>{step.name}</a> : step.name}
      {step.key && <span class="muted"> {step.key}</span>} {step.inherited && <span class="tag">inherited</span>}
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
      {step.result?.payload_base64 !== undefined ? <Payload base64={step.result.payload_base64} contentType={step.result.content_type} /> : null}
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
