//! A long day in a short time: identities come and go, responses are lost and calls are repeated, servers are restarted,
//! two of them if the store allows it. Every acknowledged message arrives exactly once and in order at each device, and is
//! pushed exactly once and in order to connected clients.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::harness::{Engine, Identity, TestServer, Wire, both_engines};

const STEPS: usize = 400;
const DEVICES: [&str; 2] = ["desk", "phone"];
const BOBBY: &str = "bobby.localhost.test";

/// Numbers by a fixed rule, so that a failure can be had again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }
}

/// A device of the recipient: how far it is, and what it has seen.
struct Device {
    name: &'static str,
    wire: Option<Wire>,
    mark: i64,
    /// Where its mark stood once it had come and caught up.
    came_at: Option<i64>,
    /// How much was pushed to it in all.
    pushes: usize,
    seen: Vec<(i64, String)>,
}

impl Device {
    fn take(&mut self, message: &Value) {
        let seq = message["seq"].as_i64().unwrap();
        assert_eq!(message["direction"], "inbound");
        assert!(seq > self.mark, "{seq} came after {}", self.mark);
        self.mark = seq;
        self.seen.push((seq, message["message_id"].as_str().unwrap().to_owned()));
    }

    /// Pulls to the end and acknowledges, as a client does when it comes, or misses a number.
    async fn catch_up(&mut self) {
        let Some(mut wire) = self.wire.take() else { return };
        loop {
            let pulled = wire.call("message.pull", json!({"after_seq": self.mark, "limit": 7})).await;
            let messages = pulled["messages"].as_array().unwrap();
            messages.iter().for_each(|message| self.take(message));
            if messages.is_empty() {
                break;
            }
        }
        assert_eq!(wire.call("message.ack", json!({"seq": self.mark})).await["ack_seq"], self.mark);
        self.judge_pushes(&mut wire).await;
        self.wire = Some(wire);
    }

    /// What was sent since it came was pushed to it: each number after the other, none twice.
    async fn judge_pushes(&mut self, wire: &mut Wire) {
        let came_at = *self.came_at.get_or_insert(self.mark);
        let is_message = |told: &&Value| told["method"] == "event/message.received";
        loop {
            let told = wire.pushed.iter().filter(is_message);
            let numbers: Vec<i64> = told.map(|told| told["params"]["seq"].as_i64().unwrap()).collect();
            assert!(numbers.windows(2).all(|two| two[1] == two[0] + 1), "{} was told {numbers:?}", self.name);
            assert!(numbers.first().is_none_or(|first| *first <= came_at + 1), "{came_at}: {numbers:?}");
            if numbers.last().copied().unwrap_or(came_at) >= self.mark {
                return;
            }
            wire.pushed.push(wire.socket.hear().await);
        }
    }

    fn leave(&mut self) {
        let wire = self.wire.take();
        self.pushes += wire.map_or(0, |wire| wire.pushed.len());
        self.came_at = None;
    }
}

struct Day {
    servers: Vec<TestServer>,
    senders: Vec<Identity>,
    bobby: Identity,
    devices: Vec<Device>,
    dice: Dice,
    /// Those whose sending was answered.
    answered: BTreeSet<String>,
    /// Sent, and the response not read.
    open: Vec<(usize, String)>,
    sent: usize,
}

impl Day {
    async fn send(&mut self, again: Option<(usize, String)>) {
        let (sender, id) = again.unwrap_or_else(|| {
            self.sent += 1;
            (self.dice.roll(self.senders.len()), format!("m-{}", self.sent))
        });
        let server = &self.servers[self.dice.roll(self.servers.len())];
        // One that hung up a moment ago may still hold its place.
        let mut wire = self.senders[sender].connect_again(server, &format!("d-{}", self.sent)).await;
        let params = json!({"to": BOBBY, "payload": {"type": "text", "text": id}, "message_id": id});
        if self.dice.roll(4) == 0 {
            // It disconnects before it has read the response.
            wire.socket.say(&json!({"jsonrpc": "2.0", "id": "lost", "method": "message.send", "params": params})).await;
            self.open.push((sender, id));
            return;
        }
        wire.call("message.send", params).await;
        self.answered.insert(id);
    }

    async fn step(&mut self) {
        // No identity logs in more often than servers allow.
        self.servers[0].clock.advance_ms(4_000);
        match self.dice.roll(12) {
            0..=5 => self.send(None).await,
            6 | 7 => {
                let again = self.open.pop();
                self.send(again).await;
            }
            8 => {
                let index = self.dice.roll(DEVICES.len());
                self.devices[index].leave();
            }
            9 | 10 => {
                let index = self.dice.roll(DEVICES.len());
                self.come(index).await;
            }
            _ => {
                // Its connections go with it.
                let index = self.dice.roll(self.servers.len());
                self.devices.iter_mut().for_each(Device::leave);
                self.servers[index].restart().await;
            }
        }
    }

    async fn come(&mut self, index: usize) {
        if self.devices[index].wire.is_none() {
            let server = &self.servers[self.dice.roll(self.servers.len())];
            let name = self.devices[index].name;
            // The place is free as soon as the server has noticed that the last one went.
            let wire = self.bobby.connect_again(server, name).await;
            self.devices[index].wire = Some(wire);
        }
        self.devices[index].catch_up().await;
    }
}

#[both_engines]
async fn every_answered_message_arrives_once_at_each_device(engine: Engine) {
    let first = TestServer::start(engine).await;
    let second = match engine {
        Engine::Sqlite => None,
        Engine::Postgres => Some(first.of_one_mesh().await),
    };
    let mut senders = vec![];
    for name in ["alice", "carol", "daisy"] {
        senders.push(Identity::register(&first, name).await);
    }
    let bobby = Identity::register(&first, "bobby").await;
    let devices = DEVICES.map(|name| Device { name, wire: None, mark: 0, came_at: None, pushes: 0, seen: vec![] });
    let mut day = Day {
        servers: std::iter::once(first).chain(second).collect(),
        senders,
        bobby,
        devices: devices.into(),
        dice: Dice(0x5EED_0571_E500),
        answered: BTreeSet::new(),
        open: vec![],
        sent: 0,
    };
    for _ in 0..STEPS {
        day.step().await;
    }
    while let Some(again) = day.open.pop() {
        day.send(Some(again)).await;
    }
    for index in 0..DEVICES.len() {
        day.come(index).await;
    }
    day.devices.iter_mut().for_each(Device::leave);
    for device in &day.devices {
        assert!(device.pushes > 0, "nothing was pushed to {}", device.name);
        let ids: BTreeSet<&String> = device.seen.iter().map(|(_, id)| id).collect();
        assert_eq!(ids.len(), device.seen.len(), "each once at {}", device.name);
        assert!(day.answered.iter().all(|id| ids.contains(id)), "{} misses some", device.name);
        assert_eq!(device.seen, day.devices[0].seen, "all see the same, in the same order");
        let numbers: Vec<i64> = device.seen.iter().map(|(seq, _)| *seq).collect();
        assert_eq!(numbers, (1..=numbers.len() as i64).collect::<Vec<_>>(), "without a gap");
    }
    assert!(day.answered.len() > 100, "there was something to lose");
}
