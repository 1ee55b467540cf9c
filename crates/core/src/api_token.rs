//! API tokens: a token gives its bearer a role in a namespace. The secret part is shown once, when the token is made;
//! only its hash is stored.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::encoding::{Blob, Document};
use crate::error::{Code, Error, Result};
use crate::index::{self, Due, Indexed, kind};
use crate::key::{Entry, IndexName, Key};
use crate::partition::digest16;
use crate::session::Session;
use crate::text;
use crate::token::{from_hex, to_hex};

/// The namespace of a token that is good for all of them.
pub const EVERY_NAMESPACE: &str = "*";
/// The names of callers that have no stored token: the holder of a configured token, of a waitpoint's, of none where none
/// is asked for, and the engine itself. A stored token under such a name could not be told from them in records.
pub const RESERVED_NAMES: [&str; 5] = ["api_token", "waitpoint_token", "local", "system", EVERY_NAMESPACE];

/// How the name of the holder of a configured token begins if the token has a name: `api_token:NAME`.
pub const CONFIGURED_PREFIX: &str = "api_token:";

/// Refuses a name that no stored token may have.
pub fn token_name(name: &str) -> Result<()> {
    text::name("name", name)?;
    if RESERVED_NAMES.contains(&name) || name.starts_with(CONFIGURED_PREFIX) {
        return Err(Error::invalid("name", format!("must not be {name:?}, which stands for a caller of its own")));
    }
    Ok(())
}

crate::vocabulary! {
    /// The role of a token.
    #[derive(Default)]
    pub enum Role {
        /// Read.
        #[default]
        Reader "reader",
        /// Submit work, and read.
        Submitter "submitter",
        /// Do work, and read.
        Worker "worker",
        /// Submit, work, and operate what runs.
        Operator "operator",
        /// Everything, also tokens and secrets.
        Admin "admin",
        /// See what waits for people, and decide it.
        Approver "approver",
    }
}

impl Role {
    /// Whether this role may do what another one may.
    pub const fn allows(self, required: Role) -> bool {
        match (self, required) {
            (Role::Unknown(_), _) | (_, Role::Unknown(_)) => false,
            (Role::Admin, _) | (Role::Approver, Role::Approver) => true,
            (Role::Approver, _) => false,
            (_, Role::Reader) => true,
            (Role::Operator, required) => !matches!(required, Role::Admin),
            (Role::Submitter, required) => matches!(required, Role::Submitter),
            (Role::Worker, required) => matches!(required, Role::Worker),
            (Role::Reader, _) => false,
        }
    }
}

/// A token as its owner sends it: `ff_<id>_<secret>`, both in hex.
#[derive(Clone)]
pub struct ApiSecret {
    id: [u8; 16],
    secret: [u8; 32],
}

impl ApiSecret {
    /// The token in this text. Every malformed one reads the same.
    pub fn parse(token: &str) -> Result<Self> {
        let parts = || {
            let (id, secret) = token.strip_prefix("ff_")?.split_once('_')?;
            Some(Self { id: from_hex(id)?.try_into().ok()?, secret: from_hex(secret)?.try_into().ok()? })
        };
        parts().ok_or_else(|| Error::of(Code::Unauthenticated))
    }

    /// The secret of a named token.
    pub fn new(name: &str, secret: [u8; 32]) -> Self {
        Self { id: id_of(name), secret }
    }

    /// Where the token lives, in the system partition.
    pub fn key(&self) -> Key {
        Key::new(kind::TOKEN, &[&self.id])
    }

    /// The token itself, for the one answer that shows it.
    pub fn reveal(&self) -> String {
        format!("ff_{}_{}", to_hex(&self.id), to_hex(&self.secret))
    }

    fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.secret).into()
    }
}

impl fmt::Debug for ApiSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ff_{}_redacted", to_hex(&self.id))
    }
}

impl fmt::Display for ApiSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

crate::document! {
    /// An API token. Its name is unique in the deployment and decides where it lives.
    pub struct ApiToken {
        /// Its name.
        "m" name: String,
        /// The namespace it is good for, or `*`.
        "n" namespace: String,
        /// Its role there.
        "r" role: Role,
        /// SHA-256 of the secret part, which is random and long, so a slow hash would add nothing.
        "h" hash: Blob,
        /// When it was made.
        "c" created_at: i64,
        /// The name of the caller that made it.
        "b" created_by: String,
        /// From this instant on it is no good.
        "e" expires_at: Option<i64>,
        /// Since when it is no good, because it was revoked.
        "v" revoked_at: Option<i64>,
        /// Its bearer is believed when it names the sender of a signal, such as a program that relays a chat.
        "s" may_assert_source: bool,
        /// The lanes it is good for; all when empty.
        "l" lanes: Vec<String>,
    }
}

