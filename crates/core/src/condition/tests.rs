//! Conditions by example, at their limits, and against an oracle that tries everything.

use proptest::prelude::*;
use uuid::Uuid;

use super::*;

fn fact(id: u128, name: &str, source: &str, waitpoint: u128) -> SignalFact {
    SignalFact {
        id: SignalId(Uuid::from_u128(id)),
        name: name.into(),
        source: source.into(),
        waitpoint: WaitpointId { partition: 0, uuid: Uuid::from_u128(waitpoint) },
        at: i64::try_from(id).unwrap(),
        ..Default::default()
    }
}

fn named(names: &[&str]) -> Vec<ConditionMatcher> {
    names.iter().map(|name| ConditionMatcher::named(*name)).collect()
}

fn count(n: u32, distinct: Distinct, names: &[&str]) -> Condition {
    Condition::Count(CountCondition { n, distinct, matchers: named(names), ..Default::default() })
}

/// Signals 1, 2, 3... with these names.
fn arrive(names: &[&str]) -> Vec<SignalFact> {
    (1..).zip(names).map(|(id, name)| fact(id, name, "", 0)).collect()
}

fn contributed(condition: &Condition, facts: &[SignalFact]) -> (bool, Vec<u128>) {
    let progress = condition.evaluate(facts);
    (progress.satisfied, progress.contributed.iter().map(|id| id.0.as_u128()).collect())
}

