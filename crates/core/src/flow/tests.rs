//! Flows: their state, their graph, their cancellation and their end.

use uuid::Uuid;

use super::*;
use crate::id::ExecutionId;

fn new() -> NewFlow {
    NewFlow {
        id: FlowId { partition: 2, uuid: Uuid::from_u128(5) },
        namespace: "default".into(),
        kind: "pipeline".into(),
        tags: Tags::from([("team".into(), "a".into())]),
        request_hash: vec![1, 2, 3].into(),
        schedule: None,
    }
}

fn flow(members: u32) -> Flow {
    let mut flow = Flow::new(new(), 100).unwrap();
    for _ in 0..members {
        flow.add_member().unwrap();
    }
    flow
}

fn counts(list: &[(PublicState, u64)]) -> MemberCounts {
    list.iter().copied().collect()
}

fn indexes(flow: &Flow) -> Vec<crate::key::IndexName> {
    flow.index_entries(0).into_iter().map(|entry| entry.index).collect()
}

#[test]
fn the_state_follows_the_members() {
    use PublicState as S;
    for (members, state) in [
        (&[][..], FlowState::Open),
        (&[(S::Waiting, 1)], FlowState::Running),
        (&[(S::Delayed, 1), (S::Suspended, 1)], FlowState::Running),
        (&[(S::Active, 1), (S::WaitingChildren, 3)], FlowState::Running),
        (&[(S::Completed, 2), (S::Waiting, 1)], FlowState::Running),
        (&[(S::Failed, 1), (S::Active, 1)], FlowState::Running),
        (&[(S::Suspended, 1), (S::WaitingChildren, 3)], FlowState::Blocked),
        (&[(S::RateLimited, 1), (S::Completed, 1)], FlowState::Blocked),
        (&[(S::Completed, 3)], FlowState::Completed),
        (&[(S::Completed, 2), (S::Cancelled, 1)], FlowState::Completed),
        (&[(S::Completed, 2), (S::Failed, 1), (S::Skipped, 4)], FlowState::Failed),
        (&[(S::Expired, 1)], FlowState::Failed),
        (&[(S::Completed, 1), (S::Cancelled, 1), (S::Skipped, 1)], FlowState::Cancelled),
        (&[(S::Completed, 1), (S::Skipped, 1)], FlowState::Failed),
        (&[(S::Cancelled, 2)], FlowState::Cancelled),
    ] {
        assert_eq!(counts(members).state(), state, "{members:?}");
        let shown = if state.is_terminal() { FlowState::Running } else { state };
        assert_eq!(flow(1).state(&counts(members)), shown, "until its end is decided: {members:?}");
    }
}

#[test]
fn a_cancellation_and_an_end_outweigh_the_members() {
    let running = counts(&[(PublicState::Active, 1)]);
    let mut cancelled = flow(1);
    cancelled.cancel(CancelFlowPolicy::FlowOnly, "enough", 200).unwrap();
    assert_eq!(cancelled.state(&running), FlowState::Cancelled);
    let mut ended = flow(1);
    assert!(ended.end(&counts(&[(PublicState::Failed, 1)]), None, 200));
    assert_eq!(ended.state(&MemberCounts::default()), FlowState::Failed);
}

#[test]
fn a_flow_is_about_to_end_between_its_last_member_and_its_end() {
    let (alive, all) = (counts(&[(PublicState::Active, 1)]), counts(&[(PublicState::Completed, 1)]));
    let mut ending = flow(1);
    assert!(!ending.is_about_to_end(&alive) && ending.is_about_to_end(&all));
    assert!(!flow(2).is_about_to_end(&all), "a member is missing");
    assert!(!flow(0).is_about_to_end(&MemberCounts::default()), "it is open");
    assert!(ending.end(&all, None, 200) && !ending.is_about_to_end(&all));
}

#[test]
fn counts_read_as_names() {
    let json = serde_json::to_value(counts(&[(PublicState::Active, 2), (PublicState::Waiting, 0)])).unwrap();
    assert_eq!(json, serde_json::json!({ "active": 2 }));
}

#[test]
fn the_graph_revision_grows_and_guards() {
    let mut flow = flow(2);
    assert_eq!((flow.node_count, flow.graph_revision), (2, 2));
    assert_eq!(flow.stage_edge(Some(2)).unwrap(), 3);
    let before = flow.clone();
    let error = flow.stage_edge(Some(2)).unwrap_err();
    assert_eq!((error.code, &error.details["graph_revision"]), (Code::StaleGraphRevision, &3.into()));
    assert_eq!(flow, before);
    assert_eq!(flow.stage_edge(None).unwrap(), 4);
}

#[test]
fn a_flow_holds_as_many_members_as_its_limit() {
    let mut flow = flow(0);
    flow.add_members(limits::FLOW_MEMBERS_MAX - 1).unwrap();
    assert_eq!(flow.clone().add_members(2).unwrap_err().code, Code::FlowFull);
    assert_eq!(flow.add_member().unwrap(), limits::FLOW_MEMBERS_MAX);
    let before = flow.clone();
    assert_eq!(flow.add_member().unwrap_err().code, Code::FlowFull);
    assert_eq!(flow.add_members(u32::MAX).unwrap_err().code, Code::FlowFull);
    assert_eq!(flow, before);
}

