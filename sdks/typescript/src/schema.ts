/** Typed payloads: any library that speaks Standard Schema (zod, valibot, arktype), or a plain type without a check. */
import type { components } from "./wire.js";

/** The part of the Standard Schema interface that is needed to check a value. */
export interface StandardSchema<Output = unknown> {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => Checked<Output> | Promise<Checked<Output>>;
    /** Libraries that can write their schemas as JSON schemas have this. */
    readonly jsonSchema?: {
      readonly input: (options: { readonly target: string }) => Record<string, unknown>;
      readonly output: (options: { readonly target: string }) => Record<string, unknown>;
    } | undefined;
    readonly types?: { readonly input: unknown; readonly output: Output } | undefined;
  };
}

type Checked<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: readonly { readonly message: string; readonly path?: readonly unknown[] | undefined }[] };

/** A value that does not fit its schema. */
export class SchemaError extends Error {
  override readonly name = "SchemaError";
}

/** The value as the schema gives it back; without a schema, the value as it is. */
export async function checked<T>(schema: StandardSchema<T> | undefined, value: unknown, what: string): Promise<T> {
  if (schema === undefined) return value as T;
  const result = await schema["~standard"].validate(value);
  if (result.issues === undefined) return result.value;
  const issues = result.issues.map((issue) => {
    const path = (issue.path ?? []).map((part) => String((part as { key?: unknown }).key ?? part)).join(".");
    return path === "" ? issue.message : `${path}: ${issue.message}`;
  });
  throw new SchemaError(`${what} does not fit its schema: ${issues.join("; ")}`);
}

/** The fields of a call that carry a value: JSON, or bytes as they are. */
export function encoded(field: string, value: unknown): Record<string, unknown> {
  if (!(value instanceof Uint8Array)) return { [field]: value ?? null };
  return { [`${field}_base64`]: Buffer.from(value).toString("base64"), content_type: "application/octet-stream" };
}

/** The same, and no fields for no value. */
export function given(field: string, value: unknown): Record<string, unknown> {
  return value === undefined ? {} : encoded(field, value);
}

/** An object without the fields that are not there. */
export function present(fields: Record<string, unknown>): Record<string, unknown> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}

/** The value of a payload: parsed JSON, or bytes of any other content type. */
export function valueOf(content: components["schemas"]["Content"] | null | undefined): unknown {
  if (content == null) return null;
  if (content.payload !== undefined) return content.payload;
  const bytes = Buffer.from(content.payload_base64, "base64");
  const isJson = /^\s*(application\/|\S*\+)json\s*(;|$)/i.test(content.content_type);
  return isJson ? JSON.parse(bytes.toString("utf8")) : new Uint8Array(bytes);
}
