// `/`: an id leads to what it names, `key=value` to what has that tag, anything else to executions of that kind.

import { useSignal } from "@preact/signals";
import { api, answer, isMissing } from "./api/client";
import { go, link } from "./router";
import { say } from "./ui/dialog";

const ID = /^[0-9a-f]{4}-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

/** The address that a search leads to. */
export async function find(text: string): Promise<string> {
  if (ID.test(text)) {
    const id = text.toLowerCase();
    try {
      await answer(api.GET("/v1/executions/{execution_id}/state", { params: { path: { execution_id: id } } }));
      return link(["executions", id]);
    } catch (error) {
      if (!isMissing(error)) throw error;
    }
    await answer(api.GET("/v1/flows/{flow_id}", { params: { path: { flow_id: id } } }));
    return link(["flows", id]);
  }
  return text.includes("=") ? link(["executions"], { tag: text }) : link(["executions"], { kind: text });
}

export function Search() {
  const text = useSignal("");
  const submit = async (event: Event) => {
    event.preventDefault();
    const wanted = text.value.trim();
    if (wanted === "") return;
    try {
      go(await find(wanted));
      text.value = "";
      document.querySelector<HTMLElement>("#main")?.focus();
    } catch (error) {
      say(isMissing(error) ? `Nothing has the id ${wanted}.` : error instanceof Error ? error.message : String(error), true);
    }
  };
  return (
    <form class="search" role="search" onSubmit={submit}>
      <input
        id="search"
        type="search"
        aria-label="Search by id, tag or kind"
        placeholder="Search: an id, key=value, or a kind"
        value={text.value}
        autocomplete="off"
        onInput={(event) => (text.value = event.currentTarget.value)}
        onKeyDown={(event) => event.key === "Escape" && event.currentTarget.blur()}
      />
      <kbd aria-hidden="true">/</kbd>
    </form>
  );
}
