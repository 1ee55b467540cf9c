//! The shape of an operation's arguments: what the texts of a path or a query mean, and which fields an HTTP header or a
//! raw body can fill.
//!
//! It follows from the JSON schema of the arguments. Tests read it from there and compare it with the committed table
//! (`openapi/document`); the server reads the table, because it has no schemas.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use ff_core::op::OperationInfo;
use serde::Deserialize;

/// The types of the fields of all operations, by operation and field.
pub(crate) type Table = BTreeMap<String, BTreeMap<String, Kind>>;

/// The type that a text in a path or query stands for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(test, derive(serde::Serialize))]
#[serde(rename_all = "snake_case")]
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
    /// The shape in the committed table. An operation that is not in it yet has no fields.
    pub(crate) fn of(info: &OperationInfo) -> Self {
        static TABLE: LazyLock<Table> = LazyLock::new(|| {
            serde_json::from_str(include_str!("../../arguments.json"))
                .expect("a test compares the table with the types")
        });
        let fields = TABLE.get(info.name).cloned().unwrap_or_default();
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

#[cfg(test)]
mod types;

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
