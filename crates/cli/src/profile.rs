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
//! ca_file = "/etc/flowfabric/ca.pem"
//! namespace = "team-a"
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ff_core::op::parts::Secret;
use serde::{Deserialize, Serialize};

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
    /// The authorities to trust for it instead of the system's.
    pub(crate) ca_file: Option<PathBuf>,
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
        Self::choose(parse(&read(path)?, path)?, path, name)
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

/// A profile as it is listed.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Known {
    pub(crate) name: String,
    /// Its address, without a password.
    pub(crate) server: Option<String>,
    pub(crate) namespace: Option<String>,
    /// Whether it has a token; which one is never shown.
    pub(crate) has_token: bool,
    pub(crate) is_default: bool,
}

/// All profiles, by name.
pub(crate) fn known() -> Result<Vec<Known>> {
    match path() {
        Some(path) => Ok(list(parse(&read(&path)?, &path)?)),
        None => Ok(Vec::new()),
    }
}

fn list(file: File) -> Vec<Known> {
    let shown = |(name, profile): (String, Profile)| Known {
        is_default: file.default.as_ref() == Some(&name),
        name,
        server: profile.server.map(|server| ff_stores::redacted(&server)),
        namespace: profile.namespace,
        has_token: profile.token.is_some() || profile.token_file.is_some(),
    };
    file.profiles.into_iter().map(shown).collect()
}

/// Makes a profile the default one. The rest of the file stays as it is, comments included.
pub(crate) fn use_by_default(name: &str) -> Result<()> {
    let path = path().ok_or_else(|| Failure::usage("there is no home folder, so there are no profiles"))?;
    let text = read(&path)?;
    Profile::choose(parse(&text, &path)?, &path, Some(name))?;
    std::fs::write(&path, with_default(&text, name))
        .map_err(|error| Failure::usage(format!("{} cannot be written: {error}", path.display())))
}

fn with_default(text: &str, name: &str) -> String {
    let line = format!("default = {}", toml::Value::from(name));
    let is_default = |line: &str| line.split_once('=').is_some_and(|(key, _)| key.trim() == "default");
    let mut lines: Vec<&str> = text.lines().collect();
    let tables = lines.iter().position(|line| line.trim_start().starts_with('[')).unwrap_or(lines.len());
    match lines[..tables].iter().position(|line| is_default(line)) {
        Some(place) => lines[place] = &line,
        None => lines.insert(0, &line),
    }
    lines.join("\n") + "\n"
}

fn read(path: &Path) -> Result<String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(Failure::usage(format!("{} cannot be read: {error}", path.display()))),
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
    fn profiles_are_listed_without_their_tokens() {
        let listed = list(parse(FILE, Path::new("config.toml")).unwrap());
        let short: Vec<_> = listed.iter().map(|one| (one.name.as_str(), one.has_token, one.is_default)).collect();
        assert_eq!(short, [("a", false, true), ("b", true, false)]);
    }

    #[test]
    fn another_default_leaves_the_rest_as_it_is() {
        let text = "# ours\ndefault = 'a' # for now\n\n[profiles.a]\n[profiles.b]\n";
        assert_eq!(with_default(text, "b"), "# ours\ndefault = \"b\"\n\n[profiles.a]\n[profiles.b]\n");
        assert_eq!(with_default("[profiles.b]\n", "b"), "default = \"b\"\n[profiles.b]\n");
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
