use proptest::prelude::*;

use super::*;
use crate::error::Code;

pub(super) fn dimensions(of: &[(&str, i64, i64)]) -> BTreeMap<String, Limits> {
    of.iter().map(|&(name, hard, soft)| (name.to_owned(), Limits { hard, soft, ..Default::default() })).collect()
}

fn definition(of: &[(&str, i64, i64)]) -> BudgetDefinition {
    BudgetDefinition { dimensions: dimensions(of), ..Default::default() }
}

pub(super) fn created(definition: BudgetDefinition) -> Budget {
    Budget::define(None, ("team", "b"), definition, 1_000).unwrap().created()
}

pub(super) fn tokens(amount: i64) -> Amounts {
    Amounts::from([("tokens".to_owned(), amount)])
}

fn hard_breach(current: i64, limit: i64) -> ReportUsageResult {
    ReportUsageResult::HardBreach { dimension: "tokens".into(), current, limit }
}

fn field(error: &Error) -> &str {
    assert_eq!(error.code, Code::Invalid);
    error.details["field"].as_str().unwrap()
}

#[test]
fn a_definition_is_made_once_and_a_different_one_is_a_conflict() {
    let first = definition(&[("tokens", 100, 0)]);
    let mut budget = created(first.clone());
    let again = |budget: &Budget, definition: &BudgetDefinition| {
        Budget::define(Some(budget), ("team", "b"), definition.clone(), 2_000)
    };
    assert_eq!(again(&budget, &first).unwrap(), Defined::AlreadyExists);
    let other = definition(&[("tokens", 101, 0)]);
    assert_eq!(again(&budget, &other).unwrap_err().code, Code::DefinitionConflict);
    budget.set_limits(&dimensions(&[("tokens", 200, 0)]), 2_000).unwrap();
    assert_eq!(again(&budget, &first).unwrap(), Defined::AlreadyExists);
    assert_eq!(again(&budget, &definition(&[("tokens", 200, 0)])).unwrap(), Defined::AlreadyExists);
    assert_eq!(again(&budget, &other).unwrap_err().code, Code::DefinitionConflict);
}

#[test]
fn usage_up_to_the_hard_limit_counts_and_one_past_it_does_not() {
    let mut budget = created(definition(&[("tokens", 100, 0)]));
    assert_eq!(budget.report(&tokens(60), 1_001).unwrap(), ReportUsageResult::Ok);
    assert!(budget.admit().is_ok());
    assert_eq!(budget.report(&tokens(40), 1_002).unwrap(), ReportUsageResult::Ok);
    let refusal = budget.admit().unwrap_err();
    assert_eq!((refusal.dimension.as_str(), refusal.current, refusal.limit), ("tokens", 100, 100));
    assert_eq!(budget.report(&tokens(1), 1_003).unwrap(), hard_breach(100, 100));
    assert_eq!(budget.used("tokens"), 100);
    let status = budget.status(2_000);
    assert_eq!((status.breach_count, status.last_breach_at), (1, Some(1_003)));
    assert_eq!((status.last_breach_dimension.as_deref(), status.exhausted), (Some("tokens"), vec!["tokens".into()]));
}

#[test]
fn a_report_that_does_not_fit_blocks_a_budget_that_had_room() {
    let mut budget = created(definition(&[("tokens", 100, 0)]));
    budget.report(&tokens(99), 1_001).unwrap();
    assert!(budget.admit().is_ok());
    assert_eq!(budget.report(&tokens(50), 1_002).unwrap(), hard_breach(99, 100));
    assert_eq!(budget.admit().unwrap_err().current, 99);
    assert_eq!(budget.report(&tokens(1), 1_003).unwrap(), ReportUsageResult::Ok);
    assert!(budget.admit().is_err());
}

#[test]
fn a_breach_in_one_dimension_counts_nothing_in_any() {
    let mut budget = created(definition(&[("cents", 10, 0), ("tokens", 100, 0)]));
    let both = BTreeMap::from([("cents".to_owned(), 11), ("tokens".to_owned(), 5)]);
    assert!(
        matches!(budget.report(&both, 1_001).unwrap(), ReportUsageResult::HardBreach { dimension, .. } if dimension == "cents")
    );
    assert_eq!((budget.used("cents"), budget.used("tokens")), (0, 0));
    assert_eq!(budget.status(2_000).exhausted, ["cents"]);
}

