import { useSignal } from "@preact/signals";
import { Problem } from "../api/client";
import { signIn } from "../session";
import { Command, Refusal } from "../ui/basics";

/** Asks for a token and exchanges it for a session. */
export function Login() {
  const busy = useSignal(false);
  const error = useSignal<unknown>(undefined);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const token = String(new FormData(event.target as HTMLFormElement).get("token") ?? "");
    busy.value = true;
    error.value = undefined;
    try {
      await signIn(token);
    } catch (caught) {
      error.value = caught instanceof Problem && caught.status === 401 ? new Error("This token is not valid: it was mistyped or revoked, or its time is over.") : caught;
    }
    busy.value = false;
  };
  return (
    <main class="centre" id="main">
      <section class="card">
        <header>
          <img class="logo" src="/favicon.svg" alt="" />
          <h1>Sign in to FlowFabric</h1>
        </header>
        <div class="body">
          <form onSubmit={submit}>
            <label class="labelled">
              API token
              <input class="field" type="password" name="token" autocomplete="current-password" required />
            </label>
            {error.value !== undefined && <Refusal error={error.value} />}
            <button type="submit" class="button primary" disabled={busy.value}>
              Sign in
            </button>
            <div class="stack small muted">
              <span>The token becomes a session of this browser that ends after 12 hours, when you sign out, or when the token is revoked. An administrator makes tokens:</span>
              <Command line="ff token create my-name --role operator" />
            </div>
          </form>
        </div>
      </section>
    </main>
  );
}
