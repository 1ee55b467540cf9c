/** A task as a tool of agents: what it takes and gives, as JSON schemas. */
import type { Schemas } from "./client.js";
import { present, type StandardSchema } from "./schema.js";
import type { AnyTask } from "./task.js";

type JsonSchema = Record<string, unknown>;

/** What a worker says about a tool. A schema that is not given comes from the task, where its library can write it as JSON. */
export interface ToolOptions {
  /** For the model that decides whether to call it. */
  description: string;
  title?: string;
  inputSchema?: JsonSchema;
  outputSchema?: JsonSchema;
  /** Where calls are submitted; the task's own lane when absent. */
  lane?: string;
  /** Calling it again with the same input changes nothing more. */
  repeatable?: boolean;
  /** It changes nothing. */
  readOnly?: boolean;
  /** It may destroy something; when absent, unless it is read only. */
  destructive?: boolean;
  /** Whether a call is a task of the protocol; `optional` when absent. */
  tasks?: Schemas["TaskSupport"];
}

/** A task as a tool of agents, for the option `tools` of a worker. */
export function tool(task: AnyTask, options: ToolOptions): Schemas["ToolDefinition"] {
  const input_schema = options.inputSchema ?? jsonSchema(task.input, "input");
  if (input_schema === undefined) throw new TypeError(`the tool ${JSON.stringify(task.kind)} needs an inputSchema`);
  const output_schema = options.outputSchema ?? jsonSchema(task.output, "output");
  const { description, title, repeatable, destructive, tasks, readOnly: read_only, lane = task.lane } = options;
  const said = present({ output_schema, title, lane, repeatable, read_only, destructive, tasks });
  return { kind: task.kind, description, input_schema, ...said };
}

/** The JSON schema that a library writes of its own schema, by the Standard JSON Schema interface. */
function jsonSchema(schema: StandardSchema | undefined, side: "input" | "output"): JsonSchema | undefined {
  return schema?.["~standard"].jsonSchema?.[side]({ target: "draft-2020-12" });
}
