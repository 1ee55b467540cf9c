//! Random commits that share function calls: every outcome and everything stored must agree with the store in memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use ff_core::{CommandId, IndexName, Key, Partition};
use ff_store::memory::MemoryStore;
use ff_store::{
    Append, Batch, BlobChange, EntryChange, Fence, Guard, LeaseChange, LogStart, Outcome, Put, Query, Scan, Store,
    Trim, Version,
};
use ff_store_valkey::ValkeyStore;
use ff_testkit::valkey::Server;
use futures_util::future::join_all;
use uuid::Uuid;

/// Times that many commits are sent at once.
const ROUNDS: usize = 60;
/// Commits that are sent at once.
const COMMITS: usize = 24;
const PARTITIONS: u16 = 3;
const KEYS: u8 = 6;
/// Members of the index that has many.
const MANY: u64 = 1_200;

/// A small generator of numbers, so that a seed replays a history.
struct Dice(u64);

impl Dice {
    /// A number below `sides`.
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % sides
    }
}

fn key(number: u8) -> Key {
    Key::from_bytes([b'k', number])
}

fn index(name: &str) -> IndexName {
    IndexName::from_bytes(name.as_bytes())
}

const INDEXES: [&str; 4] = ["i1", "i2", "!unlisted", "ileases"];

fn queries() -> Vec<Query> {
    let keys: Vec<Key> = (0..KEYS).map(key).collect();
    let scans = INDEXES.iter().chain(&["imany"]).map(|name| Query::Scan(Scan::first(index(name), 10_000)));
    let logs = [0, 1].map(|log| Query::Log { log: key(log), start: LogStart::After(0), limit: 10_000 });
    let names = Query::Indexes { prefix: b"i".to_vec(), after: None, limit: 100 };
    [Query::Documents(keys.clone()), Query::Blobs(keys), names].into_iter().chain(scans).chain(logs).collect()
}

/// A batch about few documents, whose guards hold now and then.
fn batch(dice: &mut Dice, versions: &HashMap<Key, Version>, next: &[u64; 2]) -> Batch {
    let mut made = Batch::new(CommandId(Uuid::now_v7()));
    for number in 0..KEYS {
        if dice.roll(4) > 0 {
            continue;
        }
        let key = key(number);
        let known = versions.get(&key).filter(|_| dice.roll(10) > 0);
        made.guards.push(known.map_or(Guard::Absent(key.clone()), |version| Guard::Version(key.clone(), *version)));
        let kind = dice.roll(5);
        if kind == 0 {
            made.deletes.push(key.clone());
        } else if kind > 1 {
            let body = Bytes::from(vec![b'x'; usize::try_from(dice.roll(50)).unwrap()]);
            let expires_at =
                [None, None, None, Some(1), Some(9_000_000_000_000)][usize::try_from(dice.roll(5)).unwrap()];
            made.puts.push(Put { key: key.clone(), body, fence: Fence::default(), expires_at });
        }
        if (kind > 1 || (known.is_some() && kind == 1)) && dice.roll(2) == 0 {
            let ttl_ms = [None, Some(3_600_000), Some(7_200_000)][usize::try_from(dice.roll(3)).unwrap()];
            made.leases.push(LeaseChange { key: key.clone(), ttl_ms, index: index("ileases"), member: key.clone() });
        }
        for name in INDEXES {
            let (index, member) = (index(name), key.clone());
            match dice.roll(4) {
                0 => made.entries.push(EntryChange::Remove { index, member }),
                1 => {
                    let score = [-9_007_199_254_740_991, -1, 0, 7, 9_007_199_254_740_991]
                        [usize::try_from(dice.roll(5)).unwrap()];
                    made.entries.push(EntryChange::Set { index, member, score });
                }
                _ => {}
            }
        }
        if dice.roll(4) == 0 {
            let bytes = (dice.roll(3) > 0).then(|| Bytes::from(vec![b'b'; 10]));
            made.blobs.push(BlobChange { key, bytes });
        }
    }
    if made.guards.is_empty() {
        // Under a guard that always holds.
        made.guards.push(Guard::Absent(Key::from_bytes(*b"nothing")));
    }
    if dice.roll(8) == 0 {
        let fenced = key(u8::try_from(dice.roll(u64::from(KEYS))).unwrap());
        made.guards.push(if dice.roll(2) == 0 { Guard::Live(fenced) } else { Guard::Expired(fenced) });
    }
    if dice.roll(40) == 0 {
        let first = dice.roll(MANY);
        let entry = |number: u64| {
            let (index, member) = (index("imany"), Key::from_bytes(((first + number) % MANY).to_be_bytes()));
            if number.is_multiple_of(3) {
                EntryChange::Remove { index, member }
            } else {
                EntryChange::Set { index, member, score: i64::try_from(number).unwrap() }
            }
        };
        made.entries.extend((0..dice.roll(MANY)).map(entry));
    }
    for log in [0, 1u8] {
        let next = next[usize::from(log)];
        match dice.roll(8) {
            0 | 1 => {
                let records = (0..1 + dice.roll(3)).map(|_| Bytes::from_static(b"r")).collect();
                let expected = (dice.roll(2) == 0).then(|| next + dice.roll(3));
                made.appends.push(Append { log: key(log), records, expected, cap: 0, in_turn: false });
            }
            2 => {
                let before = if dice.roll(3) == 0 { u64::MAX } else { dice.roll(next + 2) };
                made.trims.push(Trim { log: key(log), before });
            }
            _ => {}
        }
    }
    made
}

