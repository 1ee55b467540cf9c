/** A graph of executions, created in one call. */
import { submission, type Schemas, type SubmitOptions } from "./client.js";
import type { Connection } from "./http.js";
import { present } from "./schema.js";
import type { TaskDefinition } from "./task.js";

export interface NodeOptions extends SubmitOptions {
  /** The nodes that must end first. */
  after?: readonly string[];
  /** How many of them must succeed: all (the default), any one, or so many. */
  join?: "all" | "any" | { quorum: number };
}

/** Nodes and edges in the making. */
export class FlowBuilder {
  readonly #nodes: Schemas["NodeRequest"][] = [];
  readonly #edges: Schemas["GraphEdge"][] = [];

  constructor(
    private readonly connection: Connection,
    private readonly options: { kind?: string; tags?: Record<string, string>; idempotencyKey?: string },
  ) {}

  /** Adds a node. Its name is how edges and the result speak of it. */
  node<I, O>(name: string, task: string | TaskDefinition<I, O>, input?: I, options: NodeOptions = {}): this {
    const request = submission(task, input, options, undefined);
    this.#nodes.push({ name, request, join: joinOf(options.join) } as Schemas["NodeRequest"]);
    for (const from of options.after ?? []) this.#edges.push({ from, to: name });
    return this;
  }

  /** Creates the flow with everything in it. */
  async create(): Promise<Flow> {
    const body = { ...this.body(), ...this.connection.scope };
    const options = { body, idempotencyKey: this.options.idempotencyKey };
    const created = await this.connection.call<Schemas["CreateFlowOutcome"]>("POST", "/v1/flows", options);
    return { id: created.flow_id, executions: created.executions };
  }

  /** The graph as the wire has it. */
  body(): Record<string, unknown> {
    const { kind, tags } = this.options;
    return present({ nodes: this.#nodes, edges: this.#edges, kind, tags });
  }
}

/** A flow that was created, and the execution of each node, by the node's name. */
export interface Flow {
  id: string;
  executions: Record<string, string>;
}

function joinOf(join: NodeOptions["join"]): Schemas["JoinPolicy"] | undefined {
  if (join === undefined) return undefined;
  if (join === "all") return "all_of";
  if (join === "any") return { any_of: {} };
  return { quorum: { k: join.quorum } };
}
