//! Sessions of browsers: what a page gets in exchange for an API token, so that the token itself is not kept there.
//!
//! A session names the token it stands for and proves it by an HMAC under the token's stored hash. So no server keeps
//! sessions, every server of a deployment knows them, and they end with the token's revocation.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::error::{Code, Error, Result};
use crate::token::{from_hex, to_hex};

/// How long a session lasts without its token being shown again.
pub const SESSION_TTL_MS: i64 = 12 * 3600 * 1_000;

/// The beginning of every session's text, with the version of its layout.
const PREFIX: &str = "ffs1_";

/// A session as a browser sends it: `ffs1_<token id>_<end>_<proof>`.
#[derive(Clone, PartialEq, Eq)]
pub struct Session {
    token_id: [u8; 16],
    expires_at: i64,
    proof: [u8; 32],
}

impl Session {
    /// A session for the holder of a token, which only its stored hash can prove.
    pub fn begin(token_id: [u8; 16], token_hash: &[u8], expires_at: i64) -> Self {
        let proof = mac(token_id, token_hash, expires_at).finalize().into_bytes().into();
        Self { token_id, expires_at, proof }
    }

    /// The session in this text. Every malformed one reads the same.
    pub fn parse(text: &str) -> Result<Self> {
        let parts = || {
            let mut parts = text.strip_prefix(PREFIX)?.splitn(3, '_');
            let token_id = from_hex(parts.next()?)?.try_into().ok()?;
            let expires_at = parts.next()?.parse().ok()?;
            let proof = from_hex(parts.next()?)?.try_into().ok()?;
            Some(Self { token_id, expires_at, proof })
        };
        parts().ok_or_else(|| Error::of(Code::Unauthenticated))
    }

    /// The token it stands for.
    pub fn token_id(&self) -> [u8; 16] {
        self.token_id
    }

    /// Refuses a session that this hash does not prove, or that has ended; both read the same. The proof is compared
    /// first and in constant time. An empty hash proves nothing: every caller can compute an HMAC under an empty key.
    pub fn check(&self, token_hash: &[u8], now: i64) -> Result<()> {
        let proved = mac(self.token_id, token_hash, self.expires_at).verify_slice(&self.proof).is_ok();
        if proved && !token_hash.is_empty() && now < self.expires_at {
            return Ok(());
        }
        Err(Error::of(Code::Unauthenticated))
    }

    /// The session itself, for the one cookie that carries it.
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}_{}_{}", to_hex(&self.token_id), self.expires_at, to_hex(&self.proof))
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}_redacted", to_hex(&self.token_id))
    }
}

fn mac(token_id: [u8; 16], token_hash: &[u8], expires_at: i64) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(token_hash).expect("HMAC takes keys of any length");
    mac.update(b"ff-session-1");
    mac.update(&token_id);
    mac.update(&expires_at.to_be_bytes());
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_proved_by_the_hash_of_its_token_until_it_ends() {
        let session = Session::parse(&Session::begin([7; 16], b"hash", 1_000).reveal()).unwrap();
        assert_eq!(session.token_id(), [7; 16]);
        assert_eq!(session.check(b"hash", 999), Ok(()));
        assert_eq!(session.check(b"hash", 1_000).unwrap_err().code, Code::Unauthenticated);
        assert_eq!(session.check(b"other", 999).unwrap_err().code, Code::Unauthenticated);
    }

    #[test]
    fn a_token_without_a_hash_proves_no_session() {
        let forged = Session::begin([7; 16], b"", i64::MAX);
        assert_eq!(forged.check(b"", 1).unwrap_err().code, Code::Unauthenticated);
    }

    #[test]
    fn a_session_with_a_later_end_is_not_proved() {
        let text = Session::begin([7; 16], b"hash", 1_000).reveal().replace("_1000_", "_9000_");
        assert!(Session::parse(&text).unwrap().check(b"hash", 2_000).is_err());
    }

    #[test]
    fn what_is_no_session_reads_as_one_that_is_wrong() {
        for text in ["", "ffs1_", "ffs1_00_1_00", "ff_00_00", "ffs1_07070707070707070707070707070707_x_00"] {
            assert_eq!(Session::parse(text).unwrap_err().code, Code::Unauthenticated, "{text:?}");
        }
    }

    #[test]
    fn a_session_does_not_show_its_proof() {
        let session = Session::begin([7; 16], b"hash", 1_000);
        assert!(!format!("{session:?}").contains(&to_hex(&session.proof)));
    }
}
