//! Providers: order, windows, calls at once, and what a refusal by the provider does.

use uuid::Uuid;

use super::*;
use crate::id::ExecutionId;

const NOW: i64 = 1_800_000_000_000;

fn provider(definition: ProviderDefinition) -> Provider {
    match Provider::define(None, ("default", "model"), definition, NOW).unwrap() {
        Defined::Created(provider) => provider,
        Defined::AlreadyExists => unreachable!("there was none"),
    }
}

fn requests(max_requests: u64) -> Provider {
    provider(ProviderDefinition { max_requests, ..Default::default() })
}

/// Callers by number, and their bookings as the store would have them.
struct Line {
    provider: Provider,
    bookings: Vec<Option<Booking>>,
}

fn request(caller: usize, lease: u128, tokens: u64) -> AcquireRequest {
    AcquireRequest {
        id: BookingId {
            namespace: "default".into(),
            provider: "model".into(),
            execution: ExecutionId { partition: 0, uuid: Uuid::from_u128(caller as u128) },
            key: "call".into(),
        },
        lease: LeaseId(Uuid::from_u128(lease)),
        cost: ProviderCost { tokens, ..Default::default() },
        ttl_ms: 60_000,
    }
}

impl Line {
    fn of(provider: Provider, callers: usize) -> Self {
        Self { provider, bookings: vec![None; callers] }
    }

    fn asks(&mut self, caller: usize, tokens: u64, now: i64) -> Acquired {
        self.asks_under(caller, 1, tokens, now)
    }

    fn asks_under(&mut self, caller: usize, lease: u128, tokens: u64, now: i64) -> Acquired {
        let request = request(caller, lease, tokens);
        let (acquired, change) = self.provider.acquire(self.bookings[caller].as_ref(), &request, now).unwrap();
        match change {
            BookingChange::Nothing => {}
            BookingChange::Save(booking) => self.bookings[caller] = Some(*booking),
            BookingChange::Remove => self.bookings[caller] = None,
        }
        acquired
    }

    fn settles(&mut self, caller: usize, tokens: u64, now: i64) {
        let actual = ProviderCost { tokens, ..Default::default() };
        self.provider.settle(self.bookings[caller].as_mut().unwrap(), &actual, now);
    }

    fn lapses(&mut self, caller: usize, now: i64) {
        let booking = self.bookings[caller].as_mut().unwrap();
        assert!(booking.is_over(now));
        self.provider.lapse(booking, now);
    }
}

#[test]
fn a_window_takes_as_many_as_it_may_and_the_rest_have_a_place_each_in_order() {
    let mut line = Line::of(requests(3), 9);
    let answers: Vec<Acquired> = (0..9).map(|caller| line.asks(caller, 0, NOW)).collect();
    assert_eq!(
        answers.iter().map(|answer| answer.granted).collect::<Vec<_>>(),
        [true, true, true, false, false, false, false, false, false]
    );
    let windows: Vec<i64> = answers[3..].iter().map(|answer| answer.wait_ms).collect();
    assert!(windows.windows(2).all(|pair| pair[0] <= pair[1]), "{windows:?}");
    assert!(windows[..3].iter().all(|wait| (60_000..62_000).contains(wait)), "{windows:?}");
    assert!(windows[3..].iter().all(|wait| (120_000..124_000).contains(wait)), "{windows:?}");
    assert_eq!((line.provider.booked, line.provider.in_use), (6, 3));
    let first = answers[3];
    let early = line.asks(3, 0, first.ready_at - 1);
    assert_eq!((early.granted, early.ready_at), (false, first.ready_at), "who asks again early keeps its place");
    assert!(line.asks(3, 0, first.ready_at).granted);
    assert!(line.asks(3, 0, first.ready_at + 1).granted, "a repeat of the call gets the same answer");
    assert_eq!((line.provider.booked, line.provider.in_use, line.provider.granted), (5, 4, 4));
}

