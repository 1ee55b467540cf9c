//! Statistics of a Postgres database, seen on a connection of our own beside the store's.

use tokio_postgres::{Client, NoTls};

use crate::error::Result;

/// The schema that benchmarks use.
const SCHEMA: &str = "flowfabric";

/// A connection that looks on. Its own queries are counted as well.
pub(crate) struct Database(Client);

/// The size of a table.
pub(crate) struct Table {
    pub(crate) name: String,
    /// With what is stored out of line.
    pub(crate) heap: i64,
    pub(crate) indexes: i64,
    pub(crate) live: i64,
    pub(crate) dead: i64,
}

impl Database {
    /// Connects to the database of a store's address.
    pub(crate) async fn connect(url: &str) -> Result<Self> {
        let plain = url.split_once('?').map_or(url, |(plain, _)| plain);
        let (client, connection) = tokio_postgres::connect(plain, NoTls).await?;
        tokio::spawn(connection);
        Ok(Self(client))
    }

    /// Transactions of this database so far, of all its clients. Every statement outside of one is one.
    pub(crate) async fn transactions(&self) -> Result<u64> {
        let counted = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()";
        let count: i64 = self.0.query_one(counted, &[]).await?.get(0);
        Ok(u64::try_from(count)?)
    }

    /// The tables of the store, the largest first.
    pub(crate) async fn tables(&self) -> Result<Vec<Table>> {
        let sizes = "SELECT relname::text, pg_table_size(relid), pg_indexes_size(relid), n_live_tup, n_dead_tup
                     FROM pg_stat_user_tables WHERE schemaname = $1 ORDER BY pg_total_relation_size(relid) DESC";
        let rows = self.0.query(sizes, &[&SCHEMA]).await?;
        let table = |row: &tokio_postgres::Row| Table {
            name: row.get(0),
            heap: row.get(1),
            indexes: row.get(2),
            live: row.get(3),
            dead: row.get(4),
        };
        Ok(rows.iter().map(table).collect())
    }

    /// How often autovacuum has visited the tables of the store.
    pub(crate) async fn autovacuums(&self) -> Result<i64> {
        let counted =
            "SELECT coalesce(sum(autovacuum_count), 0)::bigint FROM pg_stat_user_tables WHERE schemaname = $1";
        Ok(self.0.query_one(counted, &[&SCHEMA]).await?.get(0))
    }

    /// Vacuums the tables of the store.
    pub(crate) async fn vacuum(&self) -> Result<()> {
        for table in self.tables().await? {
            self.0.batch_execute(&format!("VACUUM ANALYZE {SCHEMA}.{}", table.name)).await?;
        }
        Ok(())
    }
}
