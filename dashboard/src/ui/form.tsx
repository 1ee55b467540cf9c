// A form from a JSON schema: objects of texts, numbers, switches and choices become fields; anything else is written as JSON.

interface Property {
  type?: string | string[];
  title?: string;
  description?: string;
  enum?: unknown[];
  default?: unknown;
  maxLength?: number;
  minimum?: number;
  maximum?: number;
}

interface ObjectSchema {
  properties?: Record<string, Property>;
  required?: string[];
}

/** Fields of one form. */
const FIELDS_MAX = 50;

function properties(schema: unknown): [string, Property][] | undefined {
  if (schema === null || typeof schema !== "object") return undefined;
  const found = (schema as ObjectSchema).properties;
  if (found === null || typeof found !== "object") return undefined;
  return Object.entries(found).slice(0, FIELDS_MAX);
}

function typeOf(property: Property): string {
  const type = Array.isArray(property.type) ? property.type.find((one) => one !== "null") : property.type;
  return type ?? "";
}

export function SchemaForm({ schema }: { schema: unknown }) {
  if (schema === undefined || schema === null || schema === true) return null;
  const fields = properties(schema);
  if (!fields) {
    return (
      <label class="labelled">
        The answer, as JSON
        <textarea class="field" name="$json" rows={4} defaultValue="{}" />
      </label>
    );
  }
  const required = new Set((schema as ObjectSchema).required ?? []);
  return (
    <div class="stack">
      {fields.map(([name, property]) => (
        <label class="labelled">
          {property.title ?? name}
          <Field name={name} property={property} required={required.has(name)} />
          {property.description && <span class="small muted">{property.description}</span>}
        </label>
      ))}
    </div>
  );
}

function Field({ name, property, required }: { name: string; property: Property; required: boolean }) {
  const initial = property.default === undefined ? undefined : String(property.default);
  const type = typeOf(property);
  if (property.enum) {
    return (
      <select class="field" name={name} required={required} defaultValue={initial}>
        {!required && <option value="" />}
        {property.enum.map((choice) => <option value={String(choice)}>{String(choice)}</option>)}
      </select>
    );
  }
  if (type === "boolean") return <input type="checkbox" name={name} defaultChecked={property.default === true} />;
  if (type === "integer" || type === "number") {
    return <input class="field" type="number" step={type === "integer" ? 1 : "any"} min={property.minimum} max={property.maximum} name={name} required={required} defaultValue={initial} />;
  }
  if (type === "string") return <input class="field" name={name} required={required} maxLength={property.maxLength} defaultValue={initial} />;
  return <textarea class="field" name={name} rows={3} required={required} placeholder="JSON" defaultValue={property.default === undefined ? "" : JSON.stringify(property.default)} />;
}

/** What was filled in, as the schema wants it. */
export function readForm(form: HTMLFormElement, schema: unknown): unknown {
  if (schema === undefined || schema === null || schema === true) return undefined;
  if (!form.reportValidity()) throw new Error("Some fields are not filled in as they should be.");
  const data = new FormData(form);
  const fields = properties(schema);
  if (!fields) return JSON.parse(String(data.get("$json") ?? "null")) as unknown;
  const out: Record<string, unknown> = {};
  for (const [name, property] of fields) {
    const type = typeOf(property);
    const value = data.get(name);
    if (type === "boolean") {
      out[name] = value !== null;
      continue;
    }
    if (value === null || value === "") continue;
    const text = String(value);
    if (property.enum) out[name] = property.enum.find((choice) => String(choice) === text);
    else if (type === "integer" || type === "number") out[name] = Number(text);
    else if (type === "string") out[name] = text;
    else out[name] = JSON.parse(text) as unknown;
  }
  return out;
}