#[test]
fn a_cancelled_flow_takes_nothing_more_and_leaves_a_mark() {
    let mut flow = flow(3);
    assert!(!indexes(&flow).contains(&index::marks()));
    assert!(flow.cancel(CancelFlowPolicy::CancelAll, "enough", 200).unwrap());
    assert!(indexes(&flow).contains(&index::marks()));
    let before = flow.clone();
    assert!(!flow.cancel(CancelFlowPolicy::FlowOnly, "again", 300).unwrap());
    assert_eq!(flow, before, "the first policy and reason stay");
    assert_eq!(flow.add_member().unwrap_err().code, Code::FlowAlreadyTerminal);
    assert_eq!(flow.stage_edge(None).unwrap_err().code, Code::FlowAlreadyTerminal);
    assert!(flow.finish_cancellation() && !flow.finish_cancellation());
    assert!(!indexes(&flow).contains(&index::marks()));
}

#[test]
fn a_flow_without_members_owes_nobody_a_cancellation() {
    let mut empty = flow(0);
    assert!(empty.cancel(CancelFlowPolicy::CancelAll, "", 200).unwrap());
    assert!(!indexes(&empty).contains(&index::marks()));
    assert!(empty.end(&MemberCounts::default(), Some(10), 200));
    assert_eq!(empty.ended.unwrap().state, FlowState::Cancelled);
}

#[test]
fn a_flow_ends_with_its_last_member_and_once() {
    let mut flow = flow(2);
    assert!(!flow.end(&counts(&[(PublicState::Completed, 1), (PublicState::Active, 1)]), Some(50), 200));
    assert!(!flow.end(&counts(&[(PublicState::Completed, 1)]), Some(50), 200), "a member is missing");
    assert!(flow.end(&counts(&[(PublicState::Completed, 2)]), Some(50), 200));
    let end = flow.ended.clone().unwrap();
    assert_eq!((end.state, end.at, end.retain_until), (FlowState::Completed, 200, Some(250)));
    assert!(flow.index_entries(0).contains(&Due::Timer.entry(&flow.key(), 250)));
    assert!(!flow.end(&counts(&[(PublicState::Failed, 2)]), Some(50), 300));
    assert_eq!(flow.add_member().unwrap_err().code, Code::FlowAlreadyTerminal);
    let error = flow.cancel(CancelFlowPolicy::CancelAll, "late", 300).unwrap_err();
    assert_eq!((error.code, &error.details["state"]), (Code::FlowAlreadyTerminal, &"completed".into()));
    assert!(!self::flow(0).end(&MemberCounts::default(), None, 200), "an open flow without members waits for some");
}

#[test]
fn a_flow_is_kept_as_long_as_the_longest_of_its_members_asks() {
    let ended = |retentions: &[Option<i64>]| {
        let mut flow = flow(0);
        for retention_ms in retentions {
            flow.keep_for(*retention_ms);
            flow.add_member().unwrap();
        }
        let all = u64::try_from(retentions.len()).unwrap();
        assert!(flow.end(&counts(&[(PublicState::Completed, all)]), Some(50), 200));
        flow.ended.unwrap().retain_until.unwrap() - 200
    };
    assert_eq!(ended(&[Some(7), Some(9), Some(8)]), 9);
    assert_eq!(ended(&[Some(7), None]), limits::RETENTION_DEFAULT_MS);
    let mut older = flow(1);
    older.keep_for(Some(7));
    assert_eq!(older.kept_ms, Some(limits::RETENTION_DEFAULT_MS), "what earlier members asked for is not known");
}

#[test]
fn a_flow_without_members_leaves_after_its_retention() {
    let mut empty = flow(0);
    assert_eq!(empty.next_timer(), Some(100 + limits::RETENTION_DEFAULT_MS));
    empty.keep_empty_for(50);
    assert_eq!(empty.fire(149), FlowFired::Nothing);
    let mut filled = empty.clone();
    filled.add_member().unwrap();
    assert_eq!((filled.next_timer(), filled.fire(150)), (None, FlowFired::Nothing));
    assert_eq!(empty.fire(150), FlowFired::Removing);
    assert_eq!((empty.next_timer(), empty.add_member().unwrap_err().code), (None, Code::FlowAlreadyTerminal));
}

