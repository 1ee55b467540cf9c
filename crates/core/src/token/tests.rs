//! Tokens, rotation and its clock.

use uuid::Uuid;

use super::*;

const GRACE: i64 = 1_000;
const S1: &str = "11111111111111111111111111111111111111111111111111111111111111aa";
const S2: &str = "22222222222222222222222222222222222222222222222222222222222222bb";
const S3: &str = "33333333333333333333333333333333333333333333333333333333333333cc";

fn subject() -> TokenSubject<'static> {
    TokenSubject {
        namespace: "default",
        execution: ExecutionId { partition: 1, uuid: Uuid::from_u128(1) },
        waitpoint: WaitpointId { partition: 1, uuid: Uuid::from_u128(2) },
        waitpoint_key: "gate",
        created_at: 1_700_000_000_000,
    }
}

fn secret(hex: &str) -> Secret {
    Secret::from_hex("secret", hex).unwrap()
}

fn installed() -> WaitpointSecrets {
    let mut secrets = WaitpointSecrets::default();
    assert_eq!(secrets.install_first(secret(S1), true, 0), Installation::Installed);
    secrets
}

fn verdict(secrets: &WaitpointSecrets, token: &WaitpointToken, now: i64) -> Option<Code> {
    secrets.verify(&token.reveal(), Some(&subject()), now).err().map(|error| error.code)
}

fn field(result: Result<RotateWaitpointSecretResult>) -> String {
    result.unwrap_err().details["field"].as_str().unwrap().to_owned()
}

#[test]
fn hex_goes_both_ways() {
    let bytes: Vec<u8> = (0..=255).collect();
    assert_eq!(from_hex(&to_hex(&bytes)).unwrap(), bytes);
    assert_eq!(from_hex("aBcD"), Some(vec![0xab, 0xcd]));
    for bad in ["a", "0g", "+1", "é0", " 1"] {
        assert_eq!(from_hex(bad), None, "{bad:?}");
    }
}

#[test]
fn a_token_is_the_hmac_of_its_length_prefixed_parts() {
    let token = installed().sign(&subject()).unwrap();
    let mut message = Vec::new();
    for part in [
        "ff-waitpoint-1",
        "default",
        "0001-00000000-0000-0000-0000-000000000001",
        "0001-00000000-0000-0000-0000-000000000002",
        "gate",
        "1700000000000",
    ] {
        message.extend_from_slice(&u64::try_from(part.len()).unwrap().to_be_bytes());
        message.extend_from_slice(part.as_bytes());
    }
    let mut hmac = Hmac::<Sha256>::new_from_slice(&from_hex(S1).unwrap()).unwrap();
    hmac.update(&message);
    assert_eq!(token.reveal(), format!("k1:{}", to_hex(&hmac.finalize().into_bytes())));
    assert_eq!(token.fingerprint(), to_hex(&Sha256::digest(token.reveal().as_bytes()))[..8]);
}

#[test]
fn a_token_opens_its_own_waitpoint_only() {
    let secrets = installed();
    let token = secrets.sign(&subject()).unwrap().reveal();
    secrets.verify(&token, Some(&subject()), 5).unwrap();
    let other = |change: fn(&mut TokenSubject<'_>)| {
        let mut subject = subject();
        change(&mut subject);
        secrets.verify(&token, Some(&subject), 5).unwrap_err().code
    };
    assert_eq!(other(|subject| subject.namespace = "other"), Code::InvalidToken);
    assert_eq!(other(|subject| subject.execution.uuid = Uuid::from_u128(9)), Code::InvalidToken);
    assert_eq!(other(|subject| subject.waitpoint.partition = 2), Code::InvalidToken);
    assert_eq!(other(|subject| subject.waitpoint_key = "gates"), Code::InvalidToken);
    assert_eq!(other(|subject| subject.created_at += 1), Code::InvalidToken);
    assert_eq!(secrets.verify(&token, None, 5).unwrap_err().code, Code::InvalidToken, "an unknown waitpoint");
}

