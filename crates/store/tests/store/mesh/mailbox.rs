//! Both engines decide in SQL what a mailbox does. Random histories hold them equal to the pure rule
//! `protocol::mesh::mailbox`: every reply, every delivered message, and everything that can be read.

use ostler_protocol::{
    Timestamp,
    mesh::{
        Aid,
        connections::{DeviceSlot, Mode},
        mailbox::{AckOutcome, Contents, MailboxOp, MailboxReply, Mailboxes, SendOp, SendRecord, StoredMessage},
        messages::{
            MAILBOX_BYTES_MAX, MESSAGE_LIFE_MS_DEFAULT, Message, QUEUED_MAX, QUEUED_MS_MAX, RECALL_MS_MAX, SendContents,
        },
    },
};
use ostler_store::mesh::{
    messages::{self, Ack, Acked, MailboxOutcome, MailboxRequest, Sent},
    queue,
};
use rusqlite::OptionalExtension;
use sqlx::{Connection, PgConnection};

use crate::{
    mesh::{
        limits::run,
        messages::{AIDS, aid, copies, outgoing},
    },
    store_process::StoreProcess,
    test_store::{Engine, TestStore, both_engines},
};

const STEPS: usize = 300;
const SEEDS: [u64; 2] = [0x0571_E57A_B1E5, 0x0A57_1E2B_0C5E];
const DEVICES: [&str; 3] = ["", "desk", "phone"];
const SLOTS: [&str; 2] = ["", "a"];
/// Two bytes per character, so that a limit in characters shows.
const HEAVY_CHARS: usize = 200_000;

/// Repeatable random numbers.
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

/// A store and the rule, which receive the same operations.
struct Pair {
    place: TestStore,
    /// A connection of the test's own. `None` on SQLite.
    postgres: Option<PgConnection>,
    process: StoreProcess,
    rule: Mailboxes,
    dice: Dice,
    ids: Vec<String>,
    step: usize,
}

impl Pair {
    async fn run_step(&mut self) {
        match self.dice.roll(34) {
            0..=9 => {
                let send = self.new_send();
                self.send_together(vec![send]).await;
            }
            10 => {
                let count = 2 + self.dice.roll(7);
                let sends = (0..count).map(|_| self.new_send()).collect();
                self.send_together(sends).await;
            }
            11..=14 => {
                let (owner, place) = (self.owner(), self.slot());
                let seq = self.dice.roll(self.last_seq(&owner) as usize + 3) as i64;
                self.apply(MailboxOp::Ack { owner, place, seq }).await;
            }
            15..=17 => {
                let caller = self.owner();
                let message_id = self.recent_id();
                self.apply(MailboxOp::Recall { caller, message_id }).await;
            }
            18 | 19 => {
                let (owner, mode) = (self.owner(), self.dice.pick(&[Mode::Fanout, Mode::Queue]));
                self.apply(MailboxOp::SetMode { owner, mode }).await;
            }
            20..=22 => {
                let (owner, place) = (self.owner(), self.slot());
                let seq = self.recent_seq(&owner);
                self.apply(MailboxOp::Claim { owner, place, seq }).await;
            }
            23 => {
                let (owner, place) = (self.owner(), self.slot());
                let after = self.recent_seq(&owner);
                let upto = after + self.dice.roll(8) as i64;
                self.apply(MailboxOp::ClaimOpen { owner, place, after, upto }).await;
            }
            24 => {
                let (owner, place) = (self.owner(), self.slot());
                let seq = self.recent_seq(&owner);
                self.apply(MailboxOp::Release { owner, place, seq }).await;
            }
            25..=27 => {
                let spans_ms =
                    [1, 1_000, 60_000, QUEUED_MS_MAX / 2, QUEUED_MS_MAX, RECALL_MS_MAX, MESSAGE_LIFE_MS_DEFAULT / 5];
                self.process.host.advance_ms(self.dice.pick(&spans_ms));
            }
            // Less than the millisecond that allowances are counted by.
            28 | 29 => self.process.host.advance_us(1 + self.dice.roll(1_999) as i64),
            30 | 31 => self.send_at_the_limit().await,
            32 => {
                let idle_since = self.dice.pick(&[Timestamp::MIN, self.ago(MESSAGE_LIFE_MS_DEFAULT)]);
                self.apply(MailboxOp::Expire { idle_since }).await;
            }
            _ => match self.dice.roll(6) {
                0 => self.fill_a_queue_with_heavy_messages().await,
                _ => self.fill_a_queue().await,
            },
        }
        self.step += 1;
        if self.step.is_multiple_of(60) {
            for owner in AIDS.map(aid) {
                for device_id in DEVICES {
                    for slot_id in SLOTS {
                        let place = DeviceSlot { device_id: device_id.into(), slot_id: slot_id.into() };
                        self.compare(&owner, &place, 0).await;
                    }
                }
            }
        } else {
            let (owner, place) = (self.owner(), self.slot());
            let after = self.recent_seq(&owner);
            self.compare(&owner, &place, after).await;
        }
    }

