//! A look at a database that changes nothing.

use ff_store::{Layout, Look, Result};
use tokio_postgres::Client;

use crate::connect::{self, Connector};
use crate::options::Options;
use crate::{error, migrate};

/// Settings of the server that durability, capacity and vacuum depend on.
const SETTINGS: [&str; 9] = [
    "fsync",
    "full_page_writes",
    "synchronous_commit",
    "synchronous_standby_names",
    "max_connections",
    "superuser_reserved_connections",
    "max_locks_per_transaction",
    "autovacuum",
    "track_counts",
];
/// A transaction that is open for longer keeps vacuum from its work.
const OPEN_MAX_SECONDS: i32 = 600;

/// Says what is at an address; a schema that does not exist has no layout yet.
pub(crate) async fn look(options: &Options) -> Result<Look> {
    let (client, connection) = Connector::new(options, &[])?.connect().await?;
    let driver = tokio::spawn(connection);
    let look = look_through(&client, options).await;
    drop(client);
    driver.abort();
    look
}

async fn look_through(client: &Client, options: &Options) -> Result<Look> {
    let server = connect::inspect(client).await?;
    let found = migrate::version(client, &options.schema).await?;
    let wrong = |error| error::reading(&error);
    let names = SETTINGS.as_slice();
    let rows = client
        .query(
            "SELECT name, setting FROM pg_settings WHERE name = ANY ($1) ORDER BY array_position($1, name)",
            &[&names],
        )
        .await
        .map_err(wrong)?;
    let settings: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let mut warnings = unwise(&settings);
    let row = client
        .query_one(
            "SELECT (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
               (SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid()
                 AND xact_start < now() - make_interval(secs => $1::integer))",
            &[&OPEN_MAX_SECONDS],
        )
        .await
        .map_err(wrong)?;
    let (connected, open): (i64, i64) = (row.get(0), row.get(1));
    let number =
        |name: &str| settings.iter().find(|(found, _)| found == name).and_then(|(_, value)| value.parse().ok());
    let room =
        number("max_connections").unwrap_or(0) - number("superuser_reserved_connections").unwrap_or(0) - connected;
    let wanted = i64::try_from(options.pool_size).unwrap_or(i64::MAX).saturating_add(1);
    if room < wanted {
        warnings.push(format!(
            "{connected} connections are open and {room} more may be; one server process wants {wanted}: \
             raise max_connections or lower pool_size"
        ));
    }
    if open > 0 {
        warnings.push(format!(
            "{open} transactions have been open for more than {OPEN_MAX_SECONDS} s: vacuum cannot remove what they may \
             still see"
        ));
    }
    let layout = Layout { found: found.filter(|found| *found > 0), needed: migrate::known() };
    Ok(Look { version: server.version, layout, settings, warnings })
}

/// Settings that lose data or let the tables grow.
fn unwise(settings: &[(String, String)]) -> Vec<String> {
    let why = |name: &str, value: &str| match (name, value) {
        ("fsync", "off") => Some("a power loss may damage the database"),
        ("full_page_writes", "off") => Some("a power loss may damage pages that were half written"),
        ("synchronous_commit", "off") => Some("a crash of the server may take the last moments"),
        ("autovacuum" | "track_counts", "off") => Some("the tables grow without end"),
        _ => None,
    };
    let found = settings.iter().filter_map(|(name, value)| Some(format!("{name} = {value}: {}", why(name, value)?)));
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_loses_data_or_space_is_warned_of() {
        let settings = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        assert_eq!(unwise(&settings(&[("fsync", "on"), ("synchronous_commit", "remote_apply")])), [""; 0]);
        let warnings = unwise(&settings(&[("synchronous_commit", "off"), ("autovacuum", "off")]));
        assert!(warnings[0].starts_with("synchronous_commit = off: a crash"), "{warnings:?}");
        assert!(warnings[1].starts_with("autovacuum = off: the tables grow"), "{warnings:?}");
    }
}
