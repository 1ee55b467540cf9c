//! Finds the mistake in arguments that cannot be read: the way to the value, and what is wrong with it.
//!
//! A reader that keeps the way to every value is compiled for every type of every argument, and as large as the one
//! without. Only refusals need it, so it is a crate of its own, which is compiled for size while the others are compiled
//! for speed.

use ff_core::op::{self, Operation};
use serde::de::DeserializeOwned;

/// A mistake in arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// The way from the arguments to the value; `.` if they are wrong as a whole.
    pub path: String,
    /// A description of the mistake, as serde_json words it.
    pub message: String,
}

/// The mistake in the JSON text of an operation's arguments; none if they can be read, or there is no such operation.
pub fn locate(operation: &str, text: &str) -> Option<Mistake> {
    macro_rules! locate {
        ($($module:ident $name:ident;)*) => {
            match operation {
                $( <op::$name as Operation>::NAME => in_arguments::<<op::$name as Operation>::Args>(text), )*
                _ => None,
            }
        };
    }
    ff_core::operations!(locate)
}

fn in_arguments<A: DeserializeOwned>(text: &str) -> Option<Mistake> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let error = serde_path_to_error::deserialize::<_, A>(&mut deserializer).err()?;
    Some(Mistake { path: error.path().to_string(), message: error.inner().to_string() })
}

#[cfg(test)]
mod tests {
    use ff_core::op::OPERATIONS;
    use serde_json::{Map, Value, json};

    use super::*;

    /// Types that hold themselves are followed this far.
    const DEPTH_MAX: usize = 7;

    /// The ways to the objects in a schema, each with the JSON that leads to an empty array in its place.
    fn objects(schemas: &Map<String, Value>, schema: &Value, depth: usize) -> Vec<(String, Value)> {
        if depth == DEPTH_MAX {
            return Vec::new();
        }
        let inside = |schema: &Value| objects(schemas, schema, depth + 1);
        if let Some(name) = schema["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            return inside(&schemas[name]);
        }
        let variants = ["oneOf", "anyOf", "allOf"].into_iter().filter_map(|union| schema[union].as_array()).flatten();
        let mut found: Vec<(String, Value)> = variants.flat_map(inside).collect();
        if let Some(properties) = schema["properties"].as_object() {
            // A tuple or a map that has no properties is no struct.
            found.push((String::new(), json!([])));
            for (name, schema) in properties {
                let deeper = inside(schema).into_iter();
                found.extend(deeper.map(|(way, value)| (format!(".{name}{way}"), json!({ name: value }))));
            }
        }
        if schema["items"].is_object() {
            found
                .extend(inside(&schema["items"]).into_iter().map(|(way, value)| (format!("[0]{way}"), json!([value]))));
        }
        found
    }

    #[test]
    fn an_array_in_the_place_of_an_object_is_found_in_every_argument() {
        let mut looked_at = 0;
        for operation in OPERATIONS {
            let mut generator = schemars::SchemaGenerator::default();
            let schema = (operation.args_schema)(&mut generator).to_value();
            let schemas = generator.take_definitions(true);
            for (way, text) in objects(&schemas, &schema, 0) {
                let Some(way) = way.strip_prefix('.') else { continue };
                let mistake = locate(operation.name, &text.to_string());
                let found = mistake.as_ref().is_some_and(|mistake| mistake.path == way);
                assert!(found, "{} {way}: {text}: {mistake:?}", operation.name);
                looked_at += 1;
            }
        }
        assert!(looked_at > 100, "{looked_at}");
    }

    #[test]
    fn a_mistake_is_found_where_it_is() {
        let text = r#"{"executions":[{"kind":"a"},{"kind":7}]}"#;
        let mistake = locate(op::CreateExecutions::NAME, text).unwrap();
        assert_eq!(mistake.path, "executions[1].kind");
        assert!(mistake.message.starts_with("invalid type: integer `7`"), "{}", mistake.message);
    }

    #[test]
    fn arguments_that_can_be_read_have_none() {
        assert_eq!(locate(op::PauseLane::NAME, r#"{"lane":"gpu"}"#), None);
    }
}