#[test]
fn what_a_cancelled_flow_paused_is_cancelled_after_the_retention_and_goes() {
    let mut flow = flow(0);
    for _ in 0..2 {
        flow.keep_for(Some(50));
        flow.add_member().unwrap();
    }
    flow.cancel(CancelFlowPolicy::FlowOnly, "enough", 200).unwrap();
    assert_eq!(flow.next_timer(), None, "its members are told first");
    flow.finish_cancellation();
    assert_eq!((flow.fire(249), flow.fire(250)), (FlowFired::Nothing, FlowFired::Lapsed));
    let all = counts(&[(PublicState::Cancelled, 1), (PublicState::Completed, 1)]);
    assert!(indexes(&flow).contains(&index::marks()) && !flow.end(&all, None, 255), "not in the middle");
    assert_eq!(flow.reopen().unwrap_err().code, Code::FlowAlreadyTerminal);
    assert!(flow.finish_cancellation() && flow.end(&all, None, 260));
    assert_eq!(flow.next_timer(), Some(310));
    flow.retain_from(230, None);
    assert_eq!((flow.next_timer(), flow.state(&all)), (Some(280), FlowState::Cancelled));
    flow.retain_from(0, None);
    assert_eq!(flow.fire(260), FlowFired::Removing);
}

#[test]
fn a_removal_that_has_begun_is_not_taken_back() {
    let mut flow = flow(1);
    flow.end(&counts(&[(PublicState::Failed, 1)]), Some(50), 200);
    assert_eq!((flow.fire(249), flow.fire(250)), (FlowFired::Nothing, FlowFired::Removing));
    assert_eq!(indexes(&flow), [index::marks()], "nobody finds it any more but those who remove it");
    let before = flow.clone();
    assert_eq!(flow.reopen().unwrap_err().code, Code::FlowAlreadyTerminal);
    assert_eq!((flow.fire(300), &flow), (FlowFired::Nothing, &before));
    assert_eq!(Flow::decode(&flow.encode()).unwrap(), flow);
}

#[test]
fn a_replay_reopens_a_flow_that_has_ended() {
    let mut ended = flow(1);
    ended.end(&counts(&[(PublicState::Failed, 1)]), Some(50), 200);
    assert!(ended.reopen().unwrap());
    assert_eq!(ended, flow(1));
    assert!(!ended.reopen().unwrap());
    ended.cancel(CancelFlowPolicy::CancelAll, "", 300).unwrap();
    assert_eq!(ended.reopen().unwrap_err().code, Code::FlowAlreadyTerminal, "its members are not told yet");
    ended.finish_cancellation();
    assert!(ended.reopen().unwrap() && !ended.is_terminal());
}

#[test]
fn creating_again_is_fine_only_with_the_same_request() {
    let flow = flow(0);
    flow.check_same(&vec![1, 2, 3].into()).unwrap();
    assert_eq!(flow.check_same(&vec![1, 2].into()).unwrap_err().code, Code::IdempotencyConflict);
}

#[test]
fn bad_requests_name_their_field() {
    for (new, field) in [
        (NewFlow { namespace: String::new(), ..new() }, "namespace"),
        (NewFlow { kind: "k".repeat(limits::KIND_MAX_BYTES + 1), ..new() }, "kind"),
        (NewFlow { tags: Tags::from([("Team".into(), String::new())]), ..new() }, "tags"),
    ] {
        assert_eq!(Flow::new(new, 100).unwrap_err().details["field"], field);
    }
    let error = flow(1).cancel(CancelFlowPolicy::CancelAll, &"r".repeat(limits::TEXT_MAX_BYTES + 1), 1).unwrap_err();
    assert_eq!(error.details["field"], "reason");
}

#[test]
fn a_flow_survives_the_store_and_is_listed() {
    let mut flow = flow(2);
    flow.cancel(CancelFlowPolicy::CancelPending, "enough", 200).unwrap();
    flow.end(&counts(&[(PublicState::Cancelled, 2)]), Some(50), 300);
    assert_eq!(Flow::decode(&flow.encode()).unwrap(), flow);
    let listed = Entry { index: index::listing(kind::FLOW, "default"), member: flow.key(), score: 100 };
    assert!(flow.index_entries(0).contains(&listed));
}

#[test]
fn answers_read_as_documented() {
    let scheduled = CancelFlowResult::CancellationScheduled {
        policy: CancelFlowPolicy::CancelAll,
        member_count: 0,
        members: vec![],
    };
    let json = serde_json::to_value(&scheduled).unwrap();
    assert_eq!(
        json,
        serde_json::json!({ "outcome": "cancellation_scheduled", "policy": "cancel_all", "member_count": 0, "members": [] })
    );
    assert_eq!(serde_json::from_value::<CancelFlowResult>(json).unwrap(), scheduled);
    let failure = CancelFailure { execution_id: ExecutionId::default(), error: Error::of(Code::Unavailable) };
    let policy = CancelFlowPolicy::CancelAll;
    let cancelled = CancelFlowResult::Cancelled { policy, member_count: 0, members: vec![], failed: vec![failure] };
    let mut json = serde_json::to_value(&cancelled).unwrap();
    assert_eq!(serde_json::from_value::<CancelFlowResult>(json.clone()).unwrap(), cancelled);
    // An older server does not tell how many there are.
    json.as_object_mut().unwrap().remove("member_count");
    assert_eq!(serde_json::from_value::<CancelFlowResult>(json).unwrap(), cancelled);
}