#[test]
fn observing_counts_everything_and_blocks_nothing() {
    let enforcement = Enforcement::Observe;
    let mut budget = created(BudgetDefinition { enforcement, ..definition(&[("tokens", 100, 0)]) });
    assert_eq!(budget.report(&tokens(150), 1_001).unwrap(), hard_breach(150, 100));
    assert_eq!((budget.used("tokens"), budget.breach_count), (150, 1));
    assert!(budget.admit().is_ok());
    assert_eq!(budget.release_count(), u64::MAX);
}

#[test]
fn a_soft_limit_warns_past_it_and_is_counted_either_way() {
    let mut budget = created(definition(&[("tokens", 100, 50)]));
    assert_eq!(budget.report(&tokens(50), 1_001).unwrap(), ReportUsageResult::Ok);
    let breach = ReportUsageResult::SoftBreach { dimension: "tokens".into(), current: 51, limit: 50 };
    assert_eq!(budget.report(&tokens(1), 1_002).unwrap(), breach);
    assert_eq!((budget.soft_breach_count, budget.breach_count), (1, 0));
    assert!(budget.admit().is_ok());
    budget.definition.on_soft = SoftAction::None;
    assert_eq!(budget.report(&tokens(1), 1_003).unwrap(), ReportUsageResult::Ok);
    assert_eq!(budget.soft_breach_count, 2);
}

#[test]
fn a_raised_limit_or_a_reset_opens_and_a_lowered_limit_closes() {
    let mut budget = created(definition(&[("tokens", 100, 0)]));
    budget.report(&tokens(60), 1_001).unwrap();
    budget.report(&tokens(60), 1_002).unwrap();
    assert_eq!(budget.release_count(), 0);
    let before = budget.clone();
    budget.set_limits(&dimensions(&[("tokens", 90, 0)]), 1_003).unwrap();
    assert!(budget.admit().is_err() && !budget.opened_since(&before));
    budget.set_limits(&dimensions(&[("tokens", 120, 0)]), 1_004).unwrap();
    assert!(budget.opened_since(&before));
    assert_eq!(budget.release_count(), 60);
    budget.set_limits(&dimensions(&[("tokens", 60, 0)]), 1_005).unwrap();
    let before = budget.clone();
    assert!(budget.admit().is_err());
    assert_eq!(budget.reset(1_006), None);
    assert!(budget.opened_since(&before));
    assert_eq!((budget.used("tokens"), budget.breach_count), (0, 1));
    budget.set_limits(&dimensions(&[("tokens", 0, 0)]), 1_007).unwrap();
    assert_eq!(budget.release_count(), u64::MAX);
}

#[test]
fn resets_skip_whole_missed_intervals_and_keep_their_beat() {
    let mut budget = created(BudgetDefinition { reset_interval_ms: 1_000, ..definition(&[("tokens", 100, 0)]) });
    assert_eq!(budget.next_reset_at, 2_000);
    assert!(budget.index_entries(0).contains(&Due::Timer.entry(&budget.key(), 2_000)));
    budget.report(&tokens(100), 1_500).unwrap();
    assert!(!budget.reset_if_due(1_999) && budget.used("tokens") == 100);
    assert_eq!(budget.admit().unwrap_err().next_reset_at, Some(2_000));
    assert!(budget.reset_if_due(2_000) && budget.used("tokens") == 0);
    assert_eq!(budget.next_reset_at, 3_000);
    assert!(budget.reset_if_due(7_400));
    assert_eq!(budget.next_reset_at, 8_000);
    assert_eq!(budget.reset(8_100), Some(9_100));
}

#[test]
fn a_report_after_the_reset_was_due_belongs_to_the_new_interval() {
    let mut budget = created(BudgetDefinition { reset_interval_ms: 1_000, ..definition(&[("tokens", 100, 0)]) });
    budget.report(&tokens(100), 1_500).unwrap();
    let before = budget.clone();
    assert_eq!(budget.report(&tokens(70), 2_100).unwrap(), ReportUsageResult::Ok);
    assert_eq!((budget.used("tokens"), budget.next_reset_at), (70, 3_000));
    assert!(budget.opened_since(&before));
}

