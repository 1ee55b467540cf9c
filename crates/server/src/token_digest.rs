//! A configured token, as its digest.

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// A configured token. Only its digest is kept, so that no dump or log can show it.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    /// The digest of a token.
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token).into())
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// The key that seals the sessions of this token.
    pub(crate) fn session_key(&self) -> &[u8; 32] {
        &self.0
    }

    /// The name of this token in sessions. It tells nothing about the token, nor about its digest.
    pub(crate) fn session_id(&self) -> [u8; 16] {
        let digest: [u8; 32] = Sha256::digest(self.0).into();
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        id
    }
}

impl std::fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[redacted]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configured_token_does_not_show() {
        assert_eq!(format!("{:?}", TokenDigest::of("hunter2")), "[redacted]");
    }
}