#[test]
fn every_wrong_token_reads_the_same() {
    let secrets = installed();
    let good = secrets.sign(&subject()).unwrap().reveal();
    let expected = Error::of(Code::InvalidToken);
    let cut = &good[..good.len() - 2];
    let flipped = good.replace("k1:", "k1:0");
    let upper = good.to_uppercase().replace("K1:", "k1:");
    let foreign = good.replace("k1:", "k9:");
    let long = format!("{}:{}", "k".repeat(limits::KID_MAX_BYTES + 1), "0".repeat(64));
    for token in ["", ":", "k1", "k1:", "k1:zz", cut, &flipped, &upper, &foreign, &long, &format!("{good}0")] {
        assert_eq!(secrets.verify(token, Some(&subject()), 5).unwrap_err(), expected, "{token:?}");
    }
    let nothing = WaitpointSecrets::default();
    assert_eq!(nothing.verify(&good, Some(&subject()), 5).unwrap_err(), expected);
    let mut forged = Hmac::<Sha256>::new_from_slice(&[]).unwrap();
    forged.update(b"");
    let empty_key =
        WaitpointToken { kid: "k9".into(), mac: Secret::default().hmac(&subject()).finalize().into_bytes().into() };
    assert_eq!(
        verdict(&secrets, &empty_key, 5),
        Some(Code::InvalidToken),
        "an unknown kid never means the empty secret"
    );
}

#[test]
fn the_old_secret_verifies_for_the_grace_however_many_rotations_follow() {
    let mut secrets = installed();
    let first = secrets.sign(&subject()).unwrap();
    let answer = secrets.rotate("k2", S2, GRACE, 100).unwrap();
    let expected = RotateWaitpointSecretResult {
        new_kid: "k2".into(),
        previous_kid: Some("k1".into()),
        previous_expires_at: Some(1_100),
        changed: true,
    };
    assert_eq!(answer, expected);
    let second = secrets.sign(&subject()).unwrap();
    assert_eq!(second.kid(), "k2");
    secrets.rotate("k3", S3, 0, 200).unwrap();
    assert_eq!(verdict(&secrets, &first, 1_099), None);
    assert_eq!(verdict(&secrets, &first, 1_100), Some(Code::TokenExpired));
    assert_eq!(verdict(&secrets, &second, 200), Some(Code::TokenExpired), "no grace was given");
    let third = secrets.sign(&subject()).unwrap();
    assert_eq!(verdict(&secrets, &third, i64::MAX), None, "the current one never expires");
}

#[test]
fn a_repeated_rotation_changes_nothing() {
    let mut secrets = installed();
    assert!(!secrets.rotate("k1", S1, GRACE, 50).unwrap().changed);
    let first = secrets.rotate("k2", S2, GRACE, 100).unwrap();
    let before = secrets.clone();
    let again = secrets.rotate("k2", &S2.to_uppercase(), GRACE, 150).unwrap();
    assert_eq!(again, RotateWaitpointSecretResult { changed: false, ..first });
    assert_eq!(secrets, before);
    secrets.rotate("k3", S3, GRACE, 200).unwrap();
    let late = secrets.rotate("k2", S2, GRACE, 250).unwrap();
    assert_eq!((late.new_kid.as_str(), late.changed), ("k3", false), "a late repeat does not undo what followed");
}

#[test]
fn a_kid_never_names_another_secret() {
    let mut secrets = installed();
    assert_eq!(secrets.rotate("k1", S2, GRACE, 50).unwrap_err().code, Code::RotationConflict);
    secrets.rotate("k2", S2, GRACE, 100).unwrap();
    assert_eq!(secrets.rotate("k1", S3, GRACE, 150).unwrap_err().code, Code::RotationConflict);
    secrets.rotate("k3", S3, GRACE, 2_000).unwrap();
    assert!(secrets.secrets.iter().all(|known| known.kid != "k1"), "an expired secret is forgotten");
    assert!(secrets.knows("k1") && !secrets.knows("k7"));
    let freed = 1_100 + limits::KID_REMEMBERED_MS;
    assert_eq!(secrets.rotate("k1", S1, GRACE, freed - 1).unwrap_err().code, Code::RotationConflict);
    assert!(secrets.rotate("k1", S1, GRACE, freed).unwrap().changed);
}

#[test]
fn a_forgotten_kid_reads_expired_for_its_days_and_then_unknown() {
    let mut secrets = installed();
    let token = secrets.sign(&subject()).unwrap();
    secrets.rotate("k2", S2, GRACE, 100).unwrap();
    let forgetful = {
        let mut secrets = secrets.clone();
        secrets.rotate("k3", S3, GRACE, 2_000).unwrap();
        secrets
    };
    let freed = 1_100 + limits::KID_REMEMBERED_MS;
    for secrets in [&secrets, &forgetful] {
        assert_eq!(verdict(secrets, &token, freed - 1), Some(Code::TokenExpired));
        assert_eq!(verdict(secrets, &token, freed), Some(Code::InvalidToken));
        let unknown = secrets.verify(&token.reveal(), None, 2_000).unwrap_err();
        assert_eq!(unknown.code, Code::TokenExpired, "tells nothing about the waitpoint");
    }
}