impl Document for ApiToken {
    const KIND: u8 = kind::TOKEN;
    crate::encoding::compiled_here!();
}

impl Indexed for ApiToken {
    fn key(&self) -> Key {
        Self::key_of(&self.name)
    }

    fn index_entries(&self, _lease_until: i64) -> Vec<Entry> {
        let listed = Entry { index: Self::listing(), member: self.key(), score: index::name_score(&self.name) };
        let forgotten = self.forgotten_at().map(|at| Due::Timer.entry(&self.key(), at));
        std::iter::once(listed).chain(forgotten).collect()
    }
}

/// The parts a token is made from.
#[derive(Debug, Clone, Default)]
pub struct NewApiToken {
    /// Its name.
    pub name: String,
    /// The namespace it is good for, or `*`.
    pub namespace: String,
    /// Its role there.
    pub role: Role,
    /// How long it is good for.
    pub expires_in_ms: Option<i64>,
    /// The name of the caller that makes it.
    pub created_by: String,
    /// Its bearer is believed when it names the sender of a signal.
    pub may_assert_source: bool,
    /// The lanes it is good for; all when empty.
    pub lanes: Vec<String>,
}

impl ApiToken {
    /// Where the token of a name lives, in the system partition.
    pub fn key_of(name: &str) -> Key {
        Key::new(kind::TOKEN, &[&id_of(name)])
    }

    /// Every token of the deployment, by name.
    pub fn listing() -> IndexName {
        index::listing(kind::TOKEN, "")
    }

    /// A token and its secret, which is not kept.
    pub fn create(new: NewApiToken, random: [u8; 32], now: i64) -> Result<(Self, ApiSecret)> {
        token_name(&new.name)?;
        text::name("namespace", &new.namespace)?;
        text::optional_label("created_by", &new.created_by)?;
        if new.lanes.len() > crate::limits::LANES_MAX {
            return Err(text::too_many("lanes", new.lanes.len(), crate::limits::LANES_MAX));
        }
        new.lanes.iter().try_for_each(|lane| text::name("lanes", lane))?;
        if let Some(expires_in_ms) = new.expires_in_ms {
            text::within("expires_in_ms", expires_in_ms, 1..=crate::limits::DURATION_MAX_MS)?;
        }
        let secret = ApiSecret::new(&new.name, random);
        let token = Self {
            name: new.name,
            namespace: new.namespace,
            role: new.role,
            hash: secret.hash().to_vec().into(),
            created_at: now,
            created_by: new.created_by,
            expires_at: new.expires_in_ms.map(|expires_in_ms| now + expires_in_ms),
            may_assert_source: new.may_assert_source,
            lanes: new.lanes,
            ..Default::default()
        };
        Ok((token, secret))
    }

    /// Refuses a wrong, revoked or expired token; all read the same. The hash is compared first and in constant time.
    pub fn authenticate(&self, presented: &ApiSecret, now: i64) -> Result<()> {
        if self.has_secret(presented) && self.is_live(now) {
            return Ok(());
        }
        Err(Error::of(Code::Unauthenticated))
    }

    /// Whether this is its secret, compared in constant time.
    pub fn has_secret(&self, presented: &ApiSecret) -> bool {
        let same: bool = self.hash.ct_eq(&presented.hash()).into();
        same && self.key() == presented.key()
    }

    /// The secret part of a token whose creation can be repeated: it takes both the random bytes that are kept of the
    /// call and the key that only its caller has.
    pub fn derived_secret(kept: [u8; 32], idempotency_key: &[u8]) -> [u8; 32] {
        let mut mac = Hmac::<Sha256>::new_from_slice(&kept).expect("HMAC takes keys of any length");
        mac.update(b"ff-api-token-1");
        mac.update(idempotency_key);
        mac.finalize().into_bytes().into()
    }

    /// A session for the holder of this token, until an instant.
    pub fn session(&self, expires_at: i64) -> Session {
        Session::begin(id_of(&self.name), &self.hash, expires_at)
    }

    /// Where the token of a session lives, in the system partition.
    pub fn key_of_session(session: &Session) -> Key {
        Key::new(kind::TOKEN, &[&session.token_id()])
    }

    /// Refuses a session that this token does not prove, or that ended with the token or before it.
    pub fn check_session(&self, session: &Session, now: i64) -> Result<()> {
        session.check(&self.hash, now)?;
        if self.key() == Self::key_of_session(session) && self.is_live(now) {
            return Ok(());
        }
        Err(Error::of(Code::Unauthenticated))
    }

