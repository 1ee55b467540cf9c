//! The memory store fails as it is told to, keeps the time it is given, and shows what it holds.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use ff_core::{CommandId, IndexName, Key, Partition};
use ff_store::memory::{Call, Fault, Faults, MemoryStore, Pause, Plan};
use ff_store::{
    Batch, ConflictReason, EntryChange, Fence, Guard, Hint, Hints, LeaseChange, Outcome, Put, Query, Store, StoreError,
    WatchEvent,
};

const HERE: Partition = Partition::flow(3);

/// A future that is ready at once: nothing in the store may need a runtime.
#[track_caller]
fn now<T>(future: impl Future<Output = T>) -> T {
    match poll(&mut pin!(future)) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("the store waits for something"),
    }
}

fn poll<T>(future: &mut Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Plans for the next calls, then none.
#[derive(Default)]
struct Script(Mutex<VecDeque<Plan>>);

impl Script {
    fn then(&self, plan: impl Into<Plan>) {
        self.0.lock().unwrap().push_back(plan.into());
    }
}

impl Faults for Script {
    fn plan(&self, _: Call<'_>) -> Plan {
        self.0.lock().unwrap().pop_front().unwrap_or_default()
    }
}

fn store() -> (MemoryStore, Arc<Script>) {
    let script = Arc::new(Script::default());
    (MemoryStore::with_clock(Arc::new(|| 1_000)).with_faults(script.clone()), script)
}

fn key(name: &str) -> Key {
    Key::from_bytes(name.as_bytes())
}

fn command(number: u128) -> CommandId {
    CommandId(uuid::Uuid::from_u128(number))
}

fn put(number: u128, guard: Guard, body: &str) -> Batch {
    let key = guard.key().unwrap().clone();
    let body = Bytes::copy_from_slice(body.as_bytes());
    Batch {
        guards: vec![guard],
        puts: vec![Put { key, body, fence: Fence::default(), expires_at: None }],
        ..Batch::new(command(number))
    }
}

fn create(number: u128, name: &str) -> Batch {
    put(number, Guard::Absent(key(name)), "created")
}

fn commit(store: &MemoryStore, batch: Batch) -> ff_store::Result<Outcome> {
    now(store.commit(HERE, [batch].into())).map(|mut outcomes| outcomes.remove(0))
}

fn body(store: &MemoryStore, name: &str) -> Option<Bytes> {
    store.inspect(|contents| Some(contents.partition(HERE)?.document(&key(name))?.body.clone()))
}

/// The signals that a watcher has heard so far.
fn heard(hints: &mut Hints) -> Vec<WatchEvent> {
    let mut signals = Vec::new();
    while let Poll::Ready(Some(signal)) = poll(&mut pin!(hints.next())) {
        signals.push(signal);
    }
    signals
}

#[test]
fn an_unavailable_store_applies_nothing() {
    let (store, script) = store();
    script.then(Fault::Unavailable);
    assert!(matches!(commit(&store, create(1, "a")), Err(StoreError::Unavailable(_))));
    assert_eq!(body(&store, "a"), None);
    script.then(Fault::Unavailable);
    assert!(matches!(now(store.read(HERE, vec![])), Err(StoreError::Unavailable(_))));
    assert!(commit(&store, create(1, "a")).unwrap().applied().is_some(), "the next call is an ordinary one");
}

#[test]
fn a_lost_reply_is_unknown_and_the_repetition_meets_itself() {
    let (store, script) = store();
    let mut hints = store.watch();
    let hint = Hint { partition: HERE, payload: Bytes::from_static(b"created") };
    let batch = Batch { hints: vec![hint.clone()], ..create(1, "a") };
    script.then(Fault::LostReply);
    assert!(commit(&store, batch.clone()).unwrap_err().outcome_unknown());
    assert!(body(&store, "a").is_some());
    assert_eq!(heard(&mut hints), [WatchEvent::Hint(hint)]);
    match commit(&store, batch).unwrap() {
        Outcome::Conflict(conflict) => assert_eq!(conflict.why, ConflictReason::Exists(command(1))),
        applied => panic!("applied twice: {applied:?}"),
    }
    assert_eq!(heard(&mut hints), []);
}

#[test]
fn a_lost_request_is_unknown_and_applies_nothing() {
    let (store, script) = store();
    script.then(Fault::LostRequest);
    assert!(commit(&store, create(1, "a")).unwrap_err().outcome_unknown());
    assert_eq!(body(&store, "a"), None);
}

#[test]
fn a_full_store_takes_relief_alone() {
    let (store, script) = store();
    commit(&store, create(1, "a")).unwrap();
    let delete =
        Batch { guards: vec![Guard::Version(key("a"), command(1))], deletes: vec![key("a")], ..Batch::new(command(2)) };
    script.then(Fault::Full);
    assert!(matches!(commit(&store, delete.clone()), Err(StoreError::Full(_))));
    let relief = Batch { relief: true, ..delete };
    script.then(Fault::Full);
    let mixed = now(store.commit(HERE, [relief.clone(), create(3, "b")].into()));
    assert!(matches!(mixed, Err(StoreError::Full(_))));
    assert!(body(&store, "a").is_some() && body(&store, "b").is_none());
    script.then(Fault::Full);
    assert!(commit(&store, relief).unwrap().applied().is_some());
    assert_eq!(body(&store, "a"), None);
}

#[test]
fn an_overtaken_commit_meets_a_conflict_that_a_reader_sees_too() {
    let (store, script) = store();
    commit(&store, create(1, "a")).unwrap();
    let update = put(2, Guard::Version(key("a"), command(1)), "updated");
    script.then(Fault::Overtaken(command(77)));
    match commit(&store, update).unwrap() {
        Outcome::Conflict(conflict) => assert_eq!(conflict.why, ConflictReason::Version(command(77))),
        applied => panic!("not overtaken: {applied:?}"),
    }
    let found = now((&store as &dyn Store).documents(HERE, vec![key("a")])).unwrap().remove(0).unwrap();
    assert_eq!((found.version, found.body.as_ref()), (command(77), b"created".as_slice()));
    // No command overtakes a commit whose version is stale anyway, or one that guards no version.
    script.then(Fault::Overtaken(command(78)));
    match commit(&store, put(3, Guard::Version(key("a"), command(1)), "updated")).unwrap() {
        Outcome::Conflict(conflict) => assert_eq!(conflict.why, ConflictReason::Version(command(77))),
        applied => panic!("applied on a stale version: {applied:?}"),
    }
    script.then(Fault::Overtaken(command(79)));
    assert!(commit(&store, create(4, "b")).unwrap().applied().is_some());
}

/// A pause that lasts until a switch is turned.
fn pause(switch: &Arc<AtomicBool>) -> Pause {
    let switch = Arc::clone(switch);
    Box::pin(std::future::poll_fn(move |_| if switch.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }))
}

