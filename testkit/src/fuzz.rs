//! Mutated inputs for parsers, with a seed that repeats them: no compiler support is needed, so a few thousand run with
//! every test run, and `FF_FUZZ_MINUTES=60` runs for an hour. Inputs that a parser accepts join the corpus of that run.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

/// Inputs of a run that nobody gave more time, for a parser that is quick.
pub const CASES: u64 = 20_000;
/// The corpus grows no further.
const CORPUS_MAX: usize = 2_000;
/// Inputs grow no further.
const INPUT_MAX_BYTES: usize = 4_096;
/// Changes of one input.
const CHANGES_MAX: u64 = 4;

/// What is fuzzed.
#[derive(Debug)]
pub struct Target<'a> {
    /// Its name.
    pub name: &'a str,
    /// Inputs that are known to be good, or to have been bad.
    pub corpus: Vec<Vec<u8>>,
    /// Words that inputs are made of.
    pub words: &'a [&'a str],
    /// Inputs of a run that nobody gave more time.
    pub cases: u64,
}

/// Calls a parser with mutated inputs; it says whether it took the input. A panic shows the input and goes on.
///
/// # Panics
/// When the parser does, or when it took no input at all, so that nothing behind its first check was tried.
pub fn fuzz(target: Target<'_>, mut take: impl FnMut(&[u8]) -> bool) {
    let minutes = std::env::var("FF_FUZZ_MINUTES").ok().and_then(|text| text.parse::<f64>().ok());
    let seed = std::env::var("FF_FUZZ_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let end = minutes.map(|minutes| Instant::now() + Duration::from_secs_f64(minutes * 60.0));
    let mut draw = Draw(seed);
    let Target { name, mut corpus, words, cases: wanted } = target;
    assert!(!corpus.is_empty(), "{name} has no corpus");
    let (mut cases, mut taken) = (0_u64, 0_u64);
    let known = corpus.len();
    while end.map_or(cases < wanted, |end| Instant::now() < end) {
        // The corpus itself comes first, unchanged.
        let input = match usize::try_from(cases).ok().and_then(|place| corpus.get(place)) {
            Some(whole) if cases < known as u64 => whole.clone(),
            _ => mutate(&mut draw, &corpus, words),
        };
        cases += 1;
        match catch_unwind(AssertUnwindSafe(|| take(&input))) {
            Ok(true) => {
                taken += 1;
                if corpus.len() < CORPUS_MAX && !corpus.contains(&input) {
                    corpus.push(input);
                }
            }
            Ok(false) => {}
            Err(panic) => {
                eprintln!("{name}, seed {seed}, case {cases}: {}", input.escape_ascii());
                resume_unwind(panic);
            }
        }
    }
    println!("{name}: seed {seed}, {cases} inputs, {taken} taken, {} in the corpus", corpus.len());
    assert!(taken > 0, "{name} took nothing, so nothing behind its first check was tried");
}

/// Texts of a corpus, one a line.
pub fn lines(text: &str) -> Vec<Vec<u8>> {
    text.lines().filter(|line| !line.is_empty()).map(|line| line.as_bytes().to_vec()).collect()
}

struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).unwrap_or(0)
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }
}

fn mutate(draw: &mut Draw, corpus: &[Vec<u8>], words: &[&str]) -> Vec<u8> {
    let mut input = corpus[draw.below(corpus.len())].clone();
    for _ in 0..=draw.next() % CHANGES_MAX {
        let at = draw.below(input.len() + 1);
        match draw.below(9) {
            0 if at < input.len() => input[at] ^= 1 << draw.below(8),
            1 if at < input.len() => input[at] = draw.byte(),
            2 => input.insert(at, draw.byte()),
            3 if at < input.len() => drop(input.remove(at)),
            4 => input.truncate(at),
            5 => {
                let other = &corpus[draw.below(corpus.len())];
                let from = draw.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            6 => {
                let to = (at + draw.below(16)).min(input.len());
                let piece = input[at..to].to_vec();
                let place = draw.below(input.len() + 1);
                input.splice(place..place, piece);
            }
            7 if !words.is_empty() => {
                let word = words[draw.below(words.len())].bytes();
                input.splice(at..at, word);
            }
            8 if at < input.len() => {
                // A number, or a length, at its edges.
                const EDGES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];
                input[at] = EDGES[draw.below(EDGES.len())];
            }
            _ => {}
        }
    }
    input.truncate(INPUT_MAX_BYTES);
    input
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(name: &str) -> Target<'_> {
        Target { name, corpus: lines("one two\n\nthree"), words: &["four"], cases: CASES }
    }

    #[test]
    fn the_corpus_is_tried_unchanged_and_a_seed_repeats_itself() {
        let run = || {
            let mut inputs = Vec::new();
            fuzz(target("a"), |input| {
                inputs.push(input.to_vec());
                input.contains(&b'o')
            });
            inputs
        };
        let inputs = run();
        assert_eq!(inputs[..2], [b"one two".to_vec(), b"three".to_vec()]);
        assert_eq!(inputs, run());
        assert!(inputs.iter().any(|input| input.windows(4).any(|word| word == b"four")), "words are used");
    }

    #[test]
    #[should_panic(expected = "found")]
    fn a_panic_is_passed_on() {
        fuzz(target("b"), |input| {
            assert!(!input.windows(4).any(|word| word == b"four"), "found");
            true
        });
    }

    #[test]
    #[should_panic(expected = "took nothing")]
    fn a_parser_that_takes_nothing_is_told() {
        fuzz(target("c"), |_| false);
    }
}