    fn owner(&mut self) -> Aid {
        aid(self.dice.pick(&AIDS))
    }

    fn slot(&mut self) -> DeviceSlot {
        let device_id = self.dice.pick(&DEVICES).to_owned();
        let slot_id = if device_id.is_empty() { "" } else { self.dice.pick(&SLOTS) };
        DeviceSlot { device_id, slot_id: slot_id.into() }
    }

    fn ago(&self, ms: i64) -> Timestamp {
        self.process.now().checked_sub(jiff::SignedDuration::from_millis(ms)).unwrap()
    }

    fn last_seq(&self, owner: &Aid) -> i64 {
        self.rule.get(owner).map_or(0, |mailbox| mailbox.last_seq)
    }

    fn recent_seq(&mut self, owner: &Aid) -> i64 {
        (self.last_seq(owner) - self.dice.roll(12) as i64).max(0)
    }

    fn recent_id(&mut self) -> String {
        match self.ids.len() {
            0 => "never".into(),
            many => self.ids[many - 1 - self.dice.roll(many.min(8))].clone(),
        }
    }

    fn new_send(&mut self) -> SendOp {
        let (from, to) = (self.dice.pick(&AIDS), self.dice.pick(&AIDS));
        let id = match self.dice.roll(5) {
            0 => self.recent_id(),
            _ => format!("m-{}", self.ids.len()),
        };
        self.ids.push(id.clone());
        let mut send = outgoing(from, to, &id, &format!("{id} é"));
        if self.dice.roll(3) == 0 {
            let recipient = copies(&DEVICES[self.dice.roll(3)..], &id);
            let own = copies(&DEVICES[1..=self.dice.roll(3)], &id);
            send.contents = SendContents::Copies { recipient, own };
            send.encrypted = true;
        }
        send
    }

    async fn fill_a_queue(&mut self) {
        let owner = self.owner();
        self.apply(MailboxOp::SetMode { owner: owner.clone(), mode: Mode::Queue }).await;
        let count = QUEUED_MAX / 2 + self.dice.roll(QUEUED_MAX / 2);
        let sends = (0..count).map(|number| outgoing(AIDS[0], owner.as_str(), &self.fresh_id(number), "x")).collect();
        self.send_together(sends).await;
    }

    async fn fill_a_queue_with_heavy_messages(&mut self) {
        let owner = self.owner();
        self.apply(MailboxOp::SetMode { owner: owner.clone(), mode: Mode::Queue }).await;
        let text = "é".repeat(HEAVY_CHARS);
        for number in 0..24 {
            let send = outgoing(AIDS[1], owner.as_str(), &self.fresh_id(number), &text);
            self.send_together(vec![send]).await;
        }
    }

    fn fresh_id(&self, number: usize) -> String {
        format!("f-{}-{number}", self.step)
    }

    /// Sends a message when an allowance has about as much left as the message uses.
    async fn send_at_the_limit(&mut self) {
        let mut send = self.new_send();
        if self.dice.roll(2) == 0 {
            // Two messages into one mailbox.
            send.to = send.from.clone();
        }
        let now = self.process.now();
        let (inbound, own) = send.stored_messages(now);
        let owner = self.dice.pick(&[&send.from, &send.to]).clone();
        let parts = [Some(inbound), own].into_iter().flatten().filter(|part| part.owner == owner);
        let room = parts.map(|part| part.weight()).sum::<i64>() + self.dice.roll(25) as i64 - 12;
        if let Some(mailbox) = self.rule.get_mut(&owner) {
            (mailbox.used_bytes, mailbox.used_at) = (MAILBOX_BYTES_MAX - room, now);
            let (used_bytes, used_at) = (mailbox.used_bytes, now.as_microsecond());
            let sql = format!(
                "UPDATE mesh_mailboxes SET used_bytes = {used_bytes}, used_at = {used_at} WHERE aid = '{owner}'"
            );
            run(&self.place, sql).await;
        }
        self.process.host.advance_us(self.dice.roll(2_500) as i64);
        self.send_together(vec![send]).await;
    }