#[test]
fn a_call_waits_before_and_after_it_is_applied() {
    let (store, script) = store();
    let (before, after) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    script.then(Plan { before: Some(pause(&before)), after: Some(pause(&after)), ..Plan::default() });
    let mut call = pin!(store.commit(HERE, [create(1, "a")].into()));
    assert!(poll(&mut call).is_pending());
    assert_eq!(body(&store, "a"), None, "nothing is applied before the first pause is over");
    before.store(true, Ordering::SeqCst);
    assert!(poll(&mut call).is_pending());
    assert!(body(&store, "a").is_some(), "applied, but not answered");
    after.store(true, Ordering::SeqCst);
    assert!(matches!(poll(&mut call), Poll::Ready(Ok(_))));
}

#[test]
fn a_caller_that_is_gone_before_the_commit_leaves_nothing() {
    let (store, script) = store();
    let never = Arc::new(AtomicBool::new(false));
    script.then(Plan { before: Some(pause(&never)), ..Plan::default() });
    {
        let mut call = pin!(store.commit(HERE, [create(1, "a")].into()));
        assert!(poll(&mut call).is_pending());
    }
    assert_eq!(body(&store, "a"), None);
    assert!(commit(&store, create(2, "a")).unwrap().applied().is_some(), "the store works on");
}

#[test]
fn lost_hints_become_a_resync() {
    let (store, script) = store();
    let mut hints = store.watch();
    script.then(Plan { lose_hints: true, ..Plan::default() });
    let hint = Hint { partition: HERE, payload: Bytes::from_static(b"created") };
    commit(&store, Batch { hints: vec![hint], ..create(1, "a") }).unwrap();
    assert_eq!(heard(&mut hints), [WatchEvent::Resync]);
}

#[test]
fn a_failover_forgets_and_says_resync() {
    let (store, _) = store();
    commit(&store, create(1, "a")).unwrap();
    let replica = store.snapshot();
    commit(&store, create(2, "b")).unwrap();
    commit(&store, put(3, Guard::Version(key("a"), command(1)), "updated")).unwrap();
    let mut hints = store.watch();
    store.restore(replica.clone());
    assert_eq!(heard(&mut hints), [WatchEvent::Resync]);
    assert_eq!(body(&store, "a").as_deref(), Some(b"created".as_slice()));
    assert_eq!(body(&store, "b"), None);
    assert_eq!(store.snapshot(), replica);
}

