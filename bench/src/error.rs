//! The ends of a measurement without figures.

use ff_store::StoreError;
use flowfabric::SdkError;

/// The result of everything here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The arguments make no sense, or not on this store.
    #[error("{0}")]
    Usage(String),
    /// The engine or its store refused.
    #[error(transparent)]
    Refused(#[from] SdkError),
    /// The figures could not be written.
    #[error("the figures cannot be written: {0}")]
    Output(std::io::Error),
    /// The user asked for the end.
    #[error("interrupted")]
    Interrupted,
    /// The measurement itself went wrong.
    #[error("{0}")]
    Broken(String),
}

impl From<ff_core::Error> for Error {
    fn from(error: ff_core::Error) -> Self {
        Error::Refused(error.into())
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        ff_core::Error::from(error).into()
    }
}

impl From<&str> for Error {
    fn from(why: &str) -> Self {
        Error::Broken(why.to_owned())
    }
}

impl From<String> for Error {
    fn from(why: String) -> Self {
        Error::Broken(why)
    }
}

macro_rules! breaks {
    ($($error:ty),* $(,)?) => {
        $(impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Error::Broken(error.to_string())
            }
        })*
    };
}

breaks! {
    std::io::Error,
    std::num::TryFromIntError,
    serde_json::Error,
    ff_server::ConfigError,
    tokio::task::JoinError,
    tokio::sync::broadcast::error::RecvError,
    tokio_postgres::Error,
}
