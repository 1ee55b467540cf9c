//! One random history on the store and on the store in memory: every outcome and everything stored must agree.
//!
//! `FF_TEST_HISTORY_OPERATIONS=1000000` makes it as long as the scorecard asks for.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ff_core::{IndexName, Key};

use super::context::{Build, Context, batch, command};
use crate::memory::MemoryStore;
use crate::{
    Answers, Batch, BlobChange, Fence, Guard, LogStart, Outcome, Query, Scan, Store, StoredDocument, Trim, Version,
};

/// Questions and batches whose answers are compared.
const OPERATIONS_DEFAULT: u32 = 3_000;
/// What one of them takes at the most, on a machine that does other things beside.
const OPERATION_MAX: Duration = Duration::from_millis(5);

/// How long the history is.
fn operations() -> u32 {
    let wanted = std::env::var("FF_TEST_HISTORY_OPERATIONS").ok();
    wanted.map_or(OPERATIONS_DEFAULT, |text| text.parse().expect("FF_TEST_HISTORY_OPERATIONS is a number"))
}

/// A history that is longer than usual may take longer than a case usually may.
pub(super) fn time_max() -> Duration {
    OPERATION_MAX * operations()
}

/// A small generator of numbers, so that a seed replays a history.
struct Dice(u64);

impl Dice {
    /// A number below `sides`.
    fn roll(&mut self, sides: u64) -> u64 {
        // The constants of a 64-bit xorshift-multiply generator.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % sides
    }

    fn score(&mut self) -> i64 {
        i64::try_from(self.roll(7)).expect("seven sides fit") - 3
    }

    fn pick<'a, T>(&mut self, among: &'a [T]) -> &'a T {
        let sides = u64::try_from(among.len()).expect("a length fits 64 bits");
        let side = usize::try_from(self.roll(sides)).expect("a number below a length fits");
        &among[side]
    }
}

/// The names a history is about: few, so that they meet often.
struct Names {
    keys: Vec<Key>,
    indexes: Vec<IndexName>,
    logs: Vec<Key>,
}

/// The present as the history knows it, so that most guards hold.
struct Present {
    documents: Vec<Option<StoredDocument>>,
    next: Vec<u64>,
}

impl Names {
    fn of(context: &Context) -> Self {
        Self {
            keys: (0..5).map(|number| context.key([number])).collect(),
            indexes: (0..3).map(|number| context.index([number])).collect(),
            logs: (0..2).map(|number| context.key([b'l', number])).collect(),
        }
    }

    /// A batch that is valid, and whose guards hold more often than not.
    fn batch(&self, dice: &mut Dice, present: &Present, former: &[Version]) -> Batch {
        let mut made = batch();
        for (key, document) in self.keys.iter().zip(&present.documents) {
            if dice.roll(3) > 0 {
                continue;
            }
            let wrong = dice.roll(8) == 0;
            made = made.guard(match document {
                Some(document) if !wrong => Guard::Version(key.clone(), document.version),
                None if wrong => Guard::Version(key.clone(), *dice.pick(former)),
                Some(_) | None => Guard::Absent(key.clone()),
            });
            made = self.change(made, dice, key, document.as_ref());
        }
        if dice.roll(6) == 0
            && let Some(document) = dice.pick(&present.documents)
        {
            let fence = if dice.roll(3) == 0 { Fence::default() } else { document.fence };
            let guard = *dice.pick(&[0, 1, 2]);
            made = made.guard(match guard {
                0 => Guard::Fence(document.key.clone(), fence),
                1 => Guard::Live(document.key.clone()),
                _ => Guard::Expired(document.key.clone()),
            });
        }
        if made.guards.is_empty() {
            return made;
        }
        for (log, next) in self.logs.iter().zip(&present.next) {
            match dice.roll(6) {
                0 | 1 => made = made.append(log, Some(next + u64::from(dice.roll(8) == 0)), &["a", "b"]),
                2 => {
                    let before = if dice.roll(4) == 0 { u64::MAX } else { dice.roll(next + 2) };
                    made.trims.push(Trim { log: log.clone(), before });
                }
                _ => {}
            }
        }
        made
    }

