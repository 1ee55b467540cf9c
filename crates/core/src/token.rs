//! Waitpoint tokens and the secrets that sign them. A token is the authority to signal one waitpoint: nothing of the
//! waitpoint is revealed before it verified, and secrets and tokens redact themselves wherever they are printed.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::encoding::Document;
use crate::error::{Code, Error, Result};
use crate::id::{ExecutionId, WaitpointId};
use crate::index::{Indexed, kind};
use crate::key::{Entry, Key};
use crate::waitpoint::Waitpoint;
use crate::{limits, text};

/// The kid of a deployment's first secret.
pub const FIRST_KID: &str = "k1";

/// The first part of everything that is signed, so that no other use of a secret can make a token.
const DOMAIN: &str = "ff-waitpoint-1";
/// Keeps tickets for streams and waitpoint tokens apart.
const TICKET_DOMAIN: &str = "ff-stream-ticket-1";

/// Lower-case hex digits.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// The bytes that an even number of hex digits stands for.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect()
}

/// Bytes that sign tokens. They leave the process only into the store.
#[derive(Clone, Default)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// A secret from hex digits, as people configure it.
    pub fn from_hex(field: &str, hex: &str) -> Result<Self> {
        let bytes = from_hex(hex).ok_or_else(|| Error::invalid(field, "must be an even number of hex digits"))?;
        let (min, max) = (limits::SECRET_MIN_BYTES, limits::SECRET_MAX_BYTES);
        if bytes.len() < min || bytes.len() > max {
            return Err(Error::invalid(field, format!("must have {min} to {max} bytes, not {}", bytes.len())));
        }
        Ok(Self(bytes))
    }

    /// A secret made of random bytes.
    pub fn from_random(random: [u8; limits::SECRET_MIN_BYTES]) -> Self {
        Self(random.to_vec())
    }

    /// A secret from bytes whose number was checked.
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes, for what signs with them in its own way.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn hmac_of(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut hmac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        for part in parts {
            hmac.update(&(part.len() as u64).to_be_bytes());
            hmac.update(part);
        }
        hmac
    }

    fn hmac(&self, subject: &TokenSubject<'_>) -> Hmac<Sha256> {
        let (execution, waitpoint) = (subject.execution.to_string(), subject.waitpoint.to_string());
        let created_at = subject.created_at.to_string();
        let parts = [DOMAIN, subject.namespace, &execution, &waitpoint, subject.waitpoint_key, &created_at];
        self.hmac_of(&parts.map(str::as_bytes))
    }
}

/// In constant time: how much of a secret was guessed must not show.
impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

/// Raw in the store, redacted in everything people read.
impl serde::Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str("redacted")
        } else {
            serializer.serialize_bytes(&self.0)
        }
    }
}

impl<'de> serde::Deserialize<'de> for Secret {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return Err(serde::de::Error::custom(
                "a secret is never written where people read, so it cannot be read back",
            ));
        }
        serde_bytes::ByteBuf::deserialize(deserializer).map(|bytes| Self(bytes.into_vec()))
    }
}

/// The subject that a token is bound to.
#[derive(Debug, Clone, Copy)]
pub struct TokenSubject<'a> {
    /// The execution's namespace.
    pub namespace: &'a str,
    /// The execution.
    pub execution: ExecutionId,
    /// The waitpoint.
    pub waitpoint: WaitpointId,
    /// The waitpoint's name.
    pub waitpoint_key: &'a str,
    /// When the waitpoint was created.
    pub created_at: i64,
}

impl<'a> From<&'a Waitpoint> for TokenSubject<'a> {
    fn from(waitpoint: &'a Waitpoint) -> Self {
        Self {
            namespace: &waitpoint.namespace,
            execution: waitpoint.execution,
            waitpoint: waitpoint.id,
            waitpoint_key: &waitpoint.waitpoint_key,
            created_at: waitpoint.created_at,
        }
    }
}

/// The authority to signal one waitpoint.
#[derive(Clone)]
pub struct WaitpointToken {
    kid: String,
    mac: [u8; 32],
}

