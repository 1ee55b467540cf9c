// What a budget holds for executions that are about to spend it.

import { answer, api } from "../api/client";
import { count, quote } from "../format";
import { useAsk } from "../live";
import { link } from "../router";
import { Countdown, Empty, Refusal, When } from "../ui/basics";
import { Table } from "../ui/table";

interface Of {
  namespace: string;
  name: string;
  /** Asked again when the budget has changed. */
  version: number;
}

/** The reservations of a budget. */
export function Reservations({ namespace, name, version }: Of) {
  const held = useAsk(`reservations ${namespace}/${name} ${version}`, (signal) =>
    answer(api.GET("/v1/budgets/{name}/reservations", { params: { path: { name }, query: { namespace, limit: 100 } }, signal })),
  );
  if (held.error.value !== undefined) return <Refusal error={held.error.value} />;
  return (
    <Table
      label={`Reservations of ${name}`}
      items={held.data.value?.items}
      empty={
        <Empty title="Nothing is held" command={`ff budget reservations ${quote(name)}`}>
          A task that reserves before it spends shows up here until it settles or releases.
        </Empty>
      }
      columns={[
        { name: "Execution", cell: (one) => <a href={link(["executions", one.execution_id])}>…{one.execution_id.slice(-12)}</a> },
        { name: "Key", cell: (one) => <code>{one.key}</code> },
        { name: "Held", cell: (one) => Object.entries(one.amounts).map(([dimension, amount]) => `${count(amount)} ${dimension}`).join(", ") },
        { name: "Since", cell: (one) => <When at={one.reserved_at} /> },
        { name: "Counts as spent", cell: (one) => <Countdown to={one.expires_at} /> },
      ]}
    />
  );
}
