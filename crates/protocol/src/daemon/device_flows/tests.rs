use proptest::prelude::*;

use super::*;

const PROVIDERS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn initiator(client: &str) -> Initiator {
    Initiator { principal: "operator".into(), client_id: Some(client.into()) }
}

fn flow(provider_id: &str, now_ms: i64) -> DeviceFlow {
    let reply = json!({"device_code": "pl4nted-device", "user_code": "PL4NTED", "interval": 5, "expires_in": 60,
        "verification_uri": "https://id.example/PL4NTED"});
    let authorization = authorization(200, reply.to_string().as_bytes()).unwrap();
    DeviceFlow::new(
        format!("flow-{provider_id}-{now_ms}"),
        provider_id.into(),
        initiator("client_a"),
        &authorization,
        now_ms,
    )
}

fn token() -> PollOutcome {
    poll_outcome(200, br#"{"access_token": "pl4nted-token", "expires_in": 60}"#)
}

#[test]
fn a_flow_is_polled_until_its_token_is_stored() {
    let mut flow = flow("a", 0);
    assert_eq!(flow.next_poll_at_ms(), Some(5_000));
    assert_eq!(flow.polled(&PollOutcome::Pending, 5_000), None);
    let throttled = flow.polled(&PollOutcome::SlowDown, 10_000).unwrap();
    assert_eq!((throttled.frame, &throttled.data["intervalMs"]), ("auth_device_flow_throttled", &json!(10_000)));
    assert_eq!(flow.next_poll_at_ms(), Some(20_000));
    assert_eq!(flow.polled(&PollOutcome::Unreachable, 20_000), None);
    assert_eq!(flow.next_poll_at_ms(), Some(40_000), "half as often");
    assert_eq!(flow.polled(&token(), 40_000), None);
    assert_eq!(
        (flow.next_poll_at_ms(), flow.cancel(40_000), flow.expire(99_000)),
        (None, None, None),
        "it is being stored"
    );
    let authorized = flow.stored(true, Some(100_000), 41_000).unwrap();
    assert_eq!((authorized.frame, &authorized.data["expiresAt"]), ("auth_device_flow_authorized", &json!(100_000)));
    assert_eq!(flow.status(), DeviceFlowStatus::Authorized);
}

#[test]
fn each_way_to_fail_has_its_kind() {
    let ended = |end: fn(&mut DeviceFlow) -> Option<DeviceFlowFrame>| {
        let mut flow = flow("a", 0);
        let frame = end(&mut flow).unwrap();
        assert_eq!(end(&mut flow), None, "once");
        let state = flow.state_for(&initiator("client_a"));
        assert_eq!(state.codes, DeviceFlowCodes::default(), "the codes are of no use any more");
        (frame.frame, state.status, state.error_kind)
    };
    use DeviceFlowErrorKind::*;
    use DeviceFlowStatus::*;
    assert_eq!(ended(|flow| flow.cancel(1)), ("auth_device_flow_cancelled", Cancelled, None));
    assert_eq!(ended(|flow| flow.expire(60_000)), ("auth_device_flow_failed", Expired, Some(ExpiredToken)));
    let denied = |flow: &mut DeviceFlow| flow.polled(&PollOutcome::Refused(AccessDenied, "no"), 5_000);
    assert_eq!(ended(denied), ("auth_device_flow_failed", Error, Some(AccessDenied)));
    let not_stored = |flow: &mut DeviceFlow| {
        flow.polled(&token(), 5_000);
        flow.stored(false, None, 5_000)
    };
    assert_eq!(ended(not_stored), ("auth_device_flow_failed", Error, Some(PersistFailed)));
}

#[test]
fn only_the_client_that_started_a_flow_sees_its_codes() {
    let flow = flow("a", 0);
    let own = flow.started_for(&initiator("client_a"), false);
    assert_eq!(
        (own.codes.user_code.as_deref(), own.codes.initiator_client_id.as_deref()),
        (Some("PL4NTED"), Some("client_a"))
    );
    let strangers = [
        initiator("client_b"),
        Initiator { client_id: None, ..initiator("client_a") },
        Initiator { principal: "other".into(), ..initiator("client_a") },
    ];
    for stranger in strangers {
        let shown = format!("{}{}", json!(flow.started_for(&stranger, true)), json!(flow.state_for(&stranger)));
        assert!(!shown.contains("PL4NTED") && !shown.contains("client_a"), "{shown}");
    }
    assert!(!json!(flow.listed()).to_string().contains("PL4NTED"));
}

#[derive(Clone, Debug)]
enum Step {
    Start(usize),
    Poll(usize, u8),
    Store(usize, bool),
    Cancel(usize),
    Wait(i64),
}

fn step() -> impl Strategy<Value = Step> {
    let provider = 0..PROVIDERS.len();
    prop_oneof![
        provider.clone().prop_map(Step::Start),
        (provider.clone(), 0_u8..5).prop_map(|(at, outcome)| Step::Poll(at, outcome)),
        (provider.clone(), any::<bool>()).prop_map(|(at, good)| Step::Store(at, good)),
        provider.prop_map(Step::Cancel),
        (0_i64..400_000).prop_map(Step::Wait),
    ]
}

fn outcome(number: u8) -> PollOutcome {
    match number {
        0 => PollOutcome::Pending,
        1 => PollOutcome::SlowDown,
        2 => PollOutcome::Unreachable,
        3 => token(),
        _ => PollOutcome::Refused(DeviceFlowErrorKind::AccessDenied, "no"),
    }
}

proptest! {
    #[test]
    fn every_flow_ends_once_and_its_bounds_hold(steps in prop::collection::vec(step(), 1..60)) {
        let (mut table, mut now_ms, mut frames, mut started) = (DeviceFlowTable::default(), 0, vec![], 0);
        let id_of = |table: &DeviceFlowTable, at: usize| {
            table.pending().find(|flow| flow.provider_id == PROVIDERS[at]).map(|flow| flow.id.clone())
        };
        for step in steps {
            now_ms += 1;
            match step {
                Step::Start(at) => match table.start(PROVIDERS[at]) {
                    StartDecision::Start => {
                        table.started(flow(PROVIDERS[at], now_ms));
                        started += 1;
                    }
                    StartDecision::TakeOver(found) => prop_assert_eq!(&found.provider_id, PROVIDERS[at]),
                    StartDecision::TooMany => prop_assert_eq!(table.pending().count(), DEVICE_FLOWS_MAX),
                },
                Step::Wait(ms) => {
                    now_ms += ms;
                    let ids: Vec<_> = table.pending().map(|flow| flow.id.clone()).collect();
                    frames.extend(ids.iter().filter_map(|id| table.get_mut(id)?.expire(now_ms)));
                    table.forget_ended(now_ms);
                }
                Step::Poll(at, _) | Step::Store(at, _) | Step::Cancel(at) => {
                    let Some(id) = id_of(&table, at) else { continue };
                    let Some(flow) = table.get_mut(&id) else { continue };
                    let before = flow.state_for(&initiator("x")).interval_ms.unwrap();
                    frames.extend(match step {
                        Step::Poll(_, number) => flow.polled(&outcome(number), now_ms),
                        Step::Store(_, good) => flow.stored(good, None, now_ms),
                        _ => flow.cancel(now_ms),
                    });
                    let after = flow.state_for(&initiator("x")).interval_ms;
                    prop_assert!(after.is_none_or(|after| (before..=INTERVAL_MS_MAX).contains(&after)));
                }
            }
            prop_assert!(table.pending().count() <= DEVICE_FLOWS_MAX);
            let mut providers: Vec<_> = table.pending().map(|flow| flow.provider_id.clone()).collect();
            providers.sort();
            providers.dedup();
            prop_assert_eq!(providers.len(), table.pending().count(), "one flow for each provider");
        }
        let is_end = |frame: &&DeviceFlowFrame| frame.frame != "auth_device_flow_throttled";
        prop_assert_eq!(frames.iter().filter(is_end).count() + table.pending().count(), started, "each ends once");
        for frame in &frames {
            let text = frame.data.to_string().to_lowercase();
            prop_assert!(!text.contains("pl4nted"), "{}", text);
        }
        table.forget_ended(now_ms + ENDED_MS);
        prop_assert_eq!(table.flows_count(), table.pending().count());
    }
}
