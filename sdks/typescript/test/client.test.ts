/** The client and its connection. */
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { after, before, test } from "node:test";

import { Client, Connection, ExecutionFailedError, FlowFabricError, task } from "../src/index.js";
import { childId, derived, draw } from "../src/ids.js";
import { freePort } from "../src/testing.js";
import { valueOf } from "../src/schema.js";
import { milliseconds } from "../src/time.js";
import { startProxy, startServer, withWorker } from "./support.js";

let own: Awaited<ReturnType<typeof startServer>>;
let client: Client;
before(async () => {
  own = await startServer();
  client = own.server.client();
});
after(() => own.end());

const echo = task("echo", (_ctx, input: unknown) => input);

test("spans of time are read in words, and nonsense is refused", () => {
  assert.equal(milliseconds("1h 30m"), 5_400_000);
  assert.equal(milliseconds("250ms"), 250);
  assert.equal(milliseconds(7), 7);
  for (const nonsense of ["", "soon", "1 fortnight", -1, NaN]) assert.throws(() => milliseconds(nonsense), TypeError);
});

test("a child's id derives as the documentation says", async () => {
  const page = await readFile(new URL("../../../../docs/durable.md", import.meta.url), "utf8");
  const rows = [...page.matchAll(/^\| `child` \| (\d+) \| `([^`]+)` \| (?:`([^`]+)`)? *\| (\d*) *\| `([^`]+)` \|$/gm)];
  assert.equal(rows.length, 5);
  for (const [, generation, name = "", key, occurrence, id] of rows) {
    const identity = key === undefined ? { name, occurrence: Number(occurrence) } : { name, key };
    assert.equal(childId("00ff-0190a0a0-0000-7000-8000-000000000001", Number(generation), identity), id);
  }
});

test("chance derives as the documentation says", async () => {
  const page = await readFile(new URL("../../../../docs/durable.md", import.meta.url), "utf8");
  const rows = [...page.matchAll(/^\| (\d+) \| `([^`]+)` \| (?:`([^`]+)`)? *\| `([^`]+)` \| `(0\.\d+)` \|$/gm)];
  assert.equal(rows.length, 4);
  const execution = "00ff-0190a0a0-0000-7000-8000-000000000001";
  for (const [, generation, name = "", key, uuid, random] of rows) {
    const identity = key === undefined ? { name } : { name, key };
    assert.equal(derived("uuid", execution, Number(generation), identity), uuid);
    assert.equal(draw(execution, Number(generation), identity), Number(random));
  }
});

test("a variable that is set to nothing says nothing", (t) => {
  const names = ["FF_SERVER", "FF_TOKEN", "FF_NAMESPACE"];
  const before = names.map((name) => [name, process.env[name]] as const);
  t.after(() => {
    for (const [name, value] of before) {
      if (value === undefined) Reflect.deleteProperty(process.env, name);
      else process.env[name] = value;
    }
  });
  for (const name of names) process.env[name] = "";
  const { server, token, namespace, scope } = new Connection();
  assert.deepEqual([server, token, namespace, scope], ["http://127.0.0.1:7171", undefined, undefined, {}]);
  process.env["FF_NAMESPACE"] = "team-a";
  assert.deepEqual(new Connection({ namespace: "" }).scope, { namespace: "team-a" });
});

test("a repeat under the same key finds the same execution", async () => {
  const options = { idempotencyKey: "order-7" };
  const [one, other] = [await client.submit(echo, 1, options), await client.submit(echo, 1, options)];
  assert.equal(one.id, other.id);
});

test("a batch keeps its order, and a refused one does not stop the others", async () => {
  const kind = "x".repeat(10_000);
  const refused = await client.submitBatch(task(kind, () => null), [1]);
  assert.ok(refused[0] instanceof FlowFabricError);
  const batch = await client.submitBatch(echo, [1, 2, 3]);
  await withWorker(client, [echo], async () => {
    const results = await Promise.all(batch.map(async (one) => (one instanceof FlowFabricError ? one : one.result())));
    assert.deepEqual(results, [1, 2, 3]);
  });
});