#[test]
fn a_budget_without_interval_has_no_timer() {
    let budget = created(definition(&[("tokens", 100, 0)]));
    assert_eq!(budget.index_entries(0).len(), 1);
    assert_eq!(budget.status(2_000).next_reset_at, None);
}

#[test]
fn bad_reports_are_refused_and_change_nothing() {
    let mut budget = created(definition(&[("tokens", 0, 0)]));
    let before = budget.clone();
    assert_eq!(field(&budget.report(&BTreeMap::new(), 2_000).unwrap_err()), "usage");
    let unknown = BTreeMap::from([("cents".to_owned(), 1)]);
    let error = budget.report(&unknown, 2_000).unwrap_err();
    assert_eq!((field(&error), &error.details["dimension"]), ("usage", &"cents".into()));
    for amount in [-1, limits::USAGE_MAX + 1, i64::MIN, i64::MAX] {
        assert_eq!(field(&budget.report(&tokens(amount), 2_000).unwrap_err()), "usage.tokens");
    }
    assert_eq!(budget, before);
    assert_eq!(budget.report(&tokens(0), 2_000).unwrap(), ReportUsageResult::Ok);
}

#[test]
fn sums_stay_exact_and_never_overflow() {
    let mut budget = created(definition(&[("tokens", 0, 0)]));
    let mut sum = 0;
    while sum + limits::USAGE_MAX <= limits::SCORE_MAX {
        assert_eq!(budget.report(&tokens(limits::USAGE_MAX), 2_000).unwrap(), ReportUsageResult::Ok);
        sum += limits::USAGE_MAX;
    }
    assert_eq!(field(&budget.report(&tokens(limits::USAGE_MAX), 2_000).unwrap_err()), "usage.tokens");
    budget.report(&tokens(limits::SCORE_MAX - sum), 2_000).unwrap();
    assert_eq!(budget.used("tokens"), limits::SCORE_MAX);
    assert!(budget.report(&tokens(1), 2_000).is_err());
}

#[test]
fn definitions_hold_at_their_limits_and_not_one_past_them() {
    let many = |count: usize| BudgetDefinition {
        dimensions: (0..count).map(|n| (format!("d{n}"), Limits::default())).collect(),
        ..Default::default()
    };
    many(limits::BUDGET_DIMENSIONS_MAX).validate().unwrap();
    assert_eq!(field(&many(limits::BUDGET_DIMENSIONS_MAX + 1).validate().unwrap_err()), "dimensions");
    assert_eq!(field(&many(0).validate().unwrap_err()), "dimensions");
    let max = limits::USAGE_MAX;
    definition(&[("a", max, max)]).validate().unwrap();
    definition(&[("a", 0, max)]).validate().unwrap();
    for (hard, soft, named) in
        [(max + 1, 0, "hard"), (-1, 0, "hard"), (0, max + 1, "soft"), (0, -1, "soft"), (10, 11, "soft")]
    {
        let error = definition(&[("a", hard, soft)]).validate().unwrap_err();
        assert_eq!(field(&error), format!("dimensions.a.{named}"));
    }
    let every = |reset_interval_ms: i64| BudgetDefinition { reset_interval_ms, ..definition(&[("a", 1, 0)]) };
    for interval in [0, limits::BUDGET_RESET_MIN_MS, limits::DURATION_MAX_MS] {
        every(interval).validate().unwrap();
    }
    for interval in [-1, limits::BUDGET_RESET_MIN_MS - 1, limits::DURATION_MAX_MS + 1] {
        assert_eq!(field(&every(interval).validate().unwrap_err()), "reset_interval_ms");
    }
    assert_eq!(field(&definition(&[("a b", 1, 0)]).validate().unwrap_err()), "dimensions");
    let mut full = created(many(limits::BUDGET_DIMENSIONS_MAX));
    let error = full.set_limits(&dimensions(&[("one_more", 1, 0)]), 2_000).unwrap_err();
    assert_eq!((field(&error), full.definition.dimensions.len()), ("dimensions", limits::BUDGET_DIMENSIONS_MAX));
}

