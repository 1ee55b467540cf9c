//! Opens whichever store an address names, so that the server and programs that embed the engine agree on what an
//! address means: `memory://`, `sqlite://./flowfabric.db`, `valkey://host`, `valkeys://host`, `postgres://host/db`.

#[cfg(feature = "postgres")]
mod describe;
mod examine;

pub use examine::{Examination, Reached, examine};

use std::pin::Pin;
use std::sync::Arc;

use ff_store::memory::MemoryStore;
use ff_store::{Result, Store, StoreError};

/// The address of the store when none is configured.
pub const DEFAULT_URL: &str = "sqlite://./flowfabric.db";

/// A future that is compiled here, with the clients of all the databases, and not again by everything that waits for it.
pub type Opening<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// Opens a store. The address itself never appears in an error: it may hold a password.
pub fn open(url: &str) -> Opening<'_, Arc<dyn Store>> {
    Box::pin(open_any(url))
}

async fn open_any(url: &str) -> Result<Arc<dyn Store>> {
    match scheme(url)? {
        "memory" => Ok(Arc::new(MemoryStore::new())),
        #[cfg(feature = "sqlite")]
        "sqlite" => Ok(ff_store_sqlite::open(&url.parse()?)?),
        #[cfg(feature = "valkey")]
        "valkey" | "valkeys" => Ok(Arc::new(ff_store_valkey::ValkeyStore::open(url).await?)),
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => {
            let options = ff_store_postgres::Options::parse(url)?.describe(describe::describe).view(describe::view);
            Ok(Arc::new(ff_store_postgres::PostgresStore::open(options).await?))
        }
        other => Err(unknown(other)),
    }
}

fn scheme(url: &str) -> Result<&str> {
    let (scheme, _) = url
        .split_once("://")
        .ok_or_else(|| StoreError::Config("the address has no scheme; a store's begins with sqlite://, postgres:// or valkey://, a server's with http:// or https://".into()))?;
    Ok(scheme)
}

fn unknown(scheme: &str) -> StoreError {
    StoreError::Config(format!(
        "the scheme {scheme:?} names no store; known are memory, sqlite, valkey, valkeys and postgres, and http and https for a server"
    ))
}

/// An address as it may stand in logs: without a password.
pub fn redacted(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return "[no scheme]".into() };
    // A file has no password, and its name may hold an `@`.
    if ["sqlite", "memory"].contains(&scheme) {
        return url.to_owned();
    }
    // A password may hold a slash or a question mark that is not encoded: everything up to the last `@` is left out,
    // which may be more than the password.
    match rest.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://[redacted]@{}", without_secrets(host)),
        None => format!("{scheme}://{}", without_secrets(rest)),
    }
}

/// The rest of an address, without the values of parameters that are secrets.
fn without_secrets(rest: &str) -> String {
    let Some((path, query)) = rest.split_once('?') else { return rest.to_owned() };
    let shown = query.split('&').map(|parameter| match parameter.split_once('=') {
        Some((name, _)) if name.to_ascii_lowercase().contains("password") => format!("{name}=[redacted]"),
        _ => parameter.to_owned(),
    });
    format!("{path}?{}", shown.collect::<Vec<_>>().join("&"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(redacted("valkey://a:s3cret@h:1?tier=async"), "valkey://[redacted]@h:1?tier=async");
        assert_eq!(redacted("postgres://a:p@x@h/db"), "postgres://[redacted]@h/db");
        assert_eq!(redacted("sqlite://./a@b.db"), "sqlite://./a@b.db");
        assert_eq!(redacted("postgres://a:s3/cr?et@h/db"), "postgres://[redacted]@h/db");
        assert_eq!(
            redacted("postgres://h/db?password=s3cret&sslmode=require"),
            "postgres://h/db?password=[redacted]&sslmode=require"
        );
    }
}