    /// Refuses a namespace or an act that the token is not good for.
    pub fn authorize(&self, namespace: &str, required: Role) -> Result<()> {
        if !self.covers(namespace) {
            let detail = format!("the token is good for namespace {:?} only", self.namespace);
            return Err(Error::new(Code::Forbidden, detail).with("namespace", namespace));
        }
        if !self.role.allows(required) {
            let detail = format!("this needs the role {required}, the token has {}", self.role);
            return Err(Error::new(Code::Forbidden, detail).with("required", required));
        }
        Ok(())
    }

    /// Whether it is good for a namespace.
    pub fn covers(&self, namespace: &str) -> bool {
        self.namespace == EVERY_NAMESPACE || self.namespace == namespace
    }

    /// Whether it is good at all. A token without a name or a hash was never made.
    pub fn is_live(&self, now: i64) -> bool {
        let made = !self.name.is_empty() && !self.hash.is_empty();
        made && self.revoked_at.is_none() && self.expires_at.is_none_or(|at| at > now)
    }

    /// Makes it no good; says whether it was.
    pub fn revoke(&mut self, now: i64) -> bool {
        let live = self.revoked_at.is_none();
        self.revoked_at.get_or_insert(now);
        live
    }

    /// When its record goes: some time after it became no good.
    pub fn forgotten_at(&self) -> Option<i64> {
        let ended_at = [self.revoked_at, self.expires_at].into_iter().flatten().min()?;
        Some(ended_at.saturating_add(crate::limits::TOKEN_REMEMBERED_MS).min(crate::limits::SCORE_MAX))
    }

    /// The view of it that lists show.
    pub fn info(&self) -> ApiTokenInfo {
        ApiTokenInfo {
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            role: self.role,
            created_at: self.created_at,
            created_by: self.created_by.clone(),
            expires_at: self.expires_at,
            revoked_at: self.revoked_at,
            may_assert_source: self.may_assert_source,
            lanes: self.lanes.clone(),
        }
    }
}

fn id_of(name: &str) -> [u8; 16] {
    digest16(&[b"token", name.as_bytes()])
}