#[test]
fn a_clock_that_steps_back_does_not_turn_the_document_back() {
    let mut budget = created(definition(&[("tokens", 10, 0)]));
    budget.report(&tokens(5), 9_000).unwrap();
    budget.report(&tokens(6), 4_000).unwrap();
    assert_eq!((budget.updated_at, budget.last_breach_at), (9_000, 9_000));
}

#[test]
fn yesterdays_bytes_are_read_today() {
    let stored = [
        1, 0x84, 0xa1, b'n', 0xa1, b't', 0xa1, b'm', 0xa1, b'b', 0xa1, b'd', 0x81, 0xa1, b'd', 0x81, 0xa1, b'x', 0x81,
        0xa1, b'h', 10, 0xa1, b'u', 0x81, 0xa1, b'x', 7,
    ];
    let budget = Budget::decode(&stored).unwrap();
    assert_eq!((budget.namespace.as_str(), budget.name.as_str(), budget.used("x")), ("t", "b", 7));
    assert_eq!(budget.definition, definition(&[("x", 10, 0)]));
    assert_eq!(budget.encode()[1..], stored[1..]);
}

#[derive(Debug, Clone)]
enum Command {
    Report(usize, i64, i64),
    Limit(usize, i64),
    Reset,
    Pass(i64),
}

const NAMES: [&str; 2] = ["cents", "tokens"];

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        6 => (0..2usize, 0..60i64, 0..60i64).prop_map(|(which, a, b)| Command::Report(which, a, b)),
        1 => (0..2usize, 0..200i64).prop_map(|(which, hard)| Command::Limit(which, hard)),
        1 => Just(Command::Reset),
        2 => (0..400i64).prop_map(Command::Pass),
    ]
}

proptest! {
    #[test]
    fn usage_is_the_sum_of_what_was_acknowledged_and_never_passes_a_hard_limit(
        commands in prop::collection::vec(command(), 1..80),
        observe in any::<bool>(),
        interval in prop_oneof![Just(0), Just(500i64)],
    ) {
        let enforcement = if observe { Enforcement::Observe } else { Enforcement::Enforce };
        let start = definition(&[("cents", 100, 80), ("tokens", 150, 0)]);
        let mut budget = created(BudgetDefinition { enforcement, reset_interval_ms: interval, ..start });
        let (mut sum, mut now) = (BTreeMap::<&str, i64>::new(), 1_000);
        for command in commands {
            let before = budget.clone();
            match command {
                Command::Report(which, first, second) => {
                    let usage = if which == 0 {
                        BTreeMap::from([("cents".to_owned(), first)])
                    } else {
                        BTreeMap::from([("cents".to_owned(), first), ("tokens".to_owned(), second)])
                    };
                    if before.next_reset_at != 0 && now >= before.next_reset_at {
                        sum.clear();
                    }
                    let answer = budget.report(&usage, now).unwrap();
                    let counted = budget.counted(&answer);
                    for (name, delta) in &usage {
                        let name = NAMES.into_iter().find(|known| known == name).unwrap();
                        *sum.entry(name).or_default() += if counted { *delta } else { 0 };
                        let hard = budget.hard(name);
                        if !observe && counted && *delta > 0 && hard != 0 {
                            prop_assert!(budget.used(name) <= hard);
                        }
                    }
                    prop_assert!(counted || budget.admit().is_err());
                }
                Command::Limit(which, hard) => {
                    let soft = budget.soft(NAMES[which]).min(hard);
                    budget.set_limits(&dimensions(&[(NAMES[which], hard, soft)]), now).unwrap();
                }
                Command::Reset => {
                    budget.reset(now);
                    sum.clear();
                }
                Command::Pass(ms) => {
                    now += ms;
                    if budget.reset_if_due(now) {
                        sum.clear();
                    }
                    prop_assert!(budget.next_reset_at == 0 || budget.next_reset_at > now);
                }
            }
            for name in NAMES {
                prop_assert_eq!(budget.used(name), sum.get(name).copied().unwrap_or(0));
            }
            prop_assert_eq!(budget.release_count() > 0, budget.admit().is_ok());
            prop_assert!(!observe || budget.admit().is_ok());
            prop_assert_eq!(&Budget::decode(&budget.encode()).unwrap(), &budget);
        }
    }
}

