//! Mailboxes of the mesh, on both engines: random operations against a model that fits in the head, and the promises one by
//! one: numbers without gaps whoever sends, one message per id, marks that only go forward.

use std::collections::{BTreeMap, HashMap};

use jiff::SignedDuration;
use ostler_protocol::{
    RawJson,
    mesh::{
        Aid,
        connections::{Mode, Place as Spot},
        messages::{
            DeviceCopy, Direction, MESSAGE_LIFE_MS_DEFAULT, Message, Parcel, QUEUED_MS_MAX, RECALL_MS_MAX, RecallError,
            SEALED,
        },
        prekeys::{PREKEY_DEVICES_MAX, Prekey},
    },
};
use ostler_store::mesh::{
    messages::{self, Ack, Acked, Mailbox, Outgoing, Post, Posted, Sent},
    prekeys, queue,
};
use serde_json::json;
use sqlx::{Connection, Executor, PgConnection};

use crate::{
    place::{Engine, Place, both_engines},
    workshop::Workshop,
};

const BYTES_MAX: usize = 1024 * 1024;
const DEVICES: [&str; 3] = ["", "desk", "phone"];
pub const AIDS: [&str; 3] = ["alice.probe.test", "bobby.probe.test", "carol.probe.test"];

pub fn aid(name: &str) -> Aid {
    name.parse().unwrap()
}

pub fn spot(device_id: &str) -> Spot {
    Spot { device_id: device_id.into(), slot_id: String::new() }
}

fn sealed(text: &str) -> RawJson {
    RawJson::of(&json!({"type": SEALED, "ciphertext": text}))
}

fn copies(devices: &[&str], text: &str) -> Vec<DeviceCopy> {
    let copy =
        |device: &&str| DeviceCopy { device_id: (*device).into(), envelope: sealed(&format!("{text}@{device}")) };
    devices.iter().map(copy).collect()
}

pub fn outgoing(from: &str, to: &str, message_id: &str, text: &str) -> Outgoing {
    Outgoing {
        message_id: message_id.into(),
        from: aid(from),
        to: aid(to),
        kind: None,
        encrypted: false,
        payload: RawJson::of(&json!({"type": "text", "text": text})),
        parcel: Parcel::Whole,
        life: SignedDuration::from_millis(MESSAGE_LIFE_MS_DEFAULT),
    }
}

pub async fn send(workshop: &Workshop, message: Outgoing) -> Sent {
    match workshop.post(Post::Send(Box::new(message))).await.unwrap() {
        Posted::Sent(sent) => sent,
        other => panic!("a send was answered with {other:?}"),
    }
}

pub async fn ack(workshop: &Workshop, owner: &str, device: &str, seq: i64) -> Acked {
    match workshop.post(Post::Ack(Ack { aid: aid(owner), place: spot(device), seq })).await.unwrap() {
        Posted::Acked(acked) => acked,
        other => panic!("an acknowledgement was answered with {other:?}"),
    }
}

pub async fn mailbox(workshop: &Workshop, owner: &str) -> Mailbox {
    messages::get_mailbox(&workshop.db, &aid(owner)).await.unwrap().unwrap()
}

pub async fn pull(workshop: &Workshop, owner: &str, device: &str, after: i64) -> Vec<Message> {
    let kept = messages::list(&workshop.db, &aid(owner), device, after, 200, BYTES_MAX, workshop.now()).await.unwrap();
    assert!(kept.is_all || kept.messages.len() == 200);
    kept.messages
}

/// Numbers by a fixed rule, so that a failure can be had again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len())]
    }
}

/// One letter as the model knows it.
#[derive(Clone)]
struct Kept {
    id: String,
    from: &'static str,
    to: &'static str,
    own: bool,
    queued: bool,
    /// For which devices; `None`: for all.
    devices: Option<Vec<&'static str>>,
    sent_ms: i64,
    recalled: bool,
    taken_by: Option<&'static str>,
    received: bool,
}

