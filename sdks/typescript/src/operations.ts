/** The operations of the API by their generated types: what each takes and answers, by its method and route; and which of them are in a namespace. */
import type { paths } from "./wire.js";

export type Method = "GET" | "POST" | "PUT" | "DELETE";

/** The routes that take a method. */
export type Route<M extends Method> = { [R in keyof paths]: paths[R] extends Record<Lowercase<M>, object> ? R : never }[keyof paths];

type Operation<M extends Method, R extends keyof paths> = paths[R][Lowercase<M>];
type Fields<T> = [NonNullable<T>] extends [never] ? unknown : NonNullable<T>;
type Parameters<O> = O extends { parameters: { path?: infer P; query?: infer Q } } ? Fields<P> & Fields<Q> : unknown;
type Body<O> = O extends { requestBody?: { content: { "application/json": infer B } } } ? B : unknown;
type Json<O, Status extends number> = O extends { responses: Record<Status, { content: { "application/json": infer A } }> } ? A : never;

/** The arguments of an operation: the parts of its route, its query and its body, side by side. */
export type Args<M extends Method, R extends Route<M>> = Parameters<Operation<M, R>> & Body<Operation<M, R>>;
/** They may be left out where none of them is needed. */
export type ArgsGiven<M extends Method, R extends Route<M>> = object extends Args<M, R> ? [args?: Args<M, R>] : [args: Args<M, R>];
export type Answer<M extends Method, R extends Route<M>> = Json<Operation<M, R>, 200> | Json<Operation<M, R>, 201> | Json<Operation<M, R>, 202>;
/** An item of a list. */
export type Item<R extends Route<"GET">> = Answer<"GET", R> extends { items: (infer T)[] } ? T : never;

/** Operations that take a namespace. */
const NAMESPACED =
  /^\w+ \/v1\/(approvals|budgets|counts|events|lanes|providers|quotas|schedules|subscriptions|tools|workers)(\/|$)|^\w+ \/v1\/(admin\/audit|bulk|executions|flows|hooks)$|^(GET|DELETE) \/v1\/hooks\/|^POST \/v1\/admin\/tokens$/;

/** Arguments in the namespace of a client, unless they name another one. A child is where its parent is. */
export function inNamespace(scope: { namespace?: string }, operation: string, args: Record<string, unknown>): Record<string, unknown> {
  const scoped = (one: object) => ("parent" in one ? { ...one } : { ...scope, ...one });
  const { executions } = args;
  return { ...(NAMESPACED.test(operation) ? scoped(args) : args), ...(Array.isArray(executions) && { executions: executions.map(scoped) }) };
}
