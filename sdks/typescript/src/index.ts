/** FlowFabric for TypeScript: durable tasks that survive crashes, and the client that submits them. */
export { type ApprovalView, type BudgetStatus, Client, type Difference, Execution, type ExecutionSummary, type ExecutionView, type EventView, type Explanation, type Page, type Step, type SubmitOptions } from "./client.js";
export { Context, type SignalOptions, type Spent, StepFailure, type StepOptions } from "./context.js";
export { BudgetExceeded, BudgetRefused, ExecutionFailedError, FlowFabricError, NotDone, type Problem, TaskError, type TaskErrorOptions, Throttled, UnreachableError } from "./errors.js";
export { type Flow, FlowBuilder, type NodeOptions } from "./flow.js";
export { Connection, type ConnectOptions } from "./http.js";
export type { Answer, Args, Item, Method, Route } from "./operations.js";
export { schedule, type Template, type When } from "./schedule.js";
export { SchemaError, type StandardSchema } from "./schema.js";
export type { StreamEvent } from "./stream.js";
export { type AnyTask, task, type TaskDefinition, type TaskOptions } from "./task.js";
export type { Span } from "./time.js";
export { tool, type ToolOptions } from "./tool.js";
export { Worker, type WorkerOptions } from "./worker.js";
export type { components, paths } from "./wire.js";
