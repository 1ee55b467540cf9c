//! Signatures of webhooks: how FlowFabric signs what it sends, and how it verifies what others send.
//!
//! Three schemes are known: [Standard Webhooks](https://www.standardwebhooks.com), GitHub's and Slack's. All of them are
//! HMAC-SHA256 over the body, the first and the last together with an instant. Comparisons take the same time whatever they
//! compare.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::error::{Error, Result};
use crate::limits;
use crate::token::{Secret, from_hex};

/// How a secret of Standard Webhooks begins; base64 follows.
pub const SECRET_PREFIX: &str = "whsec_";
/// The header with the identity of a message, the same for every try.
pub const ID_HEADER: &str = "webhook-id";
/// The header with the instant of a try, in seconds.
pub const TIMESTAMP_HEADER: &str = "webhook-timestamp";
/// The header with the signatures.
pub const SIGNATURE_HEADER: &str = "webhook-signature";

/// The version in front of a signature of Standard Webhooks.
const VERSION: &str = "v1";
/// Signatures that one message may carry, such as while a secret is replaced.
const SIGNATURES_MAX: usize = 16;

/// Reads a secret of Standard Webhooks: `whsec_` and base64, or base64 alone.
pub fn read_secret(field: &str, text: &str) -> Result<Secret> {
    let encoded = text.strip_prefix(SECRET_PREFIX).unwrap_or(text);
    let bytes = STANDARD.decode(encoded);
    let bytes = bytes.map_err(|_| Error::invalid(field, format!("must be {SECRET_PREFIX} and base64")))?;
    check_length(field, bytes.len())?;
    Ok(Secret::from_bytes(bytes))
}

/// Reads a secret whose bytes are its text, as GitHub and Slack have it.
pub fn read_plain_secret(field: &str, text: &str) -> Result<Secret> {
    check_length(field, text.len())?;
    Ok(Secret::from_bytes(text.as_bytes().to_vec()))
}

fn check_length(field: &str, length: usize) -> Result<()> {
    let (min, max) = (limits::WEBHOOK_SECRET_MIN_BYTES, limits::WEBHOOK_SECRET_MAX_BYTES);
    if length < min || length > max {
        return Err(Error::invalid(field, format!("must have {min} to {max} bytes, not {length}")));
    }
    Ok(())
}

/// The text of a secret of Standard Webhooks, for the one answer that shows it.
pub fn show_secret(secret: &Secret) -> String {
    format!("{SECRET_PREFIX}{}", STANDARD.encode(secret.bytes()))
}

/// Signs a message by Standard Webhooks.
pub fn sign(secret: &Secret, id: &str, timestamp_s: i64, body: &[u8]) -> String {
    let signature = standard(secret, id, &timestamp_s.to_string(), body).finalize().into_bytes();
    format!("{VERSION},{}", STANDARD.encode(signature))
}

/// Whether one of the signatures in a header of Standard Webhooks is right.
pub fn verify(secret: &Secret, id: &str, timestamp: &str, header: &str, body: &[u8]) -> bool {
    let signatures = header.split(' ').filter_map(|one| one.strip_prefix(VERSION)?.strip_prefix(','));
    let mut good = false;
    for signature in signatures.take(SIGNATURES_MAX).filter_map(|one| STANDARD.decode(one).ok()) {
        good |= standard(secret, id, timestamp, body).verify_slice(&signature).is_ok();
    }
    good
}

/// Whether GitHub's header `X-Hub-Signature-256` is right.
pub fn verify_github(secret: &Secret, header: &str, body: &[u8]) -> bool {
    let signature = header.strip_prefix("sha256=").and_then(from_hex);
    signature.is_some_and(|signature| keyed(secret, &[body]).verify_slice(&signature).is_ok())
}

/// Whether Slack's header `X-Slack-Signature` is right.
pub fn verify_slack(secret: &Secret, timestamp: &str, header: &str, body: &[u8]) -> bool {
    let signature = header.strip_prefix("v0=").and_then(from_hex);
    let signed = [b"v0:", timestamp.as_bytes(), b":", body];
    signature.is_some_and(|signature| keyed(secret, &signed).verify_slice(&signature).is_ok())
}

/// Whether an instant in seconds, as a header has it, is near enough to now.
pub fn is_fresh(timestamp: &str, now_ms: i64) -> bool {
    let at_ms = timestamp.parse::<i64>().ok().and_then(|seconds| seconds.checked_mul(1_000));
    at_ms.is_some_and(|at_ms| now_ms.saturating_sub(at_ms).saturating_abs() <= limits::SIGNATURE_TOLERANCE_MS)
}

fn standard(secret: &Secret, id: &str, timestamp: &str, body: &[u8]) -> Hmac<Sha256> {
    keyed(secret, &[id.as_bytes(), b".", timestamp.as_bytes(), b".", body])
}

fn keyed(secret: &Secret, parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut hmac = Hmac::<Sha256>::new_from_slice(secret.bytes()).expect("HMAC takes keys of any length");
    parts.iter().for_each(|part| hmac.update(part));
    hmac
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret() -> Secret {
        read_secret("secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap()
    }

    #[test]
    fn a_message_has_the_signature_that_other_implementations_compute() {
        // The example of the specification's reference libraries.
        let (id, at, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(sign(&secret(), id, at, body), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
        let header = "v1a,AAAA v1,AAAA v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert!(verify(&secret(), id, "1614265330", header, body));
        assert!(!verify(&secret(), id, "1614265331", header, body));
        assert!(!verify(&secret(), id, "1614265330", header, b"{}"));
        assert!(!verify(&secret(), id, "1614265330", "v1,AAAA", body));
    }

    #[test]
    fn signatures_of_github_and_slack_are_verified() {
        // GitHub's documentation has this one.
        let github = read_plain_secret("secret", "It's a Secret to Everybody").unwrap();
        let good = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        assert!(verify_github(&github, good, b"Hello, World!"));
        assert!(!verify_github(&github, good, b"Hello, World?"));
        assert!(!verify_github(&github, "sha256=zz", b"Hello, World!"));
        // And Slack's this one.
        let slack = read_plain_secret("secret", "8f742231b10e8888abcd99yyyzzz85a5").unwrap();
        let body = b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&\
channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=\
https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=\
398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
        let good = "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";
        assert!(verify_slack(&slack, "1531420618", good, body));
        assert!(!verify_slack(&slack, "1531420619", good, body));
    }

    #[test]
    fn an_old_instant_and_a_weak_secret_are_refused() {
        assert!(is_fresh("1000", 1_000_000) && is_fresh("1000", 1_299_000) && !is_fresh("1000", 1_301_000));
        assert!(!is_fresh("1000", 699_000) && !is_fresh("x", 0) && !is_fresh("9223372036854775807", 0));
        assert!(read_secret("secret", "whsec_AAAA").is_err() && read_secret("secret", "whsec_?").is_err());
        assert!(read_plain_secret("secret", "short").is_err());
        assert_eq!(read_secret("secret", &show_secret(&secret())).unwrap(), secret());
        assert_eq!(format!("{:?}", secret()), "Secret(redacted)");
    }
}
