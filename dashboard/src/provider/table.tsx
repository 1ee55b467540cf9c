// Providers: what services outside allow, what of that is in effect, and who waits in line.

import { answer, api } from "../api/client";
import { count, many, span } from "../format";
import { POLL_MS, now } from "../live";
import { More, usePages } from "../pages";
import { namespace } from "../router";
import { may } from "../session";
import { Card, Countdown, Empty, Meter, Refusal, State, When } from "../ui/basics";
import { ActButtons } from "../ui/dialog";
import { Table } from "../ui/table";
import { providerActs } from "./acts";
import type { Provider } from "./acts";

/** Providers that a page brings. */
const PAGE = 200;

/** Asks for the providers, and again while somebody looks. */
export function useProviders() {
  const ns = namespace();
  return usePages(
    `providers ${ns ?? ""}`,
    (cursor, signal) => answer(api.GET("/v1/providers", { params: { query: { namespace: ns, limit: PAGE, cursor } }, ...(signal ? { signal } : {}) })),
    (provider) => provider.name,
    POLL_MS,
  );
}

export function ProviderCard({ providers }: { providers: ReturnType<typeof useProviders> }) {
  return (
    <>
      {providers.error !== undefined && <Refusal error={providers.error} />}
      <Card title={providers.items && !providers.more ? many(providers.items.length, "provider") : "Providers"} flush>
        <Table
          label="Providers"
          items={providers.items}
          keyOf={(provider) => provider.name}
          empty={
            <Empty title="There is no provider yet" command="ff provider create model-api --requests 60 --tokens 90000 --concurrent 8">
              A provider is a service with limits of its own. Calls to it take turns, and when it says that it is too much, everybody slows down at once.
            </Empty>
          }
          columns={[
            { name: "Provider", cell: (provider) => provider.name },
            { name: "Lets through", cell: (provider) => <Gate provider={provider} /> },
            { name: "Requests", cell: (provider) => <Rate what="requests" used={provider.requests_in_window} effective={provider.effective.requests} allowed={provider.definition.max_requests} provider={provider} /> },
            { name: "Tokens", cell: (provider) => <Rate what="tokens" used={provider.tokens_in_window} effective={provider.effective.tokens} allowed={provider.definition.max_tokens} provider={provider} /> },
            { name: "At once", cell: (provider) => <Rate what="at once" used={provider.in_use} effective={provider.effective.concurrent} allowed={provider.definition.max_concurrent} provider={provider} /> },
            { name: "In line", cell: (provider) => <Line provider={provider} /> },
            { name: "Calls so far", num: true, minor: true, cell: (provider) => count(provider.granted) },
            { name: "Actions", when: may("operator"), cell: (provider) => <ActButtons label={`Actions on ${provider.name}`} acts={providerActs(provider)} done={providers.refresh} /> },
          ]}
        />
        <More pages={providers} />
      </Card>
    </>
  );
}

/** Whether calls are let through, and what it last said. */
function Gate({ provider }: { provider: Provider }) {
  const closed = provider.closed_until && provider.closed_until > now.value;
  return (
    <>
      {closed ? (
        <span class="nowrap">
          <State state="bad" word="closed" /> <Countdown to={provider.closed_until ?? 0} word="for" />
        </span>
      ) : (
        <State state="ok" word="open" />
      )}
      {provider.throttled > 0 && (
        <div class="small muted">
          said {provider.throttled === 1 ? "once" : `${count(provider.throttled)} times`} that it was too much, last <When at={provider.throttled_at} />
        </div>
      )}
    </>
  );
}

interface RateProps {
  what: string;
  used: number;
  effective: number;
  allowed: number | undefined;
  provider: Provider;
}

/** How much of the limit in effect is used; where that is lowered, what it is otherwise. */
function Rate({ what, used, effective, allowed, provider }: RateProps) {
  if (!allowed) return <span class="muted">no limit</span>;
  const window = what === "at once" ? "" : ` in ${span(provider.definition.window_ms ?? 0)}`;
  return (
    <>
      {count(used)} of {count(effective)}
      {window}
      <Meter value={used} max={effective} label={`${provider.name} ${what}`} />
      {effective < allowed && <div class="small muted">lowered from {count(allowed)}</div>}
    </>
  );
}

/** Calls that have a place in the line. */
function Line({ provider }: { provider: Provider }) {
  if (provider.booked === 0) return <span class="muted">nobody</span>;
  return (
    <>
      {count(provider.booked)}
      {provider.booked_until && (
        <div class="small muted">
          the last one <Countdown to={provider.booked_until} />
        </div>
      )}
    </>
  );
}
