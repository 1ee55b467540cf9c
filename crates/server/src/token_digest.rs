//! A configured token, as its digest, and the name it is known by.

use ff_core::api_token::CONFIGURED_PREFIX;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// A configured token. Only its digest is kept, so that no dump or log can show it.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenDigest {
    digest: [u8; 32],
    /// Empty for a token without a name.
    name: String,
}

/// The longest name of a configured token.
const NAME_MAX_CHARS: usize = 64;

impl TokenDigest {
    /// The digest of a token without a name.
    pub fn of(token: &str) -> Self {
        Self { digest: Sha256::digest(token).into(), name: String::new() }
    }

    /// The name and the token of an entry `NAME=TOKEN`. A token may end with `=`, which names nothing.
    pub(crate) fn parts(entry: &str) -> (&str, &str) {
        let is_name = |name: &str| {
            let letters = name.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-".contains(letter));
            (1..=NAME_MAX_CHARS).contains(&name.len()) && letters
        };
        match entry.split_once('=') {
            Some((name, token)) if is_name(name) && token.chars().any(|letter| letter != '=') => (name, token),
            _ => ("", entry),
        }
    }

    /// The digest of a token under a name.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    /// The name of its holder in records. One with a name of its own is told from the others.
    pub(crate) fn caller_name(&self) -> String {
        match self.name.as_str() {
            "" => CONFIGURED_PREFIX.trim_end_matches(':').to_owned(),
            name => format!("{CONFIGURED_PREFIX}{name}"),
        }
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        self.digest.ct_eq(&other.digest).into()
    }

    /// The key that seals the sessions of this token.
    pub(crate) fn session_key(&self) -> &[u8; 32] {
        &self.digest
    }

    /// What this token is known by in sessions and in the keys of its calls. It tells nothing about the token, nor about
    /// its digest.
    pub(crate) fn public_id(&self) -> [u8; 16] {
        let digest: [u8; 32] = Sha256::digest(self.digest).into();
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

    #[test]
    fn an_entry_may_begin_with_a_name_and_a_token_may_end_with_padding() {
        assert_eq!(TokenDigest::parts("ops=0123456789abcdef"), ("ops", "0123456789abcdef"));
        for entry in ["0123456789abcdef", "MDEyMzQ1Njc4OWFi==", "=x", "a b=0123456789abcdef"] {
            assert_eq!(TokenDigest::parts(entry), ("", entry));
        }
        assert_eq!(TokenDigest::of("x").caller_name(), "api_token");
        assert_eq!(TokenDigest::of("x").named("ops").caller_name(), "api_token:ops");
    }
}
