//! Acknowledged messages of the mesh. One agent sends numbered messages under ids of its own; the other must find each
//! acknowledged one in its mailbox, once and in order.

use std::collections::BTreeMap;
use std::time::Duration;

use ostler_client::mesh::{Ambient, GatewayClient, Sealer, StoredIdentity};
use ostler_protocol::mesh::messages::{PullResult, SendResult};
use serde_json::json;
use tokio::time::timeout;

use crate::{
    api::{Api, pause},
    clock::{fill, now, since, timestamp},
    load::{Beat, SETTLE_WITHIN},
};

const AMBIENT: Ambient = Ambient { now: timestamp, fill };
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(8);
const PULL_ITEMS: u32 = 200;

pub(crate) struct Messages {
    sender: StoredIdentity,
    recipient: StoredIdentity,
    /// One per server.
    gateways: Vec<GatewayClient>,
    entered: usize,
    next: u64,
    /// The sequence number that each message was acknowledged with.
    acknowledged: BTreeMap<u64, i64>,
}

fn message_id(number: u64) -> String {
    format!("message-{number}")
}

impl Messages {
    pub(crate) async fn create(beat: &Beat) -> Result<Self, String> {
        let urls = beat.api.urls.clone();
        let root = GatewayClient::fetch_root(&urls[0]).await.map_err(|failure| failure.message)?;
        let gateways: Result<Vec<_>, _> = urls.iter().map(|url| GatewayClient::new(url, &root, AMBIENT)).collect();
        let gateways = gateways.map_err(|failure| failure.message)?;
        let mut members = vec![];
        for name in ["alice", "bobby"] {
            let aid = format!("{name}.localhost.test").parse().map_err(|error| format!("{error:?}"))?;
            let mut member = StoredIdentity::new(aid, &urls[0], root.clone(), AMBIENT);
            let certificate = member.register(&gateways[0], None).await.map_err(|error| format!("{error:?}"))?;
            member.adopt(&certificate);
            members.push(member);
        }
        let (recipient, sender) = (members.pop(), members.pop());
        let (Some(recipient), Some(sender)) = (recipient, sender) else { return Err("two members".into()) };
        Ok(Self { sender, recipient, gateways, entered: 0, next: 0, acknowledged: BTreeMap::new() })
    }

    /// Sends until the round is over. A message that was not acknowledged is sent again under its id.
    pub(crate) async fn work(mut self, beat: Beat) -> Result<Self, String> {
        let mut session = None;
        while !beat.is_over() {
            let Some(sealer) = &mut session else {
                session = self.enter(true).await.ok();
                if session.is_none() {
                    pause().await;
                }
                continue;
            };
            match send(sealer, &self.recipient, self.next).await {
                Ok(sent) => {
                    let seq = sent.seq.ok_or("a durable message without a number")?;
                    self.acknowledged.insert(self.next, seq);
                    self.next += 1;
                    beat.acknowledge(1);
                    tokio::time::sleep(PAUSE).await;
                }
                Err(_) => session = None,
            }
        }
        Ok(self)
    }

    /// Logs in at one server after the other. Each session has a slot of its own: the last one may not be known to be gone.
    async fn enter(&mut self, as_sender: bool) -> Result<Sealer, String> {
        self.entered += 1;
        let gateway = &self.gateways[self.entered % self.gateways.len()];
        let member = if as_sender { &self.sender } else { &self.recipient };
        let slot = format!("slot-{}", self.entered);
        let entered =
            timeout(CALL_TIMEOUT, member.enter(gateway, &slot)).await.map_err(|_| "no login in time".to_owned())?;
        entered.map_err(|failure| failure.message)
    }

    /// Compares the recipient's mailbox with the ledger. Returns the number of acknowledged messages.
    pub(crate) async fn settle(mut self, _: Api) -> Result<u64, String> {
        let started = now();
        let mailbox = loop {
            let read = match self.enter(false).await {
                Ok(mut sealer) => mailbox(&mut sealer).await,
                Err(why) => Err(why),
            };
            match read {
                Ok(mailbox) => break mailbox,
                Err(why) if since(started) > SETTLE_WITHIN => {
                    return Err(format!("the mailbox cannot be read {SETTLE_WITHIN:?} after the last fault: {why}"));
                }
                Err(_) => pause().await,
            }
        };
        self.compare(&mailbox)
    }

    fn compare(&self, mailbox: &[(i64, String)]) -> Result<u64, String> {
        if !mailbox.iter().map(|(seq, _)| *seq).eq(1..=mailbox.len() as i64) {
            return Err(format!("the mailbox has a gap or a repetition: {mailbox:?}"));
        }
        for (number, seq) in &self.acknowledged {
            let copies: Vec<_> = mailbox.iter().filter(|(_, id)| *id == message_id(*number)).collect();
            match copies.as_slice() {
                [(found, _)] if found == seq => {}
                copies => return Err(format!("message {number}, acknowledged as {seq}, is there as {copies:?}")),
            }
        }
        // At most the message that was under way when the round ended.
        match mailbox.len() - self.acknowledged.len() {
            0 | 1 => Ok(self.acknowledged.len() as u64),
            more => Err(format!("{more} messages were never acknowledged, and are there")),
        }
    }
}

async fn send(sealer: &mut Sealer, to: &StoredIdentity, number: u64) -> Result<SendResult, String> {
    let params = json!({"to": to.aid, "payload": {"type": "text", "n": number}, "message_id": message_id(number)});
    let call = sealer.session().call::<SendResult>("message.send", &params);
    let sent = timeout(CALL_TIMEOUT, call).await.map_err(|_| "no answer in time".to_owned())?;
    sent.map_err(|failure| failure.message)
}

/// Every message by number and id.
async fn mailbox(sealer: &mut Sealer) -> Result<Vec<(i64, String)>, String> {
    let mut found: Vec<(i64, String)> = vec![];
    loop {
        let after = found.last().map_or(0, |(seq, _)| *seq);
        let params = json!({"after_seq": after, "limit": PULL_ITEMS});
        let call = sealer.session().call::<PullResult>("message.pull", &params);
        let page = timeout(CALL_TIMEOUT, call).await.map_err(|_| "no answer in time".to_owned())?;
        let page = page.map_err(|failure| failure.message)?;
        if page.messages.is_empty() {
            return Ok(found);
        }
        found.extend(page.messages.into_iter().map(|message| (message.seq, message.message_id)));
    }
}
