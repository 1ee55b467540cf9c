//! Answers as a newer server might write them: each is made up from the schema of its operation, with further fields in every
//! object, and with words and variants that this version does not know.

use std::cell::Cell;
use std::collections::BTreeMap;

use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::*;

const WORD: &str = "of_tomorrow";
/// No union has more variants.
const VARIANTS: usize = 12;
const DEPTH_MAX: usize = 6;

/// Makes values up from schemas.
struct Future {
    schemas: Map<String, Value>,
    /// The variant that each union takes; a new one when `None`.
    variant: Option<usize>,
    /// Lists inside of lists: some types hold themselves.
    depth: Cell<usize>,
}

impl Future {
    fn of<T: JsonSchema>(variant: Option<usize>) -> Value {
        let mut generator = SchemaGenerator::default();
        let schema = generator.subschema_for::<T>().to_value();
        Self { schemas: generator.take_definitions(true), variant, depth: Cell::new(0) }.value(&schema)
    }

    fn value(&self, schema: &Value) -> Value {
        if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            return id(name).map_or_else(|| self.value(&self.schemas[name]), Value::from);
        }
        if let Some(fixed) = schema.get("const") {
            return fixed.clone();
        }
        if schema.get("enum").is_some() {
            return WORD.into();
        }
        if let Some(variants) = schema["oneOf"].as_array() {
            return self.union(variants);
        }
        if let Some(variants) = schema["anyOf"].as_array() {
            return self.value(&variants[0]);
        }
        let kind = match &schema["type"] {
            Value::Array(kinds) => kinds[0].as_str(),
            kind => kind.as_str(),
        };
        match kind {
            Some("object") => self.object(schema),
            Some("array") => self.list(schema),
            Some("string") if schema["format"] == "uuid" => id("LeaseId").into(),
            Some("string") => "".into(),
            Some("integer") => json!(schema["minimum"].as_i64().unwrap_or(1)),
            Some("number") => json!(0.5),
            Some("boolean") => json!(true),
            _ => json!({ "any": 1 }),
        }
    }

    fn list(&self, schema: &Value) -> Value {
        if let Some(items) = schema["prefixItems"].as_array() {
            return items.iter().map(|item| self.value(item)).collect();
        }
        let depth = self.depth.get();
        if depth == DEPTH_MAX {
            return json!([]);
        }
        self.depth.set(depth + 1);
        let item = self.value(&schema["items"]);
        self.depth.set(depth);
        json!([item])
    }

    fn union(&self, variants: &[Value]) -> Value {
        let Some(variant) = self.variant else {
            // In the form of the others: a tag inside, or a tag outside.
            let tagged = variants.iter().any(|variant| variant["properties"]["outcome"].get("const").is_some());
            return if tagged { json!({ "outcome": WORD, "more": 1 }) } else { json!({ WORD: { "more": 1 } }) };
        };
        let variant = &variants[variant % variants.len()];
        let external = variant["additionalProperties"] == false && variant["properties"]["outcome"].is_null();
        let mut value = self.value(variant);
        if external && let Some(fields) = value.as_object_mut() {
            // The one field is the tag.
            fields.remove(WORD);
        }
        value
    }

    fn object(&self, schema: &Value) -> Value {
        let mut fields = Map::new();
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            fields.insert(name.clone(), self.value(schema));
        }
        // A map by words of the vocabulary lists them all, each with the same schema.
        let values: Vec<&Value> =
            schema["properties"].as_object().into_iter().flatten().map(|(_, value)| value).collect();
        let more = match &schema["additionalProperties"] {
            Value::Object(_) => self.value(&schema["additionalProperties"]),
            Value::Bool(false) if values.windows(2).all(|pair| pair[0] == pair[1]) && !values.is_empty() => {
                self.value(values[0])
            }
            _ => json!([{ "a": 1 }]),
        };
        fields.insert(WORD.into(), more);
        fields.into()
    }
}

/// The text of an id, which no schema can make up.
fn id(name: &str) -> Option<&'static str> {
    match name {
        "ExecutionId" | "FlowId" | "WaitpointId" => Some("0001-018bcfe5-6800-7000-8000-000000000001"),
        "FrameId" => Some("1-1"),
        _ if name.ends_with("Id") => Some("018bcfe5-6800-7000-8000-000000000001"),
        _ => None,
    }
}

macro_rules! refusals {
    ($( $verb:ident $operation:ident; )*) => {
        /// The operations whose answers are refused.
        fn refusals() -> BTreeMap<&'static str, String> {
            let mut refused = BTreeMap::new();
            for variant in (0..VARIANTS).map(Some).chain([None]) {
                $(
                    let answer = Future::of::<<$operation as Operation>::Outcome>(variant).to_string();
                    if let Err(why) = $operation::read(answer.as_bytes()) {
                        refused.insert(<$operation as Operation>::NAME, format!("{why}: {answer}"));
                    }
                )*
            }
            refused
        }
    };
}
crate::operations!(refusals);

#[test]
fn every_answer_of_a_newer_server_is_read() {
    let refused = refusals();
    assert!(refused.is_empty(), "{} are refused: {refused:#?}", refused.len());
}