#[test]
fn tokens_count_as_expected_and_then_as_they_were() {
    let mut line = Line::of(provider(ProviderDefinition { max_tokens: 1_000, ..Default::default() }), 4);
    assert!(line.asks(0, 900, NOW).granted);
    assert!(!line.asks(1, 200, NOW).granted);
    line.settles(0, 100, NOW + 10);
    line.settles(0, 100, NOW + 20);
    assert_eq!(line.provider.status(NOW + 20).tokens_in_window, 100, "what was not used is free, once");
    let waits = line.asks(2, 100, NOW + 30);
    assert!(!waits.granted && waits.wait_ms > 50_000, "nobody passes those that wait: {waits:?}");
    assert_eq!(
        line.provider.check_cost(&ProviderCost { tokens: 1_001, ..Default::default() }).unwrap_err().details["field"],
        "cost.tokens"
    );
}

#[test]
fn calls_at_once_are_handed_out_in_order() {
    let mut line = Line::of(provider(ProviderDefinition { max_concurrent: 1, ..Default::default() }), 3);
    assert!(line.asks(0, 0, NOW).granted);
    let (second, third) = (line.asks(1, 0, NOW), line.asks(2, 0, NOW));
    assert!(!second.granted && second.ready_at < third.ready_at, "{second:?} {third:?}");
    line.settles(0, 0, NOW + 400);
    assert!(!line.asks(2, 0, NOW + 401).granted, "the second comes first");
    assert!(line.asks(1, 0, NOW + 402).granted);
    line.settles(1, 0, NOW + 500);
    assert!(line.asks(2, 0, NOW + 501).granted);
    line.settles(2, 0, NOW + 600);
    assert_eq!((line.provider.in_use, line.provider.booked, line.provider.waiting.len()), (0, 0, 0));
}

#[test]
fn a_booking_that_nobody_takes_lapses_and_its_room_comes_back() {
    let mut line = Line::of(requests(1), 3);
    assert!(line.asks(0, 0, NOW).granted);
    line.settles(0, 0, NOW);
    let waits = line.asks(1, 0, NOW);
    let lapses_at = waits.ready_at + limits::PROVIDER_BOOKING_GRACE_MS;
    assert!(!line.bookings[1].as_ref().unwrap().is_over(lapses_at - 1));
    line.lapses(1, lapses_at);
    assert!(line.asks(2, 0, lapses_at).granted, "nothing counts it any more");
    assert_eq!(line.provider.booked, 0);
    // One whose caller never said what became of it counts as made, and its place among the calls is free again.
    line.lapses(2, lapses_at + 60_000);
    assert_eq!((line.provider.in_use, line.provider.requests.last().is_some()), (0, true));
}

#[test]
fn another_lease_finds_the_place_in_the_line_and_calls_anew_what_was_called() {
    let mut line = Line::of(requests(1), 2);
    assert!(line.asks_under(0, 1, 0, NOW).granted);
    let booked = line.asks_under(1, 1, 0, NOW);
    let found = line.asks_under(1, 2, 0, booked.ready_at);
    assert!(found.granted, "the execution was parked, and keeps its place: {found:?}");
    let anew = line.asks_under(1, 3, 0, booked.ready_at + 5);
    assert!(!anew.granted, "the second call is one more: {anew:?}");
    assert_eq!((line.provider.in_use, line.provider.booked), (1, 1));
}

#[test]
fn a_call_asked_for_again_after_its_end_is_the_same_call_and_counts_nothing() {
    let mut line =
        Line::of(provider(ProviderDefinition { max_requests: 5, max_tokens: 1_000, ..Default::default() }), 1);
    let first = line.asks(0, 100, NOW);
    line.settles(0, 70, NOW + 10);
    let before = line.provider.clone();
    assert_eq!(line.asks(0, 100, NOW + 20), first);
    let shown = line.provider.status(NOW + 20);
    assert_eq!((shown.in_use, shown.booked, shown.requests_in_window, shown.tokens_in_window), (0, 0, 1, 70));
    assert_eq!((line.provider.granted, line.provider.next_ticket), (before.granted, before.next_ticket));
    let conflict = line.provider.acquire(line.bookings[0].as_ref(), &request(0, 1, 70), NOW + 30).unwrap_err();
    assert_eq!(conflict.code, Code::IdempotencyConflict, "what it cost is not what was asked for");
}

