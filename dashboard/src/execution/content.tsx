// What an execution was given, and what it gave back.

import { answer, api } from "../api/client";
import type { Schemas } from "../api/client";
import { useAsk } from "../live";
import { Loading, Refusal } from "../ui/basics";
import { Payload } from "../ui/payload";
import type { View } from "../screens/execution";
import { ENDED } from "../states";

type Content = Schemas["Content"];

/** Bytes come as they are unless JSON is asked for. */
const headers = { accept: "application/json" };

function Bytes({ id }: { id: string }) {
  const params = { path: { execution_id: id } };
  const input = useAsk(`input ${id}`, async (signal) => (await answer(api.GET("/v1/executions/{execution_id}/input", { params, headers, signal }))) as Content);
  if (input.data.value) return <Payload base64={input.data.value.payload_base64} contentType={input.data.value.content_type} />;
  return input.error.value === undefined ? <Loading lines={2} /> : <Refusal error={input.error.value} />;
}

/** The execution says whether there is an input: asking for one that is missing would be an error in the browser's log. */
export function Input({ execution }: { execution: View }) {
  return execution.input ? <Bytes id={execution.execution_id} /> : <p class="muted">It has no input.</p>;
}

/** The input of an execution of which only the id is known. */
export function InputOf({ id }: { id: string }) {
  const params = { path: { execution_id: id } };
  const found = useAsk(`execution of input ${id}`, async (signal) => answer(api.GET("/v1/executions/{execution_id}", { params, signal })));
  if (found.data.value) return <Input execution={found.data.value} />;
  return found.error.value === undefined ? <Loading lines={2} /> : <Refusal error={found.error.value} />;
}

function Result({ execution }: { execution: View }) {
  const params = { path: { execution_id: execution.execution_id } };
  const result = useAsk(`result ${execution.execution_id} ${execution.updated_at}`, async (signal) => (await answer(api.GET("/v1/executions/{execution_id}/result", { params, headers, signal }))) as Content);
  if (result.data.value) return <Payload base64={result.data.value.payload_base64} contentType={result.data.value.content_type} />;
  return result.error.value === undefined ? <Loading lines={2} /> : <Refusal error={result.error.value} />;
}

export function InputAndResult({ execution }: { execution: View }) {
  return (
    <div class="stack">
      <h2>Input</h2>
      <Input execution={execution} />
      <h2>Result</h2>
      {execution.result ? <Result execution={execution} /> : <p class="muted">{ENDED.has(execution.public_state) ? "It ended without a result." : "There is none yet."}</p>}
    </div>
  );
}
