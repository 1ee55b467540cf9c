//! The meaning of a server's error reply for the call that got it.

use ff_store::StoreError;

/// The meaning of an error reply. In all cases but `Partial` and `Other` the command did nothing. A commit that ended
/// with `Other` did nothing only if the function says that it had not begun ([`had_not_begun`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The slot lives at another node now.
    Moved(String),
    /// The slot is on its way: this one call should go to the other node.
    Ask(String),
    /// The slot is on its way, and some of the keys are here and some there.
    Moving,
    /// Not now (loading, failing over, busy): the same call may succeed in a moment.
    Later,
    /// The node lost its primary's role: find the new primary.
    NotPrimary,
    /// The function library is missing.
    NoLibrary,
    /// The library under our name speaks another protocol.
    OtherLibrary(u32),
    /// No room in memory or on disk.
    Full,
    /// The credentials or rights do not suffice.
    Denied,
    /// A function failed after its first write: its effect is not known.
    Partial,
    /// Anything else: a defect.
    Other,
}

/// How the commit function begins an error that came before its first write.
pub(crate) const NOT_BEGUN: &str = "FFREFUSED ";

/// Whether an error reply of the commit function says that nothing was written.
pub(crate) fn had_not_begun(text: &str) -> bool {
    text.starts_with(NOT_BEGUN) || text.starts_with("FFREQUEST")
}

impl Refusal {
    pub(crate) fn parse(text: &str) -> Self {
        let text = text.strip_prefix(NOT_BEGUN).unwrap_or(text);
        let mut words = text.split(' ');
        match words.next().unwrap_or_default() {
            "MOVED" => words.nth(1).map_or(Refusal::Later, |address| Refusal::Moved(address.into())),
            "ASK" => words.nth(1).map_or(Refusal::Later, |address| Refusal::Ask(address.into())),
            "TRYAGAIN" => Refusal::Moving,
            "FFPARTIAL" => Refusal::Partial,
            "LOADING" | "CLUSTERDOWN" | "BUSY" | "MASTERDOWN" | "NOREPLICAS" => Refusal::Later,
            "READONLY" | "UNBLOCKED" => Refusal::NotPrimary,
            "OOM" | "MISCONF" => Refusal::Full,
            "NOAUTH" | "WRONGPASS" | "NOPERM" => Refusal::Denied,
            "FFLIBRARY" => {
                words.next().and_then(|protocol| protocol.parse().ok()).map_or(Refusal::Other, Refusal::OtherLibrary)
            }
            _ if text.contains("Function not found") => Refusal::NoLibrary,
            // The function read keys that the call does not name, and some of them are already elsewhere because their
            // slot moves.
            _ if text.contains("non local key") || text.contains("undeclared keys") => Refusal::Moving,
            _ if text.contains("ACL failure in script") => Refusal::Denied,
            _ if text.contains("max number of clients") => Refusal::Later,
            _ => Refusal::Other,
        }
    }

    /// The error for the caller, if the call cannot succeed.
    pub(crate) fn into_error(self, text: &str) -> StoreError {
        match self {
            Refusal::Full => StoreError::Full(text.into()),
            Refusal::Denied => StoreError::Config(text.into()),
            Refusal::NotPrimary => StoreError::ReadOnly(text.into()),
            Refusal::Partial => StoreError::Unknown(text.into()),
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
            ("TRYAGAIN Multiple keys request during rehashing of slot", Refusal::Moving),
            ("LOADING Valkey is loading the dataset in memory", Refusal::Later),
            ("CLUSTERDOWN The cluster is down", Refusal::Later),
            ("READONLY You can't write against a read only replica.", Refusal::NotPrimary),
            ("ERR Function not found", Refusal::NoLibrary),
            ("FFLIBRARY 7", Refusal::OtherLibrary(7)),
            ("OOM command not allowed when used memory > 'maxmemory'.", Refusal::Full),
            ("MISCONF Errors writing to the AOF file: No space left on device", Refusal::Full),
            ("WRONGPASS invalid username-password pair or user is disabled.", Refusal::Denied),
            ("ERR Script attempted to access a non local key in a cluster node script: f", Refusal::Moving),
            (
                "ERR Unable to execute command 'mget' in script because undeclared keys were accessed during rehashing",
                Refusal::Moving,
            ),
            ("FFREFUSED OOM command not allowed when used memory > 'maxmemory'.", Refusal::Full),
            ("FFPARTIAL OOM command not allowed when used memory > 'maxmemory'.", Refusal::Partial),
            ("ERR ACL failure in script: User u has no permissions to run the 'xadd' command", Refusal::Denied),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Refusal::Other),
        ] {
            assert_eq!(Refusal::parse(text), meaning, "{text}");
        }
    }
}
