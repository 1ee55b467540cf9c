// Creates, claims, completes and reads an execution with the client that was generated from the OpenAPI document.

import assert from "node:assert/strict";

import { claim, complete, createExecution, getExecution, getResult, listApprovals, suspend } from "./flowfabric/sdk.gen";
import { client } from "./flowfabric/client.gen";
import type { Content } from "./flowfabric/types.gen";

const { FF_SERVER, FF_TOKEN } = process.env;
client.setConfig({ baseUrl: FF_SERVER, auth: FF_TOKEN, headers: { accept: "application/json" }, throwOnError: true });

async function take(kind: string) {
  const created = await createExecution({ body: { kind, input: { n: 20 } }, throwOnError: true });
  const path = { instance_id: "generated-typescript" };
  const claimed = await claim({ path, body: { lanes: ["default"], kinds: [kind] }, throwOnError: true });
  const task = claimed.data?.tasks?.[0];
  assert.ok(task);
  assert.equal(task.execution_id, created.data.execution_id);
  return { path: { execution_id: task.execution_id }, fence: task.fence };
}

async function main() {
  const { path, fence } = await take("typescript-doubles");
  await complete({ path, body: { fence, result: 40 }, throwOnError: true });
  const view = await getExecution({ path, throwOnError: true });
  assert.equal(view.data.public_state, "completed");
  const result = await getResult({ path, throwOnError: true });
  // This client asks for the object, and not for the bytes as they are.
  assert.equal((result.data as Content).payload, 40);

  const asks = await take("typescript-asks");
  const condition = { any: [{ name: "approve" }] };
  const body = { fence: asks.fence, reason: "approval", question: "Publish it?", condition } as const;
  const suspended = await suspend({ path: asks.path, body, throwOnError: true });
  // The compiler knows the fields of a variant by the field that tells variants apart.
  assert.ok(suspended.data.outcome === "suspended" && suspended.data.waitpoint_id);
  const asked = await listApprovals({ throwOnError: true });
  assert.ok(asked.data.items.some((one) => one.execution_id === asks.path.execution_id));

  const refused = await getResult({ path: asks.path, throwOnError: false });
  assert.equal(refused.error?.status, 404);
  console.log("created, claimed, completed, suspended, read and refused");
}

main().catch((error: unknown) => {
  console.error(error);
  process.exit(1);
});
