//! Defaults of a namespace, for requests that say nothing.

use std::collections::BTreeMap;
use std::str::FromStr;

use ff_core::policy::Policy;
use serde::{Deserialize, Serialize};

use super::ConfigError;

/// By namespace; JSON in a flag or variable, a table in the file.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NamespaceDefaults(pub BTreeMap<String, NamespaceDefault>);

/// The defaults of one namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamespaceDefault {
    /// The policy of executions that bring none, as a submission would write it.
    pub policy: serde_json::Value,
}

impl NamespaceDefaults {
    /// The policies.
    pub(super) fn policies(&self) -> Result<BTreeMap<String, Policy>, ConfigError> {
        let named = self.0.iter().map(|(namespace, default)| {
            let refuse =
                |why: &dyn std::fmt::Display| ConfigError(format!("namespace_defaults of {namespace:?}: {why}"));
            ff_core::text::name("namespace", namespace).map_err(|error| refuse(&error.detail))?;
            let policy = Policy::deserialize(&default.policy).map_err(|error| refuse(&error))?;
            policy.validate().map_err(|error| refuse(&error.detail))?;
            Ok((namespace.clone(), policy))
        });
        named.collect()
    }
}

impl FromStr for NamespaceDefaults {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }
}
