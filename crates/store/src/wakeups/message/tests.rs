use super::*;
use crate::wakeups::legacy_format;

const SERVER: i64 = i64::MIN;

fn session(number: usize) -> SessionId {
    format!("ses_{number:032x}").parse().expect("an id")
}

fn wakeups(sessions: usize, last: i64) -> Wakeups {
    let mut wakeups = Wakeups::default();
    (0..sessions).for_each(|number| wakeups.add_session(session(number), (1, last)));
    wakeups
}

fn frame(key: &str, frame: String) -> Frame {
    Frame { topic: "mesh.mailbox".into(), key: key.into(), frame }
}

fn encode(wakeups: &Wakeups) -> String {
    let text = wakeups.encode(SERVER, None);
    assert!(text.len() <= PAYLOAD_BYTES_MAX, "{} bytes", text.len());
    text
}

fn decode(text: &str) -> Wakeups {
    let (server, wakeups) = crate::wakeups::decode(text);
    assert_eq!(server, Some(SERVER));
    wakeups
}

#[test]
fn a_message_is_decoded_as_it_was_encoded() {
    let mut named = wakeups(2, 3);
    named.add_key("trust.listener", false, "usr_1".into());
    named.add_key("mesh.logins", true, "a.b".into());
    let mut framed = wakeups(1, 2);
    [("a.b", "eA=="), ("c.d", "eQ==")].into_iter().for_each(|(key, text)| framed.add_frame(frame(key, text.into())));
    let all_of_a_topic =
        Wakeups { topics: [("a".into(), Keys { all: true, ..Keys::default() })].into(), ..wakeups(1, 1) };
    for sent in [
        named,
        framed,
        all_of_a_topic,
        Wakeups { all_topics: true, ..wakeups(2, 3) },
        Wakeups { all_sessions: true, ..Wakeups::default() },
        Wakeups::everything(),
        wakeups(0, 0),
        Wakeups { jobs: true, ..wakeups(3, 2) },
    ] {
        assert_eq!(decode(&encode(&sent)), sent);
    }
}

#[test]
fn a_server_recognises_the_beginning_of_its_own_messages() {
    // Its digits begin those of the other number.
    let other = SERVER / 10;
    for sent in [wakeups(0, 0), wakeups(2, 3), Wakeups::everything()] {
        let text = encode(&sent);
        assert!(text.starts_with(&Wakeups::beginning_of(SERVER)), "{text}");
        assert!(!text.starts_with(&Wakeups::beginning_of(other)), "{text}");
    }
}

#[test]
fn several_wake_ups_of_one_session_become_one() {
    let mut all = wakeups(2, 4);
    all.merge(Wakeups { jobs: true, ..Default::default() });
    all.merge(Wakeups { sessions: [(session(1), (3, 8))].into(), ..Default::default() });
    let sessions = [(session(0), (1, 4)), (session(1), (1, 8))].into();
    assert_eq!(all, Wakeups { sessions, jobs: true, ..Wakeups::default() });
}

#[test]
fn every_message_fits_into_a_notification() {
    for (sessions, last) in [(1, 1), (100, 99_999), (150, 9_999), (170, i64::MAX), (200, 9), (5_000, i64::MAX)] {
        let sent = wakeups(sessions, last);
        let received = decode(&encode(&sent));
        assert!(received == sent || received.all_sessions, "{sessions} sessions");
    }
    assert!(!decode(&encode(&wakeups(150, 9_999))).all_sessions, "the usual number is named");
}

#[test]
fn more_keys_than_can_be_named_become_the_whole_topic() {
    let mut sent = Wakeups::default();
    (0..KEYS_MAX).for_each(|number| sent.add_key("a", false, format!("usr_{number:031x}")));
    assert_eq!(decode(&encode(&sent)), sent, "the usual number is named");
    let beside = Wakeups { topics: sent.topics.clone(), ..wakeups(SESSIONS_MAX, i64::MAX) };
    assert_eq!(decode(&encode(&beside)), Wakeups { all_sessions: true, ..sent.clone() }, "sessions are left out");
    sent.add_key("a", false, "local".into());
    assert!(sent.topics["a"].all && sent.topics["a"].named.is_empty());
}

