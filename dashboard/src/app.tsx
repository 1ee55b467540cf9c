// The frame around every screen: where to go, the search, the keys, who we are.

import { signal, useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { api, answer, tokenWanted } from "./api/client";
import { attended, live, setClock, useAsk, useEvents } from "./live";
import { link, path, query } from "./router";
import { approverOnly, session, signOut } from "./session";
import { theme, toggleTheme } from "./theme";
import { Icon } from "./ui/basics";
import { Modal, Notes, Proposals } from "./ui/dialog";
import { useKeys } from "./keys";
import { Search } from "./search";
import { openApprovals } from "./approvals";
import { Approvals } from "./screens/approvals";
import { Budget } from "./screens/budget";
import { Budgets } from "./screens/budgets";
import { Executions } from "./screens/executions";
import { Execution } from "./screens/execution";
import { Flow } from "./screens/flow";
import { Flows } from "./screens/flows";
import { JobScreen } from "./screens/job";
import { Jobs } from "./screens/jobs";
import { Lanes } from "./screens/lanes";
import { Login } from "./screens/login";
import { Overview } from "./screens/overview";
import { Schedule } from "./screens/schedule";
import { Schedules } from "./screens/schedules";
import { Subscription } from "./screens/subscription";
import { System } from "./screens/system";
import { Waitpoint } from "./screens/waitpoint";
import { Webhooks } from "./screens/webhooks";
import { Workers } from "./screens/workers";

const SCREENS = [
  { path: "", name: "Overview", icon: "overview", key: "o" },
  { path: "executions", name: "Executions", icon: "executions", key: "e" },
  { path: "flows", name: "Flows", icon: "flows", key: "f" },
  { path: "approvals", name: "Approvals", icon: "approvals", key: "a" },
  { path: "lanes", name: "Lanes", icon: "lanes", key: "l" },
  { path: "workers", name: "Workers", icon: "workers", key: "w" },
  { path: "budgets", name: "Budgets and quotas", icon: "budgets", key: "b" },
  { path: "schedules", name: "Schedules", icon: "schedules", key: "c" },
  { path: "bulk", name: "Bulk jobs", icon: "bulk", key: "u" },
  { path: "webhooks", name: "Webhooks", icon: "webhooks", key: "h" },
  { path: "system", name: "System", icon: "system", key: "s" },
] as const;

export function App() {
  const [first, second, third] = path.value;
  // A link to a waitpoint is for people without an account: it needs no session.
  if (first === "waitpoints") return <Waitpoint execution={second ?? ""} waitpoint={third ?? ""} />;
  if (tokenWanted.value) return <Login />;
  if (!session.value) return null;
  return <Frame />;
}

function Frame() {
  const [first = "", second] = path.value;
  const keysShown = useSignal(false);
  const main = useRef<HTMLElement>(null);
  const screens = approverOnly.value ? SCREENS.filter((screen) => screen.path === "approvals") : SCREENS;
  useKeys(screens, () => (keysShown.value = true));
  // Every screen is live: the stream is there before the first one asks for it.
  useEvents(() => {}, !approverOnly.value);
  const deployment = useAsk("deployment", async (signal) => (approverOnly.value ? undefined : await answer(api.GET("/v1/deployment", { signal }))));
  const told = deployment.data.value?.now;
  const version = deployment.data.value && `${deployment.data.value.version} on ${deployment.data.value.store}`;
  useEffect(() => {
    if (told !== undefined) setClock(told);
  }, [told]);
  const here = approverOnly.value ? "approvals" : first;
  const name = SCREENS.find((screen) => screen.path === here)?.name ?? "Not found";
  useEffect(() => {
    document.title = second ? `${second} · FlowFabric` : `${name} · FlowFabric`;
    // In a narrow window the list of screens is one line that is wider than the window.
    document.querySelector(".nav [aria-current=page]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [name, second]);
  return (
    <div class="frame">
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), main.current?.focus())}>
        Skip to the content
      </a>
      <aside class="side" aria-label="FlowFabric">
        <a class="brand" href={link([])} aria-label="FlowFabric, overview">
          <img src="/favicon.svg" alt="" />
          <span>FlowFabric</span>
        </a>
        <nav class="nav" aria-label="Screens">
          {screens.map((screen) => (
            <a href={link(screen.path ? [screen.path] : [])} aria-current={screen.path === here ? "page" : undefined}>
              <Icon name={screen.icon} />
              {screen.name}
              {screen.path === "approvals" && (openApprovals.value ?? 0) > 0 && (
                <span class="badge">
                  {openApprovals.value}
                  <span class="sr"> open</span>
                </span>
              )}
            </a>
          ))}
        </nav>
        <div class="side-foot">
          {version && <span>{version}</span>}
          <span class="row">
            <ApiLink />
            <button type="button" class="button quiet small" onClick={() => (keysShown.value = true)}>
              Keys <kbd>?</kbd>
            </button>
          </span>
        </div>
      </aside>
      <div>
        <header class="top">
          {!approverOnly.value && <Search />}
          <div class="top-right">
            {!approverOnly.value && !narrow.value && <Namespace />}
            {!approverOnly.value && <Live />}
            <button type="button" class="icon" onClick={toggleTheme} aria-label={theme.value === "dark" ? "Use the light theme" : "Use the dark theme"}>
              <Icon name={theme.value === "dark" ? "sun" : "moon"} />
            </button>
            {session.value?.tokens_required && (
              <>
                {!narrow.value && <Caller />}
                <button type="button" class="button small" onClick={() => void signOut()}>
                  Sign out
                </button>
              </>
            )}
            {narrow.value && <Menu version={version} showKeys={() => (keysShown.value = true)} />}
          </div>
        </header>
        <main id="main" ref={main} tabIndex={-1}>
          <Screen first={here} second={second} />
        </main>
      </div>
      {keysShown.value && <Keys onClose={() => (keysShown.value = false)} />}
      <Proposals />
      <Notes />
    </div>
  );
}

/** Where the side is a line on top of the page, what stood at its foot has a menu; the stylesheet has the same width. */
const narrowMedia = window.matchMedia("(max-width: 900px)");
const narrow = signal(narrowMedia.matches);
narrowMedia.addEventListener("change", (event) => (narrow.value = event.matches));

/** What a narrow page has no room for beside its search. */
function Menu({ version, showKeys }: { version: string | undefined; showKeys: () => void }) {
  const element = useRef<HTMLDetailsElement>(null);
  const close = () => element.current?.removeAttribute("open");
  return (
    <details class="menu" ref={element} onKeyDown={(event) => event.key === "Escape" && close()}>
      <summary class="button small">Menu</summary>
      <div>
        {!approverOnly.value && <Namespace />}
        {session.value?.tokens_required && <Caller />}
        {version && <span class="small muted">{version}</span>}
        <hr />
        <ApiLink />
        <button type="button" class="button quiet small" onClick={() => (close(), showKeys())}>
          Keys
        </button>
      </div>
    </details>
  );
}

function ApiLink() {
  return (
    <a href="/openapi.json" target="_blank" rel="noopener">
      API
    </a>
  );
}

/** On whose behalf the page acts. */
function Caller() {
  return (
    <span class="small muted" title={`role ${session.value?.role}`}>
      {session.value?.name} ({session.value?.role})
    </span>
  );
}

/** Whether what is shown follows what happens. */
function Live() {
  const [word, meaning] = !live.value
    ? ["connecting", "No events arrive at present. The page tries again by itself."]
    : attended.value
      ? ["live", "What is shown follows what happens."]
      : ["resting", "Nobody was here for a minute: what only the clock would tell is asked when somebody comes back."];
  return (
    <span class="live" data-on={word === "live"} title={meaning}>
      <i aria-hidden="true" />
      {word}
    </span>
  );
}

function Screen({ first, second }: { first: string; second: string | undefined }) {
  switch (first) {
    case "":
      return <Overview />;
    case "executions":
      return second ? <Execution key={second} id={second} /> : <Executions />;
    case "flows":
      return second ? <Flow key={second} id={second} /> : <Flows />;
    case "approvals":
      return <Approvals />;
    case "lanes":
      return <Lanes />;
    case "workers":
      return <Workers />;
    case "budgets":
      return second ? <Budget key={second} name={second} /> : <Budgets />;
    case "schedules":
      return second ? <Schedule key={second} name={second} /> : <Schedules />;
    case "bulk":
      return second ? <JobScreen key={second} id={second} /> : <Jobs />;
    case "webhooks":
      return second ? <Subscription key={second} name={second} /> : <Webhooks />;
    case "system":
      return <System tab={second ?? "events"} />;
    default:
      return (
        <div class="empty">
          <h1>There is no such screen</h1>
          <a href="/">Back to the overview</a>
        </div>
      );
  }
}

/** The namespace that is shown; a token that reaches one shows that. */
function Namespace() {
  const own = session.value?.namespace;
  const known = useAsk("namespaces", (signal) => answer(api.GET("/v1/namespaces", { params: { query: { limit: 200 } }, signal })));
  if (own) return <span class="tag" title="The one namespace this token reaches">{own}</span>;
  const choose = (event: Event) => {
    const value = (event.target as HTMLInputElement).value.trim();
    const next = new URL(window.location.href);
    next.search = "";
    if (value && value !== "default") next.searchParams.set("ns", value);
    window.location.assign(next.pathname + next.search);
  };
  return (
    <label class="row tight small muted">
      Namespace
      <input class="field" size={10} list="namespaces" defaultValue={query.value.get("ns") ?? "default"} onFocus={known.refresh} onChange={choose} />
      <datalist id="namespaces">
        {known.data.value?.items.map((one) => <option value={one.name} />)}
      </datalist>
    </label>
  );
}

function Keys({ onClose }: { onClose: () => void }) {
  const rows: [string, string][] = [
    ["/", "search by id or tag"],
    ["?", "this list"],
    ["g then o, e, f, a, l, w, b, c, u, h, s", "go to a screen"],
    ["j, k", "next and previous row or question"],
    ["Enter", "open the row"],
    ["x", "choose the row"],
    ["← →", "the tab before and after"],
    ["y, n", "approve or reject the question, with a look before it is sent"],
    ["t", "the other theme"],
    ["Esc", "close a window"],
  ];
  return (
    <Modal title="Keys" onClose={onClose}>
      <form method="dialog" onSubmit={onClose}>
        <h2>Keys</h2>
        <dl class="facts">
          {rows.map(([keys, what]) => (
            <>
              <dt>
                <kbd>{keys}</kbd>
              </dt>
              <dd>{what}</dd>
            </>
          ))}
        </dl>
        <div class="row end">
          <button type="submit" class="button primary">
            Close
          </button>
        </div>
      </form>
    </Modal>
  );
}