    /// Adds changes of one guarded document and of what belongs to it.
    fn change(&self, mut made: Batch, dice: &mut Dice, key: &Key, document: Option<&StoredDocument>) -> Batch {
        match dice.roll(5) {
            0 => made.deletes.push(key.clone()),
            1 => {}
            _ => {
                made = made.put(key, &dice.roll(1_000_000).to_string());
                let put = made.puts.last_mut().expect("just pushed");
                put.fence = document.map(|document| document.fence).unwrap_or_default();
                put.fence.epoch.0 += dice.roll(2);
                put.expires_at = *dice.pick(&[None, None, None, Some(1), Some(i64::from(u32::MAX) * 4_000)]);
            }
        }
        let put = made.puts.iter().any(|put| put.key == *key);
        let proved = made.guards.last().is_some_and(|guard| matches!(guard, Guard::Version(..)));
        let there = put || (proved && !made.deletes.contains(key));
        match dice.roll(4) {
            0 if there => made = made.lease(key, &self.indexes[0], Some(3_600_000)),
            1 => made = made.lease(key, &self.indexes[0], None),
            _ => {}
        }
        for index in &self.indexes[1..] {
            match dice.roll(4) {
                0 | 1 => made = made.set(index, key, dice.score()),
                2 => made = made.unset(index, key),
                _ => {}
            }
        }
        if dice.roll(4) == 0 {
            let bytes = (dice.roll(3) > 0).then(|| Bytes::from(vec![0xee; usize::from(dice.roll(9) == 0) * 5_000]));
            made.blobs.push(BlobChange { key: key.clone(), bytes });
        }
        made
    }

    /// Questions about everything the history is about.
    fn queries(&self, dice: &mut Dice, prefix: Vec<u8>) -> Vec<Query> {
        let mut queries = vec![Query::Documents(self.keys.clone()), Query::Blobs(self.keys.clone())];
        for log in &self.logs {
            queries.push(Query::Log { log: log.clone(), start: LogStart::After(0), limit: 1_000 });
            queries.push(Query::Log { log: log.clone(), start: LogStart::Before(dice.roll(9)), limit: 3 });
        }
        for index in &self.indexes {
            queries.push(Query::Scan(Scan::first(index.clone(), 100).with_documents()));
            let (min, max) = (dice.score(), dice.score());
            queries.push(Query::Count { index: index.clone(), min, max, at_most: u64::MAX });
            queries.push(Query::Count { index: index.clone(), min, max, at_most: dice.roll(3) });
            let mut scan = Scan { min, max, ..Scan::first(index.clone(), 2) };
            scan.descending = dice.roll(2) == 0;
            if dice.roll(2) == 0 {
                scan = scan.after(dice.score(), dice.pick(&self.keys).clone());
            }
            queries.push(Query::Scan(scan));
        }
        queries.push(Query::Indexes { prefix, after: None, limit: 10 });
        queries
    }
}

impl Present {
    fn of(answers: &Answers, names: &Names) -> Self {
        let mut answers = answers.answers.iter().cloned();
        let documents = answers.next().and_then(crate::Answer::into_documents).expect("documents come first");
        let next = answers.filter_map(crate::Answer::into_log).step_by(2).map(|page| page.next);
        let next: Vec<u64> = next.collect();
        assert_eq!(next.len(), names.logs.len());
        Self { documents, next }
    }
}

pub(super) async fn a_random_history_ends_as_in_memory(context: Context) {
    let seed = context.salt().iter().fold(1u64, |seed, byte| seed.wrapping_mul(257) ^ u64::from(*byte));
    let (mut dice, names) = (Dice(seed | 1), Names::of(&context));
    // The model's clock shows the times that the store answers, so that leases and records agree to the millisecond.
    let clock = Arc::new(AtomicI64::new(context.now().await));
    let model = MemoryStore::with_clock({
        let clock = Arc::clone(&clock);
        Arc::new(move || clock.load(Ordering::SeqCst))
    });
    let mut former = vec![command()];
    let (wanted, mut operations, mut call, mut applied) = (operations(), 0, 0, 0);
    while operations < wanted {
        call += 1;
        let queries = names.queries(&mut dice, context.prefix());
        let found = context.store.read(context.partition, queries.clone()).await.expect("the store reads");
        clock.fetch_max(found.at, Ordering::SeqCst);
        let expected = model.read(context.partition, queries.clone()).await.expect("memory reads");
        for ((query, found), expected) in queries.iter().zip(&found.answers).zip(&expected.answers) {
            assert_eq!(found, expected, "seed {seed}, call {call}: {query:?}");
            operations += 1;
        }
        let present = Present::of(&found, &names);
        let count = 1 + dice.roll(3);
        let batches: Vec<Batch> = (0..count).map(|_| names.batch(&mut dice, &present, &former)).collect();
        let outcomes = context.commit_all(batches.clone()).await;
        for (batch, outcome) in batches.into_iter().zip(outcomes) {
            former.push(batch.command);
            if let Outcome::Applied(done) = &outcome {
                applied += 1;
                clock.fetch_max(done.at, Ordering::SeqCst);
            }
            let expected =
                model.commit(context.partition, [batch.clone()].into()).await.expect("memory commits").remove(0);
            assert_eq!(outcome, expected, "seed {seed}, call {call}: {batch:?}");
            operations += 1;
        }
    }
    println!("{operations} operations in {call} calls, {applied} batches applied");
    assert!(applied > call / 4, "only {applied} batches were applied, the history proves little");
}
