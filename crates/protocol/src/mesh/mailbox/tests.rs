//! The promises of a mailbox, each held over random histories of a few identities and devices.

use std::collections::HashMap;

use proptest::{prelude::*, sample::select};
use serde_json::json;

use super::*;
use crate::mesh::messages::{DeviceCopy, MESSAGE_LIFE_MS_DEFAULT, RECALL_MS_MAX, SendContents};

const START_US: i64 = 1_767_225_600_000_000;
const IDENTITIES: [&str; 3] = ["alice.probe.test", "bobby.probe.test", "carol.probe.test"];
const DEVICES: [&str; 3] = ["", "desk", "phone"];

fn aid(name: &str) -> Aid {
    name.parse().unwrap()
}

fn place(device_id: &str) -> DeviceSlot {
    DeviceSlot { device_id: device_id.into(), slot_id: String::new() }
}

fn copies(devices: &[&str]) -> Vec<DeviceCopy> {
    let envelope = |device: &str| RawJson::of(&json!({"type": "e2ee.encrypted", "for": device}));
    devices.iter().map(|device| DeviceCopy { device_id: (*device).into(), envelope: envelope(device) }).collect()
}

fn send(from: &str, to: &str, message_id: &str, payload: &str) -> SendOp {
    SendOp {
        message_id: message_id.into(),
        from: aid(from),
        to: aid(to),
        kind: None,
        encrypted: false,
        payload: RawJson::of(&json!({"text": payload})),
        contents: SendContents::Whole,
        life: SignedDuration::from_millis(MESSAGE_LIFE_MS_DEFAULT),
    }
}

fn time(us: i64) -> Timestamp {
    Timestamp::from_microsecond(START_US + us).unwrap()
}

fn ops() -> impl Strategy<Value = MailboxOp> {
    let who = || select(&IDENTITIES[..]).prop_map(aid);
    let slot = || select(&DEVICES[..]).prop_map(place);
    let id = || (0..12_u32).prop_map(|n| format!("m-{n}"));
    let contents = prop_oneof![
        3 => Just(SendContents::Whole),
        1 => (0..3_usize, 0..3_usize)
            .prop_map(|(r, o)| SendContents::Copies { recipient: copies(&DEVICES[r..]), own: copies(&DEVICES[3 - o..]) }),
    ];
    let send =
        (select(&IDENTITIES[..]), select(&IDENTITIES[..]), id(), contents).prop_map(|(from, to, id, contents)| {
            MailboxOp::Send(Box::new(SendOp { contents, ..send(from, to, &id, "x") }))
        });
    let mode = select(&[Mode::Fanout, Mode::Queue, Mode::Queue][..]);
    prop_oneof![
        10 => send,
        4 => (who(), slot(), 0..30_i64).prop_map(|(owner, place, seq)| MailboxOp::Ack { owner, place, seq }),
        2 => (who(), mode).prop_map(|(owner, mode)| MailboxOp::SetMode { owner, mode }),
        3 => (who(), slot(), 1..20_i64).prop_map(|(owner, place, seq)| MailboxOp::Claim { owner, place, seq }),
        2 => (who(), slot(), 0..20_i64, 0..20_i64)
            .prop_map(|(owner, place, after, more)| MailboxOp::ClaimOpen { owner, place, after, upto: after + more }),
        1 => (who(), slot(), 1..20_i64).prop_map(|(owner, place, seq)| MailboxOp::Release { owner, place, seq }),
        2 => (who(), id()).prop_map(|(caller, message_id)| MailboxOp::Recall { caller, message_id }),
        1 => Just(MailboxOp::Expire { idle_since: Timestamp::MIN }),
    ]
}

/// Operations, each with the microseconds that pass before it.
fn histories() -> impl Strategy<Value = Vec<(i64, MailboxOp)>> {
    let pause_us = prop_oneof![
        6 => 0..5_000_i64,
        2 => 0..RECALL_MS_MAX * 1_000,
        1 => 0..QUEUED_MS_MAX * 1_000,
        1 => 0..MESSAGE_LIFE_MS_DEFAULT * 1_000,
    ];
    prop::collection::vec((pause_us, ops()), 1..120)
}

/// One operation of a history, with the mailboxes before and after it.
struct Step<'a> {
    before: &'a Mailboxes,
    op: &'a MailboxOp,
    reply: &'a MailboxReply,
    after: &'a Mailboxes,
    now: Timestamp,
}

