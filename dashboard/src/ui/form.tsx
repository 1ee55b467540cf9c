// A form from a JSON schema: texts, numbers, switches and choices become fields; anything else is written as JSON.

import { parseJson } from "../format";

interface Property {
  type?: string | string[];
  title?: string;
  description?: string;
  enum?: unknown[];
  default?: unknown;
  minLength?: number;
  maxLength?: number;
  minimum?: number;
  maximum?: number;
}

interface ObjectSchema {
  properties?: Record<string, Property>;
  required?: string[];
}

interface Field {
  name: string;
  property: Property;
  required: boolean;
}

/** Fields of one form. */
const FIELDS_MAX = 50;
/** A text that may be longer than this gets several lines. */
const LINE_MAX = 200;
/** The name of the one field of an answer that is no object. */
const WHOLE = "$answer";

function hasShape(schema: unknown): schema is object {
  return schema !== null && typeof schema === "object";
}

/** The fields that a schema asks for. A schema that describes no object is one field, for the whole answer. */
function fieldsOf(schema: object): Field[] {
  const { properties, required = [] } = schema as ObjectSchema;
  if (properties === null || typeof properties !== "object") return [{ name: WHOLE, property: schema as Property, required: true }];
  return Object.entries(properties)
    .slice(0, FIELDS_MAX)
    .map(([name, property]) => ({ name, property, required: required.includes(name) }));
}

function typeOf(property: Property): string {
  const type = Array.isArray(property.type) ? property.type.find((one) => one !== "null") : property.type;
  return type ?? "";
}

function labelOf({ name, property }: Field): string {
  return property.title ?? (name === WHOLE ? "The answer" : name);
}

export function SchemaForm({ schema }: { schema: unknown }) {
  if (!hasShape(schema)) return null;
  return (
    <div class="stack">
      {fieldsOf(schema).map((field) => (
        <label class={`labelled ${typeOf(field.property) === "boolean" ? "switch" : ""}`}>
          <span>
            {labelOf(field)}
            {field.required && typeOf(field.property) !== "boolean" && <span class="muted"> (needed)</span>}
          </span>
          <Input field={field} />
          {field.property.description && <span class="small muted">{field.property.description}</span>}
        </label>
      ))}
    </div>
  );
}

function Input({ field: { name, property, required } }: { field: Field }) {
  const initial = property.default === undefined ? undefined : String(property.default);
  const type = typeOf(property);
  const shared = { class: "field", name, required };
  if (property.enum) {
    return (
      <select {...shared} defaultValue={initial}>
        {(!required || initial === undefined) && <option value="" />}
        {property.enum.map((choice) => (
          <option value={String(choice)} selected={String(choice) === initial}>
            {String(choice)}
          </option>
        ))}
      </select>
    );
  }
  if (type === "boolean") return <input type="checkbox" name={name} defaultChecked={property.default === true} />;
  if (type === "integer" || type === "number") {
    return <input {...shared} type="number" step={type === "integer" ? 1 : "any"} min={property.minimum} max={property.maximum} defaultValue={initial} />;
  }
  const lengths = { minLength: property.minLength, maxLength: property.maxLength };
  if (type === "string" && (property.maxLength ?? 0) > LINE_MAX) return <textarea {...shared} {...lengths} rows={3} defaultValue={initial} />;
  if (type === "string") return <input {...shared} {...lengths} defaultValue={initial} />;
  return <textarea {...shared} rows={3} placeholder="JSON" defaultValue={property.default === undefined ? "" : JSON.stringify(property.default)} />;
}

/** The answer that the fields hold, as the schema wants it. */
export function readForm(form: HTMLFormElement, schema: unknown): unknown {
  if (!hasShape(schema)) return undefined;
  const fields = fieldsOf(schema);
  const invalid = form.querySelector<HTMLInputElement>(":invalid");
  if (invalid) {
    invalid.focus();
    const field = fields.find(({ name }) => name === invalid.name);
    throw new Error(`${field ? labelOf(field) : invalid.name}: ${invalid.validationMessage}`);
  }
  const data = new FormData(form);
  const out: Record<string, unknown> = {};
  for (const field of fields) {
    const value = readField(field, data.get(field.name));
    if (value !== undefined) out[field.name] = value;
  }
  return WHOLE in out ? out[WHOLE] : out;
}

function readField(field: Field, value: FormDataEntryValue | null): unknown {
  const type = typeOf(field.property);
  if (type === "boolean") return value !== null;
  if (value === null || value === "") return undefined;
  const text = String(value);
  if (field.property.enum) return field.property.enum.find((choice) => String(choice) === text);
  if (type === "integer" || type === "number") return Number(text);
  return type === "string" ? text : parseJson(text, labelOf(field));
}
