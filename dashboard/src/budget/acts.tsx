// The acts of an operator on a budget.

import { answer, api } from "../api/client";
import type { Schemas } from "../api/client";
import { quote } from "../format";
import type { Act, Values } from "../ui/dialog";

type Budget = Schemas["BudgetStatus"];

/** Choices of how a budget acts, as the API names them. */
const ENFORCEMENTS = ["enforce", "observe"] as const;
const HARD_ACTIONS = ["block", "fail", "suspend", "ask"] as const;
const SOFT_ACTIONS = ["warn", "none"] as const;

const SECOND_MS = 1_000;

function limitOptions(dimension: string, values: Values): string {
  return ["hard", "soft"].map((kind) => ` --${kind} ${quote(`${dimension}=${Number(values[`${kind} ${dimension}`])}`)}`).join("");
}

function limitsOf(budget: Budget): Act {
  const dimensions = Object.entries(budget.definition.dimensions ?? {});
  return {
    name: "Limits",
    effect: "The limits are replaced. A raised limit releases what was blocked by it. 0 means no limit.",
    command: (values) => `ff budget limits ${quote(budget.name)}${dimensions.map(([dimension]) => limitOptions(dimension, values)).join("")}`,
    fields: dimensions.flatMap(([dimension, limits]) => [
      { name: `hard ${dimension}`, label: `Hard limit of ${dimension}`, type: "number" as const, value: String(limits.hard ?? 0) },
      { name: `soft ${dimension}`, label: `Soft limit of ${dimension}`, type: "number" as const, value: String(limits.soft ?? 0) },
    ]),
    run: async (values) => {
      const next = Object.fromEntries(dimensions.map(([dimension]) => [dimension, { hard: Number(values[`hard ${dimension}`]), soft: Number(values[`soft ${dimension}`]) }]));
      await answer(api.PUT("/v1/budgets/{name}/limits", { params: { path: { name: budget.name } }, body: { namespace: budget.namespace, dimensions: next } }));
      return `The limits of ${budget.name} are changed.`;
    },
  };
}

function rulesOf(budget: Budget): Act {
  const { enforcement = "enforce", on_hard: onHard = "block", on_soft: onSoft = "warn", reset_interval_ms: reset = 0 } = budget.definition;
  return {
    name: "Rules",
    effect: "What happens at its limits, and how often it begins anew. Another span counts from now. The limits stay as they are.",
    command: (values) => {
      const span = Number(values["reset"]) * SECOND_MS === reset ? "" : ` --reset ${Number(values["reset"])}s`;
      return `ff budget update ${quote(budget.name)} --enforcement ${values["enforcement"]} --on-hard ${values["on_hard"]} --on-soft ${values["on_soft"]}${span}`;
    },
    fields: [
      { name: "enforcement", label: "Limits bind (enforce), or are only counted (observe)", type: "select", options: [...ENFORCEMENTS], value: enforcement },
      { name: "on_hard", label: "At a hard limit", type: "select", options: [...HARD_ACTIONS], value: onHard },
      { name: "on_soft", label: "Past a soft limit", type: "select", options: [...SOFT_ACTIONS], value: onSoft },
      { name: "reset", label: "Begins anew every so many seconds (0: never)", type: "number", value: String(Math.round(reset / SECOND_MS)) },
    ],
    run: async (values) => {
      const wanted = Number(values["reset"]) * SECOND_MS;
      const body = {
        namespace: budget.namespace,
        enforcement: values["enforcement"] as (typeof ENFORCEMENTS)[number],
        on_hard: values["on_hard"] as (typeof HARD_ACTIONS)[number],
        on_soft: values["on_soft"] as (typeof SOFT_ACTIONS)[number],
        // The same span again would still begin a window anew from now.
        ...(wanted === reset ? {} : { reset_interval_ms: wanted }),
      };
      await answer(api.PUT("/v1/budgets/{name}", { params: { path: { name: budget.name } }, body }));
      return `${budget.name} is changed.`;
    },
  };
}

function resetOf(budget: Budget): Act {
  return {
    name: "Reset",
    effect: "What was used counts as nothing from now on, and what was blocked is released.",
    command: `ff budget reset ${quote(budget.name)}`,
    danger: true,
    run: async () => {
      await answer(api.POST("/v1/budgets/{name}/reset", { params: { path: { name: budget.name } }, body: { namespace: budget.namespace } }));
      return `${budget.name} begins anew.`;
    },
  };
}

/** `gone` is called when the budget is no more. */
function removalOf(budget: Budget, gone: () => void): Act {
  return {
    name: "Delete",
    effect: "The budget goes, with what was counted. What is charged to it afterwards waits until a budget of this name exists again.",
    command: `ff budget rm ${quote(budget.name)}`,
    danger: true,
    forced: "If you delete it all the same, executions that are charged to it wait until a budget of this name exists again.",
    run: async (_, force) => {
      const query = { namespace: budget.namespace, ...(force ? { force } : {}) };
      await answer(api.DELETE("/v1/budgets/{name}", { params: { path: { name: budget.name }, query } }));
      gone();
      return `${budget.name} is deleted.`;
    },
  };
}

export function budgetActs(budget: Budget, gone: () => void): Act[] {
  return [limitsOf(budget), rulesOf(budget), resetOf(budget), removalOf(budget, gone)];
}