#[test]
fn time_is_the_owners_and_never_goes_back() {
    let clock = Arc::new(AtomicI64::new(5_000));
    let hands = Arc::clone(&clock);
    let store = MemoryStore::with_clock(Arc::new(move || hands.load(Ordering::SeqCst)));
    let at = || now(store.read(HERE, vec![Query::Documents(vec![])])).unwrap().at;
    assert_eq!(at(), 5_000);
    clock.store(4_000, Ordering::SeqCst);
    assert_eq!((at(), store.now()), (5_000, 5_000));
    assert_eq!(commit(&store, create(1, "a")).unwrap().applied().unwrap().at, 5_000);
    store.restore(Default::default());
    assert_eq!(at(), 5_000, "a failover does not turn the clock back either");
    clock.store(6_000, Ordering::SeqCst);
    assert_eq!(at(), 6_000);
}

#[test]
fn a_lease_ends_at_its_instant_and_a_document_at_its_expiry() {
    let clock = Arc::new(AtomicI64::new(1_000));
    let hands = Arc::clone(&clock);
    let store = MemoryStore::with_clock(Arc::new(move || hands.load(Ordering::SeqCst)));
    let due = IndexName::from_bytes(*b"due");
    let mut batch = create(1, "a");
    batch.puts[0].expires_at = Some(3_000);
    batch.leases.push(LeaseChange { key: key("a"), ttl_ms: Some(500), index: due.clone(), member: key("a") });
    commit(&store, batch).unwrap();
    let score = store.inspect(|contents| contents.partition(HERE).unwrap().score(&due, &key("a")));
    assert_eq!(score, Some(1_500));
    let holds = |guard: Guard| {
        let batch = Batch { guards: vec![guard], ..Batch::default() };
        commit(&store, batch).unwrap().applied().is_some()
    };
    for (time, live, there) in [(1_499, true, true), (1_500, false, true), (2_999, false, true), (3_000, false, false)]
    {
        clock.store(time, Ordering::SeqCst);
        assert_eq!(holds(Guard::Live(key("a"))), live, "live at {time}");
        assert_eq!(holds(Guard::Expired(key("a"))), there && !live, "expired at {time}");
        assert_eq!(holds(Guard::Absent(key("a"))), !there, "absent at {time}");
        assert!(holds(Guard::NotAfter(time)) && !holds(Guard::NotAfter(time - 1)));
    }
}

#[test]
fn everything_stored_can_be_looked_at() {
    let (store, _) = store();
    let index = IndexName::from_bytes(*b"index");
    let mut batch = create(1, "a");
    batch.entries.push(EntryChange::Set { index: index.clone(), member: key("a"), score: 7 });
    batch.puts[0].expires_at = Some(1);
    commit(&store, batch).unwrap();
    now(store.commit(Partition::SYSTEM, [create(2, "b")].into())).unwrap();
    store.inspect(|contents| {
        let partitions: Vec<Partition> = contents.partitions().map(|(partition, _)| partition).collect();
        assert_eq!(partitions, [HERE, Partition::SYSTEM]);
        let here = contents.partition(HERE).unwrap();
        assert_eq!(here.entries().collect::<Vec<_>>(), [(&index, 7, &key("a"))]);
        let (name, raw) = here.documents().next().unwrap();
        assert_eq!((name, raw.expires_at), (&key("a"), Some(1)));
        assert!(!raw.present(1_000), "what has expired is still shown");
    });
}

#[test]
fn one_partition_forgets_alone_and_keeps_its_own_time() {
    let elsewhere = Partition::flow(4);
    let clocks = Arc::new(AtomicI64::new(1_000));
    let shown = Arc::clone(&clocks);
    let clock = move |partition: Partition| shown.load(Ordering::SeqCst) + i64::from(partition.number);
    let store = MemoryStore::with_partition_clocks(Arc::new(clock));
    now(store.commit(HERE, [put(1, Guard::Absent(key("a")), "kept")].into())).unwrap();
    let replica = store.snapshot();
    for partition in [HERE, elsewhere] {
        now(store.commit(partition, [put(2, Guard::Absent(key("b")), "late")].into())).unwrap();
    }
    store.restore_partition(HERE, replica.partition(HERE).cloned().unwrap());
    let has =
        |partition| store.inspect(|contents| contents.partition(partition).unwrap().document(&key("b")).is_some());
    assert!(!has(HERE) && has(elsewhere));
    assert_eq!((store.now_in(HERE), store.now_in(elsewhere)), (1_003, 1_004));
    clocks.store(500, Ordering::SeqCst);
    assert_eq!(store.now_in(HERE), 1_003, "a clock that steps back does not take time back");
}
