// The acts of an operator on an execution. Each act says what it will do, shows the same as a command, and is audited.

import { answer, api } from "../api/client";
import type { Schemas } from "../api/client";
import { option, parseJson, parseTags, quote } from "../format";
import { go, link } from "../router";
import { may } from "../session";
import { ActButtons } from "../ui/dialog";
import type { Act, Field, Values } from "../ui/dialog";
import type { View } from "../screens/execution";
import { ENDED } from "../states";

const REASON: Field = { name: "reason", label: "Reason, for the audit log", optional: true };

function reason(values: Values): { reason?: string } {
  return values["reason"] ? { reason: values["reason"] } : {};
}

/** The lease that is shown, and no later one. */
function leaseToRevoke(execution: View, values: Values) {
  const lease = execution.lease?.lease_id;
  return { ...reason(values), ...(lease ? { expected_lease_id: lease } : {}) };
}

/** An operation as a command that calls it by name. */
function byName(operation: string, args: unknown): string {
  return `ff call ${operation} ${quote(JSON.stringify(args))}`;
}

/** The acts that make sense in the state it is in. */
function actsOf(execution: View): Act[] {
  const id = execution.execution_id;
  const params = { path: { execution_id: id } };
  const ended = ENDED.has(execution.public_state);
  const held = (execution.held_by ?? []).includes("blocked_by_operator");
  const acts: Act[] = [];
  if (execution.public_state === "suspended" && execution.suspension?.allow_operator_resume) {
    acts.push({
      name: "Resume",
      effect: "The suspension ends without a signal: the same attempt goes on as soon as a worker takes it, and finds no signals.",
      command: (values) => `ff resume ${id}${option("reason", values["reason"])}`,
      fields: [REASON],
      run: async (values) => {
        const done = await answer(api.POST("/v1/executions/{execution_id}/resume", { params, body: reason(values) }));
        return `Resumed; it is ${done.public_state} now.`;
      },
    });
  }
  if (!ended) {
    acts.push(
      held
        ? {
            name: "Release",
            effect: "The hold ends, and it can be claimed again if nothing else keeps it.",
            command: `ff release ${id}`,
            run: async () => {
              await answer(api.POST("/v1/executions/{execution_id}/release", { params, body: {} }));
              return "Released.";
            },
          }
        : {
            name: "Hold",
            effect: "No worker gets it until it is released. A worker that holds it now goes on.",
            command: (values) => `ff hold ${id}${option("reason", values["reason"])}`,
            fields: [REASON],
            run: async (values) => {
              await answer(api.POST("/v1/executions/{execution_id}/hold", { params, body: reason(values) }));
              return "Held.";
            },
          },
      {
        name: "Priority",
        effect: "Work of a higher priority is handed out first. Only its place in the queue changes.",
        command: (values) => `ff priority ${Number(values["priority"])} ${id}`,
        fields: [{ name: "priority", label: "Priority, 0 to 9000", type: "number", value: String(execution.priority) }],
        run: async (values) => {
          const done = await answer(api.PUT("/v1/executions/{execution_id}/priority", { params, body: { priority: Number(values["priority"]) } }));
          return `Its priority is ${done.priority} now.`;
        },
      },
    );
  }
  if (execution.public_state === "active") {
    acts.push({
      name: "Revoke lease",
      effect: `The lease of ${execution.lease?.worker_id ?? "its worker"} ends at once. Another worker takes it as a reclaim; what the present one still writes is refused.`,
      command: (values) => byName("revoke_lease", { execution_id: id, ...leaseToRevoke(execution, values) }),
      danger: true,
      fields: [REASON],
      run: async (values) => {
        const done = await answer(api.POST("/v1/executions/{execution_id}/revoke-lease", { params, body: leaseToRevoke(execution, values) }));
        return done.outcome === "revoked" ? "The lease is revoked." : "There was no such lease any more.";
      },
    });
  }
  if (ended) {
    acts.push({
      name: "Replay",
      effect: "It runs once more, as a new attempt with the same input. Its result stays until the new one replaces it.",
      command: `ff replay ${id}`,
      run: async () => {
        const done = await answer(api.POST("/v1/executions/{execution_id}/replay", { params, body: {} }));
        return `Replayed as attempt ${done.attempt}.`;
      },
    });
  }
  acts.push(forkOf(id), tagsOf(execution));
  if (execution.pinned_build && !ended) acts.push(repinOf(execution, execution.pinned_build));
  // A member of a flow goes with its flow.
  if (ended && !execution.flow_id) acts.push(removalOf(id));
  if (!ended) {
    acts.push({
      name: "Cancel",
      effect: "It ends as cancelled. A worker that holds it loses its lease at once and learns of it at its next call.",
      command: (values) => `ff cancel ${id}${option("reason", values["reason"])}`,
      danger: true,
      fields: [REASON],
      run: async (values) => {
        const done = await answer(api.POST("/v1/executions/{execution_id}/cancel", { params, body: reason(values) }));
        return done.outcome === "cancelled" ? "Cancelled." : "It had ended before.";
      },
    });
  }
  return acts;
}

