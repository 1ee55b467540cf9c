//! Profiles: named deployments in `~/.config/flowfabric/config.toml`.
//!
//! ```toml
//! default = "local"
//!
//! [profiles.local]
//! server = "http://127.0.0.1:7171"
//!
//! [profiles.production]
//! server = "https://flowfabric.example.com"
//! token_file = "/run/secrets/flowfabric"
//! namespace = "team-a"
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ff_core::op::parts::Secret;
use serde::Deserialize;

use crate::failure::{Failure, Result};
use crate::target::read_token;

/// A deployment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profile {
    /// Its address.
    pub(crate) server: Option<String>,
    token: Option<Secret>,
    token_file: Option<PathBuf>,
    /// The namespace of commands that name none.
    pub(crate) namespace: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    default: Option<String>,
    #[serde(default)]
    profiles: BTreeMap<String, Profile>,
}

impl Profile {
    /// The profile with a name, or the default one, which need not exist.
    pub(crate) fn load(name: Option<&str>) -> Result<Self> {
        match path() {
            Some(path) => Self::from_file(&path, name),
            None => Self::choose(File::default(), Path::new("config.toml"), name),
        }
    }

    /// Its token, wherever it is kept.
    pub(crate) fn token(&self) -> Result<Option<Secret>> {
        match (&self.token, &self.token_file) {
            (Some(token), _) => Ok(Some(token.clone())),
            (None, Some(file)) => read_token(file).map(Some),
            (None, None) => Ok(None),
        }
    }

    fn from_file(path: &Path, name: Option<&str>) -> Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Failure::usage(format!("{} cannot be read: {error}", path.display()))),
        };
        Self::choose(parse(&text, path)?, path, name)
    }

    fn choose(mut file: File, path: &Path, name: Option<&str>) -> Result<Self> {
        let Some(wanted) = name.map(str::to_owned).or(file.default.take()) else { return Ok(Self::default()) };
        file.profiles.remove(&wanted).ok_or_else(|| {
            let known: Vec<String> = file.profiles.into_keys().collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            Failure::usage(format!("{} has no profile {wanted:?}", path.display())).advice(format!("It has: {known}."))
        })
    }
}

/// The file may hold tokens: its lines are never quoted.
fn parse(text: &str, path: &Path) -> Result<File> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        Failure::usage(format!("{}:{line}:{column}: {}", path.display(), error.message()))
            .with("line", line)
            .with("column", column)
    })
}

fn path() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")))?;
    Some(folder.join("flowfabric").join("config.toml"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str =
        "default = 'a'\n[profiles.a]\nserver = 'http://a'\n[profiles.b]\nserver = 'http://b'\ntoken = 't'\n";

    fn load(text: &str, name: Option<&str>) -> Result<Profile> {
        let path = Path::new("config.toml");
        Profile::choose(parse(text, path)?, path, name)
    }

    #[test]
    fn the_default_is_used_unless_another_is_named() {
        assert_eq!(load(FILE, None).unwrap().server.as_deref(), Some("http://a"));
        let named = load(FILE, Some("b")).unwrap();
        assert_eq!(named.token().unwrap(), Some(Secret("t".into())));
        assert_eq!(load("", None).unwrap(), Profile::default());
    }

    #[test]
    fn an_unknown_profile_names_those_there_are() {
        let text = load(FILE, Some("c")).unwrap_err().text().unwrap();
        assert!(text.contains("\"c\"") && text.contains("a, b"), "{text}");
    }

    #[test]
    fn a_bad_file_is_told_by_line_and_column_without_its_text() {
        let text = load("default = 'a'\n[profiles.a]\ntoken = canary\n", None).unwrap_err().text().unwrap();
        assert!(text.contains("config.toml:3:9"), "{text}");
        assert!(!text.contains("canary"), "{text}");
        let text = load("[profiles.a]\nsever = 'x'\n", None).unwrap_err().text().unwrap();
        assert!(text.contains(":2:1") && text.contains("sever"), "{text}");
    }
}
