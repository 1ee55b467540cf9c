//! What an error reply of the server means for the call that met it.

use ff_store::StoreError;

/// The meaning of an error reply. In all of these cases the command did nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The slot lives at another node now.
    Moved(String),
    /// The slot is on its way: ask there, this once.
    Ask(String),
    /// Not now (loading, migrating, failing over, busy): the same call may succeed in a moment.
    Later,
    /// The node lost its primary's role: find the new primary.
    NotPrimary,
    /// The function library is missing.
    NoLibrary,
    /// The function library has another revision.
    OtherLibrary(u32),
    /// No room in memory or on disk.
    Full,
    /// The credentials or rights do not suffice.
    Denied,
    /// Anything else: a defect.
    Other,
}

impl Refusal {
    pub(crate) fn parse(text: &str) -> Self {
        let mut words = text.split(' ');
        match words.next().unwrap_or_default() {
            "MOVED" => words.nth(1).map_or(Refusal::Later, |address| Refusal::Moved(address.into())),
            "ASK" => words.nth(1).map_or(Refusal::Later, |address| Refusal::Ask(address.into())),
            "TRYAGAIN" | "LOADING" | "CLUSTERDOWN" | "BUSY" | "MASTERDOWN" | "NOREPLICAS" => Refusal::Later,
            "READONLY" | "UNBLOCKED" => Refusal::NotPrimary,
            "OOM" | "MISCONF" => Refusal::Full,
            "NOAUTH" | "WRONGPASS" | "NOPERM" => Refusal::Denied,
            "FFLIBRARY" => {
                words.next().and_then(|revision| revision.parse().ok()).map_or(Refusal::Other, Refusal::OtherLibrary)
            }
            _ if text.contains("Function not found") => Refusal::NoLibrary,
            // A scan's documents are found on the way: while their slot migrates some are already elsewhere.
            _ if text.contains("non local key") => Refusal::Later,
            _ if text.contains("max number of clients") => Refusal::Later,
            _ => Refusal::Other,
        }
    }

    /// The error for a caller who cannot be helped.
    pub(crate) fn into_error(self, text: &str) -> StoreError {
        match self {
            Refusal::Full => StoreError::Full(text.into()),
            Refusal::Denied => StoreError::Config(text.into()),
            Refusal::NotPrimary => StoreError::ReadOnly(text.into()),
            Refusal::Other if text.contains("FFREQUEST") => StoreError::Invalid(text.into()),
            Refusal::Other => StoreError::Corrupt(text.into()),
            _ => StoreError::Unavailable(text.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_error_has_its_meaning() {
        for (text, meaning) in [
            ("MOVED 3999 127.0.0.1:6381", Refusal::Moved("127.0.0.1:6381".into())),
            ("ASK 3999 127.0.0.1:6381", Refusal::Ask("127.0.0.1:6381".into())),
            ("TRYAGAIN Multiple keys request during rehashing of slot", Refusal::Later),
            ("LOADING Valkey is loading the dataset in memory", Refusal::Later),
            ("CLUSTERDOWN The cluster is down", Refusal::Later),
            ("READONLY You can't write against a read only replica.", Refusal::NotPrimary),
            ("ERR Function not found", Refusal::NoLibrary),
            ("FFLIBRARY 7", Refusal::OtherLibrary(7)),
            ("OOM command not allowed when used memory > 'maxmemory'.", Refusal::Full),
            ("MISCONF Errors writing to the AOF file: No space left on device", Refusal::Full),
            ("WRONGPASS invalid username-password pair or user is disabled.", Refusal::Denied),
            ("ERR Script attempted to access a non local key in a cluster node script: f", Refusal::Later),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Refusal::Other),
        ] {
            assert_eq!(Refusal::parse(text), meaning, "{text}");
        }
    }
}
