//! Opens whichever store an address names, so that the server and programs that embed the engine agree on what an
//! address means: `memory://`, `sqlite://./flowfabric.db`, `valkey://host`, `valkeys://host`, `postgres://host/db`.

#[cfg(feature = "postgres")]
mod describe;
mod examine;

pub use examine::{Examination, Reached, examine};

use std::sync::Arc;

use ff_store::memory::MemoryStore;
use ff_store::{Result, Store, StoreError};

/// The address of the store when none is configured.
pub const DEFAULT_URL: &str = "sqlite://./flowfabric.db";

/// Opens a store. The address itself never appears in an error: it may hold a password.
pub async fn open(url: &str) -> Result<Arc<dyn Store>> {
    match scheme(url)? {
        "memory" => Ok(Arc::new(MemoryStore::new())),
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(ff_store_sqlite::open(&url.parse()?)?),
        #[cfg(feature = "valkey")]
        "valkey" | "valkeys" => Ok(Arc::new(ff_store_valkey::ValkeyStore::open(url).await?)),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            let options = ff_store_postgres::Options::parse(url)?.describe(describe::describe);
            Ok(Arc::new(ff_store_postgres::PostgresStore::open(options).await?))
        }
        other => Err(unknown(other)),
    }
}

fn scheme(url: &str) -> Result<&str> {
    let (scheme, _) = url
        .split_once("://")
        .ok_or_else(|| StoreError::Config("the address has no scheme, such as sqlite://./flowfabric.db".into()))?;
    Ok(scheme)
}

fn unknown(scheme: &str) -> StoreError {
    StoreError::Config(format!(
        "the scheme {scheme:?} names no store; known are memory, sqlite, valkey, valkeys and postgres"
    ))
}

/// An address as it may stand in logs: without a password.
pub fn redacted(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "[no scheme]".into() };
    let authority_end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(authority_end);
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://[redacted]@{host}{tail}"),
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(redacted("valkey://a:s3cret@h:1?tier=async"), "valkey://[redacted]@h:1?tier=async");
        assert_eq!(redacted("postgres://a:p@x@h/db"), "postgres://[redacted]@h/db");
        assert_eq!(redacted("sqlite://./a@b.db"), "sqlite://./a@b.db");
    }
}
