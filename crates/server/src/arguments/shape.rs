//! The shape of an operation's arguments, read from their JSON schema: what the texts of a path or a query mean, and
//! which fields an HTTP header or a raw body can fill.

use std::collections::BTreeMap;

use ff_core::op::OperationInfo;
use schemars::SchemaGenerator;
use serde_json::Value;

/// The type that a text in a path or query stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The text itself.
    Text,
    /// A number.
    Number,
    /// `true` or `false`.
    Switch,
    /// A list; the parameter is repeated.
    List(Box<Kind>),
    /// Anything else, written as JSON.
    Json,
}

/// The fields of an operation's arguments.
#[derive(Debug)]
pub(crate) struct Shape {
    fields: BTreeMap<String, Kind>,
    identity: Option<&'static str>,
}

impl Shape {
    /// Reads the schema of an operation.
    pub(crate) fn of(info: &OperationInfo) -> Self {
        let mut generator = SchemaGenerator::default();
        let root = (info.args_schema)(&mut generator).to_value();
        let definitions = generator.definitions().clone();
        let root = resolve(&root, &definitions);
        let properties = root.get("properties").and_then(Value::as_object);
        let fields = properties.into_iter().flatten();
        let fields = fields.map(|(name, schema)| (name.clone(), kind(schema, &definitions))).collect();
        Self { fields, identity: info.identity_field }
    }

    /// The type of a field; `None` when there is no such field.
    pub(crate) fn kind(&self, field: &str) -> Option<&Kind> {
        self.fields.get(field)
    }

    /// The names of all fields.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.keys().map(String::as_str)
    }

    /// The field that makes a repeated call the same call, if the arguments have one.
    pub(crate) fn identity(&self) -> Option<&'static str> {
        self.identity
    }

    /// The field that a raw body fills: the one field of bytes.
    pub(crate) fn bytes(&self) -> Option<&str> {
        let mut fields = self.names().filter(|name| name.ends_with("_base64"));
        let only = fields.next()?;
        fields.next().is_none().then_some(only)
    }

    /// Whether there is such a field.
    pub(crate) fn has(&self, field: &str) -> bool {
        self.fields.contains_key(field)
    }
}

type Definitions = serde_json::Map<String, Value>;

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

#[cfg(test)]
mod tests {
    use super::*;
    use ff_core::op;

    #[test]
    fn texts_of_a_query_are_read_as_the_schema_says() {
        let tail = Shape::of(&OperationInfo::of::<op::TailStream>());
        assert_eq!(tail.kind("after"), Some(&Kind::Text));
        assert_eq!(tail.kind("attempt"), Some(&Kind::Number));
        assert_eq!(tail.kind("wait_ms"), Some(&Kind::Number));
        let events = Shape::of(&OperationInfo::of::<op::ListEvents>());
        assert_eq!(events.kind("kinds"), Some(&Kind::List(Box::new(Kind::Text))));
        let complete = Shape::of(&OperationInfo::of::<op::Complete>());
        assert_eq!(complete.kind("fence"), Some(&Kind::Json));
        assert_eq!(complete.kind("execution_id"), Some(&Kind::Text));
        assert_eq!(complete.bytes(), Some("result_base64"));
    }

    #[test]
    fn every_field_in_a_path_has_a_plain_kind() {
        for info in op::OPERATIONS {
            let shape = Shape::of(info);
            for parameter in info.path_parameters() {
                let kind = shape.kind(parameter);
                assert!(matches!(kind, Some(Kind::Text | Kind::Number)), "{} {parameter}: {kind:?}", info.name);
            }
        }
    }

    #[test]
    fn the_identity_of_each_operation_is_found() {
        let identity = |info: &OperationInfo| Shape::of(info).identity();
        assert_eq!(identity(&OperationInfo::of::<op::CreateExecution>()), Some("idempotency_key"));
        assert_eq!(identity(&OperationInfo::of::<op::ReportUsage>()), Some("dedup_key"));
        assert_eq!(identity(&OperationInfo::of::<op::ReplayExecution>()), Some("command_id"));
        assert_eq!(identity(&OperationInfo::of::<op::Claim>()), None);
        assert_eq!(identity(&OperationInfo::of::<op::Complete>()), None);
    }
}