    /// Sends messages so that flushes may carry several. Each reply is that of the rule, in the order of the sends.
    async fn send_together(&mut self, sends: Vec<SendOp>) {
        let now = self.process.now();
        let apply = |send: &SendOp| self.rule.apply(&MailboxOp::Send(Box::new(send.clone())), now);
        let expected: Vec<MailboxReply> = sends.iter().map(apply).collect();
        let posts = sends.iter().map(|send| self.process.post(MailboxRequest::Send(Box::new(send.clone()))));
        let posted = if expected.contains(&MailboxReply::Full) {
            // Where not all fit, the messages that one flush carries are not taken in turn.
            let mut posted = vec![];
            for post in posts {
                posted.push(post.await);
            }
            posted
        } else {
            futures_util::future::join_all(posts).await
        };
        let mut delivered = std::mem::take(&mut *self.process.host.stored_messages.lock().unwrap());
        for ((send, expected), posted) in sends.iter().zip(expected).zip(posted) {
            let found = match posted.unwrap() {
                MailboxOutcome::Sent(Sent { to, seq, sent_at, mode, duplicate, .. }) => {
                    let record = SendRecord { to, seq, sent_at, mode };
                    match duplicate {
                        true if record.to == send.to => MailboxReply::Duplicate(record),
                        true => MailboxReply::IdInUse(record),
                        false => {
                            let of_it = |message: &StoredMessage| {
                                message.message_id == send.message_id && message.from == send.from
                            };
                            let mut messages: Vec<_> = delivered.extract_if(.., |message| of_it(message)).collect();
                            messages.sort_by_key(|message| message.direction as u8);
                            assert_eq!((&messages[0].to, messages[0].seq), (&record.to, record.seq));
                            assert_eq!((messages[0].sent_at, messages[0].mode), (record.sent_at, record.mode));
                            MailboxReply::Accepted(messages)
                        }
                    }
                }
                MailboxOutcome::Full => MailboxReply::Full,
                MailboxOutcome::Acked(acked) => panic!("a send was answered with {acked:?}"),
            };
            assert_eq!(found, expected, "step {}: {send:?}", self.step);
        }
        assert_eq!(delivered, [], "step {}: nothing else was delivered", self.step);
    }

    async fn apply(&mut self, op: MailboxOp) {
        let (now, db) = (self.process.now(), &self.process.db);
        let found = match &op {
            MailboxOp::Send(_) => panic!("messages are sent together"),
            MailboxOp::Ack { owner, place, seq } => {
                let ack = Ack { aid: owner.clone(), place: place.clone(), seq: *seq };
                let MailboxOutcome::Acked(Acked { before, ack_seq, senders }) =
                    self.process.post(MailboxRequest::Ack(ack)).await.unwrap()
                else {
                    panic!("an acknowledgement was answered with something else");
                };
                MailboxReply::Acked(AckOutcome { before, ack_seq, senders })
            }
            MailboxOp::SetMode { owner, mode } => {
                messages::update_mode(db, owner, *mode).await.unwrap();
                MailboxReply::Done
            }
            MailboxOp::Claim { owner, place, seq } => {
                MailboxReply::Claimed(queue::claim(db, owner, *seq, place).await.unwrap())
            }
            MailboxOp::ClaimOpen { owner, place, after, upto } => {
                let mut claimed = queue::claim_open(db, owner, place, *after, *upto, now).await.unwrap();
                claimed.sort_by_key(|message| message.seq);
                MailboxReply::ClaimedOpen(claimed)
            }
            MailboxOp::Release { owner, place, seq } => {
                queue::release(db, owner, *seq, place).await.unwrap();
                MailboxReply::Done
            }
            MailboxOp::Recall { caller, message_id } => {
                MailboxReply::Recalled(messages::recall(db, caller, message_id, now).await.unwrap().unwrap())
            }
            MailboxOp::Expire { idle_since } => {
                messages::delete_expired(db, now, *idle_since).await.unwrap();
                MailboxReply::Done
            }
        };
        assert_eq!(found, self.rule.apply(&op, now), "step {}: {op:?}", self.step);
    }

