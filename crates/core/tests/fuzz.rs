//! Mutated inputs for what reads foreign bytes: stored documents, cron expressions, tokens, conditions. Nothing may panic,
//! and whatever is read must be written and read again as the same.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ff_core::condition::Condition;
use ff_core::encoding::Document;
use ff_core::schedule::Cron;
use ff_core::token::WaitpointToken;
use ff_testkit::fuzz::{CASES, Target, fuzz, lines};

/// An instant somewhere in 2026.
const NOW: i64 = 1_775_000_000_000;

fn reads_what_it_wrote<D: Document + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> bool {
    let Ok(document) = D::decode(bytes) else { return false };
    let again = D::decode(&document.encode());
    assert_eq!(again.as_ref(), Ok(&document));
    true
}

#[test]
fn stored_bytes_of_any_kind_never_panic_and_survive_a_round_trip() {
    let corpus = include_str!("corpus/documents.txt").lines().map(|line| STANDARD.decode(line).expect("it is base64"));
    let target = Target { name: "documents", corpus: corpus.collect(), words: &["\u{1}", "extra"], cases: CASES };
    fuzz(target, |bytes| {
        let taken = [
            reads_what_it_wrote::<ff_core::execution::Execution>(bytes),
            reads_what_it_wrote::<ff_core::Waitpoint>(bytes),
            reads_what_it_wrote::<ff_core::ApiToken>(bytes),
            reads_what_it_wrote::<ff_core::Budget>(bytes),
            reads_what_it_wrote::<ff_core::AuditRecord>(bytes),
            reads_what_it_wrote::<ff_core::stream::Frame>(bytes),
        ];
        taken.contains(&true)
    });
}

#[test]
fn cron_expressions_never_panic_and_go_forward() {
    let target = Target {
        name: "cron",
        corpus: lines(include_str!("corpus/cron.txt")),
        words: &["*", "/", "-", ",", "L", "W", "#", "?", "60", "0", " ", "MON", "FEB", "29", "2147483648"],
        // Each is searched through years of a zone.
        cases: CASES / 20,
    };
    fuzz(target, |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return false };
        let (zone, expression) = text.split_once('|').unwrap_or(("UTC", text));
        let Ok(cron) = Cron::parse(expression, zone) else { return false };
        let mut at = NOW;
        for _ in 0..3 {
            match cron.after(at) {
                Some(next) => {
                    assert!(next > at, "{expression} in {zone} goes from {at} to {next}");
                    at = next;
                }
                None => break,
            }
        }
        true
    });
}

#[test]
fn tokens_never_panic_and_have_one_spelling() {
    let corpus = lines(include_str!("corpus/tokens.txt"));
    fuzz(Target { name: "tokens", corpus, words: &[":", "k1", "00", "ff"], cases: CASES }, |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return false };
        let Ok(token) = WaitpointToken::parse(text) else { return false };
        assert_eq!(token.reveal(), text, "a token has one spelling");
        true
    });
}

#[test]
fn conditions_never_panic_and_say_what_they_need() {
    let corpus = lines(include_str!("corpus/conditions.txt"));
    let words = &["{\"any\":[]}", "\"all_of\":[", "]", "\"n\":1", "\"name\":\"a\"", "null", "\"count\":"];
    fuzz(Target { name: "conditions", corpus, words, cases: CASES }, |bytes| {
        let Ok(condition) = serde_json::from_slice::<Condition>(bytes) else { return false };
        let written = serde_json::to_vec(&condition).expect("a condition can be written");
        assert_eq!(serde_json::from_slice::<Condition>(&written).expect("it was just written"), condition);
        if condition.validate().is_err() {
            return false;
        }
        let needed = condition.required_names();
        for name in condition.mandatory_names() {
            assert!(needed.contains(&name), "{name} is mandatory and not required: {condition:?}");
        }
        // The same facts mean the same.
        assert_eq!(condition.evaluate(&[]), condition.evaluate(&[]));
        true
    });
}