#[test]
fn kids_and_secrets_hold_at_their_limits_and_not_past_them() {
    let mut secrets = installed();
    secrets.rotate(&"k".repeat(limits::KID_MAX_BYTES), S2, GRACE, 1).unwrap();
    assert_eq!(field(secrets.rotate(&"k".repeat(limits::KID_MAX_BYTES + 1), S2, GRACE, 1)), "new_kid");
    assert_eq!(field(secrets.rotate("", S2, GRACE, 1)), "new_kid");
    assert_eq!(field(secrets.rotate("a:b", S2, GRACE, 1)), "new_kid");
    for bad in [&S2[..63], &S2[..62], "", &S2.replace('2', "g"), &"ab".repeat(limits::SECRET_MAX_BYTES + 1)] {
        assert_eq!(field(secrets.rotate("k2", bad, GRACE, 1)), "new_secret_hex");
    }
    assert_eq!(field(secrets.rotate("k2", S2, -1, 1)), "grace_ms");
    assert_eq!(field(secrets.rotate("k2", S2, limits::DURATION_MAX_MS + 1, 1)), "grace_ms");
    secrets.rotate("k2", &"ab".repeat(limits::SECRET_MAX_BYTES), limits::DURATION_MAX_MS, 1).unwrap();
}

#[test]
fn a_rotation_that_would_cut_a_grace_short_is_refused() {
    let mut secrets = installed();
    let hex = |number: usize| format!("{number:064x}");
    for number in 1..limits::WAITPOINT_SECRETS_MAX {
        secrets.rotate(&format!("n{number}"), &hex(number), GRACE, 100).unwrap();
    }
    let before = secrets.clone();
    let error = secrets.rotate("last", &hex(0), GRACE, 100).unwrap_err();
    assert_eq!((error.code, &error.details["pool"]), (Code::ConcurrencyLimitExceeded, &"admin_rotate".into()));
    assert_eq!(secrets, before);
    secrets.rotate("last", &hex(0), GRACE, 1_100).unwrap();
}

#[test]
fn a_start_installs_reports_and_repairs_but_never_replaces() {
    let mut secrets = installed();
    assert_eq!(secrets.current, "k1");
    let before = secrets.clone();
    assert_eq!(secrets.install_first(secret(S1), true, 9), Installation::Unchanged);
    assert_eq!(secrets.install_first(secret(S2), false, 9), Installation::Unchanged, "a generated one says nothing");
    assert_eq!(secrets.install_first(secret(S2), true, 9), Installation::Differs);
    assert_eq!(secrets, before);

    let mut half = WaitpointSecrets { current: "k4".into(), ..Default::default() };
    assert_eq!(half.install_first(secret(S2), true, 9), Installation::Repaired);
    assert_eq!(half.sign(&subject()).unwrap().kid(), "k4");

    let mut nameless = WaitpointSecrets { current: String::new(), ..before };
    assert_eq!(nameless.install_first(secret(S2), true, 9), Installation::Repaired);
    assert_eq!(nameless.current, "k2");
    nameless.sign(&subject()).unwrap();
}

#[test]
fn nothing_that_prints_shows_a_secret_or_a_token() {
    let secrets = installed();
    let token = secrets.sign(&subject()).unwrap();
    let mac = token.reveal().split_off(3);
    for shown in [format!("{token} {token:?}"), format!("{secrets:?}"), serde_json::to_string(&secrets).unwrap()] {
        assert!(!shown.contains(&mac) && !shown.contains(S1) && !shown.contains("17, 17"), "{shown}");
        assert!(shown.contains("redacted"), "{shown}");
    }
}

#[test]
fn secrets_survive_the_store() {
    let mut secrets = installed();
    secrets.rotate("k2", S2, GRACE, 100).unwrap();
    secrets.rotate("k3", S3, GRACE, 5_000).unwrap();
    let read = WaitpointSecrets::decode(&secrets.encode()).unwrap();
    assert_eq!(read, secrets);
    read.verify(&secrets.sign(&subject()).unwrap().reveal(), Some(&subject()), 6_000).unwrap();
    assert_eq!(WaitpointSecrets::default().sign(&subject()).unwrap_err().code, Code::Internal);
}
