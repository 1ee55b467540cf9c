/** The stream of an execution while it runs, by server-sent events that go on after the last one that was seen. */
import type { Schemas } from "./client.js";
import { FlowFabricError, UnreachableError } from "./errors.js";
import { type Connection, path, problemOf } from "./http.js";
import { valueOf } from "./schema.js";
import { pause } from "./time.js";

export type StreamEvent =
  | { event: "frame"; id: string; type: string; value: unknown; frame: Schemas["StreamFrame"] }
  /** Another attempt has begun; what the one before it wrote is void. */
  | { event: "attempt"; attempt: number }
  /** The worker let go of the attempt, which will go on. */
  | { event: "paused"; attempt: number; reason: string; detail: string }
  /** The execution has ended, and so does the stream. */
  | { event: "end"; public_state: string };

/** The server pings every 15 seconds; one that misses three of them is gone. */
const SILENCE_MAX_MS = 50_000;
const RECONNECT_MAX_MS = 2_000;
const RECONNECT_FOR_MS = 60_000;

export async function* tail(connection: Connection, executionId: string, options: { after?: string; signal?: AbortSignal } = {}): AsyncGenerator<StreamEvent> {
  let after = options.after;
  let pausedShown = false;
  let lastHeard = Date.now();
  for (let failures = 0; ; failures++) {
    try {
      for await (const { name, id, data } of events(connection, executionId, after, options.signal)) {
        lastHeard = Date.now();
        failures = 0;
        if (name === "error") throw new FlowFabricError(problemOf(0, data));
        const event = read(name, data);
        if (event === undefined) continue;
        if (event.event === "frame") after = id;
        // A new connection says again that the attempt is paused.
        if (event.event === "paused" && pausedShown) continue;
        pausedShown = event.event === "paused";
        yield event;
        if (event.event === "end") return;
      }
    } catch (error) {
      if (options.signal?.aborted) return;
      if (error instanceof FlowFabricError && !error.retryable) throw error;
      if (Date.now() - lastHeard > RECONNECT_FOR_MS) throw error;
    }
    if (options.signal?.aborted) return;
    await pause(Math.min(50 * 2 ** Math.min(failures, 10), RECONNECT_MAX_MS), options.signal);
  }
}

/** The events of one response. */
async function* events(connection: Connection, executionId: string, after: string | undefined, signal: AbortSignal | undefined): AsyncGenerator<ReturnType<typeof parse>> {
  const silence = new AbortController();
  const both = signal === undefined ? silence.signal : AbortSignal.any([silence.signal, signal]);
  const listen = () => setTimeout(() => { silence.abort(new UnreachableError("the stream is silent")); }, SILENCE_MAX_MS);
  let timer = listen();
  try {
    const response = await connection.open("GET", path`/v1/executions/${executionId}/stream`, {
      headers: { accept: "text/event-stream", ...(after !== undefined && { "last-event-id": after }) },
      signal: both,
    });
    if (!response.ok) throw new FlowFabricError(problemOf(response.status, await response.text()));
    if (response.body === null) return;
    const decoder = new TextDecoder();
    let text = "";
    for await (const chunk of response.body as unknown as AsyncIterable<Uint8Array>) {
      clearTimeout(timer);
      timer = listen();
      text += decoder.decode(chunk, { stream: true });
      const whole = text.split("\n\n");
      text = whole.pop() ?? "";
      for (const one of whole) yield parse(one);
    }
  } finally {
    clearTimeout(timer);
    silence.abort();
  }
}

function parse(text: string): { name: string; id: string; data: string } {
  const event = { name: "", id: "", data: "" };
  for (const line of text.split("\n")) {
    const at = line.indexOf(":");
    const value = line.slice(at + 1).replace(/^ /, "");
    const field = line.slice(0, at);
    if (field === "event") event.name = value;
    else if (field === "id") event.id = value;
    else if (field === "data") event.data += event.data === "" ? value : `\n${value}`;
  }
  return event;
}

/** One event; pings, and events that a newer server invents, are none. */
function read(name: string, data: string): StreamEvent | undefined {
  if (name === "frame") {
    const frame = JSON.parse(data) as Schemas["StreamFrame"];
    const isText = frame.content_type.startsWith("text/");
    const value = isText ? Buffer.from(frame.payload_base64, "base64").toString("utf8") : valueOf(frame);
    return { event: name, id: frame.id, type: frame.type, value, frame };
  }
  const isKnown = ["attempt", "paused", "end"].includes(name);
  return isKnown ? ({ event: name, ...(JSON.parse(data) as object) } as StreamEvent) : undefined;
}