    /// Compares what can be read of a mailbox by one device slot.
    async fn compare(&mut self, owner: &Aid, place: &DeviceSlot, after: i64) {
        let used = self.read_allowance(owner).await;
        let (db, now) = (&self.process.db, self.process.now());
        let at = format!("step {}: {owner} at {place:?} after {after}", self.step);
        let found = messages::get_mailbox(db, owner).await.unwrap();
        assert_eq!(messages::list_mailboxes(db, &[owner]).await.unwrap().remove(owner), found, "{at}");
        let Some(mailbox) = self.rule.get(owner) else { return assert_eq!(found, None, "{at}") };
        let found = found.unwrap();
        let row = |last_seq, mode, dropped, queued_at| messages::Mailbox { last_seq, mode, dropped, queued_at };
        assert_eq!(found, row(mailbox.last_seq, mailbox.mode, mailbox.dropped, mailbox.queued_at), "{at}");
        assert_eq!(used, Some((mailbox.used_bytes, mailbox.used_at.as_microsecond())), "{at}");
        assert_eq!(messages::get_ack(db, owner, place).await.unwrap(), mailbox.ack_seq(place), "{at}");

        let device = place.device_id.as_str();
        let listed = messages::list(db, owner, device, after, 2_000, usize::MAX, now).await.unwrap();
        assert!(listed.is_all, "{at}");
        assert_eq!(listed.messages, mailbox.list(device, after, now).collect::<Vec<Message>>(), "{at}");
        let mut stored_messages = messages::list_stored(db, owner, after, 2_000, now).await.unwrap();
        let mut stored: Vec<StoredMessage> = mailbox.list_stored(after, now).cloned().collect();
        stored_messages.iter_mut().chain(&mut stored).for_each(sort_copies);
        assert_eq!(stored_messages, stored, "{at}");

        let view = queue::get(db, owner, &found, place, now).await.unwrap();
        let expected = mailbox.queue(place, now);
        assert_eq!((view.open, view.earliest_seq), (expected.open, expected.earliest_seq), "{at}");
        assert_eq!(view.dropped, expected.dropped, "{at}");
        assert_eq!(queue::list_untaken(db, owner, now).await.unwrap(), mailbox.list_unclaimed(now), "{at}");
        for seq in after..after + 3 {
            let queued = queue::get_queued(db, owner, seq).await.unwrap();
            assert_eq!(queued.as_ref(), mailbox.get_queued(seq), "{at}, {seq}");
            assert_eq!(queue::is_taken(db, owner, seq).await.unwrap(), mailbox.is_claimed(seq), "{at}, {seq}");
        }
    }

    /// The allowance in use and since when, which no function of the store returns.
    async fn read_allowance(&mut self, owner: &Aid) -> Option<(i64, i64)> {
        let sql = "SELECT used_bytes, used_at FROM mesh_mailboxes WHERE aid = $1";
        match &mut self.postgres {
            None => {
                let connection = rusqlite::Connection::open(self.place.file()).unwrap();
                connection.query_row(sql, [owner.as_str()], |row| Ok((row.get(0)?, row.get(1)?))).optional().unwrap()
            }
            Some(connection) => sqlx::query_as(sql).bind(owner.as_str()).fetch_optional(connection).await.unwrap(),
        }
    }
}

fn sort_copies(message: &mut StoredMessage) {
    if let Contents::Copies(copies) = &mut message.contents {
        copies.sort_by(|left, right| left.device_id.cmp(&right.device_id));
    }
}

#[both_engines]
async fn mailboxes_in_sql_do_as_the_rule_does(place: TestStore) {
    for seed in SEEDS {
        let place = TestStore::new(place.engine());
        let process = StoreProcess::open(&place).await;
        let postgres = match place.engine() {
            Engine::Sqlite => None,
            Engine::Postgres => Some(PgConnection::connect(&place.url()).await.unwrap()),
        };
        let (rule, dice) = (Mailboxes::default(), Dice(seed));
        let mut pair = Pair { place, postgres, process, rule, dice, ids: vec![], step: 0 };
        for _ in 0..STEPS {
            pair.run_step().await;
        }
    }
}