impl WaitpointToken {
    /// The token in this text. Every malformed one reads the same.
    pub fn parse(token: &str) -> Result<Self> {
        let invalid = || Error::of(Code::InvalidToken);
        let (kid, hex) = token.split_once(':').ok_or_else(invalid)?;
        // One token has one spelling, otherwise it would have several fingerprints.
        if kid.is_empty() || kid.len() > limits::KID_MAX_BYTES || hex.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(invalid());
        }
        let mac = from_hex(hex).and_then(|bytes| bytes.try_into().ok()).ok_or_else(invalid)?;
        Ok(Self { kid: kid.to_owned(), mac })
    }

    /// The name of the secret that signed it.
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// The token itself, for the one place that hands it out.
    pub fn reveal(&self) -> String {
        format!("{}:{}", self.kid, to_hex(&self.mac))
    }

    /// Tells tokens apart in lists and logs without being one.
    pub fn fingerprint(&self) -> String {
        to_hex(&Sha256::digest(self.reveal().as_bytes())[..4])
    }
}

impl fmt::Display for WaitpointToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:redacted", self.kid)
    }
}

impl fmt::Debug for WaitpointToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WaitpointToken({self})")
    }
}

crate::document! {
    /// One secret and how long it verifies.
    pub struct WaitpointSecret {
        /// Its name.
        "k" kid: String,
        /// Its bytes.
        "s" secret: Secret,
        /// When it was installed.
        "i" installed_at: i64,
        /// From this instant on it verifies nothing; the current one has none.
        "e" expires_at: Option<i64>,
    }
}

crate::document! {
    /// The name of a secret that was forgotten.
    pub struct ForgottenKid {
        /// The name.
        "k" kid: String,
        /// Until then it may not name another secret.
        "u" until: i64,
    }
}

crate::document! {
    /// The waitpoint secrets of a deployment: one document in the system partition.
    pub struct WaitpointSecrets {
        /// The kid that signs.
        "c" current: String,
        /// Every secret that may still verify, in the order they were installed.
        "s" secrets: Vec<WaitpointSecret>,
        /// Names of secrets that are gone.
        "f" forgotten: Vec<ForgottenKid>,
    }
}

impl Document for WaitpointSecrets {
    const KIND: u8 = kind::SECRETS;
    crate::encoding::compiled_here!();
}

impl Indexed for WaitpointSecrets {
    fn key(&self) -> Key {
        Self::key_of()
    }

    fn index_entries(&self, _lease_until: i64) -> Vec<Entry> {
        Vec::new()
    }
}

/// How the configured secret compares with the stored ones at a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Installation {
    /// There was none; the given one was installed.
    Installed,
    /// The given one signs already, or none was given and one signs.
    Unchanged,
    /// Another one signs; nothing was changed. A rotation is the way to change it.
    Differs,
    /// The signing kid had no secret; the given one was put in its place.
    Repaired,
}

/// The answer to a rotation.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", deny_unknown_fields)]
pub struct RotateWaitpointSecretResult {
    /// The kid that signs now.
    pub new_kid: String,
    /// The kid that signed before it.
    pub previous_kid: Option<String>,
    /// Until when the previous one verifies.
    pub previous_expires_at: Option<i64>,
    /// Whether this call changed anything.
    pub changed: bool,
}
crate::newer::open_struct!(RotateWaitpointSecretResult);

impl WaitpointSecrets {
    /// Where the secrets live, in the system partition.
    pub fn key_of() -> Key {
        Key::new(kind::SECRETS, &[b"waitpoint"])
    }

