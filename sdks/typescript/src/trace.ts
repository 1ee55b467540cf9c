/**
 * The submitter's trace, where the program has OpenTelemetry. Its API registers itself in the process under a name of its
 * own, so that this package finds it without a dependency.
 */

/** The part of a registered API that is needed: where the program is, and how that is written into a header. */
interface Registered {
  context?: { active(): unknown; with<T>(context: unknown, body: () => T): T };
  propagation?: {
    inject(context: unknown, carrier: Carrier, setter: { set(carrier: Carrier, name: string, value: string): void }): void;
    extract(context: unknown, carrier: Carrier, getter: { get(carrier: Carrier, name: string): string | undefined; keys(carrier: Carrier): string[] }): unknown;
  };
}
type Carrier = Record<string, string>;

const REGISTERED = Symbol.for("opentelemetry.js.api.1");

function registered(): Registered {
  return (globalThis as { [REGISTERED]?: Registered })[REGISTERED] ?? {};
}

/** The span that the caller is in, as the header `traceparent` writes it. */
export function currentTrace(): string | undefined {
  const { context, propagation } = registered();
  const carrier: Carrier = {};
  if (context !== undefined) propagation?.inject(context.active(), carrier, { set: (into, name, value) => { into[name] = value; } });
  return carrier["traceparent"];
}

/** Calls a function as a part of the submitter's trace. */
export function inTrace<T>(traceparent: string | undefined, body: () => T): T {
  const { context, propagation } = registered();
  if (traceparent === undefined || context === undefined || propagation === undefined) return body();
  const getter = { get: (from: Carrier, name: string) => from[name], keys: (from: Carrier) => Object.keys(from) };
  return context.with(propagation.extract(context.active(), { traceparent }, getter), body);
}
