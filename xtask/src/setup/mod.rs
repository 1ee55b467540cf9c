//! Installs the servers, the browser and the programs that tests start for themselves, where they are missing.

mod apt;
mod browser;
mod postgres;
mod programs;
mod valkey;

/// Installs what is missing, or says what to install by hand.
pub(crate) fn install_missing() -> Result<(), String> {
    valkey::install_missing()?;
    postgres::install_missing()?;
    programs::install_missing()?;
    browser::install_missing()
}
