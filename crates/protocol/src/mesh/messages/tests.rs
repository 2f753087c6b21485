use serde_json::{Value, from_value, json};

use super::*;

fn aid(text: &str) -> Aid {
    text.parse().unwrap()
}

fn check(params: Value) -> Result<SendContents, Failure> {
    from_value::<SendParams>(params).unwrap().check()
}

fn rule(params: Value) -> String {
    check(params).unwrap_err().rule_name().unwrap().to_owned()
}

fn copy(device: &str) -> Value {
    json!({"device_id": device, "envelope": {"type": "e2ee.encrypted", "x": 1}})
}

/// A container as the published client sends it.
fn container() -> Value {
    json!({
        "to": "bobby.probe.test", "type": "e2ee.multi_device", "encrypted": true, "message_id": "m-1",
        "payload": {
            "type": "e2ee.multi_device", "logical_message_id": "m-1",
            "recipient_copies": [copy("d-1"), copy("d-2")], "self_copies": [copy("d-1")],
        },
    })
}

#[test]
fn messages_in_the_clear_and_sealed_ones_are_passed_on_whole() {
    let to = "bobby.probe.test";
    let sealed = json!({"type": "e2ee.encrypted", "ciphertext": "…"});
    for params in [
        json!({"to": to, "payload": {"type": "text", "text": "你好"}}),
        json!({"to": to, "payload": {}, "delivery_mode": {"mode": "queue"}, "timestamp": 1, "persist_required": true}),
        json!({"to": to, "payload": {"type": 7}, "type": "x", "message_id": "m"}),
        json!({"to": to, "payload": sealed, "type": "e2ee.encrypted", "encrypted": true, "message_id": "m"}),
        json!({"to": to, "payload": sealed, "encrypted": true}),
        json!({"to": to, "payload": {"type": "e2ee.of-tomorrow", "c": "…"}, "type": "x", "encrypted": true}),
        json!({"to": to, "payload": {"ciphertext": "…"}, "encrypted": true}),
        json!({"to": "mail.probe.test", "payload": {}}),
        json!({"to": to, "payload": {"type": "peer.offer", "session_id": "s"}}),
    ] {
        assert_eq!(check(params.clone()).unwrap(), SendContents::Whole, "{params}");
    }
}