test("bytes arrive as bytes", async () => {
  const bytes = new Uint8Array([0, 255, 7]);
  await withWorker(client, [echo], async () => {
    assert.deepEqual(await (await client.submit(echo, bytes)).result(), bytes);
  });
});

test("what an execution writes is read while it runs and after it has ended", async () => {
  const talk = task("talk", (ctx) => {
    for (const word of ["once", "upon", "a", "time"]) ctx.emit("token", word);
    ctx.emit("meta", { words: 4 });
    return "done";
  });
  await withWorker(client, [talk], async () => {
    const execution = await client.submit(talk, null);
    const read = async () => {
      const seen: unknown[] = [];
      for await (const event of execution.tail()) {
        if (event.event === "frame") seen.push(event.value);
        if (event.event === "end") seen.push(event.public_state);
      }
      return seen;
    };
    const expected = ["once", "upon", "a", "time", { words: 4 }, "completed"];
    assert.deepEqual(await read(), expected);
    assert.deepEqual(await read(), expected);
  });
});

test("a flow runs its nodes in order", async () => {
  const order: string[] = [];
  const note = task("note", async (ctx, name: string) => {
    order.push(name);
    return [name, ...(await ctx.upstreams()).map(({ result }) => valueOf(result))].flat().join("");
  });
  await withWorker(client, [note], async () => {
    const flow = await client.flow().node("a", note, "a").node("b", note, "b").node("c", note, "c", { after: ["a", "b"] }).create();
    assert.match(String(await client.execution(flow.executions["c"] ?? "").result()), /^c(ab|ba)$/);
    assert.equal(order.at(-1), "c");
    assert.equal(order.length, 3);
  });
});

test("explain says why something does not run", async () => {
  const execution = await client.submit("nobody-serves-this", 1, { delay: "1h" });
  const explanation = await execution.explain();
  assert.ok(explanation.reasons.length > 0);
  await execution.cancel("not needed");
  assert.equal((await execution.get()).public_state, "cancelled");
});

test("a refusal has its code, and nothing is repeated", async () => {
  await assert.rejects(client.execution("0000-01a1e2b9-04ce-7b48-ab36-c6ca3bcb8be1").get(), (error) => {
    assert.ok(error instanceof FlowFabricError);
    assert.deepEqual([error.code, error.status, error.retryable], ["execution_not_found", 404, false]);
    return true;
  });
});

test("codes and fields of a newer server are kept", async () => {
  const port = await freePort();
  const newer = createServer((_request, response) => {
    response.writeHead(418, { "content-type": "application/problem+json" });
    response.end(JSON.stringify({ code: "of_tomorrow", status: 418, detail: "tea", retryable: false, shape: "round" }));
  }).listen(port, "127.0.0.1");
  try {
    const error: unknown = await new Client({ server: `http://127.0.0.1:${port}` }).execution("x").get().catch((error: unknown) => error);
    assert.ok(error instanceof FlowFabricError);
    assert.deepEqual([error.code, error.problem["shape"]], ["of_tomorrow", "round"]);
  } finally {
    newer.close();
  }
});

test("words of a newer server are kept where this version has others", async () => {
  const port = await freePort();
  const view = { execution_id: "x", public_state: "hibernating", state: { blocking_reason: "waiting_for_the_moon" }, newer: { more: 1 } };
  const newer = createServer((request, response) => {
    response.writeHead(200, { "content-type": "application/json" });
    response.end(JSON.stringify(request.url?.startsWith("/v1/executions/") ? view : { items: [view], newer: 1 }));
  }).listen(port, "127.0.0.1");
  try {
    const old = new Client({ server: `http://127.0.0.1:${port}` });
    assert.deepEqual(await old.execution("x").get(), view);
    assert.deepEqual((await old.list()).items, [view]);
  } finally {
    newer.close();
  }
});