#[tokio::test]
async fn random_commits_that_share_calls_end_as_in_memory() {
    let server = Server::start();
    let store: Arc<dyn Store> = Arc::new(ValkeyStore::open(&server.url()).await.expect("the store opens"));
    let seed = u64::from_be_bytes(Uuid::now_v7().as_bytes()[8..].try_into().unwrap()) | 1;
    let mut dice = Dice(seed);
    let models: Vec<(MemoryStore, Arc<AtomicI64>)> = (0..PARTITIONS)
        .map(|_| {
            let clock = Arc::new(AtomicI64::new(0));
            let shown = clock.clone();
            (MemoryStore::with_clock(Arc::new(move || shown.load(Ordering::SeqCst))), clock)
        })
        .collect();
    let (mut applied, mut refused) = (0, 0);
    for round in 0..ROUNDS {
        let mut versions = Vec::new();
        let mut nexts = Vec::new();
        for (number, (model, clock)) in (0..).zip(&models) {
            let partition = Partition::flow(number);
            let found = store.read(partition, queries()).await.expect("it reads");
            clock.store(found.at, Ordering::SeqCst);
            let expected = model.read(partition, queries()).await.expect("memory reads");
            for ((query, found), expected) in queries().iter().zip(&found.answers).zip(&expected.answers) {
                assert_eq!(found, expected, "seed {seed}, round {round}, partition {number}: {query:?}");
            }
            let mut answers = found.answers.into_iter();
            let documents = answers.next().and_then(ff_store::Answer::into_documents).expect("documents");
            versions.push(documents.into_iter().flatten().map(|one| (one.key, one.version)).collect::<HashMap<_, _>>());
            let next: Vec<u64> = answers.filter_map(ff_store::Answer::into_log).map(|page| page.next).collect();
            nexts.push([next[0], next[1]]);
        }
        let commits: Vec<(u16, Arc<[Batch]>)> = (0..COMMITS)
            .map(|_| {
                let partition = u16::try_from(dice.roll(u64::from(PARTITIONS))).unwrap();
                let at = usize::from(partition);
                (partition, (0..1 + dice.roll(3)).map(|_| batch(&mut dice, &versions[at], &nexts[at])).collect())
            })
            .collect();
        let sent = commits.iter().map(|(number, batches)| store.commit(Partition::flow(*number), batches.clone()));
        for ((number, batches), outcomes) in commits.iter().zip(join_all(sent).await) {
            let (model, clock) = &models[usize::from(*number)];
            for (batch, outcome) in batches.iter().zip(outcomes.expect("it commits")) {
                match &outcome {
                    Outcome::Applied(done) => {
                        applied += 1;
                        clock.store(done.at, Ordering::SeqCst);
                    }
                    Outcome::Conflict(_) => refused += 1,
                }
                let one = model.commit(Partition::flow(*number), [batch.clone()].into()).await.expect("memory commits");
                assert_eq!(outcome, one[0], "seed {seed}, round {round}: {batch:?}");
            }
        }
    }
    assert!(applied > 200 && refused > 200, "{applied} applied, {refused} refused");
}
