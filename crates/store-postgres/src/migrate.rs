//! The schema and its versions. Migrations are embedded, run in one transaction, and under a lock, so that several
//! servers may start at the same moment.

use ff_store::{Result, StoreError};
use tokio_postgres::{Client, GenericClient};

use crate::error;
use crate::locks::{Locks, Protects};

/// In order; the first one makes schema version 1. Never change one that was released: add another.
const MIGRATIONS: [&str; 4] = [
    include_str!("../migrations/0001_tables.sql"),
    include_str!("../migrations/0002_functions.sql"),
    include_str!("../migrations/0003_time.sql"),
    include_str!("../migrations/0004_rows.sql"),
];

/// The schema this program works with.
pub(crate) fn known() -> u32 {
    u32::try_from(MIGRATIONS.len()).expect("a handful of migrations fits 32 bits")
}

/// Brings the schema up to date; refuses one from the future. `client` has the schema in its search path.
pub(crate) async fn migrate(client: &mut Client, schema: &str) -> Result<()> {
    // The usual case takes no lock and needs no right to change anything.
    if version(client, schema).await? == Some(known()) {
        return Ok(());
    }
    let wrong = |error| error::reading(&error);
    let transaction = client.transaction().await.map_err(wrong)?;
    let lock = Locks::of_schema(schema).single(Protects::Schema);
    transaction.execute("SELECT pg_advisory_xact_lock($1)", &[&lock]).await.map_err(wrong)?;
    let found = match version(&transaction, schema).await? {
        Some(found) => found,
        None => {
            create(&transaction, schema).await?;
            0
        }
    };
    // The path was resolved before we had the lock; the schema may have come into being since.
    transaction.batch_execute(&format!("SET LOCAL search_path = {schema}")).await.map_err(wrong)?;
    for (number, migration) in (1i32..).zip(MIGRATIONS).skip_while(|(number, _)| i64::from(*number) <= i64::from(found))
    {
        transaction.batch_execute(migration).await.map_err(wrong)?;
        transaction.execute("UPDATE meta SET schema_version = $1", &[&number]).await.map_err(wrong)?;
        tracing::info!(schema, version = number, "migrated the store");
    }
    transaction.commit().await.map_err(wrong)
}

/// The version of the schema; `None` where there is none yet.
pub(crate) async fn version(client: &impl GenericClient, schema: &str) -> Result<Option<u32>> {
    let wrong = |error| error::reading(&error);
    let exists = "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'meta')";
    let exists = client.query_one(exists, &[&schema]).await.map_err(wrong)?;
    if !exists.get::<_, bool>(0) {
        return Ok(None);
    }
    let row = client.query_one(&format!("SELECT schema_version FROM {schema}.meta"), &[]).await.map_err(wrong)?;
    let found: i64 = row.get::<_, i32>(0).into();
    match u32::try_from(found) {
        Ok(found) if found > known() => Err(StoreError::Newer { found, known: known() }),
        Ok(found) => Ok(Some(found)),
        Err(_) => Err(StoreError::Corrupt(format!("schema version {found}"))),
    }
}

async fn create(client: &impl GenericClient, schema: &str) -> Result<()> {
    let wrong = |error| error::reading(&error);
    let exists = "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)";
    let exists = client.query_one(exists, &[&schema]).await.map_err(wrong)?;
    if !exists.get::<_, bool>(0) {
        // The name was checked to need no quoting.
        client.batch_execute(&format!("CREATE SCHEMA {schema}")).await.map_err(wrong)?;
    }
    client
        .batch_execute(&format!(
            "CREATE TABLE {schema}.meta (only_row boolean PRIMARY KEY CHECK (only_row), schema_version integer NOT NULL);
             INSERT INTO {schema}.meta VALUES (true, 0)",
        ))
        .await
        .map_err(wrong)
}