test("a call goes on while the server cannot be reached, as the same call", async () => {
  const proxy = await startProxy(own.server.url);
  let lost = 0;
  proxy.fate = (name) => (name === "executions" && ++lost < 3 ? "lose" : undefined);
  try {
    const execution = await new Client({ server: proxy.url }).submit("lost-answers-of-submits", 1);
    const ids = proxy.calls.filter(({ name }) => name === "executions").map(({ body }) => body.execution_id);
    assert.deepEqual(ids, [execution.id, execution.id, execution.id]);
    assert.equal((await client.list({ kind: "lost-answers-of-submits" })).items.length, 1);
  } finally {
    proxy.close();
  }
});

test("submissions at the same time share calls, and each has its own answer", async () => {
  const proxy = await startProxy(own.server.url);
  try {
    const crowd = new Client({ server: proxy.url });
    const many = Array.from({ length: 60 }, (_, number) => crowd.submit("crowd", number, { idempotencyKey: `crowd-${Math.floor(number / 2)}` }));
    const made = await Promise.allSettled([...many, crowd.submit("x".repeat(10_000))]);
    // A key that is used twice at once is one execution, and another input under it is refused.
    const ids = new Set(made.flatMap((one) => (one.status === "fulfilled" ? [one.value.id] : [])));
    const codes = new Set(made.flatMap((one) => (one.status === "rejected" ? [(one.reason as FlowFabricError).code] : [])));
    assert.equal(ids.size, 30);
    assert.deepEqual(codes, new Set(["idempotency_conflict", "invalid"]));
    assert.ok(proxy.calls.filter(({ name }) => name === "batch").length <= 2);
    const large = await Promise.all(Array.from({ length: 20 }, () => crowd.submit("crowd", "x".repeat(900_000))));
    assert.equal(new Set(large.map(({ id }) => id)).size, 20);
  } finally {
    proxy.close();
  }
});

for (const approved of [true, false]) {
  test(`what waits for people is listed and ${approved ? "approved" : "rejected"}`, async () => {
    const lane = `people-${approved}`;
    const execution = await client.submit("refund", 40, { lane });
    const claim = () => client.call("POST", "/v1/workers/{instance_id}/claim", { instance_id: lane, lanes: [lane], wait_ms: 20_000 });
    const [held] = (await claim()).tasks;
    assert.ok(held);
    const asks = { fence: held.fence, reason: "approval" as const, condition: { any: [{ name: "approve" }] }, question: "Refund 40 EUR to Ann?" };
    await client.call("POST", "/v1/executions/{execution_id}/suspend", { execution_id: execution.id, ...asks });
    const waiting = async () => {
      const questions: unknown[] = [];
      for await (const one of client.approvals({ execution_id: execution.id })) questions.push(one.question);
      return questions;
    };
    assert.deepEqual(await waiting(), ["Refund 40 EUR to Ann?"]);
    await (approved ? execution.approve({ amount: 40 }) : execution.reject());
    assert.deepEqual(await waiting(), []);
    assert.equal((await claim()).tasks.length, 1);
    const said = await client.call("GET", "/v1/executions/{execution_id}/resume-signals", { execution_id: execution.id });
    assert.deepEqual(said.items.map(({ name }) => name), [approved ? "approve" : "reject"]);
  });
}

test("a hard limit is an error of the task, and a soft one is said", async () => {
  await client.createBudget("spenders", { dimensions: { tokens: { hard: 100, soft: 10 } } });
  const spender = task("spender", async (ctx, tokens: number) => (await ctx.usage({ tokens }, { key: "all" })).budgets["spenders"]?.outcome);
  await withWorker(client, [spender], async () => {
    const spend = async (tokens: number) => (await client.submit(spender, tokens, { budgets: ["spenders"], retries: 0 })).result();
    assert.equal(await spend(5), "ok");
    assert.equal(await spend(50), "soft_breach");
    await assert.rejects(spend(500), (error) => {
      assert.ok(error instanceof ExecutionFailedError);
      assert.deepEqual([error.category, error.message], ["budget_exceeded", "budget spenders: the limit of tokens is reached"]);
      return true;
    });
    assert.deepEqual((await client.budget("spenders")).usage, { tokens: 55 });
  });
});