#[derive(Default)]
struct Model {
    now_ms: i64,
    boxes: HashMap<&'static str, BTreeMap<i64, Kept>>,
    modes: HashMap<&'static str, Mode>,
    last: HashMap<&'static str, i64>,
    acks: HashMap<(&'static str, &'static str), i64>,
}

impl Model {
    fn find(&self, from: &str, id: &str) -> Option<(i64, Kept)> {
        let mut all = self.boxes.values().flatten();
        all.find(|(_, kept)| kept.from == from && kept.id == id && !kept.own).map(|(seq, kept)| (*seq, kept.clone()))
    }

    fn put(&mut self, owner: &'static str, mut kept: Kept) -> i64 {
        let last = self.last.entry(owner).or_insert(0);
        *last += 1;
        kept.queued = !kept.own && kept.devices.is_none() && self.modes.get(owner) == Some(&Mode::Queue);
        self.boxes.entry(owner).or_default().insert(*last, kept);
        *last
    }

    fn visible(&self, owner: &str, device: &str) -> Vec<i64> {
        let live = |kept: &Kept| {
            let here = kept.devices.as_ref().is_none_or(|devices| devices.contains(&device));
            !kept.queued && !kept.recalled && here && self.now_ms - kept.sent_ms < MESSAGE_LIFE_MS_DEFAULT
        };
        self.boxes.get(owner).into_iter().flatten().filter(|(_, kept)| live(kept)).map(|(seq, _)| *seq).collect()
    }

    fn open(&self, owner: &str, device: &str) -> Vec<i64> {
        let open = |kept: &Kept| {
            let mine = kept.taken_by.is_none_or(|taken_by| taken_by == device);
            kept.queued && !kept.received && mine && self.now_ms - kept.sent_ms < QUEUED_MS_MAX
        };
        self.boxes.get(owner).into_iter().flatten().filter(|(_, kept)| open(kept)).map(|(seq, _)| *seq).collect()
    }
}

struct Play {
    workshop: Workshop,
    model: Model,
    dice: Dice,
    sent: Vec<(&'static str, String)>,
}

impl Play {
    async fn step(&mut self) {
        match self.dice.roll(16) {
            0..=6 => self.send().await,
            7 | 8 => self.ack().await,
            9 | 10 => self.recall().await,
            11 => {
                let (owner, mode) = (self.dice.pick(&AIDS), self.dice.pick(&[Mode::Fanout, Mode::Queue]));
                messages::update_mode(&self.workshop.db, &aid(owner), mode).await.unwrap();
                self.model.modes.insert(owner, mode);
            }
            12 => self.claim().await,
            13 => {
                let ms =
                    self.dice.pick(&[1, 1_000, 60_000, QUEUED_MS_MAX / 2, RECALL_MS_MAX, MESSAGE_LIFE_MS_DEFAULT / 5]);
                self.workshop.host.advance_ms(ms);
                self.model.now_ms += ms;
            }
            14 => {
                let now = self.workshop.now();
                messages::delete_expired(&self.workshop.db, now, jiff::Timestamp::MIN).await.unwrap();
                let now_ms = self.model.now_ms;
                for kept in self.model.boxes.values_mut() {
                    // What is swept is forgotten, its id too.
                    let life = |kept: &Kept| if kept.queued { QUEUED_MS_MAX } else { MESSAGE_LIFE_MS_DEFAULT };
                    kept.retain(|_, kept| now_ms - kept.sent_ms < life(kept));
                }
            }
            _ => {}
        }
        self.compare().await;
    }