mod spend {
    use super::*;
    use crate::budget::{Amounts, Path, Reserve, ReserveRequest};
    use crate::id::{ExecutionId, LeaseId, Mint};
    use crate::partition::Partition;
    use crate::reservation::{Reservation, ReservationId, ReservationState};

    fn request(key: usize, amount: i64, ttl_ms: i64) -> ReserveRequest {
        let mint = Mint { now_ms: 1_000, random: [7; 10] };
        let id = ReservationId {
            namespace: "team".into(),
            budget: "b/c".into(),
            execution: ExecutionId::in_partition(Partition::flow(0), &mint),
            lease: LeaseId::mint(&mint),
            key: key.to_string(),
        };
        ReserveRequest { id, amounts: tokens(amount), ttl_ms }
    }

    #[derive(Debug, Clone)]
    enum Act {
        Reserve { key: usize, amount: i64, ttl_ms: i64 },
        Settle { key: usize, actual: i64 },
        Release { key: usize },
        Report(i64),
        Raise(i64),
        ResetChild,
        ResetRoot,
        Pass(i64),
    }

    const KEYS: usize = 12;

    fn act() -> impl Strategy<Value = Act> {
        let key = 0..KEYS;
        prop_oneof![
            6 => (key.clone(), 0..60i64, 1..800i64).prop_map(|(key, amount, ttl_ms)| Act::Reserve { key, amount, ttl_ms }),
            5 => (key.clone(), 0..80i64).prop_map(|(key, actual)| Act::Settle { key, actual }),
            2 => key.prop_map(|key| Act::Release { key }),
            2 => (0..40i64).prop_map(Act::Report),
            1 => (0..50i64).prop_map(Act::Raise),
            1 => Just(Act::ResetChild),
            1 => Just(Act::ResetRoot),
            2 => (0..300i64).prop_map(Act::Pass),
        ]
    }

    /// The counters that a window must have, from the reservations and reports themselves.
    #[derive(Debug, Default, Clone)]
    struct Window {
        reported: i64,
        members: Vec<usize>,
    }

    fn check(budget: &Budget, window: &Window, all: &BTreeMap<usize, Reservation>) -> Result<(), TestCaseError> {
        let of_window = window.members.iter().filter_map(|key| all.get(key));
        let (mut used, mut held, mut overrun) = (window.reported, 0, 0);
        for reservation in of_window {
            let (amount, actual) =
                (reservation.amounts["tokens"], reservation.actual.get("tokens").copied().unwrap_or(0));
            match reservation.state {
                ReservationState::Held => held += amount,
                ReservationState::Released => {}
                ReservationState::Unknown(word) => panic!("{word:?} is stored"),
                ReservationState::Settled | ReservationState::Orphaned => {
                    used += actual;
                    overrun += (actual - amount).max(0);
                }
            }
        }
        prop_assert_eq!((budget.used("tokens"), budget.reserved("tokens")), (used, held), "{:?}", budget);
        prop_assert_eq!(budget.overrun("tokens"), overrun);
        prop_assert!(used - overrun + held <= budget.hard("tokens"), "{used} - {overrun} + {held}");
        Ok(())
    }