fn for_each_step(
    history: &[(i64, MailboxOp)],
    mut check: impl FnMut(Step<'_>) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let (mut after, mut now_us) = (Mailboxes::default(), 0);
    for (pause_us, op) in history {
        now_us += pause_us;
        let before = after.clone();
        let reply = after.apply(op, time(now_us));
        check(Step { before: &before, op, reply: &reply, after: &after, now: time(now_us) })?;
    }
    Ok(())
}

fn last_seq(mailboxes: &Mailboxes, owner: &Aid) -> i64 {
    mailboxes.get(owner).map_or(0, |mailbox| mailbox.last_seq)
}

proptest! {
    #[test]
    fn numbers_are_consecutive(history in histories()) {
        for_each_step(&history, |step| {
            let mut expected: HashMap<Aid, i64> = HashMap::new();
            if let MailboxReply::Accepted(messages) = step.reply {
                for message in messages {
                    let next = expected.entry(message.owner.clone()).or_insert(last_seq(step.before, &message.owner));
                    *next += 1;
                    prop_assert_eq!(message.seq, *next);
                }
            }
            for owner in IDENTITIES.map(aid) {
                let last = expected.get(&owner).copied().unwrap_or(last_seq(step.before, &owner));
                prop_assert_eq!(last_seq(step.after, &owner), last, "no other operation takes a number");
            }
            Ok(())
        })?;
    }

    #[test]
    fn the_same_message_id_is_the_same_message(history in histories()) {
        let mut first: HashMap<(Aid, String), StoredMessage> = HashMap::new();
        for_each_step(&history, |step| {
            let MailboxOp::Send(send) = step.op else { return Ok(()) };
            let key = (send.from.clone(), send.message_id.clone());
            match step.reply {
                MailboxReply::Accepted(messages) => {
                    first.insert(key, messages[0].clone());
                }
                MailboxReply::Duplicate(record) | MailboxReply::IdInUse(record) => {
                    let StoredMessage { to, seq, sent_at, mode, .. } = first[&key].clone();
                    prop_assert_eq!(record, &SendRecord { to, seq, sent_at, mode });
                    let is_same = matches!(step.reply, MailboxReply::Duplicate(_));
                    prop_assert_eq!(is_same, record.to == send.to, "an id for another recipient is refused");
                    prop_assert_eq!(step.before, step.after);
                }
                other => prop_assert!(false, "{other:?}"),
            }
            Ok(())
        })?;
    }

    #[test]
    fn acknowledged_positions_never_move_back_nor_beyond_the_last_message(history in histories()) {
        for_each_step(&history, |step| {
            for (owner, device) in IDENTITIES.into_iter().flat_map(|owner| DEVICES.map(|device| (aid(owner), device))) {
                let position = |mailboxes: &Mailboxes| mailboxes.get(&owner).map_or(0, |m| m.ack_seq(&place(device)));
                let (before, after) = (position(step.before), position(step.after));
                prop_assert!(before <= after && after <= last_seq(step.after, &owner));
                let is_its_own = |op: &MailboxOp| {
                    matches!(op, MailboxOp::Ack { owner: of, place: at, .. } if *of == owner && at.device_id == device)
                };
                match step.reply {
                    MailboxReply::Acked(acked) if is_its_own(step.op) => {
                        prop_assert_eq!((acked.before, acked.ack_seq), (before, after));
                    }
                    _ => prop_assert_eq!(before, after, "no other operation moves it"),
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_queued_message_belongs_to_one_device_slot_until_that_one_gives_it_back(history in histories()) {
        for_each_step(&history, |step| {
            for (owner, mailbox) in &step.before.0 {
                for (seq, queued) in &mailbox.queue {
                    let Some(by) = &queued.claimed_by else { continue };
                    let Some(after) = step.after.0[owner].queue.get(seq) else { continue };
                    let released = matches!(step.op, MailboxOp::Release { owner: of, place, seq: number }
                        if of == owner && place == by && number == seq);
                    prop_assert!(after.claimed_by.as_ref() == Some(by) || (released && after.claimed_by.is_none()));
                    let acked = matches!(step.op, MailboxOp::Ack { owner: of, place, .. } if of == owner && place == by);
                    prop_assert!(after.is_received == queued.is_received || acked);
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn each_message_is_stored_or_queued_by_the_mode_of_its_mailbox(history in histories()) {
        for_each_step(&history, |step| {
            let MailboxReply::Accepted(messages) = step.reply else { return Ok(()) };
            for message in messages {
                let mode = step.before.get(&message.owner).map_or(Mode::Fanout, |mailbox| mailbox.mode);
                let is_whole = matches!(message.contents, Contents::Whole(_));
                let expected = if mode == Mode::Queue && is_whole { Mode::Queue } else { Mode::Fanout };
                prop_assert_eq!(message.mode, expected, "copies for devices are always stored");
                let mailbox = step.after.get(&message.owner).unwrap();
                let found = DEVICES.map(|device| mailbox.list(device, message.seq - 1, step.now).next());
                let expected = DEVICES.map(|device| message.for_device(device).filter(|_| message.mode == Mode::Fanout));
                for (found, expected) in found.into_iter().zip(expected) {
                    prop_assert_eq!(found.filter(|found| found.seq == message.seq), expected);
                }
                let view = mailbox.queue(&place("new"), step.now);
                let is_open = view.open.iter().any(|(seq, _)| *seq == message.seq);
                prop_assert_eq!(is_open, message.mode == Mode::Queue);
            }
            Ok(())
        })?;
    }

    #[test]
    fn every_queued_message_is_waiting_claimed_or_counted_as_dropped(history in histories()) {
        let mut queued: HashMap<Aid, i64> = HashMap::new();
        let mut lost_claims: HashMap<Aid, i64> = HashMap::new();
        for_each_step(&history, |step| {
            if let MailboxReply::Accepted(messages) = step.reply {
                for message in messages.iter().filter(|message| message.mode == Mode::Queue) {
                    *queued.entry(message.owner.clone()).or_default() += 1;
                }
            }
            for (owner, mailbox) in &step.after.0 {
                let before = step.before.get(owner).into_iter().flat_map(|mailbox| &mailbox.queue);
                let gone = before.filter(|(seq, queued)| queued.claimed_by.is_some() && !mailbox.queue.contains_key(seq));
                *lost_claims.entry(owner.clone()).or_default() += gone.count() as i64;
                let accounted = mailbox.queue.len() as i64 + mailbox.dropped + lost_claims[owner];
                prop_assert_eq!(accounted, queued.get(owner).copied().unwrap_or(0));
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_recalled_message_is_readable_by_no_device(history in histories()) {
        for_each_step(&history, |step| {
            let (MailboxOp::Recall { caller, message_id }, MailboxReply::Recalled(outcome)) = (step.op, step.reply) else {
                return Ok(());
            };
            let all = step.after.0.values().flat_map(|mailbox| mailbox.list_stored(0, step.now));
            let mut own = all.filter(|message| message.message_id == *message_id && message.from == *caller);
            match outcome {
                Ok(_) => prop_assert!(own.next().is_none()),
                Err(_) => prop_assert_eq!(step.before, step.after),
            }
            Ok(())
        })?;
    }

    #[test]
    fn the_allowance_is_never_exceeded_and_what_is_refused_changes_nothing(
        room in 0..4_000_i64, history in histories(),
    ) {
        let (mut mailboxes, mut now_us) = (Mailboxes::default(), 0);
        for owner in IDENTITIES {
            let used = Mailbox { used_bytes: MAILBOX_BYTES_MAX - room, used_at: time(0), ..Mailbox::default() };
            mailboxes.0.insert(aid(owner), used);
        }
        for (pause_us, op) in &history {
            now_us += pause_us.min(&5_000);
            let before = mailboxes.clone();
            let reply = mailboxes.apply(op, time(now_us));
            for mailbox in mailboxes.0.values() {
                prop_assert!(mailbox.used_bytes(time(now_us)) <= MAILBOX_BYTES_MAX);
            }
            if reply == MailboxReply::Full {
                prop_assert_eq!(&before, &mailboxes);
                let MailboxOp::Send(send) = op else { panic!("{op:?}") };
                let (inbound, own) = send.stored_messages(time(now_us));
                let is_over = |owner: &Aid| {
                    let parts = [Some(&inbound), own.as_ref()].into_iter().flatten().filter(|part| part.owner == *owner);
                    let weight: i64 = parts.filter(|part| !before.is_queued(part)).map(StoredMessage::weight).sum();
                    before.get(owner).unwrap().used_bytes(time(now_us)) + weight > MAILBOX_BYTES_MAX
                };
                prop_assert!(is_over(&send.to) || is_over(&send.from));
            }
        }
    }
}

#[test]
fn a_queue_holds_so_many_messages_and_so_many_bytes() {
    let mut mailboxes = Mailboxes::default();
    let owner = aid(IDENTITIES[1]);
    mailboxes.apply(&MailboxOp::SetMode { owner: owner.clone(), mode: Mode::Queue }, time(0));
    let mut number = 0;
    let mut send_many = |mailboxes: &mut Mailboxes, count, payload: &str| {
        for _ in 0..count {
            number += 1;
            let send = send(IDENTITIES[0], IDENTITIES[1], &format!("m-{number}"), payload);
            mailboxes.apply(&MailboxOp::Send(Box::new(send)), time(number));
        }
        mailboxes.get(&owner).unwrap().queue(&place("desk"), time(number))
    };
    let view = send_many(&mut mailboxes, QUEUED_MAX + 3, "x");
    assert_eq!((view.open.len(), view.earliest_seq, view.dropped), (QUEUED_MAX, Some(4), 3));
    // Two bytes each: a limit in characters would let twice as much in.
    let view = send_many(&mut mailboxes, 16, &"é".repeat(512 * 1024));
    let bytes: usize = view.open.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(view.open.len(), 7);
    assert!(bytes <= QUEUED_BYTES_MAX as usize);
    assert_eq!(view.dropped, QUEUED_MAX as i64 + 3 + 9);
}

#[test]
fn an_acknowledgement_covers_what_its_device_slot_has_claimed_and_no_more() {
    let mut mailboxes = Mailboxes::default();
    let owner = aid(IDENTITIES[1]);
    mailboxes.apply(&MailboxOp::SetMode { owner: owner.clone(), mode: Mode::Queue }, time(0));
    for (from, id) in [(IDENTITIES[0], "a"), (IDENTITIES[2], "b"), (IDENTITIES[0], "c")] {
        mailboxes.apply(&MailboxOp::Send(Box::new(send(from, IDENTITIES[1], id, id))), time(1));
    }
    let claim = |place, seq| MailboxOp::Claim { owner: owner.clone(), place, seq };
    assert_eq!(mailboxes.apply(&claim(place("desk"), 2), time(2)), MailboxReply::Claimed(true));
    assert_eq!(mailboxes.apply(&claim(place("phone"), 2), time(2)), MailboxReply::Claimed(false));
    let ack = MailboxOp::Ack { owner: owner.clone(), place: place("desk"), seq: 3 };
    let acked = AckOutcome { before: 0, ack_seq: 3, senders: vec![aid(IDENTITIES[2])] };
    assert_eq!(mailboxes.apply(&ack, time(3)), MailboxReply::Acked(acked));
    let mailbox = mailboxes.get(&owner).unwrap();
    assert_eq!(mailbox.list_unclaimed(time(3)), [1, 3]);
    let again = MailboxOp::Send(Box::new(send(IDENTITIES[2], IDENTITIES[1], "b", "b")));
    assert!(matches!(mailboxes.apply(&again, time(4)), MailboxReply::Duplicate(SendRecord { seq: 2, .. })));
}

#[test]
fn of_too_many_device_slots_the_least_recently_written_are_forgotten() {
    let mut mailboxes = Mailboxes::default();
    let owner = aid(IDENTITIES[1]);
    mailboxes.apply(&MailboxOp::Send(Box::new(send(IDENTITIES[0], IDENTITIES[1], "a", "a"))), time(0));
    let device = |number: i64| place(&format!("device-{number}"));
    for number in 0..PLACES_MAX + 2 {
        mailboxes.apply(&MailboxOp::Ack { owner: owner.clone(), place: device(number), seq: 1 }, time(number));
    }
    mailboxes.apply(&MailboxOp::Expire { idle_since: Timestamp::MIN }, time(1_000));
    let position = |number| mailboxes.get(&owner).unwrap().ack_seq(&device(number));
    assert_eq!((position(0), position(1), position(2), position(PLACES_MAX + 1)), (0, 0, 1, 1));
}