    async fn send(&mut self) {
        let (from, to) = (self.dice.pick(&AIDS), self.dice.pick(&AIDS));
        let id = match self.dice.roll(5) {
            0 if !self.sent.is_empty() => self.sent[self.dice.roll(self.sent.len())].1.clone(),
            _ => format!("m-{}", self.sent.len()),
        };
        let mut message = outgoing(from, to, &id, &id);
        let (mut recipient, mut own) = (None, vec![]);
        if self.dice.roll(3) == 0 {
            let devices = &DEVICES[self.dice.roll(3)..];
            own = DEVICES[1..=self.dice.roll(2)].to_vec();
            message.parcel = Parcel::Copies { recipient: copies(devices, &id), own: copies(&own, &id) };
            message.encrypted = true;
            recipient = Some(devices.to_vec());
        }
        let known = self.model.find(from, &id);
        // A queue forgets when it is trimmed, which the next message to it does.
        let sent = send(&self.workshop, message).await;
        match known {
            Some((seq, kept)) => {
                let mode = if kept.queued { Mode::Queue } else { Mode::Fanout };
                assert_eq!((sent.seq, sent.mode, sent.duplicate), (seq, mode, true), "{id}");
                assert_eq!(sent.to.as_str(), kept.to, "{id}");
            }
            None => {
                let sent_ms = self.model.now_ms;
                let kept = Kept {
                    id: id.clone(),
                    from,
                    to,
                    own: false,
                    queued: false,
                    devices: recipient,
                    sent_ms,
                    recalled: false,
                    taken_by: None,
                    received: false,
                };
                let seq = self.model.put(to, kept.clone());
                assert_eq!((sent.seq, sent.duplicate), (seq, false), "{id}");
                if self.model.boxes[to][&seq].queued {
                    assert_eq!(sent.mode, Mode::Queue);
                    let kept = self.model.boxes.get_mut(to).unwrap();
                    kept.retain(|_, kept| !kept.queued || sent_ms - kept.sent_ms < QUEUED_MS_MAX);
                }
                if !own.is_empty() {
                    self.model.put(from, Kept { own: true, devices: Some(own), ..kept });
                }
                self.sent.push((from, id));
            }
        }
    }

    async fn ack(&mut self) {
        let (owner, device) = (self.dice.pick(&AIDS), self.dice.pick(&DEVICES));
        let last = self.model.last.get(owner).copied().unwrap_or(0);
        let seq = self.dice.roll(last as usize + 3) as i64;
        let acked = ack(&self.workshop, owner, device, seq).await;
        let before = self.model.acks.get(&(owner, device)).copied().unwrap_or(0);
        let after = before.max(seq.min(last));
        assert_eq!((acked.before, acked.ack_seq), (before, after));
        let mut senders: Vec<Aid> = vec![];
        for (number, kept) in self.model.boxes.get_mut(owner).into_iter().flatten() {
            let mine = kept.taken_by == Some(device);
            if kept.queued && !kept.received && mine && *number <= after {
                kept.received = true;
                senders.push(aid(kept.from));
            } else if !kept.queued && !kept.own && *number > before && *number <= after {
                senders.push(aid(kept.from));
            }
        }
        senders.sort_unstable();
        senders.dedup();
        assert_eq!(acked.senders, senders);
        self.model.acks.insert((owner, device), after);
    }

    async fn recall(&mut self) {
        let caller = self.dice.pick(&AIDS);
        let id = match self.sent.len() {
            0 => "never".to_owned(),
            many => self.sent[many - 1 - self.dice.roll(many.min(6))].1.clone(),
        };
        let now_ms = self.model.now_ms;
        let live = |kept: &&Kept| {
            kept.id == id && !kept.own && !kept.queued && now_ms - kept.sent_ms < MESSAGE_LIFE_MS_DEFAULT
        };
        let candidates: Vec<Kept> =
            self.model.boxes.values().flat_map(BTreeMap::values).filter(live).cloned().collect();
        let expected = match candidates.iter().find(|kept| kept.from == caller) {
            None if candidates.is_empty() => Err(RecallError::NotFound),
            None => Err(RecallError::NotSender),
            Some(kept) if kept.recalled => Err(RecallError::AlreadyRecalled),
            Some(kept) if now_ms - kept.sent_ms > RECALL_MS_MAX => Err(RecallError::Expired),
            Some(kept) => Ok(aid(kept.to)),
        };
        let now = self.workshop.now();
        let recalled = messages::recall(&self.workshop.db, &aid(caller), &id, now).await.unwrap();
        assert_eq!(recalled, expected, "{id} by {caller}");
        if recalled.is_ok() {
            for kept in self.model.boxes.values_mut().flat_map(BTreeMap::values_mut) {
                kept.recalled |= kept.id == id && kept.from == caller && !kept.queued;
            }
        }
    }