#[test]
fn a_call_that_the_provider_refused_asks_for_its_next_turn_with_the_same_key() {
    let mut line = Line::of(requests(10), 1);
    assert!(line.asks(0, 0, NOW).granted);
    line.provider.throttle(Some(10_000), NOW + 5);
    line.settles(0, 0, NOW + 6);
    let next = line.asks(0, 0, NOW + 7);
    assert!(!next.granted && next.booked && next.ready_at >= NOW + 10_005, "{next:?}");
}

#[test]
fn a_refusal_by_the_provider_closes_it_halves_it_and_lets_nobody_come_at_once() {
    let mut line = Line::of(requests(60), 40);
    assert!((0..10).all(|caller| line.asks(caller, 0, NOW).granted));
    line.provider.throttle(Some(10_000), NOW + 100);
    line.provider.throttle(Some(8_000), NOW + 101);
    let status = line.provider.status(NOW + 101);
    assert_eq!((status.effective.requests, status.effective.percent), (30, 50), "once for both");
    assert_eq!((status.closed_until, status.throttled), (Some(NOW + 10_100), 2));
    let waits: Vec<i64> = (10..30).map(|caller| line.asks(caller, 0, NOW + 200).ready_at).collect();
    assert!(waits.iter().all(|at| *at >= NOW + 10_100), "it is closed: {waits:?}");
    assert!(waits.windows(2).all(|pair| pair[0] < pair[1]), "they come one after another: {waits:?}");
    assert!(line.asks(10, 0, waits[0]).granted, "it opens by itself");
}

#[test]
fn the_first_refusal_lowers_the_limits_however_soon_after_another_call_it_comes() {
    let mut line = Line::of(requests(60), 2);
    assert!(line.asks(0, 0, NOW).granted);
    line.settles(0, 0, NOW);
    assert!(line.asks(1, 0, NOW).granted);
    line.provider.throttle(Some(1_000), NOW);
    assert_eq!(line.provider.status(NOW).effective.percent, 50);
}

#[test]
fn a_closure_moves_those_who_had_a_place_before_its_end() {
    let mut line = Line::of(requests(1), 2);
    assert!(line.asks(0, 0, NOW).granted);
    let before = line.asks(1, 0, NOW);
    line.provider.throttle(Some(300_000), NOW + 10);
    let after = line.asks(1, 0, before.ready_at);
    assert!(!after.granted && after.ready_at >= NOW + 300_010, "{after:?}");
    assert!(line.asks(1, 0, after.ready_at).granted);
}

#[test]
fn a_tenth_comes_back_with_each_window() {
    let mut provider = requests(100);
    provider.throttle(Some(1_000), NOW);
    let percent = |windows: i64| provider.effective(NOW + 1_000 + windows * 60_000).percent;
    assert_eq!([0, 1, 2, 5, 6].map(percent), [50, 60, 70, 100, 100]);
    let mut broken = requests(100);
    for number in 0..20 {
        broken.throttle(Some(0), NOW + number);
    }
    assert_eq!(broken.effective(NOW + 20).requests, 1, "something is always left");
}

#[test]
fn a_change_of_the_window_leaves_nobody_behind() {
    for window_ms in [1_000, 3_600_000] {
        let mut line = Line::of(requests(1), 3);
        assert!(line.asks(0, 0, NOW).granted);
        let booked = line.asks(1, 0, NOW);
        let change = ProviderChange { window_ms: Some(window_ms), ..Default::default() };
        line.provider.update(&change, NOW + 1).unwrap();
        let moved = line.asks(1, 0, booked.ready_at);
        assert!(moved.granted || moved.wait_ms <= 2 * window_ms, "{moved:?}");
        line.settles(0, 0, NOW + 2);
        assert!(line.asks(2, 0, booked.ready_at + 1).wait_ms <= 4 * window_ms);
    }
}