#[test]
fn a_container_is_taken_apart_by_devices() {
    let SendContents::Copies { recipient, own } = check(container()).unwrap() else { panic!("copies") };
    let devices = |copies: &[DeviceCopy]| copies.iter().map(|copy| copy.device_id.clone()).collect::<Vec<_>>();
    assert_eq!((devices(&recipient), devices(&own)), (vec!["d-1".into(), "d-2".into()], vec!["d-1".into()]));
    // The envelope stays the text that came.
    assert!(recipient[0].envelope.as_str().starts_with(r#"{"type":"e2ee.encrypted""#));

    let changed = |pointer: &str, value: Value| {
        let mut params = container();
        *params.pointer_mut(pointer).unwrap() = value;
        rule(params)
    };
    assert_eq!(changed("/payload/recipient_copies", json!([])), "envelope-copies");
    assert_eq!(changed("/payload/recipient_copies", json!([copy("d"), copy("d")])), "envelope-copies");
    assert_eq!(changed("/payload/recipient_copies", json!({})), "envelope-copies");
    assert_eq!(
        changed("/payload/self_copies", json!([{"device_id": "d", "envelope": {"type": "text"}}])),
        "envelope-copies"
    );
    for device in ["\0".to_owned(), "a/b".into(), "x".repeat(129)] {
        assert_eq!(changed("/payload/recipient_copies/0/device_id", json!(device)), "envelope-copies");
        assert_eq!(changed("/payload/self_copies/0/device_id", json!(device)), "envelope-copies");
    }
    assert_eq!(changed("/payload/logical_message_id", json!("other")), "envelope-copies");
    assert_eq!(changed("/encrypted", json!(false)), "envelope");
    assert_eq!(changed("/type", json!("e2ee.encrypted")), "envelope");
    let many = |count: usize| (0..count).map(|n| copy(&n.to_string())).collect::<Vec<_>>();
    assert_eq!(changed("/payload/recipient_copies", json!(many(COPIES_MAX + 1))), "envelope-copies");
    let mut most = container();
    most["payload"]["recipient_copies"] = json!(many(COPIES_MAX));
    assert!(check(most).is_ok());
}

#[test]
fn what_cannot_be_sent_is_refused_with_its_rule() {
    let to = "bobby.probe.test";
    assert_eq!(rule(json!({"to": to, "payload": "text"})), "payload-not-an-object");
    assert_eq!(rule(json!({"to": to, "payload": []})), "payload-not-an-object");
    assert_eq!(rule(json!({"to": to, "payload": null})), "payload-not-an-object");
    for service in ["group", "auth", "gateway"] {
        assert_eq!(rule(json!({"to": format!("{service}.probe.test"), "payload": {}})), "to-a-service");
    }
    let misnamed = json!({"to": to, "payload": {"type": "e2ee.encrypted"}, "type": "text", "encrypted": true});
    assert_eq!(rule(misnamed), "envelope");
    let sized = |length: usize| json!({"to": to, "payload": {"t": "x".repeat(length - 8)}});
    assert!(check(sized(PAYLOAD_BYTES_MAX)).is_ok());
    assert_eq!(rule(sized(PAYLOAD_BYTES_MAX + 1)), "payload-size");
    let named = |id: String| json!({"to": to, "payload": {}, "message_id": id});
    assert!(check(named("m".repeat(MESSAGE_ID_BYTES_MAX))).is_ok());
    for id in [String::new(), "m".repeat(MESSAGE_ID_BYTES_MAX + 1), "a\nb".into()] {
        assert_eq!(rule(named(id)), "message-id");
    }
    for params in [json!({"payload": {}}), json!({"to": to}), json!({"to": "Bob", "payload": {}})] {
        assert!(from_value::<SendParams>(params).is_err());
    }
}

#[test]
fn pages_acks_and_questions_keep_to_their_limits() {
    let limit = |params: Value| from_value::<PullParams>(params).unwrap().limit().ok();
    assert_eq!(limit(json!({})), Some(100));
    assert_eq!(limit(json!({"after_seq": 7, "limit": 200})), Some(200));
    for params in [json!({"limit": 0}), json!({"limit": 201}), json!({"after_seq": -1})] {
        assert_eq!(limit(params.clone()), None, "{params}");
    }
    let recall = |count: usize| RecallParams { message_ids: vec!["m".into(); count] }.check().is_ok();
    assert!(recall(1) && recall(100) && !recall(0) && !recall(101));
    assert!(RecallParams { message_ids: vec!["a\0".into()] }.check().is_err());
    let query = |count: usize| QueryOnlineParams { aids: vec!["alice.probe.test".into(); count] }.check().is_ok();
    assert!(query(1) && query(100) && !query(0) && !query(101));
}

#[test]
fn a_message_is_taken_back_by_its_sender_in_time_and_once() {
    let (alice, bobby) = (aid("alice.probe.test"), aid("bobby.probe.test"));
    let message = |recalled| Some(Recallable { from: &alice, sent_ms: 1_000, recalled });
    assert_eq!(recall(message(false), &alice, 1_000 + RECALL_MS_MAX), Ok(()));
    assert_eq!(recall(message(false), &alice, 1_001 + RECALL_MS_MAX), Err(RecallError::Expired));
    assert_eq!(recall(message(true), &alice, 1_000), Err(RecallError::AlreadyRecalled));
    assert_eq!(recall(message(false), &bobby, 1_000), Err(RecallError::NotSender));
    assert_eq!(recall(None, &alice, 1_000), Err(RecallError::NotFound));
    assert_eq!(json!(RecallError::AlreadyRecalled), "already_recalled");
}

#[test]
fn a_message_looks_on_the_wire_as_clients_read_it() {
    let message = Message {
        message_id: "m-1".into(),
        seq: 1,
        from: aid("alice.probe.test"),
        to: aid("bobby.probe.test"),
        timestamp: 1_794_701_903_532,
        kind: Some(SEALED.into()),
        payload: RawJson::parse(r#"{"b": 1, "a": 2.50}"#.into()).unwrap(),
        delivery_mode: Mode::Fanout,
        encrypted: true,
        direction: Direction::Inbound,
        device_id: None,
    };
    assert_eq!(
        serde_json::to_string(&message).unwrap(),
        r#"{"message_id":"m-1","seq":1,"from":"alice.probe.test","to":"bobby.probe.test","timestamp":1794701903532,"type":"e2ee.encrypted","payload":{"b": 1, "a": 2.50},"delivery_mode":"fanout","encrypted":true,"direction":"inbound"}"#
    );
    assert_eq!(json!(Direction::OutboundSync), "outbound_sync");
}

#[test]
fn the_largest_messages_fit_the_frames_that_the_published_client_accepts() {
    let label = "a".repeat(63);
    let longest = aid(&format!("{label}.{label}.{label}.{}", &label[..61]));
    let message = |payload: usize| Message {
        // The longest way to write them.
        message_id: "\"".repeat(MESSAGE_ID_BYTES_MAX),
        seq: i64::MAX,
        from: longest.clone(),
        to: longest.clone(),
        timestamp: i64::MIN,
        kind: Some("\"".repeat(TYPE_BYTES_MAX)),
        payload: RawJson::of(&json!({"x": "x".repeat(payload - 8)})),
        delivery_mode: Mode::Fanout,
        encrypted: false,
        direction: Direction::OutboundSync,
        device_id: Some("d".repeat(crate::mesh::connections::DEVICE_BYTES_MAX)),
    };
    let framed =
        |params: Value| json!({"jsonrpc": "2.0", "id": "x".repeat(128), "method": RECEIVED_EVENT, "params": params});
    let pushed = framed(json!(message(PAYLOAD_BYTES_MAX))).to_string();
    assert!(pushed.len() <= CLIENT_FRAME_BYTES_MAX, "{}", pushed.len());
    let count = PULL_ITEMS_MAX as usize;
    let page = PullResult {
        messages: vec![message(PULL_BYTES_MAX / count); count],
        count,
        latest_seq: i64::MAX,
        server_ack_seq: i64::MAX,
        ephemeral_earliest_available_seq: Some(i64::MAX),
        ephemeral_dropped_count: i64::MAX,
    };
    let pulled = framed(json!(page)).to_string();
    assert!(pulled.len() <= CLIENT_FRAME_BYTES_MAX, "{}", pulled.len());
}
