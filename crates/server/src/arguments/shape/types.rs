//! The shapes of arguments, read from the JSON schemas of their types.

use ff_core::op::{OPERATIONS, OperationInfo};
use schemars::SchemaGenerator;
use serde_json::Value;

use super::{Kind, Shape, Table};

type Definitions = serde_json::Map<String, Value>;

impl Shape {
    /// Reads the schema of an operation.
    pub(crate) fn of_types(info: &OperationInfo) -> Self {
        let mut generator = SchemaGenerator::default();
        let root = (info.args_schema)(&mut generator).to_value();
        let definitions = generator.definitions().clone();
        let root = resolve(&root, &definitions);
        let properties = root.get("properties").and_then(Value::as_object);
        let fields = properties.into_iter().flatten();
        let fields = fields.map(|(name, schema)| (name.clone(), kind(schema, &definitions))).collect();
        Self { fields, identity: info.identity_field }
    }

    /// The shapes of all operations.
    pub(crate) fn table_of_types() -> Table {
        OPERATIONS.iter().map(|info| (info.name.to_owned(), Self::of_types(info).fields)).collect()
    }
}

fn resolve<'a>(schema: &'a Value, definitions: &'a Definitions) -> &'a Value {
    let reference = schema.get("$ref").and_then(Value::as_str);
    let named = reference.and_then(|reference| reference.rsplit('/').next()).and_then(|name| definitions.get(name));
    named.map_or(schema, |schema| resolve(schema, definitions))
}

fn kind(schema: &Value, definitions: &Definitions) -> Kind {
    let schema = resolve(schema, definitions);
    let alternatives = ["anyOf", "oneOf"].into_iter().find_map(|word| schema.get(word)?.as_array());
    if let Some(alternatives) = alternatives {
        let present = alternatives.iter().find(|one| one.get("type").and_then(Value::as_str) != Some("null"));
        return present.map_or(Kind::Json, |schema| kind(schema, definitions));
    }
    let named = match schema.get("type") {
        Some(Value::String(one)) => Some(one.as_str()),
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).find(|one| *one != "null"),
        _ => None,
    };
    match named {
        Some("string") => Kind::Text,
        Some("integer" | "number") => Kind::Number,
        Some("boolean") => Kind::Switch,
        Some("array") => {
            let items = schema.get("items").map_or(Kind::Json, |items| kind(items, definitions));
            Kind::List(Box::new(items))
        }
        _ if schema.get("const").is_some_and(Value::is_string) || schema.get("enum").is_some() => Kind::Text,
        _ => Kind::Json,
    }
}
