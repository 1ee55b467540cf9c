//! Inbound hooks: a system outside says that something happened, proves it by a signature, and work is created or a
//! signal is delivered. A sender that knows the secret of a hook can do this one thing and nothing else.

use std::collections::BTreeMap;

use crate::encoding::{Blob, Document};
use crate::error::{Code, Error, Result};
use crate::gate::definition_conflict;
use crate::id::HookId;
use crate::index::{self, Indexed, kind};
use crate::key::{Entry, Key};
use crate::partition::digest16;
use crate::signature;
use crate::token::{Secret, to_hex};
use crate::{document, text, vocabulary};

vocabulary! {
    /// How the sender of a hook signs.
    #[derive(Default)]
    pub enum HookScheme {
        /// By Standard Webhooks, as FlowFabric's own webhooks are.
        #[default]
        Standard "standard",
        /// As GitHub does: `X-Hub-Signature-256`.
        Github "github",
        /// As Slack does: `X-Slack-Signature`.
        Slack "slack",
    }
}

impl HookScheme {
    /// Reads a secret as people write it.
    pub fn read_secret(self, field: &str, text: &str) -> Result<Secret> {
        match self {
            HookScheme::Standard => signature::read_secret(field, text),
            HookScheme::Github | HookScheme::Slack | HookScheme::Unknown(_) => {
                signature::read_plain_secret(field, text)
            }
        }
    }

    /// A secret from random bytes, with its text, for the one answer that shows it.
    pub fn make_secret(self, random: [u8; 32]) -> (Secret, String) {
        match self {
            HookScheme::Standard => {
                let secret = Secret::from_random(random);
                let text = signature::show_secret(&secret);
                (secret, text)
            }
            HookScheme::Github | HookScheme::Slack | HookScheme::Unknown(_) => {
                let text = to_hex(&random);
                (Secret::from_bytes(text.clone().into_bytes()), text)
            }
        }
    }
}

document! {
    /// Where messages from outside arrive, how they are proved, and what they lead to.
    pub struct Hook {
        /// Its identity. One that is made anew under an old name has another one.
        "i" id: HookId,
        /// Where it works.
        "n" namespace: String,
        /// Unique in the namespace.
        "m" name: String,
        /// How its sender signs.
        "k" scheme: HookScheme,
        /// With what.
        "s" secret: Secret,
        /// Its target, as JSON.
        "t" target: Blob,
        /// The name of the caller that created it.
        "b" created_by: String,
        /// When it was created.
        "c" created_at: i64,
    }
}

impl Document for Hook {
    const KIND: u8 = kind::HOOK;
    crate::encoding::compiled_here!();
}

impl Indexed for Hook {
    fn key(&self) -> Key {
        Self::key_of(&self.namespace, &self.name)
    }

    fn index_entries(&self, _: i64) -> Vec<Entry> {
        let index = index::listing(kind::HOOK, &self.namespace);
        vec![Entry { index, member: self.key(), score: index::name_score(&self.name) }]
    }
}

impl Hook {
    /// The key of a hook by its name.
    pub fn key_of(namespace: &str, name: &str) -> Key {
        Key::new(kind::HOOK, &[&digest16(&[namespace.as_bytes(), name.as_bytes()])])
    }

    /// Refuses names that cannot be used.
    pub fn check(&self) -> Result<()> {
        text::name("namespace", &self.namespace)?;
        text::name("name", &self.name)
    }

    /// Creating the same hook again is fine; with another definition or secret it is not.
    pub fn check_same(&self, new: &Self, own_secret: bool) -> Result<()> {
        if self.scheme == new.scheme && self.target == new.target && (!own_secret || self.secret == new.secret) {
            return Ok(());
        }
        Err(definition_conflict("hook", &self.name))
    }