test("operations of a client are in its namespace wherever they take one", async () => {
  interface Fields { $ref?: string; properties?: object; allOf?: Fields[] }
  interface Operation { parameters?: { name: string; in: string }[]; requestBody?: { content: Record<string, { schema: Fields } | undefined> } }
  interface Document { paths: Record<string, Record<string, Operation>>; components: { schemas: Record<string, Fields> } }
  const { paths, components } = JSON.parse(await readFile(new URL("../../../../crates/server/openapi.json", import.meta.url), "utf8")) as Document;
  const names = (fields: Fields | undefined): string[] => {
    const referred = fields?.$ref?.split("/").at(-1);
    return [...Object.keys(fields?.properties ?? {}), ...(fields?.allOf ?? []).flatMap(names), ...(referred === undefined ? [] : names(components.schemas[referred]))];
  };
  const seen: string[] = [];
  const connection = new Connection({ server: own.server.url, namespace: "team-a" });
  connection.call = (_method, _path, options) => {
    seen.push(JSON.stringify([options?.query ?? {}, options?.body ?? {}]));
    return Promise.resolve(undefined as never);
  };
  const scoped = new Client(connection) as unknown as { call: (method: string, route: string, args: object) => Promise<unknown> };
  let inNamespace = 0;
  for (const [route, operations] of Object.entries(paths)) {
    for (const [method, { parameters = [], requestBody }] of Object.entries(operations)) {
      // Its body is the event of somebody else, as it came.
      if (route === "/v1/hooks/{name}" && method === "post") continue;
      const inRoute = Object.fromEntries([...route.matchAll(/\{(\w+)\}/g)].map(([, name = ""]) => [name, "x"] as const));
      const query = parameters.filter((one) => one.in === "query").map(({ name }) => name);
      const takesOne = [...query, ...names(requestBody?.content["application/json"]?.schema)].includes("namespace");
      await scoped.call(method.toUpperCase(), route, inRoute);
      assert.equal(seen.pop()?.includes('"namespace":"team-a"'), takesOne, `${method} ${route}`);
      inNamespace += takesOne ? 1 : 0;
    }
  }
  assert.ok(inNamespace > 50);
  const executions = [{ kind: "one" }, { kind: "two", namespace: "team-b" }, { kind: "three", parent: {} }];
  await scoped.call("POST", "/v1/executions/batch", { executions });
  assert.deepEqual(JSON.parse(seen.pop() ?? ""), [{}, { executions: [{ namespace: "team-a", kind: "one" }, ...executions.slice(1)] }]);
});

test("a client changes and lists what is in its namespace", async () => {
  const [one, other] = ["team-one", "team-two"].map((namespace) => own.server.client({ namespace })) as [Client, Client];
  const [mine, its] = [await one.submit("of-a-team", null), await other.submit("of-a-team", null)];
  await one.call("POST", "/v1/budgets", { name: "of-team-one", dimensions: { cents: { hard: 1 } } });
  const budgets = [];
  for await (const { name } of one.items("/v1/budgets")) budgets.push(name);
  assert.deepEqual(budgets, ["of-team-one"]);
  for await (const budget of other.items("/v1/budgets")) assert.fail(JSON.stringify(budget));
  assert.equal((await one.bulk("cancel", { kind: ["of-a-team"] })).progress.done, 1);
  assert.deepEqual([(await mine.get()).public_state, (await its.get()).public_state], ["cancelled", "waiting"]);
});

test("a call without a part of its route is refused, and names it", async () => {
  const untyped = client as unknown as { call: (method: string, route: string, args?: object) => Promise<unknown> };
  for (const args of [undefined, {}, { lane: undefined }, { lane: null }, { lane: "" }]) {
    await assert.rejects(untyped.call("POST", "/v1/lanes/{lane}/pause", args), new TypeError('POST /v1/lanes/{lane}/pause needs "lane"'));
  }
  await assert.rejects(untyped.call("GET", "/v1/executions/{execution_id}/attempts/{attempt}/summary", { execution_id: "x" }), /needs "attempt"/);
});
