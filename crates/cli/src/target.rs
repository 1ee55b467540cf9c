//! Which deployment a command is for, and how its answer is written.

use std::path::{Path, PathBuf};

use ff_core::op::parts::Secret;

use crate::failure::{Failure, Result};
use crate::output::{Format, Output, When};
use crate::profile::Profile;

/// The default address of a server.
pub(crate) const DEFAULT_SERVER: &str = "http://127.0.0.1:7171";

/// The options every command has.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Deployment and output")]
pub(crate) struct Target {
    /// The server's address, or a store to run an engine on in this process [default: http://127.0.0.1:7171]
    #[arg(long, env = "FF_SERVER", value_name = "URL", global = true)]
    server: Option<String>,
    /// The API token
    #[arg(long, env = "FF_TOKEN", value_name = "TOKEN", hide_env_values = true, value_parser = secret, global = true)]
    token: Option<Secret>,
    /// A file with the API token
    #[arg(long, env = "FF_TOKEN_FILE", value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// A PEM file with the authorities to trust for an https:// server instead of the system's
    #[arg(long, env = "FF_CA_FILE", value_name = "FILE", global = true)]
    ca_file: Option<PathBuf>,
    /// A profile of ~/.config/flowfabric/config.toml
    #[arg(long, env = "FF_PROFILE", value_name = "NAME", global = true)]
    profile: Option<String>,
    /// The namespace [default: the token's, or `default`]
    #[arg(long, short, env = "FF_NAMESPACE", value_name = "NAME", global = true)]
    namespace: Option<String>,
    /// Tables for people, or JSON for programs
    #[arg(long, short, env = "FF_OUTPUT", value_enum, value_name = "FORMAT", default_value = "table", global = true)]
    output: Format,
    /// When to use colours; `auto` is on a terminal, unless NO_COLOR is set
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", global = true)]
    color: When,
}

fn secret(text: &str) -> Result<Secret, String> {
    Ok(Secret(text.to_owned()))
}

/// Where to connect, and with which token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) server: String,
    pub(crate) token: Option<Secret>,
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) namespace: Option<String>,
}

impl Target {
    /// The destination with another address.
    pub(crate) fn at(self, server: String) -> Self {
        Self { server: Some(server), ..self }
    }

    /// How answers are written.
    pub(crate) fn output(&self) -> Output {
        Output::new(self.output, self.color)
    }

    /// The flags and variables, then the profile, then the defaults. The token of a profile goes to the server of that
    /// profile and to no other.
    pub(crate) fn destination(&self) -> Result<Destination> {
        let named = self.profile.as_deref().filter(|name| !name.is_empty());
        let server = self.server.clone().filter(|server| !server.is_empty());
        let profile = match (named, &server) {
            (None, Some(_)) => Profile::default(),
            (named, _) => Profile::load(named)?,
        };
        let own = self.own_token()?;
        let token = match server {
            Some(_) => own,
            None => own.map_or_else(|| profile.token(), |token| Ok(Some(token)))?,
        };
        let own_ca_file = self.ca_file.clone().filter(|file| !file.as_os_str().is_empty());
        Ok(Destination {
            ca_file: own_ca_file.or(profile.ca_file.filter(|_| server.is_none())),
            server: server.or(profile.server).unwrap_or_else(|| DEFAULT_SERVER.to_owned()),
            token,
            namespace: self.namespace.clone().filter(|name| !name.is_empty()).or(profile.namespace),
        })
    }

    fn own_token(&self) -> Result<Option<Secret>> {
        match (&self.token, &self.token_file) {
            (Some(token), _) if !token.0.is_empty() => Ok(Some(token.clone())),
            (_, Some(file)) if !file.as_os_str().is_empty() => read_token(file).map(Some),
            _ => Ok(None),
        }
    }
}

/// The token in a file.
pub(crate) fn read_token(file: &Path) -> Result<Secret> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::usage(format!("the token file {} cannot be read: {error}", file.display())))?;
    Ok(Secret(text.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_stronger_than_the_defaults() {
        let target = Target { server: Some("http://h:1".into()), token: Some(Secret("t".into())), ..Target::default() };
        let destination = target.destination().unwrap();
        assert_eq!((destination.server.as_str(), destination.token), ("http://h:1", Some(Secret("t".into()))));
    }

    #[test]
    fn a_token_does_not_show() {
        let target = Target { token: Some(Secret("canary".into())), ..Target::default() };
        assert!(!format!("{target:?}").contains("canary"));
    }
}
