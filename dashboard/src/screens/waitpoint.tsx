// The public page of a waitpoint link, for people without an account. Opening it does nothing; only a button acts. The
// token stands behind the `#`, which a browser sends to no server.

import { useSignal } from "@preact/signals";
import { answer, api } from "../api/client";
import { words } from "../format";
import { Refusal } from "../ui/basics";

export function Waitpoint({ execution, waitpoint }: { execution: string; waitpoint: string }) {
  const token = decodeURIComponent(window.location.hash.slice(1));
  const state = useSignal<"asked" | "busy" | "approve" | "reject">("asked");
  const error = useSignal<unknown>(undefined);
  const note = useSignal("");
  const send = async (name: "approve" | "reject") => {
    state.value = "busy";
    error.value = undefined;
    try {
      const written = note.value.trim();
      const body = { waitpoint_id: waitpoint, token, name, source_type: "link", ...(written ? { payload: { note: written } } : {}) };
      await answer(api.POST("/v1/executions/{execution_id}/signal", { params: { path: { execution_id: execution } }, body: body as never }));
      state.value = name;
    } catch (caught) {
      error.value = caught;
      state.value = "asked";
    }
  };
  const decided = state.value === "approve" || state.value === "reject";
  return (
    <main class="centre" id="main">
      <section class="card">
        <header>
          <img class="logo" src="/favicon.svg" alt="" />
          <h1>{decided ? "Thank you" : "Your decision is asked for"}</h1>
        </header>
        <div class="body stack">
          {token === "" ? (
            <p>This link is not complete: the part behind the # is missing. Ask for it again.</p>
          ) : decided ? (
            <p role="status">Your answer, {words(state.value)}, was delivered. You can close this page.</p>
          ) : (
            <>
              <p>A task waits for you. Nothing has happened by opening this page.</p>
              <dl class="facts">
                <dt>waitpoint</dt>
                <dd>
                  <code>{waitpoint}</code>
                </dd>
              </dl>
              <label class="labelled">
                A note, if you like
                <textarea class="field" rows={3} maxLength={4_000} value={note.value} onInput={(event) => (note.value = event.currentTarget.value)} />
              </label>
              {error.value !== undefined && <Refusal error={error.value} />}
              <div class="row">
                <button type="button" class="button primary" disabled={state.value === "busy"} onClick={() => void send("approve")}>
                  Approve
                </button>
                <button type="button" class="button danger" disabled={state.value === "busy"} onClick={() => void send("reject")}>
                  Reject
                </button>
              </div>
            </>
          )}
        </div>
      </section>
    </main>
  );
}