/** The tags that a person wrote, and those that were there and are gone. One without a value is gone, too, as in `ff tag`. */
function tagChanges(before: Record<string, string>, values: Values): { set: Record<string, string>; gone: string[] } {
  const written = Object.entries(parseTags(values["tags"] ?? ""));
  const set = Object.fromEntries(written.filter(([, value]) => value !== ""));
  return { set, gone: Object.keys(before).filter((key) => !Object.hasOwn(set, key)) };
}

/** Other tags, one in a line. */
function tagsOf(execution: View): Act {
  const id = execution.execution_id;
  const params = { path: { execution_id: id } };
  const before = execution.tags ?? {};
  const lines = Object.entries(before).map(([key, value]) => `${key}=${value}`);
  return {
    name: "Tags",
    effect: "It gets the tags below, and loses those whose line you take away. Lists find it by each of them.",
    command: (values) => {
      const { set, gone } = tagChanges(before, values);
      const changes = [...Object.entries(set).map(([key, value]) => `${key}=${value}`), ...gone.map((key) => `${key}=`)];
      return changes.length > 0 ? `ff tag ${id} ${changes.map(quote).join(" ")}` : undefined;
    },
    fields: [{ name: "tags", label: "Tags, as key=value, one in a line", type: "textarea", value: lines.join("\n"), optional: true }],
    run: async (values) => {
      const { set, gone } = tagChanges(before, values);
      // A tag that somebody else gave it meanwhile stays.
      const tags = { ...(await answer(api.GET("/v1/executions/{execution_id}", { params }))).tags };
      for (const key of gone) delete tags[key];
      await answer(api.PUT("/v1/executions/{execution_id}/tags", { params, body: { tags: { ...tags, ...set } } }));
      return "The tags are changed.";
    },
  };
}

function repinOf(execution: View, build: string): Act {
  const id = execution.execution_id;
  return {
    name: "Repin",
    effect: `Only workers of build ${build} take it now. From now on those of another build do; without one, the next worker that takes it decides.`,
    command: (values) => byName("repin_build", { execution_id: id, ...(values["build"] ? { build_id: values["build"] } : {}) }),
    fields: [{ name: "build", label: "Build (any if empty)", optional: true }],
    run: async (values) => {
      const done = await answer(api.POST("/v1/executions/{execution_id}/repin", { params: { path: { execution_id: id } }, body: { build_id: values["build"] || null } }));
      return done.build_id ? `It runs only on build ${done.build_id} now.` : "Any build may take it now.";
    },
  };
}

function removalOf(id: string): Act {
  return {
    name: "Remove",
    effect: "It is gone for good, with its input, result, steps, stream and events.",
    command: `ff rm ${id}`,
    danger: true,
    run: async () => {
      await answer(api.DELETE("/v1/executions/{execution_id}", { params: { path: { execution_id: id } } }));
      go(link(["executions"]));
      return "Removed.";
    },
  };
}

/** The input of a fork as a word of a command. */
function inputOf(values: Values): string {
  const input = values["input"]?.trim();
  return input ? ` ${quote(JSON.stringify(parseJson(input, "The input")))}` : "";
}

/** A fork with everything the execution has done so far, or with what it did before a step. */
export function forkOf(id: string, before?: Schemas["StepIdentity"]): Act {
  const key = before?.key ? ` --key ${quote(before.key)}` : before?.occurrence ? ` --occurrence ${before.occurrence}` : "";
  return {
    name: before ? `Fork before ${before.name}` : "Fork",
    effect: before
      ? "A new execution begins with what was done before this step, and goes on from there. This one stays as it is."
      : "A new execution begins with all the steps that this one has done so far. To keep only some of them, fork from the list of steps. This one stays as it is.",
    command: (values) => `ff fork ${id}${inputOf(values)}${before ? ` --before ${quote(before.name)}${key}` : ""}`,
    fields: [{ name: "input", label: "Another input, as JSON (the same if empty)", type: "textarea", optional: true }],
    run: async (values) => {
      const body = { ...(before ? { before_step: before } : {}), ...(values["input"] ? { input: parseJson(values["input"], "The input") } : {}) };
      const done = await answer(api.POST("/v1/executions/{execution_id}/fork", { params: { path: { execution_id: id } }, body: body as never }));
      go(link(["executions", done.execution_id]));
      return "Forked. This is the new one.";
    },
  };
}

export function Actions({ execution, done }: { execution: View; done: () => void }) {
  return may("operator") ? <ActButtons label="Actions" acts={actsOf(execution)} done={done} /> : null;
}