#[test]
fn keys_of_urgent_topics_are_not_lost_among_others() {
    let mut sent = Wakeups::default();
    sent.add_key("logins", true, "alice.localhost.test".into());
    (0..=KEYS_MAX).for_each(|number| sent.add_key("mailbox", false, format!("agent-{number}.localhost.test")));
    sent.add_frame(frame("a.b", "x".repeat(FRAMES_BYTES_MAX - 100)));
    let received = decode(&encode(&sent));
    assert!(received.topics["mailbox"].all && received.topics["logins"].named.contains("alice.localhost.test"));
    (0..100).for_each(|number| sent.add_key("logins", true, format!("agent-{number}.localhost.test")));
    assert!(decode(&encode(&sent)).topics["logins"].all, "more than can be named");
}

#[test]
fn frames_that_do_not_fit_are_replaced_by_their_row() {
    let mut sent = wakeups(SESSIONS_MAX, i64::MAX);
    (0..KEYS_MAX).for_each(|number| sent.add_key("a", false, format!("usr_{number:032x}")));
    sent.add_frame(frame("a.b", "x".repeat(2 * PAYLOAD_BYTES_MAX)));
    (0..60).for_each(|number| sent.add_key("logins", true, format!("agent-{number}.localhost.test")));
    assert!(sent.frames_bytes() > FRAMES_BYTES_MAX);
    let text = sent.encode(SERVER, Some(7));
    assert!(text.len() <= PAYLOAD_BYTES_MAX, "{} bytes", text.len());
    assert_eq!(decode(&text).rows, [7]);
    assert_eq!(crate::wakeups::decode_frames(&sent.encode_frames()).frames, sent.frames);
    let frames = vec![frame("a.b", "x".repeat(FRAMES_BYTES_MAX - 100))];
    let sent = Wakeups { frames: vec![], frames_bytes: 0, ..sent }.with_frames(frames);
    assert_eq!(decode(&encode(&sent)).frames, sent.frames);
}

#[test]
fn a_message_that_cannot_be_read_means_everything() {
    for text in [
        "",
        "me",
        "me x",
        "me j ses_1:1-2",
        "me - whatever",
        "me - ses_00000000000000000000000000000001:1",
        "{",
        r#"{"v":3,"from":1,"sessions":{}}"#,
        r#"{"v":2,"from":1,"sessions":{},"news":1}"#,
        r#"{"v":2,"from":1,"sessions":{},"topics":{"a":{"keys":["b"],"after":1}}}"#,
    ] {
        assert_eq!(crate::wakeups::decode(text).1, Wakeups::everything(), "{text:?}");
    }
    assert_eq!(crate::wakeups::decode(r#"{"v":3,"from":1}"#).0, Some(1), "its sender is known");
}

/// Recorded from the release before topics had names.
#[test]
fn messages_of_the_former_format_are_understood() {
    let text = "-42 j !alice.localhost.test!eyJhIjoxfQ== #7 ^!bob.localhost.test ^?phone/main/eve.localhost.test @usr_1 \
                @carol.localhost.test ses_00000000000000000000000000000001:3-9";
    let (server, read) = crate::wakeups::decode(text);
    assert_eq!(server, Some(-42));
    let word = str::to_owned;
    let legacy_words = vec![
        LegacyWord::Frame(word("alice.localhost.test"), word("eyJhIjoxfQ==")),
        LegacyWord::Urgent(word("!bob.localhost.test")),
        LegacyWord::Urgent(word("?phone/main/eve.localhost.test")),
        LegacyWord::Listener(word("usr_1")),
        LegacyWord::Listener(word("carol.localhost.test")),
    ];
    let sessions = [(session(1), (3, 9))].into();
    assert_eq!(read, Wakeups { jobs: true, rows: vec![7], legacy_words, sessions, ..Wakeups::default() });
    let (_, all) = crate::wakeups::decode("5 - ^* @* *");
    assert_eq!(all, Wakeups { jobs: false, ..Wakeups::everything() });
    let row = crate::wakeups::decode_frames(" !a.b!eA== !c.d!eQ==");
    assert_eq!(row.legacy_words.len(), 2);
}

/// The release before splits a message at blanks and takes what it cannot read for "everything". Its reader finds the sender
/// in the first word, so this message must not look like one of that format.
#[test]
fn the_former_reader_takes_our_messages_for_everything() {
    let mut sent = wakeups(2, 3);
    sent.add_key("mesh.mailbox", false, "alice.localhost.test".into());
    let text = encode(&sent);
    assert!(!text.contains(' '), "{text}");
    assert_eq!(legacy_format::decode(&text), (None, Wakeups::everything()));
}
