// The stream of an execution while it is written: words as they come, JSON as a tree, and what a retry made void.

import { useSignal } from "@preact/signals";
import type { Signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { Schemas } from "../api/client";
import { follow } from "../api/sse";
import { bytes, fromBase64, textOf, words } from "../format";
import { Empty } from "../ui/basics";
import { Json, parsed } from "../ui/payload";

type Frame = Schemas["StreamFrame"];

export interface StreamState {
  frames: Signal<Frame[]>;
  /** The attempt whose frames hold; those of earlier ones are void. */
  attempt: Signal<number>;
  /** Why nothing comes at present. */
  paused: Signal<string | undefined>;
  ended: Signal<boolean>;
}

/** Frames that are kept in the page; older ones are in the store. */
const FRAMES_MAX = 5_000;

function attemptOf(frame: Frame): number {
  return Number(frame.id.split("-")[0] ?? 0);
}

/** Follows the stream; `changed` is called when the execution itself moved. */
export function useStream(id: string, changed: () => void): StreamState {
  const state: StreamState = { frames: useSignal<Frame[]>([]), attempt: useSignal(0), paused: useSignal<string | undefined>(undefined), ended: useSignal(false) };
  const latest = useRef(changed);
  latest.current = changed;
  useEffect(() => {
    state.frames.value = [];
    state.ended.value = false;
    let waiting: Frame[] = [];
    let drawing = 0;
    // Many frames of one moment are drawn at once.
    const draw = () => {
      drawing = 0;
      state.frames.value = [...state.frames.value, ...waiting].slice(-FRAMES_MAX);
      waiting = [];
    };
    const stop = follow(`/v1/executions/${encodeURIComponent(id)}/stream`, (event) => {
      if (event.name === "ping") return;
      const data = JSON.parse(event.data || "{}") as Record<string, unknown>;
      if (event.name === "frame") {
        waiting.push(data as unknown as Frame);
        state.attempt.value = Math.max(state.attempt.value, attemptOf(data as unknown as Frame));
        state.paused.value = undefined;
        drawing ||= window.setTimeout(draw, 30);
      } else if (event.name === "attempt") {
        state.attempt.value = Number(data["attempt"] ?? 0);
        state.paused.value = undefined;
        latest.current();
      } else if (event.name === "paused") {
        state.paused.value = String(data["detail"] || words(String(data["reason"] ?? "")));
        latest.current();
      } else if (event.name === "end") {
        state.ended.value = true;
        latest.current();
        return false;
      }
    });
    return () => {
      stop();
      clearTimeout(drawing);
    };
  }, [id]);
  return state;
}

export function Stream({ stream, ended }: { stream: StreamState; ended: boolean }) {
  const host = useRef<HTMLDivElement>(null);
  const atEnd = useRef(true);
  /** The attempt whose frames are shown; all of them when absent. */
  const chosen = useSignal<number | undefined>(undefined);
  useLayoutEffect(() => {
    // A reader who has scrolled up stays there.
    if (atEnd.current && host.current) host.current.scrollTop = host.current.scrollHeight;
  }, [stream.frames.value]);
  const frames = stream.frames.value;
  if (frames.length === 0) {
    return (
      <Empty title={ended ? "It wrote nothing while it ran" : "Nothing was written yet"}>
        A task that emits frames shows them here while it runs: tokens, logs, JSON.
      </Empty>
    );
  }
  const groups: { attempt: number; frames: Frame[] }[] = [];
  for (const frame of frames) {
    const attempt = attemptOf(frame);
    const last = groups[groups.length - 1];
    if (last && last.attempt === attempt) last.frames.push(frame);
    else groups.push({ attempt, frames: [frame] });
  }
  const attempts = [...new Set(groups.map((group) => group.attempt))];
  const wanted = groups.filter((group) => chosen.value === undefined || group.attempt === chosen.value);
  const scrolled = () => {
    const element = host.current;
    if (element) atEnd.current = element.scrollHeight - element.scrollTop - element.clientHeight < 40;
  };
  return (
    <>
      {attempts.length > 1 && (
        <div class="row body" role="group" aria-label="Attempts">
          {[undefined, ...attempts].map((attempt) => (
            <button type="button" class="chip" aria-pressed={chosen.value === attempt} onClick={() => (chosen.value = attempt)}>
              {attempt === undefined ? "all attempts" : `attempt ${attempt}`}
            </button>
          ))}
        </div>
      )}
      <div class="stream" ref={host} onScroll={scrolled} role="log" aria-label="Stream" tabIndex={0}>
        {wanted.map((group) => {
          const isVoid = group.attempt < stream.attempt.value;
          return (
            <>
              {(groups.length > 1 || stream.attempt.value > 0) && (
                <div class="attempt">
                  attempt {group.attempt}
                  {isVoid && <strong>void: a later attempt began anew</strong>}
                </div>
              )}
              <div class={isVoid ? "void" : ""}>{runs(group.frames)}</div>
            </>
          );
        })}
        {stream.paused.value !== undefined && !ended ? (
          <div class="attempt">paused: {stream.paused.value}</div>
        ) : !ended && !stream.ended.value ? (
          <span class="caret" aria-hidden="true" />
        ) : null}
      </div>
    </>
  );
}

/** Text runs on; everything else stands by itself. */
function runs(frames: Frame[]) {
  const out: preact.ComponentChildren[] = [];
  let text = "";
  const flush = () => {
    if (text !== "") out.push(<span class="text">{text}</span>);
    text = "";
  };
  for (const frame of frames) {
    const data = fromBase64(frame.payload_base64 ?? "");
    const said = textOf(data);
    const json = said !== undefined && frame.content_type.includes("json") ? parsed(said) : undefined;
    if (json !== undefined && typeof json.value === "string") text += json.value;
    else if (json !== undefined) {
      flush();
      out.push(
        <span class="frame-other">
          <span class="kind">{frame.type}</span>
          <span class="json">
            <Json value={json.value} open={1} />
          </span>
        </span>,
      );
    } else if (said !== undefined) text += said;
    else {
      flush();
      out.push(
        <span class="frame-other">
          <span class="kind">{frame.type}</span>
          {bytes(data.length)} that are not text
        </span>,
      );
    }
  }
  flush();
  return out;
}