    /// A start brings the configured secret, or a generated one where `configured` is false.
    pub fn install_first(&mut self, secret: Secret, configured: bool, now: i64) -> Installation {
        let install = |kid: &str| WaitpointSecret {
            kid: kid.to_owned(),
            secret: secret.clone(),
            installed_at: now,
            ..Default::default()
        };
        if self.current.is_empty() && self.secrets.is_empty() {
            self.current = FIRST_KID.to_owned();
            self.secrets.push(install(FIRST_KID));
            return Installation::Installed;
        }
        if let Some(current) = self.secrets.iter_mut().find(|known| known.kid == self.current) {
            let same = !configured || current.secret == secret;
            if current.expires_at.take().is_some() {
                return Installation::Repaired;
            }
            return if same { Installation::Unchanged } else { Installation::Differs };
        }
        if self.current.is_empty() {
            // A name that was never used: a known one might stand for another secret in a token that is still around.
            let taken = |kid: &str| self.secret(kid).is_some() || self.forgotten.iter().any(|name| name.kid == kid);
            let mut number = 1;
            while taken(&format!("k{number}")) {
                number += 1;
            }
            self.current = format!("k{number}");
        }
        self.secrets.push(install(&self.current));
        Installation::Repaired
    }

    /// Signs with a new secret from now on; the one that signed until now verifies for the grace. A repeat of an
    /// earlier rotation changes nothing, also when others followed it.
    pub fn rotate(
        &mut self,
        new_kid: &str,
        secret_hex: &str,
        grace_ms: i64,
        now: i64,
    ) -> Result<RotateWaitpointSecretResult> {
        check_kid(new_kid)?;
        let secret = Secret::from_hex("new_secret_hex", secret_hex)?;
        text::duration_ms("grace_ms", grace_ms)?;
        let conflict = || Error::of(Code::RotationConflict).with("kid", new_kid);
        let mut next = self.clone();
        next.forget(now);
        if let Some(known) = next.secret(new_kid) {
            return if known.secret == secret { Ok(self.answer(false)) } else { Err(conflict()) };
        }
        if next.forgotten.iter().any(|name| name.kid == new_kid) {
            return Err(conflict());
        }
        if next.secrets.len() >= limits::WAITPOINT_SECRETS_MAX || next.forgotten.len() >= limits::FORGOTTEN_KIDS_MAX {
            let detail = "as many waitpoint secrets or their names are kept as may be; wait for old ones to expire";
            return Err(Error::new(Code::ConcurrencyLimitExceeded, detail).with("pool", "admin_rotate"));
        }
        for old in next.secrets.iter_mut().filter(|old| old.expires_at.is_none()) {
            old.expires_at = Some(now + grace_ms);
        }
        next.secrets.push(WaitpointSecret { kid: new_kid.to_owned(), secret, installed_at: now, ..Default::default() });
        next.current = new_kid.to_owned();
        *self = next;
        Ok(self.answer(true))
    }

    /// Drops secrets that verify nothing any more, and names that may be used again.
    fn forget(&mut self, now: i64) {
        let (kept, gone) = std::mem::take(&mut self.secrets).into_iter().partition(|secret| secret.is_live(now));
        self.secrets = kept;
        self.forgotten.extend(gone.into_iter().map(|secret: WaitpointSecret| ForgottenKid {
            until: secret.expires_at.unwrap_or(now) + limits::KID_REMEMBERED_MS,
            kid: secret.kid,
            ..Default::default()
        }));
        self.forgotten.retain(|name| name.until > now);
    }

    fn secret(&self, kid: &str) -> Option<&WaitpointSecret> {
        self.secrets.iter().find(|known| known.kid == kid)
    }

    fn answer(&self, changed: bool) -> RotateWaitpointSecretResult {
        let previous = self.secrets.iter().rev().find(|known| known.kid != self.current);
        RotateWaitpointSecretResult {
            new_kid: self.current.clone(),
            previous_kid: previous.map(|known| known.kid.clone()),
            previous_expires_at: previous.and_then(|known| known.expires_at),
            changed,
        }
    }

    /// Whether a kid is or was one of these; an unknown one is worth reading the secrets again.
    pub fn knows(&self, kid: &str) -> bool {
        self.secret(kid).is_some() || self.forgotten.iter().any(|name| name.kid == kid)
    }