#[test]
fn the_line_has_an_end() {
    let mut line = Line::of(requests(1), 40);
    let answers: Vec<Acquired> = (0..40).map(|caller| line.asks(caller, 0, NOW)).collect();
    let last = answers[39];
    assert!(!last.granted && !last.booked && last.wait_ms > 0, "{last:?}");
    assert!(line.provider.requests.last().unwrap() <= line.provider.definition.part(NOW) + 17 * limits::PROVIDER_PARTS);
    assert!(line.bookings[39].is_none());
}

#[test]
fn documents_survive_the_store() {
    let mut line = Line::of(requests(1), 2);
    line.asks(0, 5, NOW);
    line.asks(1, 5, NOW);
    line.provider.throttle(None, NOW + 1);
    assert_eq!(Provider::decode(&line.provider.encode()).unwrap(), line.provider);
    let booking = line.bookings[1].clone().unwrap();
    assert_eq!(Booking::decode(&booking.encode()).unwrap(), booking);
}

/// Callers that come late, at random, with calls of random lengths: the instants at which calls were let through.
fn instants_of_late_callers(definition: &ProviderDefinition, seed: u64) -> Vec<i64> {
    const CALLERS: usize = 16;
    const CALLS: usize = 300;
    let mut state = seed;
    let mut random = move |below: i64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        i64::try_from(state >> 33).unwrap() % below.max(1)
    };
    let window = definition.window_ms;
    let mut line = Line::of(provider(definition.clone()), CALLERS);
    let (mut instants, mut under_way) = (Vec::new(), [false; CALLERS]);
    let mut comes_at: Vec<i64> = (0..CALLERS).map(|_| NOW + random(window / 4)).collect();
    while instants.len() < CALLS {
        let caller = (0..CALLERS).min_by_key(|caller| comes_at[*caller]).unwrap();
        let now = comes_at[caller];
        if std::mem::take(&mut under_way[caller]) {
            line.settles(caller, 0, now);
            line.bookings[caller] = None;
            comes_at[caller] = now + random(window / 50);
            continue;
        }
        if line.bookings[caller].as_ref().is_some_and(|booking| booking.is_over(now)) {
            line.lapses(caller, now);
            line.bookings[caller] = None;
        }
        let acquired = line.asks(caller, 0, now);
        if acquired.granted {
            instants.push(now);
            under_way[caller] = true;
            comes_at[caller] = now + 1 + random(window / 3);
        } else {
            comes_at[caller] = acquired.ready_at.max(now + 1) + random(window / 8);
        }
    }
    instants
}

#[test]
fn no_window_takes_more_than_the_limit_however_late_callers_come_and_however_long_calls_take() {
    for (max_requests, max_concurrent) in [(4, 0), (4, 1), (10, 3), (2, 2)] {
        let definition =
            ProviderDefinition { window_ms: 20_000, max_requests, max_concurrent, ..ProviderDefinition::default() };
        for seed in 0..50 {
            let instants = instants_of_late_callers(&definition, seed);
            for (last, at) in instants.iter().enumerate() {
                let began = instants[..=last].iter().filter(|earlier| **earlier > at - definition.window_ms).count();
                assert!(
                    began as u64 <= max_requests,
                    "seed {seed}: {began} of {max_requests} in a window, {definition:?}"
                );
            }
            let (first, last) = (instants[0], instants[instants.len() - 1]);
            let windows = u64::try_from((last - first) / definition.window_ms).unwrap() + 1;
            let wanted = if max_concurrent == 0 { max_requests / 2 } else { 1 };
            assert!(instants.len() as u64 >= windows * wanted.min(max_requests), "seed {seed}: {windows} windows");
        }
    }
}
