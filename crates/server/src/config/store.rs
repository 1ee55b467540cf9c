//! Settings of the store. A store reads them from its address; here each has a name of its own and becomes a parameter
//! of the address. A parameter that the address has itself is not added.

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::settings::Settings;
use super::{ConfigError, refused};

/// For a connection, where connections are made.
const CONNECT_TIMEOUT_MS: u64 = 10_000;
/// For an answer.
const REQUEST_TIMEOUT_MS: u64 = 5_000;

/// The address with every setting that is said. Settings that have defaults and mean something here get them, so that
/// they are shown with the rest of the configuration.
pub(super) fn address(settings: &mut Settings) -> Result<String, ConfigError> {
    let address = settings.store.clone().unwrap_or_default();
    let scheme = address.split_once("://").map_or("", |(scheme, _)| scheme).to_owned();
    let remote = ["valkey", "valkeys", "postgres", "postgresql"].contains(&scheme.as_str());
    let said = |name: &str| parameters(&address).any(|known| known == name);
    if remote && settings.connect_timeout_ms.is_none() && !said("connect_timeout_ms") {
        settings.connect_timeout_ms = Some(CONNECT_TIMEOUT_MS);
    }
    if remote && settings.request_timeout_ms.is_none() && !said("request_timeout_ms") {
        settings.request_timeout_ms = Some(REQUEST_TIMEOUT_MS);
    }
    match scheme.as_str() {
        "sqlite" if settings.sqlite_sync.is_none() && !said("sync") => settings.sqlite_sync = Some("full".into()),
        "valkey" | "valkeys" => {
            if settings.durability.is_none() && !said("tier") {
                settings.durability = Some("async".into());
            }
            if settings.load_library.is_none() && !said("load_library") {
                settings.load_library = Some(true);
            }
        }
        _ => {}
    }
    let mut whole = address.clone();
    for (setting, value, places) in table(settings) {
        let Some(value) = value else { continue };
        let Some((_, parameter)) = places.iter().find(|(of, _)| scheme.starts_with(of)) else {
            return refused(format!("{setting} means nothing for a store at {scheme}://"));
        };
        if said(parameter) {
            return refused(format!("{setting} is also said in the address of the store, as {parameter}"));
        }
        let separator = if whole.contains('?') { '&' } else { '?' };
        let value = utf8_percent_encode(&value, NON_ALPHANUMERIC);
        whole.push_str(&format!("{separator}{parameter}={value}"));
    }
    Ok(whole)
}

/// The name of a setting, its value, and what it is called in addresses of each scheme.
type Row = (&'static str, Option<String>, &'static [(&'static str, &'static str)]);

fn table(settings: &Settings) -> Vec<Row> {
    fn text(value: &Option<impl ToString>) -> Option<String> {
        value.as_ref().map(ToString::to_string)
    }
    vec![
        ("durability", text(&settings.durability), &[("valkey", "tier")]),
        ("replicas", text(&settings.replicas), &[("valkey", "replicas")]),
        ("cluster", text(&settings.cluster), &[("valkey", "cluster")]),
        ("load_library", text(&settings.load_library), &[("valkey", "load_library")]),
        ("sqlite_sync", text(&settings.sqlite_sync), &[("sqlite", "sync")]),
        ("sqlite_readers", text(&settings.sqlite_readers), &[("sqlite", "readers")]),
        ("postgres_schema", text(&settings.postgres_schema), &[("postgres", "schema")]),
        ("postgres_pool_size", text(&settings.postgres_pool_size), &[("postgres", "pool_size")]),
        ("postgres_sslmode", text(&settings.postgres_sslmode), &[("postgres", "sslmode")]),
        ("store_ca_file", text(&settings.store_ca_file), &[("valkey", "ca_file"), ("postgres", "sslrootcert")]),
        (
            "connect_timeout_ms",
            text(&settings.connect_timeout_ms),
            &[("valkey", "connect_timeout_ms"), ("postgres", "connect_timeout_ms")],
        ),
        (
            "request_timeout_ms",
            text(&settings.request_timeout_ms),
            &[("valkey", "request_timeout_ms"), ("postgres", "request_timeout_ms")],
        ),
        ("startup_timeout_ms", text(&settings.startup_timeout_ms), &[("valkey", "startup_timeout_ms")]),
    ]
}

/// The names of the parameters an address has.
fn parameters(address: &str) -> impl Iterator<Item = &str> {
    let query = address.split_once('?').map_or("", |(_, query)| query);
    query.split('&').filter(|one| !one.is_empty()).map(|one| one.split_once('=').map_or(one, |(name, _)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(store: &str) -> Settings {
        Settings { store: Some(store.into()), ..Settings::default() }
    }

    #[test]
    fn settings_become_parameters_of_the_address() {
        let mut valkey = Settings {
            durability: Some("replicated".into()),
            store_ca_file: Some("/a b.pem".into()),
            request_timeout_ms: Some(7),
            ..settings("valkeys://u:p@h?cluster=true")
        };
        let address = address(&mut valkey).unwrap();
        assert_eq!(
            address,
            "valkeys://u:p@h?cluster=true&tier=replicated&load_library=true&ca_file=%2Fa%20b%2Epem\
             &connect_timeout_ms=10000&request_timeout_ms=7"
        );
        assert_eq!(super::address(&mut settings("sqlite://a.db")).unwrap(), "sqlite://a.db?sync=full");
        assert_eq!(super::address(&mut settings("sqlite://a.db?sync=normal")).unwrap(), "sqlite://a.db?sync=normal");
        assert_eq!(super::address(&mut settings("memory://")).unwrap(), "memory://");
    }

    #[test]
    fn what_means_nothing_or_is_said_twice_is_refused() {
        let mut foreign = Settings { durability: Some("async".into()), ..settings("sqlite://a.db") };
        assert!(address(&mut foreign).unwrap_err().to_string().contains("durability"));
        let mut twice = Settings { sqlite_sync: Some("full".into()), ..settings("sqlite://a.db?sync=normal") };
        assert!(address(&mut twice).unwrap_err().to_string().contains("sqlite_sync"));
    }
}