/// An API token as lists show it: nothing that helps to forge one.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct ApiTokenInfo {
    /// Its name.
    pub name: String,
    /// The namespace it is good for, or `*`.
    pub namespace: String,
    /// Its role there.
    pub role: Role,
    /// When it was made.
    pub created_at: i64,
    /// The name of the caller that made it.
    pub created_by: String,
    /// From this instant on it is no good.
    pub expires_at: Option<i64>,
    /// Since when it is no good, because it was revoked.
    pub revoked_at: Option<i64>,
    /// Its bearer is believed when it names the sender of a signal.
    pub may_assert_source: bool,
    /// The lanes it is good for; all when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lanes: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits;

    fn new() -> NewApiToken {
        NewApiToken {
            name: "ci".into(),
            namespace: "team-a".into(),
            role: Role::Submitter,
            expires_in_ms: Some(1_000),
            created_by: "root".into(),
            ..NewApiToken::default()
        }
    }

    #[test]
    fn roles_contain_each_other_as_documented() {
        use Role::{Admin, Approver, Operator, Reader, Submitter, Worker};
        for (role, allowed) in [
            (Reader, &[Reader][..]),
            (Submitter, &[Reader, Submitter]),
            (Worker, &[Reader, Worker]),
            (Approver, &[Approver]),
            (Operator, &[Reader, Submitter, Worker, Operator, Approver]),
            (Admin, Role::ALL),
        ] {
            for required in Role::ALL {
                assert_eq!(role.allows(*required), allowed.contains(required), "{role} doing what {required} may");
            }
        }
    }

    #[test]
    fn the_secret_opens_its_token_only() {
        let (token, secret) = ApiToken::create(new(), [7; 32], 100).unwrap();
        let presented = ApiSecret::parse(&secret.reveal()).unwrap();
        assert_eq!(presented.key(), token.key());
        token.authenticate(&presented, 100).unwrap();
        let (_, wrong) = ApiToken::create(new(), [8; 32], 100).unwrap();
        assert_eq!(token.authenticate(&wrong, 100).unwrap_err().code, Code::Unauthenticated);
        let (_, foreign) = ApiToken::create(NewApiToken { name: "cd".into(), ..new() }, [7; 32], 100).unwrap();
        assert_eq!(token.authenticate(&foreign, 100).unwrap_err().code, Code::Unauthenticated);
        assert!(ApiToken::default().authenticate(&presented, 100).is_err());
    }

    #[test]
    fn a_token_that_was_never_made_proves_no_session() {
        let nobody = ApiToken::default();
        assert!(!nobody.is_live(100));
        let forged = Session::begin(id_of(""), b"", i64::MAX);
        assert_eq!(nobody.check_session(&forged, 100).unwrap_err().code, Code::Unauthenticated);
    }

    #[test]
    fn names_of_callers_without_a_stored_token_are_reserved() {
        for name in RESERVED_NAMES {
            let refused = ApiToken::create(NewApiToken { name: name.into(), ..new() }, [7; 32], 100).unwrap_err();
            assert_eq!(refused.details["field"], "name", "{name}");
        }
        ApiToken::create(NewApiToken { name: "System".into(), ..new() }, [7; 32], 100).unwrap();
    }

    #[test]
    fn an_expired_or_revoked_token_reads_like_a_wrong_one() {
        let (mut token, secret) = ApiToken::create(new(), [7; 32], 100).unwrap();
        token.authenticate(&secret, 1_099).unwrap();
        let expected = Error::of(Code::Unauthenticated);
        assert_eq!(token.authenticate(&secret, 1_100).unwrap_err(), expected);
        assert!(token.revoke(200) && !token.revoke(300));
        assert_eq!((token.revoked_at, token.authenticate(&secret, 201).unwrap_err()), (Some(200), expected));
    }

    #[test]
    fn the_record_of_a_token_goes_some_time_after_it_became_no_good() {
        let (mut token, _) = ApiToken::create(NewApiToken { expires_in_ms: None, ..new() }, [7; 32], 100).unwrap();
        assert_eq!((token.forgotten_at(), token.index_entries(0).len()), (None, 1));
        token.expires_at = Some(900);
        assert_eq!(token.forgotten_at(), Some(900 + limits::TOKEN_REMEMBERED_MS));
        token.revoke(200);
        assert!(token.index_entries(0).contains(&Due::Timer.entry(&token.key(), 200 + limits::TOKEN_REMEMBERED_MS)));
    }

    #[test]
    fn a_token_is_good_for_its_namespace_and_role() {
        let (mut token, _) = ApiToken::create(new(), [7; 32], 100).unwrap();
        token.authorize("team-a", Role::Submitter).unwrap();
        assert_eq!(token.authorize("team-a", Role::Worker).unwrap_err().code, Code::Forbidden);
        assert_eq!(token.authorize("team-b", Role::Reader).unwrap_err().code, Code::Forbidden);
        token.namespace = EVERY_NAMESPACE.into();
        token.authorize("team-b", Role::Reader).unwrap();
    }

    #[test]
    fn malformed_tokens_read_the_same() {
        let (_, secret) = ApiToken::create(new(), [7; 32], 100).unwrap();
        let good = secret.reveal();
        for bad in ["", "ff_", "ff__", "ff_00_00", &good[3..], &good[..good.len() - 1], &format!("{good}00"), "é"] {
            assert_eq!(ApiSecret::parse(bad).unwrap_err(), Error::of(Code::Unauthenticated), "{bad:?}");
        }
    }

    #[test]
    fn nothing_that_prints_or_is_stored_shows_the_secret() {
        let (token, secret) = ApiToken::create(new(), [7; 32], 100).unwrap();
        let hidden = to_hex(&[7; 32]);
        assert!(secret.reveal().ends_with(&hidden));
        for shown in [format!("{secret} {secret:?} {token:?}"), serde_json::to_string(&token).unwrap()] {
            assert!(!shown.contains(&hidden), "{shown}");
        }
        assert!(!token.encode().windows(32).any(|window| window == [7; 32]));
        assert_eq!(ApiToken::decode(&token.encode()).unwrap(), token);
        assert!(serde_json::to_value(token.info()).unwrap().get("hash").is_none());
    }

    #[test]
    fn bad_requests_name_their_field() {
        for (new, field) in [
            (NewApiToken { name: String::new(), ..new() }, "name"),
            (NewApiToken { namespace: "a b".into(), ..new() }, "namespace"),
            (NewApiToken { created_by: "a\n".into(), ..new() }, "created_by"),
            (NewApiToken { expires_in_ms: Some(0), ..new() }, "expires_in_ms"),
            (NewApiToken { expires_in_ms: Some(limits::DURATION_MAX_MS + 1), ..new() }, "expires_in_ms"),
        ] {
            assert_eq!(ApiToken::create(new, [7; 32], 100).unwrap_err().details["field"], field);
        }
    }
}