    async fn claim(&mut self) {
        let (owner, device) = (self.dice.pick(&AIDS), self.dice.pick(&DEVICES));
        let open = self.model.open(owner, device);
        let Some(seq) = open.first().copied() else { return };
        if self.dice.roll(3) == 0 {
            let (db, now) = (&self.workshop.db, self.workshop.now());
            let upto = open[self.dice.roll(open.len())];
            let claimed = queue::claim_open(db, &aid(owner), &spot(device), seq - 1, upto, now).await.unwrap();
            let mut numbers: Vec<i64> = claimed.iter().map(|letter| letter.seq).collect();
            numbers.sort_unstable();
            assert_eq!(numbers, open.into_iter().filter(|open| *open <= upto).collect::<Vec<_>>());
            let kept = self.model.boxes.get_mut(owner).unwrap();
            numbers.iter().for_each(|number| kept.get_mut(number).unwrap().taken_by = Some(device));
            return;
        }
        let claimed = queue::claim(&self.workshop.db, &aid(owner), seq, &spot(device)).await.unwrap();
        let kept = self.model.boxes.get_mut(owner).unwrap().get_mut(&seq).unwrap();
        assert_eq!(claimed, kept.taken_by.is_none());
        kept.taken_by = Some(device);
    }

    async fn compare(&mut self) {
        let (owner, device) = (self.dice.pick(&AIDS), self.dice.pick(&DEVICES));
        let (now, after) = (self.workshop.now(), self.dice.roll(20) as i64);
        let found = pull(&self.workshop, owner, device, after).await;
        let expected: Vec<i64> = self.model.visible(owner, device).into_iter().filter(|seq| *seq > after).collect();
        assert_eq!(found.iter().map(|message| message.seq).collect::<Vec<_>>(), expected, "{owner} {device}");
        for message in &found {
            let kept = &self.model.boxes[owner][&message.seq];
            assert_eq!((message.message_id.as_str(), message.from.as_str()), (kept.id.as_str(), kept.from));
            assert_eq!(message.to.as_str(), kept.to);
            assert_eq!(message.direction, if kept.own { Direction::OutboundSync } else { Direction::Inbound });
            let text = if kept.devices.is_some() { format!("{}@{device}", kept.id) } else { kept.id.clone() };
            let field = if kept.devices.is_some() { "ciphertext" } else { "text" };
            assert_eq!(message.payload.to_value()[field], text);
            assert_eq!(message.device_id.as_deref(), kept.devices.is_some().then_some(device));
        }
        let letters = messages::list_letters(&self.workshop.db, &aid(owner), after, 1_000, now).await.unwrap();
        let seen: Vec<Message> = letters.iter().filter_map(|letter| letter.for_device(device)).collect();
        assert_eq!(seen, found, "what is passed on is what is pulled");
        if let Some(mailbox) = messages::get_mailbox(&self.workshop.db, &aid(owner)).await.unwrap() {
            assert_eq!(mailbox.last_seq, self.model.last.get(owner).copied().unwrap_or(0));
            let place = spot(device);
            let queue = queue::get(&self.workshop.db, &aid(owner), &mailbox, &place, now).await.unwrap();
            let open: Vec<i64> = queue.open.iter().map(|(seq, _)| *seq).collect();
            assert_eq!(open, self.model.open(owner, device), "{owner} {device}");
        }
        let acked = messages::get_ack(&self.workshop.db, &aid(owner), &spot(device)).await.unwrap();
        assert_eq!(acked, self.model.acks.get(&(owner, device)).copied().unwrap_or(0));
    }
}

#[both_engines]
async fn mailboxes_do_as_the_model_does(place: Place) {
    let workshop = Workshop::open(&place).await;
    let mut play = Play { workshop, model: Model::default(), dice: Dice(0x0571_E57A_B1E5), sent: vec![] };
    for _ in 0..600 {
        play.step().await;
    }
    assert!(play.sent.len() > 200, "there was something to play with");
}

#[both_engines]
async fn numbers_have_no_gap_whoever_sends(place: Place) {
    let here = Workshop::open(&place).await;
    let there = match place.engine() {
        Engine::Sqlite => None,
        Engine::Postgres => Some(Workshop::numbered(&place, 1).await),
    };
    let servers = [&here, there.as_ref().unwrap_or(&here)];
    // Each message is sent twice at the same time, by way of both where there are two.
    let sends = (0..200).flat_map(|number| {
        let id = format!("m-{number}");
        let from = AIDS[number % 3];
        servers.map(|server| send(server, outgoing(from, "daisy.probe.test", &id, "x")))
    });
    let sent = futures_util::future::join_all(sends).await;
    let mut fresh: Vec<i64> = sent.iter().filter(|sent| !sent.duplicate).map(|sent| sent.seq).collect();
    fresh.sort_unstable();
    assert_eq!(fresh, (1..=200).collect::<Vec<i64>>());
    for pair in sent.chunks(2) {
        assert_eq!((pair[0].seq, pair[0].sent_at), (pair[1].seq, pair[1].sent_at), "one message, one number");
    }
    assert_eq!(pull(&here, "daisy.probe.test", "desk", 0).await.len(), 200);
}

#[both_engines]
async fn letters_are_delivered_in_the_order_of_their_mailbox_before_anybody_is_answered(place: Place) {
    let workshop = Workshop::open(&place).await;
    let sends = (0..60).map(|number| {
        let mut message = outgoing(AIDS[number % 2], AIDS[2], &format!("m-{number}"), "x");
        if number % 3 == 0 {
            message.encrypted = true;
            message.parcel = Parcel::Copies { recipient: copies(&["desk"], "r"), own: copies(&["phone"], "o") };
        }
        async {
            let id = message.message_id.clone();
            let sent = send(&workshop, message).await;
            let letters = workshop.host.letters.lock().unwrap();
            assert!(letters.iter().any(|letter| letter.message_id == id && letter.seq == sent.seq), "{id}");
        }
    });
    futures_util::future::join_all(sends).await;
    let letters = workshop.host.letters.lock().unwrap();
    for owner in AIDS {
        let numbers: Vec<i64> = letters.iter().filter(|l| l.owner.as_str() == owner).map(|l| l.seq).collect();
        assert_eq!(numbers, (1..=numbers.len() as i64).collect::<Vec<_>>(), "{owner}");
    }
    assert_eq!(letters.len(), 80, "every third has one for the sender's own devices, too");
}

#[both_engines]
async fn a_pull_gives_as_many_as_fit_and_at_least_one(place: Place) {
    let workshop = Workshop::open(&place).await;
    for number in 0..50 {
        send(&workshop, outgoing(AIDS[0], AIDS[1], &format!("m-{number}"), &"x".repeat(1_000))).await;
    }
    let list = async |limit, bytes_max| {
        let owner = aid(AIDS[1]);
        let found = messages::list(&workshop.db, &owner, "desk", 0, limit, bytes_max, workshop.now()).await.unwrap();
        (found.messages.iter().map(|message| message.seq).collect::<Vec<_>>(), found.is_all)
    };
    assert_eq!(list(200, BYTES_MAX).await, ((1..=50).collect(), true));
    assert_eq!(list(33, BYTES_MAX).await, ((1..=33).collect(), false));
    assert_eq!(list(200, 10_500).await, ((1..=10).collect(), false));
    assert_eq!(list(200, 10).await, (vec![1], false));
}

#[both_engines]
async fn an_id_is_that_of_one_message_to_one_recipient(place: Place) {
    let workshop = Workshop::open(&place).await;
    messages::update_mode(&workshop.db, &aid(AIDS[2]), Mode::Queue).await.unwrap();
    for (id, first, second) in [("kept", AIDS[1], AIDS[2]), ("queued", AIDS[2], AIDS[1])] {
        let sent = send(&workshop, outgoing(AIDS[0], first, id, "x")).await;
        let again = send(&workshop, outgoing(AIDS[0], second, id, "x")).await;
        assert_eq!((again.to, again.seq, again.duplicate), (aid(first), sent.seq, true), "{id}");
        assert!(!send(&workshop, outgoing(AIDS[1], second, id, "x")).await.duplicate, "each sender has its own ids");
    }
    // Both at once.
    let both = AIDS.map(|to| send(&workshop, outgoing(AIDS[0], to, "at once", "x")));
    let sent = futures_util::future::join_all(both).await;
    let first = sent.iter().find(|sent| !sent.duplicate).unwrap().to.clone();
    assert!(sent.iter().all(|sent| sent.to == first), "{sent:?}");
    assert_eq!(sent.iter().filter(|sent| sent.duplicate).count(), 2);
}

#[both_engines]
async fn a_mark_goes_forward_only_and_no_further_than_there_is(place: Place) {
    let workshop = Workshop::open(&place).await;
    assert_eq!(ack(&workshop, AIDS[1], "desk", 7).await, Acked::default(), "there is nothing to acknowledge");
    for (from, id) in [(AIDS[0], "a"), (AIDS[2], "b"), (AIDS[0], "c")] {
        send(&workshop, outgoing(from, AIDS[1], id, id)).await;
    }
    let both = vec![aid(AIDS[0]), aid(AIDS[2])];
    assert_eq!(ack(&workshop, AIDS[1], "desk", 2).await, Acked { before: 0, ack_seq: 2, senders: both });
    assert_eq!(ack(&workshop, AIDS[1], "desk", 1).await, Acked { before: 2, ack_seq: 2, senders: vec![] });
    assert_eq!(ack(&workshop, AIDS[1], "desk", 99).await, Acked { before: 2, ack_seq: 3, senders: vec![aid(AIDS[0])] });
    let many = futures_util::future::join_all([1, 3, 2, 3].map(|seq| ack(&workshop, AIDS[1], "phone", seq))).await;
    assert!(many.iter().all(|acked| acked.ack_seq <= 3));
    assert_eq!(many.iter().map(|acked| acked.senders.len()).max(), Some(2));
    assert_eq!(messages::get_ack(&workshop.db, &aid(AIDS[1]), &spot("phone")).await.unwrap(), 3);
    // Who has not moved it for long enough starts anew.
    messages::delete_expired(&workshop.db, workshop.now(), workshop.now()).await.unwrap();
    assert_eq!(messages::get_ack(&workshop.db, &aid(AIDS[1]), &spot("phone")).await.unwrap(), 0);
}

#[both_engines]
async fn a_message_is_found_by_an_index(place: Place) {
    let workshop = Workshop::open(&place).await;
    let sends = (0..600).map(|number| {
        let mut message = outgoing(AIDS[number % 2], AIDS[2], &format!("m-{number}"), "x");
        message.parcel = match number % 2 {
            0 => Parcel::Copies { recipient: copies(&["desk", "phone"], "r"), own: vec![] },
            _ => Parcel::Whole,
        };
        send(&workshop, message)
    });
    futures_util::future::join_all(sends).await;
    if place.engine() == Engine::Postgres {
        // As its own daemon would, sooner or later.
        PgConnection::connect(&place.url()).await.unwrap().execute("VACUUM ANALYZE").await.unwrap();
    }
    for (statement, plan) in messages::explain(&workshop.db, &aid(AIDS[2]), workshop.now()).await.unwrap() {
        let index = match statement {
            "list" => vec!["mesh_messages_seq", "mesh_message_copies_device"],
            "letters" => vec!["mesh_messages_seq"],
            "copies" => vec!["mesh_message_copies_device"],
            "recall" => vec!["mesh_messages_id"],
            "expired" => vec!["mesh_messages_expiring"],
            other => panic!("{other}"),
        };
        for index in index {
            assert!(plan.contains(index), "{statement} does not use {index}:\n{plan}");
        }
        let walked = |line: &&str| line.contains("Seq Scan") || (line.starts_with("SCAN") && line.contains("mesh_"));
        let walked = plan.lines().find(walked).filter(|line| !line.contains("INDEX"));
        assert_eq!(walked, None, "{statement}:\n{plan}");
    }
}

/// Postgres knows nothing of a table until its daemon has come by, and may think it empty for a minute.
#[both_engines]
async fn whether_a_message_is_known_is_looked_up_before_the_table_is_known(place: Place) {
    if place.engine() == Engine::Sqlite {
        // It makes its plans without knowing any table.
        return;
    }
    let workshop = Workshop::open(&place).await;
    let sends = (0..SENDS).map(|number| send(&workshop, outgoing(AIDS[0], AIDS[1], &format!("m-{number}"), "x")));
    futures_util::future::join_all(sends).await;
    const SENDS: i64 = 600;
    let mut postgres = PgConnection::connect(&place.url()).await.unwrap();
    let read = "SELECT idx_scan, idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'mesh_messages_id'";
    for number in 0.. {
        // A connection tells what it did when it does something again.
        send(&workshop, outgoing(AIDS[0], AIDS[1], &format!("again-{number}"), "x")).await;
        let (lookups, read): (i64, i64) = sqlx::query_as(read).fetch_one(&mut postgres).await.unwrap();
        if lookups >= SENDS {
            assert!(read <= lookups, "{lookups} were looked up, {read} entries were read");
            return;
        }
        assert!(number < 400, "Postgres counts nothing");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

fn prekey(number: usize, device: &str) -> Prekey {
    Prekey {
        prekey_id: format!("k-{number}"),
        public_key: "a2V5".into(),
        signature: "c2lnbmVk".into(),
        created_at: number as i64,
        cert_fingerprint: "sha256:00".into(),
        device_id: Some(device.into()),
    }
}

#[both_engines]
async fn a_device_has_one_prekey_and_an_agent_so_many_devices(place: Place) {
    let workshop = Workshop::open(&place).await;
    let (db, alice) = (&workshop.db, aid(AIDS[0]));
    assert_eq!(prekeys::list(db, &alice).await.unwrap(), []);
    for (number, device) in [(1, "desk"), (2, "phone"), (3, "desk")] {
        workshop.host.advance_ms(1);
        prekeys::update(db, &alice, device, &prekey(number, device), workshop.now()).await.unwrap();
    }
    assert_eq!(prekeys::list(db, &alice).await.unwrap(), [prekey(3, "desk"), prekey(2, "phone")]);
    assert_eq!(prekeys::list(db, &aid(AIDS[1])).await.unwrap(), []);
    for number in 0..PREKEY_DEVICES_MAX {
        workshop.host.advance_ms(1);
        let device = format!("device-{number}");
        prekeys::update(db, &alice, &device, &prekey(number, &device), workshop.now()).await.unwrap();
    }
    let kept = prekeys::list(db, &alice).await.unwrap();
    assert_eq!(kept.len(), PREKEY_DEVICES_MAX);
    assert_eq!(kept.last().unwrap().device_id.as_deref(), Some("device-0"), "the two oldest went");
}