    /// The token of a waitpoint, signed with the current secret.
    pub fn sign(&self, subject: &TokenSubject<'_>) -> Result<WaitpointToken> {
        let missing = || Error::new(Code::Internal, "no waitpoint secret is installed");
        let current = self.secret(&self.current).ok_or_else(missing)?;
        Ok(WaitpointToken {
            kid: self.current.clone(),
            mac: current.secret.hmac(subject).finalize().into_bytes().into(),
        })
    }

    /// A text that everybody may read and only this deployment can have written: `kid:hex.mac`.
    pub fn seal(&self, text: &str) -> Result<String> {
        let missing = || Error::new(Code::Internal, "no waitpoint secret is installed");
        let current = self.secret(&self.current).ok_or_else(missing)?;
        let mac = current.secret.hmac_of(&[TICKET_DOMAIN.as_bytes(), text.as_bytes()]).finalize().into_bytes();
        Ok(format!("{}:{}.{}", self.current, to_hex(text.as_bytes()), to_hex(&mac)))
    }

    /// The text that was sealed, if a secret that still verifies sealed it.
    pub fn unseal(&self, sealed: &str, now: i64) -> Option<String> {
        let (kid, rest) = sealed.split_once(':')?;
        let (text, mac) = rest.split_once('.')?;
        let (text, mac) = (from_hex(text)?, from_hex(mac)?);
        let secret = self.secret(kid).filter(|secret| secret.is_live(now))?;
        secret.secret.hmac_of(&[TICKET_DOMAIN.as_bytes(), &text]).verify_slice(&mac).ok()?;
        String::from_utf8(text).ok()
    }

    /// Whether a token belongs to a waitpoint; `None` where there is no such waitpoint, which costs and reads the same
    /// as a wrong token. A kid that was rotated out reads `token_expired` whatever the waitpoint, because its secret
    /// may be forgotten and because the answer must not tell whether the waitpoint exists.
    pub fn verify(&self, token: &str, subject: Option<&TokenSubject<'_>>, now: i64) -> Result<()> {
        let parsed = WaitpointToken::parse(token).ok();
        let known = parsed.as_ref().and_then(|token| self.secret(&token.kid));
        let live = known.filter(|secret| secret.is_live(now));
        let dummy = TokenSubject {
            namespace: "",
            execution: ExecutionId::default(),
            waitpoint: WaitpointId::default(),
            waitpoint_key: "",
            created_at: 0,
        };
        let nobody = WaitpointSecret::default();
        let presented = parsed.as_ref().map_or([0; 32], |token| token.mac);
        let mac = live.unwrap_or(&nobody).secret.hmac(subject.unwrap_or(&dummy));
        let matches = mac.verify_slice(&presented).is_ok();
        if matches && live.is_some() && subject.is_some() {
            return Ok(());
        }
        let remembered = parsed.as_ref().is_some_and(|token| self.is_rotated_out(&token.kid, now));
        Err(Error::of(if remembered { Code::TokenExpired } else { Code::InvalidToken }))
    }

    fn is_rotated_out(&self, kid: &str, now: i64) -> bool {
        let expired = |secret: &WaitpointSecret| secret.expires_at.filter(|_| !secret.is_live(now));
        let until = self.secret(kid).and_then(expired).map(|at| at + limits::KID_REMEMBERED_MS);
        let until = until.or_else(|| self.forgotten.iter().find(|name| name.kid == kid).map(|name| name.until));
        until.is_some_and(|until| until > now)
    }
}

impl WaitpointSecret {
    fn is_live(&self, now: i64) -> bool {
        self.expires_at.is_none_or(|at| at > now)
    }
}

fn check_kid(kid: &str) -> Result<()> {
    text::label("new_kid", kid)?;
    if kid.len() > limits::KID_MAX_BYTES {
        let max = limits::KID_MAX_BYTES;
        return Err(Error::invalid("new_kid", format!("has {} bytes, the limit is {max}", kid.len())));
    }
    if kid.contains(':') {
        return Err(Error::invalid("new_kid", "must not contain ':', which ends it in a token"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