    /// Verifies what arrived, and says what its sender calls it: the same again is the same message.
    ///
    /// Names of headers are in lower case.
    pub fn verify(&self, headers: &BTreeMap<String, String>, body: &[u8], now_ms: i64) -> Result<String> {
        let header = |name: &str| headers.get(name).map(String::as_str).unwrap_or_default();
        let digest = |parts: &[&[u8]]| to_hex(&digest16(parts));
        let (good, id) = match self.scheme {
            HookScheme::Standard => {
                let (id, at) = (header(signature::ID_HEADER), header(signature::TIMESTAMP_HEADER));
                let signed = signature::verify(&self.secret, id, at, header(signature::SIGNATURE_HEADER), body);
                (signed && signature::is_fresh(at, now_ms), id.to_owned())
            }
            HookScheme::Github => {
                let id = Some(header("x-github-delivery")).filter(|id| !id.is_empty()).map(str::to_owned);
                let signed = signature::verify_github(&self.secret, header("x-hub-signature-256"), body);
                (signed, id.unwrap_or_else(|| digest(&[body])))
            }
            HookScheme::Slack => {
                let at = header("x-slack-request-timestamp");
                let signed = signature::verify_slack(&self.secret, at, header("x-slack-signature"), body);
                // Slack has no header for the id. A repeated message has the same id in its body, or else the same
                // body.
                let id = serde_json::from_slice::<SlackEvent>(body).ok().and_then(|event| event.event_id);
                (signed && signature::is_fresh(at, now_ms), id.unwrap_or_else(|| digest(&[at.as_bytes(), body])))
            }
            HookScheme::Unknown(_) => (false, String::new()),
        };
        if good && !id.is_empty() { Ok(id) } else { Err(Error::of(Code::InvalidSignature)) }
    }

    /// The text of a secret that the server made, for the one answer that shows it.
    pub fn shown_secret(&self) -> Option<String> {
        match self.scheme {
            HookScheme::Standard => Some(signature::show_secret(&self.secret)),
            HookScheme::Github | HookScheme::Slack => String::from_utf8(self.secret.bytes().to_vec()).ok(),
            HookScheme::Unknown(_) => None,
        }
    }

    /// The key under which a message has its effect once.
    pub fn message_key(&self, id: &str) -> String {
        to_hex(&digest16(&[b"hook", self.id.as_bytes(), id.as_bytes()]))
    }
}

#[derive(serde::Deserialize)]
struct SlackEvent {
    event_id: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hook(scheme: HookScheme) -> Hook {
        Hook { scheme, secret: scheme.make_secret([7; 32]).0, ..Default::default() }
    }

    fn headers(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_message_is_known_by_its_id_and_refused_when_it_is_old_or_changed() {
        let hook = hook(HookScheme::Standard);
        let signature = signature::sign(&hook.secret, "m1", 1_000, b"{}");
        let sent = headers(&[("webhook-id", "m1"), ("webhook-timestamp", "1000"), ("webhook-signature", &signature)]);
        assert_eq!(hook.verify(&sent, b"{}", 1_000_000).unwrap(), "m1");
        for (body, now_ms) in [(&b"{ }"[..], 1_000_000), (b"{}", 2_000_000)] {
            assert_eq!(hook.verify(&sent, body, now_ms).unwrap_err().code, Code::InvalidSignature);
        }
        assert_eq!(hook.verify(&BTreeMap::new(), b"{}", 0).unwrap_err().code, Code::InvalidSignature);
        assert_ne!(hook.message_key("m1"), hook.message_key("m2"));
    }

    #[test]
    fn a_signature_of_one_scheme_is_none_of_another() {
        let standard = hook(HookScheme::Standard);
        let signature = signature::sign(&standard.secret, "m1", 1_000, b"{}");
        let sent = headers(&[("webhook-id", "m1"), ("webhook-timestamp", "1000"), ("webhook-signature", &signature)]);
        for scheme in [HookScheme::Github, HookScheme::Slack] {
            let other = Hook { secret: standard.secret.clone(), ..hook(scheme) };
            assert_eq!(other.verify(&sent, b"{}", 1_000_000).unwrap_err().code, Code::InvalidSignature);
        }
    }
}
