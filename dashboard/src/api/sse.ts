// Server-sent events over fetch: unlike EventSource it can send Last-Event-ID with the first request, so a stream goes
// on where a reload cut it, and it can be told to stop while nobody looks.

import { tokenWanted } from "./client";

export interface ServerEvent {
  name: string;
  id: string | undefined;
  data: string;
}

/** Takes a stream of text apart into events. Exported for its test. */
export class EventParser {
  private rest = "";

  /** The events that are complete with this text. */
  feed(text: string): ServerEvent[] {
    const blocks = (this.rest + text).replaceAll("\r\n", "\n").split("\n\n");
    this.rest = blocks.pop() ?? "";
    return blocks.filter((block) => block !== "").map(parse);
  }
}

function parse(block: string): ServerEvent {
  const event: ServerEvent = { name: "message", id: undefined, data: "" };
  const data: string[] = [];
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") event.name = value;
    else if (field === "id") event.id = value;
    else if (field === "data") data.push(value);
  }
  event.data = data.join("\n");
  return event;
}

/** The shortest and the longest pause before a stream that broke is asked for again. */
const PAUSE_MIN_MS = 500;
const PAUSE_MAX_MS = 15_000;

/**
 * Follows a stream for as long as the page can be seen. It resumes after the last event it has seen. The handler says
 * whether the stream goes on; `connected` is told when the stream is there and when it is not. The result ends it.
 */
export function follow(url: string, handle: (event: ServerEvent) => boolean | void, connected?: (here: boolean) => void): () => void {
  let last: string | undefined;
  let stopped = false;
  let running: AbortController | undefined;
  let pause = PAUSE_MIN_MS;
  let timer: ReturnType<typeof setTimeout> | undefined;

  const run = async () => {
    const controller = new AbortController();
    running = controller;
    try {
      const headers: Record<string, string> = { accept: "text/event-stream" };
      if (last !== undefined) headers["last-event-id"] = last;
      const response = await fetch(url, { headers, credentials: "same-origin", signal: controller.signal });
      if (response.status === 401) tokenWanted.value = true;
      // A refusal does not become better by asking again, unless the server only has no place now.
      if (response.status >= 400 && response.status < 500 && response.status !== 429) stopped = true;
      if (!response.ok || !response.body) throw new Error(`status ${response.status}`);
      pause = PAUSE_MIN_MS;
      connected?.(true);
      const parser = new EventParser();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        for (const event of parser.feed(value)) {
          if (event.id !== undefined && event.id !== "") last = event.id;
          if (handle(event) === false) {
            stopped = true;
            controller.abort();
            return;
          }
        }
      }
    } catch {
      // Cut off, or refused: asked for again below, unless it was us.
    } finally {
      if (running === controller) running = undefined;
      connected?.(false);
      if (!stopped && !document.hidden && !controller.signal.aborted) {
        timer = setTimeout(run, pause);
        pause = Math.min(pause * 2, PAUSE_MAX_MS);
      }
    }
  };

  // A hidden page holds no connection: a browser has few of them for one server.
  const look = () => {
    clearTimeout(timer);
    if (document.hidden) running?.abort();
    else if (!running && !stopped) void run();
  };
  document.addEventListener("visibilitychange", look);
  look();
  return () => {
    stopped = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", look);
    running?.abort();
  };
}