    proptest! {
        #[test]
        fn the_ceiling_holds_along_a_path_whatever_happens(acts in prop::collection::vec(act(), 1..120)) {
            let mut root = created(definition(&[("tokens", 200, 0)]));
            let mut child = created(definition(&[("tokens", 120, 0)]));
            (root.name, child.name) = ("b".into(), "b/c".into());
            let mut all = BTreeMap::<usize, Reservation>::new();
            let mut windows = [Window::default(), Window::default()];
            let mut now = 1_000;
            for act in acts {
                match act {
                    Act::Reserve { key, amount, ttl_ms } => {
                        let before = (root.clone(), child.clone());
                        let mut path = Path::new(vec![&mut root, &mut child]).unwrap();
                        match path.reserve(all.get(&key), &request(key, amount, ttl_ms), now) {
                            Ok(Reserve::Held(reservation)) => {
                                all.insert(key, *reservation);
                                windows.iter_mut().for_each(|window| window.members.push(key));
                            }
                            Ok(Reserve::Refused(refusal)) => {
                                prop_assert!(refusal.requested > refusal.left);
                                prop_assert_eq!(before.0.taken("tokens"), root.taken("tokens"));
                                prop_assert_eq!(before.1.taken("tokens"), child.taken("tokens"));
                            }
                            Ok(Reserve::Again { .. }) | Err(_) => prop_assert!(all.contains_key(&key)),
                        }
                    }
                    Act::Settle { key, actual } => if let Some(reservation) = all.get_mut(&key) {
                        let mut path = Path::new(vec![&mut root, &mut child]).unwrap();
                        let _ = path.settle(reservation, &tokens(actual), now);
                    },
                    Act::Release { key } => if let Some(reservation) = all.get_mut(&key) {
                        let mut path = Path::new(vec![&mut root, &mut child]).unwrap();
                        let _ = path.release(reservation, now);
                    },
                    Act::Report(amount) => {
                        let mut path = Path::new(vec![&mut root, &mut child]).unwrap();
                        let (answer, counted) = path.report(&tokens(amount), now).unwrap();
                        prop_assert_eq!(counted, !matches!(answer, ReportUsageResult::HardBreach { .. }));
                        if counted {
                            windows.iter_mut().for_each(|window| window.reported += amount);
                        }
                    }
                    Act::Raise(more) => {
                        let hard = child.hard("tokens") + more;
                        child.set_limits(&dimensions(&[("tokens", hard, 0)]), now).unwrap();
                    }
                    Act::ResetChild => {
                        child.reset(now);
                        windows[1] = Window::default();
                    }
                    Act::ResetRoot => {
                        root.reset(now);
                        windows[0] = Window::default();
                    }
                    Act::Pass(ms) => {
                        now += ms;
                        for reservation in all.values_mut() {
                            let mut path = Path::new(vec![&mut root, &mut child]).unwrap();
                            let due = reservation.state == ReservationState::Held && now >= reservation.expires_at;
                            prop_assert_eq!(path.orphan(reservation, now), due);
                        }
                    }
                }
                check(&root, &windows[0], &all)?;
                check(&child, &windows[1], &all)?;
                prop_assert_eq!(&Budget::decode(&root.encode()).unwrap(), &root);
            }
        }
    }

    #[test]
    fn the_way_to_a_budget_goes_through_what_stands_above_it() {
        let names = |name: &'static str| names_to(name).collect::<Vec<_>>();
        assert_eq!(names("team"), ["team"]);
        assert_eq!(names("team/a/b"), ["team", "team/a", "team/a/b"]);
    }

    #[test]
    fn a_forecast_follows_the_pace_of_the_window() {
        let mut budget = created(BudgetDefinition { reset_interval_ms: 10_000, ..definition(&[("tokens", 100, 0)]) });
        budget.report(&tokens(40), 2_000).unwrap();
        let standing = budget.status(3_000).standing.remove("tokens").unwrap();
        assert_eq!((standing.used, standing.left, standing.per_hour), (40, Some(60), 72_000));
        assert_eq!((standing.forecast, standing.exhausted_at), (Some(200), Some(6_000)));
        let slow = budget.status(10_500).standing.remove("tokens").unwrap();
        assert_eq!(slow.exhausted_at, None, "the window ends before");
    }

    #[test]
    fn a_dimension_that_comes_later_does_not_disturb_what_is_held() {
        let mut budget = created(definition(&[("tokens", 100, 0)]));
        budget.name = "b/c".into();
        let mut request = request(1, 10, 1_000);
        request.amounts.insert("cents".into(), 5);
        let Reserve::Held(mut held) = Path::new(vec![&mut budget]).unwrap().reserve(None, &request, 1_000).unwrap()
        else {
            panic!("it fits")
        };
        budget.set_limits(&dimensions(&[("cents", 50, 0)]), 1_001).unwrap();
        let actual = Amounts::from([("tokens".into(), 10), ("cents".into(), 4)]);
        let settled = Path::new(vec![&mut budget]).unwrap().settle(&mut held, &actual, 1_002).unwrap();
        assert_eq!((budget.reserved("cents"), budget.used("cents")), (0, 4));
        assert_eq!(settled.overrun, Amounts::from([("cents".into(), 4)]));
    }
}
