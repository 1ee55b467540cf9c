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
    use super::*;

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