#[test]
fn json_reads_as_people_write_it() {
    for (text, condition) in [
        (r#"{"any":[{"name":"approve"}]}"#, Condition::Any(named(&["approve"]))),
        (r#"{"all":[{"name":"a"},{"name":""}]}"#, Condition::All(named(&["a", ""]))),
        (r#"{"count":{"n":2,"distinct":"sources","matchers":[]}}"#, count(2, Distinct::Sources, &[])),
        (r#"{"all_of":["operator_only",{"any":[]}]}"#, {
            Condition::AllOf(vec![Condition::OperatorOnly, Condition::Any(vec![])])
        }),
        (r#"{"any_of":["timeout_only"]}"#, Condition::AnyOf(vec![Condition::TimeoutOnly])),
    ] {
        assert_eq!(serde_json::from_str::<Condition>(text).unwrap(), condition);
        assert_eq!(serde_json::to_string(&condition).unwrap(), text);
        let stored = rmp_serde::to_vec(&condition).unwrap();
        assert_eq!(rmp_serde::from_slice::<Condition>(&stored).unwrap(), condition);
    }
    let short: Condition = serde_json::from_str(r#"{"count":{"n":2,"distinct":"sources"}}"#).unwrap();
    assert_eq!(short, count(2, Distinct::Sources, &[]));
    assert!(serde_json::from_str::<Condition>(r#"{"any":[{"nmae":"approve"}]}"#).is_err());
    assert!(serde_json::from_str::<Condition>(r#""always""#).is_err());
}

#[test]
fn all_of_two_names_takes_each_once() {
    let all = Condition::All(named(&["a", "b"]));
    let (a, again, b) = (fact(1, "a", "", 0), fact(2, "a", "", 0), fact(3, "b", "", 0));
    assert!(all.would_contribute(&[], &a));
    assert!(!all.would_contribute(std::slice::from_ref(&a), &again));
    assert!(!all.would_contribute(std::slice::from_ref(&a), &a), "the same signal again");
    assert!(all.would_contribute(&[a.clone(), again.clone()], &b));
    assert_eq!(contributed(&all, &[a, again, b]), (true, vec![1, 3]));
}

#[test]
fn a_signal_leaves_the_wildcard_to_others_where_it_can() {
    let all = Condition::All(named(&["", "a"]));
    assert_eq!(contributed(&all, &arrive(&["a", "x"])), (true, vec![1, 2]));
    assert_eq!(contributed(&all, &arrive(&["x", "y", "a"])), (true, vec![1, 3]));
    assert_eq!(contributed(&all, &arrive(&["a", "a"])), (true, vec![1, 2]));
}

#[test]
fn an_empty_list_accepts_any_signal_and_not_none() {
    for condition in [Condition::Any(vec![]), Condition::All(vec![])] {
        assert_eq!(contributed(&condition, &[]), (false, vec![]));
        assert_eq!(contributed(&condition, &arrive(&["x", "y"])), (true, vec![1]));
    }
}

#[test]
fn a_source_or_waitpoint_counts_once() {
    let facts = [fact(1, "a", "bob", 7), fact(2, "b", "bob", 8), fact(3, "c", "eve", 8)];
    assert_eq!(contributed(&count(2, Distinct::Sources, &[]), &facts), (true, vec![1, 3]));
    assert_eq!(contributed(&count(2, Distinct::Waitpoints, &[]), &facts), (true, vec![1, 2]));
    assert_eq!(contributed(&count(3, Distinct::Signals, &[]), &facts), (true, vec![1, 2, 3]));
    assert_eq!(contributed(&count(2, Distinct::Sources, &["b", "c"]), &facts), (true, vec![2, 3]));
    assert!(!count(2, Distinct::Sources, &[]).would_contribute(&facts[..1], &facts[1]));
}

#[test]
fn sources_with_separators_stay_apart() {
    assert_ne!(source("a", "b:c"), source("a:b", "c"));
    assert_ne!(source("", "a"), source("a", ""));
    assert_eq!(source("", ""), "");
}

#[test]
fn each_node_counts_for_itself() {
    let both = Condition::AllOf(vec![Condition::Any(named(&["a"])), count(2, Distinct::Signals, &[])]);
    assert_eq!(contributed(&both, &arrive(&["a"])), (false, vec![1]));
    assert_eq!(contributed(&both, &arrive(&["a", "x"])), (true, vec![1, 2]));
}

#[test]
fn the_first_satisfied_alternative_names_its_signals_alone() {
    let either = Condition::AnyOf(vec![Condition::All(named(&["a", "b"])), Condition::Any(named(&["stop"]))]);
    assert_eq!(contributed(&either, &arrive(&["a", "stop"])), (true, vec![2]));
    assert_eq!(contributed(&either, &arrive(&["a", "b", "stop"])), (true, vec![1, 2]));
}

#[test]
fn no_signal_satisfies_operator_only_or_timeout_only() {
    for condition in [Condition::OperatorOnly, Condition::TimeoutOnly] {
        condition.validate().unwrap();
        assert_eq!(contributed(&condition, &arrive(&["x"])), (false, vec![]));
        assert!(!condition.would_contribute(&[], &fact(1, "x", "", 0)));
    }
}

#[test]
fn required_names_are_listed_once_in_order() {
    let condition = Condition::AllOf(vec![Condition::Any(named(&["b", ""])), count(1, Distinct::Signals, &["a", "b"])]);
    assert_eq!(condition.required_names(), ["b", "a"]);
}

#[test]
fn names_among_which_a_sender_chooses_are_not_mandatory() {
    let any = |names: &[&str]| Condition::Any(named(names));
    assert_eq!(Condition::All(named(&["b", "a", "b", ""])).mandatory_names(), ["b", "a"]);
    assert_eq!(any(&["a"]).mandatory_names(), ["a"]);
    assert!(any(&["a", "b"]).mandatory_names().is_empty());
    assert!(Condition::AnyOf(vec![any(&["a"]), any(&["b"])]).mandatory_names().is_empty());
    let both = Condition::AllOf(vec![any(&["a"]), any(&["c", "d"]), count(2, Distinct::Signals, &["b"])]);
    assert_eq!(both.mandatory_names(), ["a", "b"]);
}

fn refused(condition: &Condition, field: &str) {
    let error = condition.validate().unwrap_err();
    assert_eq!(error.details["field"], field, "{error}");
}

#[test]
fn limits_hold_at_the_limit_and_not_one_past_it() {
    let nest = |levels: usize| (1..levels).fold(Condition::default(), |inner, _| Condition::AllOf(vec![inner]));
    nest(limits::CONDITION_DEPTH_MAX).validate().unwrap();
    refused(&nest(limits::CONDITION_DEPTH_MAX + 1), "condition.all_of[0].all_of[0].all_of[0].all_of[0]");

    let wide = |matchers: usize| Condition::All(vec![ConditionMatcher::default(); matchers]);
    wide(limits::CONDITION_NODES_MAX).validate().unwrap();
    refused(&wide(limits::CONDITION_NODES_MAX + 1), "condition");
    let spread = |matchers: usize| Condition::AnyOf(vec![wide(matchers), Condition::default()]);
    spread(limits::CONDITION_NODES_MAX - 2).validate().unwrap();
    refused(&spread(limits::CONDITION_NODES_MAX - 1), "condition");

    let most = limits::CONDITION_COUNT_MAX;
    count(1, Distinct::Signals, &[]).validate().unwrap();
    count(most, Distinct::Signals, &[]).validate().unwrap();
    refused(&count(0, Distinct::Signals, &[]), "condition.count.n");
    refused(&count(most + 1, Distinct::Signals, &[]), "condition.count.n");
    let two = |n| Condition::AllOf(vec![count(n, Distinct::Signals, &[]), count(1, Distinct::Signals, &[])]);
    two(most - 1).validate().unwrap();
    refused(&two(most), "condition");
}

#[test]
fn bad_names_and_empty_nodes_are_refused_where_they_stand() {
    refused(&Condition::Any(named(&["a", "b\nc"])), "condition.any[1].name");
    refused(&Condition::All(named(&[TIMEOUT_SIGNAL])), "condition.all[0].name");
    refused(&count(1, Distinct::Signals, &["\0"]), "condition.count.matchers[0].name");
    refused(&Condition::AnyOf(vec![]), "condition.any_of");
    refused(&Condition::AllOf(vec![Condition::AllOf(vec![])]), "condition.all_of[0].all_of");
}

/// The size of the largest assignment of signals to matchers, by trying every one.
fn largest_assignment(matchers: &[ConditionMatcher], facts: &[SignalFact]) -> usize {
    let Some((matcher, rest)) = matchers.split_first() else { return 0 };
    let mut best = largest_assignment(rest, facts);
    for position in 0..facts.len() {
        if matcher.accepts(&facts[position]) {
            let mut others = facts.to_vec();
            others.remove(position);
            best = best.max(1 + largest_assignment(rest, &others));
        }
    }
    best
}

/// How many of what it needs a leaf has: (has, needs).
fn reach(condition: &Condition, facts: &[SignalFact]) -> (usize, usize) {
    let any = [ConditionMatcher::default()];
    match condition {
        Condition::Any(list) => {
            let list = if list.is_empty() { &any[..] } else { list };
            (usize::from(facts.iter().any(|fact| list.iter().any(|matcher| matcher.accepts(fact)))), 1)
        }
        Condition::All(list) => {
            let list = if list.is_empty() { &any[..] } else { list };
            (largest_assignment(list, facts), list.len())
        }
        Condition::Count(count) => {
            let mut kinds = BTreeSet::new();
            for fact in facts {
                if count.matchers.is_empty() || count.matchers.iter().any(|matcher| matcher.accepts(fact)) {
                    kinds.insert(match count.distinct {
                        Distinct::Signals => fact.id.to_string(),
                        Distinct::Sources => fact.source.clone(),
                        Distinct::Waitpoints => fact.waitpoint.to_string(),
                        Distinct::Unknown(word) => panic!("{word:?} is counted"),
                    });
                }
            }
            (kinds.len(), usize::try_from(count.n).unwrap())
        }
        _ => (0, 1),
    }
}

/// How many signals it takes until the condition is satisfied.
fn satisfied_after(condition: &Condition, facts: &[SignalFact]) -> Option<usize> {
    match condition {
        Condition::AllOf(children) => {
            let each: Option<Vec<usize>> = children.iter().map(|child| satisfied_after(child, facts)).collect();
            each?.into_iter().max()
        }
        Condition::AnyOf(children) => children.iter().filter_map(|child| satisfied_after(child, facts)).min(),
        leaf => (0..=facts.len()).find(|&length| {
            let (has, needs) = reach(leaf, &facts[..length]);
            has >= needs
        }),
    }
}

/// Whether the last signal brings any leaf further that still matters.
fn last_counts(condition: &Condition, facts: &[SignalFact]) -> bool {
    let before = &facts[..facts.len() - 1];
    if satisfied_after(condition, before).is_some() {
        return false;
    }
    match condition {
        Condition::AllOf(children) | Condition::AnyOf(children) => {
            children.iter().any(|child| last_counts(child, facts))
        }
        leaf => reach(leaf, facts).0 > reach(leaf, before).0,
    }
}

fn conditions() -> impl Strategy<Value = Condition> {
    let matchers = || {
        proptest::collection::vec(prop::sample::select(vec!["", "a", "b", "c"]).prop_map(ConditionMatcher::named), 0..4)
    };
    let distinct = prop::sample::select(Distinct::ALL.to_vec());
    let leaf = prop_oneof![
        1 => matchers().prop_map(Condition::Any),
        4 => matchers().prop_map(Condition::All),
        3 => (1..4u32, distinct, matchers()).prop_map(|(n, distinct, matchers)| {
            Condition::Count(CountCondition { n, distinct, matchers, ..Default::default() })
        }),
        1 => Just(Condition::OperatorOnly),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        let children = proptest::collection::vec(inner, 1..4);
        (children, any::<bool>()).prop_map(|(children, all)| match all {
            true => Condition::AllOf(children),
            false => Condition::AnyOf(children),
        })
    })
}

fn arrivals() -> impl Strategy<Value = Vec<SignalFact>> {
    let one = (prop::sample::select(vec!["a", "b", "c", "d"]), 0..3u8, 0..3u128);
    proptest::collection::vec(one, 0..6).prop_map(|list| {
        let numbered = (1..).zip(list);
        numbered.map(|(id, (name, source, waitpoint))| fact(id, name, &source.to_string(), waitpoint)).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn conditions_agree_with_trying_everything(condition in conditions(), facts in arrivals()) {
        condition.validate().unwrap();
        let progress = condition.evaluate(&facts);
        prop_assert_eq!(progress.satisfied, satisfied_after(&condition, &facts).is_some());
        for length in 1..=facts.len() {
            let counts = condition.would_contribute(&facts[..length - 1], &facts[length - 1]);
            prop_assert_eq!(counts, last_counts(&condition, &facts[..length]), "signal {}", length);
        }
    }

    #[test]
    fn the_signals_that_counted_are_enough_and_none_is_idle(condition in conditions(), facts in arrivals()) {
        let progress = condition.evaluate(&facts);
        let kept: Vec<SignalFact> =
            facts.iter().filter(|fact| progress.contributed.contains(&fact.id)).cloned().collect();
        prop_assert_eq!(condition.evaluate(&kept), progress.clone());
        for length in 1..=kept.len() {
            prop_assert!(condition.would_contribute(&kept[..length - 1], &kept[length - 1]));
        }
    }
}
