//! Installs the servers and the browser that tests start for themselves, where they are missing.

mod apt;
mod browser;
mod postgres;
mod valkey;

/// Installs what is missing, or says what to install by hand.
pub(crate) fn install_missing() -> Result<(), String> {
    valkey::install_missing()?;
    postgres::install_missing()?;
    browser::install_missing()
}
