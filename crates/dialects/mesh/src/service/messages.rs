//! Messages between identities. A message is durable, and pushed to the recipient's connections to this server, before the
//! sender receives a reply. Other servers on the same store are woken, and push to their connections. The server does not
//! interpret payloads.

use std::collections::BTreeMap;

use std::sync::Arc;

use jiff::SignedDuration;
use ostler_crypto::{
    certificates::{Certificate, Peer},
    prekeys,
};
use ostler_protocol::{
    Failure, Rule,
    mesh::{
        Aid,
        auth::{no_longer_valid, not_registered},
        connections::Mode,
        messages::{
            ACK_EVENT, AckEvent, AckParams, AckResult, MESSAGE_LIFE_MS_DEFAULT, PULL_BYTES_MAX, PullParams, PullResult,
            QueryOnlineParams, QueryOnlineResult, RECALLED_EVENT, RecallFailure, RecallParams, RecallResult,
            RecalledEvent, SendParams, SendResult, SendStatus,
        },
        prekeys::{GetPrekeyParams, GetPrekeyResult, Prekey, PutPrekeyResult},
    },
    retention::{RetentionNoun, under_hold},
};
use ostler_store::{
    lane::LaneError,
    mesh::{
        messages::{
            self as store, Ack, Acked, Mailbox, MailboxOutcome, MailboxRequest, Recipients, SendOp, Sent,
            StoredMessage, StoredMessages,
        },
        prekeys as stored_prekeys,
        queue::{self, Queue},
    },
};
use serde::Serialize;

use crate::{
    gateway::delivery::{MAILBOX, MessageDelivery},
    gateway::notification,
    service::{MeshCaller, identities, presence},
    state::Mesh,
};
use ostler_server::{
    app::App,
    dialect::{Ownership, RetentionStep},
};

/// Acknowledged numbers that have not moved for this long are deleted: the messages that they cover have expired.
const ACKS_KEPT: SignedDuration = SignedDuration::from_hours(30 * 24);

/// The state of an identity's mailbox.
pub(crate) async fn mailbox(app: &App, aid: &Aid) -> Result<Option<Mailbox>, Failure> {
    Ok(store::get_mailbox(&app.db, aid).await?)
}

/// Called after `auth.connect`, with the mailbox as it was before: stores how the identity receives messages, and starts the
/// delivery of messages that are in its queue or have arrived since.
pub(crate) async fn connected(app: &App, caller: &MeshCaller, mailbox: Option<Mailbox>) -> Result<(), Failure> {
    let mode = caller.delivery_mode.mode;
    if mailbox.map_or(Mode::Fanout, |mailbox| mailbox.mode) != mode {
        store::update_mode(&app.db, &caller.aid, mode).await?;
    }
    MessageDelivery::of(app).look_again(&caller.aid);
    Ok(())
}

pub(crate) async fn send(app: &App, caller: &MeshCaller, params: SendParams) -> Result<SendResult, Failure> {
    app.accepting()?;
    let contents = params.check()?;
    check_recipient(app, &params.to).await?;
    let message_id = params.message_id.unwrap_or_else(|| app.ids.body().to_string());
    let outgoing = SendOp {
        message_id: message_id.clone(),
        from: caller.aid.clone(),
        to: params.to.clone(),
        kind: params.kind,
        encrypted: params.encrypted,
        payload: params.payload,
        contents,
        life: SignedDuration::from_millis(MESSAGE_LIFE_MS_DEFAULT),
    };
    let sent = match post(app, MailboxRequest::Send(Box::new(outgoing))).await? {
        MailboxOutcome::Sent(sent) => sent,
        MailboxOutcome::Full => {
            let message = format!("the mailbox of {} is full; it empties as what is in it expires", params.to);
            return Err(Failure::rule(Rule::MailboxFull, message));
        }
        MailboxOutcome::Acked(_) => return Err(Failure::internal("a send was answered with something else")),
    };
    if sent.duplicate {
        if sent.to != params.to {
            let message = "message_id was already used for a message to another recipient";
            return Err(Failure::rule(Rule::MessageIdTaken, message));
        }
        // The server that stored it may have stopped before it notified any connection.
        for aid in [&params.to, &caller.aid] {
            MessageDelivery::of(app).look_again(aid);
            MAILBOX.wake_others(app, aid);
        }
    }
    let delivered = sent.delivered || hand_out(app, &params.to, &sent).await;
    let status = match (sent.duplicate, delivered) {
        (true, _) => SendStatus::Duplicate,
        (false, true) => SendStatus::Delivered,
        (false, false) => SendStatus::Sent,
    };
    Mesh::of(app).sends.count(status);
    Ok(SendResult {
        message_id,
        seq: Some(sent.seq),
        timestamp: sent.sent_at.as_millisecond(),
        status,
        delivery_mode: Some(sent.mode),
    })
}

/// Checks that the name is registered and not revoked.
async fn check_recipient(app: &App, aid: &Aid) -> Result<(), Failure> {
    let now = app.now();
    if Mesh::of(app).is_known_valid(aid, now) {
        return Ok(());
    }
    let identity = identities::find(app, aid).await?.ok_or_else(|| not_registered(aid))?;
    if identity.revoked_at.is_some() {
        return Err(no_longer_valid(aid));
    }
    Mesh::of(app).remember_valid(aid, now);
    Ok(())
}

/// Hands a message of the queue to one connection of this server, if there is one. The message is stored in any case: a failure
/// here is retried later.
async fn hand_out(app: &App, to: &Aid, sent: &Sent) -> bool {
    if sent.mode != Mode::Queue || sent.duplicate || !Mesh::of(app).connections.is_online(to) {
        return false;
    }
    let handed_out = async {
        match queue::get_queued(&app.db, to, sent.seq).await? {
            Some(stored) => MessageDelivery::of(app).hand_out(app, &stored).await,
            None => Ok(queue::is_taken(&app.db, to, sent.seq).await?),
        }
    };
    handed_out.await.unwrap_or_else(|failure| {
        tracing::warn!(%failure, cause = failure.cause.as_deref(), "a message of the queue could not be handed out");
        false
    })
}

/// Delivers messages to connections of this server, and wakes the servers that may have others.
struct LocalConnections(App);

impl Recipients for LocalConnections {
    fn deliver(&self, stored: &StoredMessage) -> bool {
        let Self(app) = self;
        MAILBOX.wake_others(app, &stored.owner);
        MessageDelivery::of(app).deliver(stored)
    }
}

async fn post(app: &App, post: MailboxRequest) -> Result<MailboxOutcome, Failure> {
    let recipients = Arc::new(LocalConnections(app.clone()));
    Mesh::of(app).mailboxes(app).submit(post, recipients).await.map_err(|error| match error {
        LaneError::Refused(failure) => failure,
        LaneError::Taken => Failure::rule(Rule::MessageTaken, "the same message is being sent concurrently; try again"),
        LaneError::Store(error) => error.into(),
    })
}

/// The messages after a number, stored or queued, in order.
pub(crate) async fn pull(app: &App, caller: &MeshCaller, params: PullParams) -> Result<PullResult, Failure> {
    let place = caller.place.of_call(params.device_id.as_deref(), params.slot_id.as_deref())?;
    let (limit, after, now) = (params.limit()?, params.after_seq, app.now());
    let acked = store::get_ack(&app.db, &caller.aid, place).await?;
    let Some(mailbox) = store::get_mailbox(&app.db, &caller.aid).await? else {
        return Ok(PullResult {
            messages: vec![],
            count: 0,
            latest_seq: 0,
            server_ack_seq: acked,
            ephemeral_earliest_available_seq: None,
            ephemeral_dropped_count: 0,
        });
    };
    let stored = store::list(&app.db, &caller.aid, &place.device_id, after, limit, PULL_BYTES_MAX, now);
    let stored = stored.await?;
    let queue = queue::get(&app.db, &caller.aid, &mailbox, place, now).await?;
    let end = page_end(&stored, &queue, after, limit);
    let server_ack_seq = if after <= acked { floor(&stored, &queue, acked, mailbox.last_seq) } else { acked };
    let mut messages = stored.messages;
    messages.retain(|message| message.seq <= end);
    if queue.open.iter().any(|(seq, _)| (after + 1..=end).contains(seq)) {
        // Messages that another device slot has claimed in the meantime are not returned.
        let claimed = queue::claim_open(&app.db, &caller.aid, place, after, end, now).await?;
        messages.extend(claimed.iter().filter_map(|stored| stored.for_device(&place.device_id)));
        messages.sort_by_key(|message| message.seq);
        messages.truncate(limit as usize);
    }
    Ok(PullResult {
        count: messages.len(),
        latest_seq: messages.last().map_or(0, |last| last.seq),
        messages,
        ephemeral_earliest_available_seq: queue.earliest_seq,
        ephemeral_dropped_count: queue.dropped,
        server_ack_seq,
    })
}

/// The number up to which no message is left for a device slot: what it has acknowledged, and the gap after that, if there is
/// one. The messages in a gap were recalled, have expired or are for other devices, and the published client waits for every
/// number above the one returned here. `stored` has the messages after some number up to `acked`; `last_seq` was read before it.
fn floor(stored: &StoredMessages, queue: &Queue, acked: i64, last_seq: i64) -> i64 {
    let next_stored = stored.messages.iter().map(|message| message.seq).find(|seq| *seq > acked);
    if next_stored.is_none() && !stored.is_all {
        return acked;
    }
    let next_open = queue.open.iter().map(|(seq, _)| *seq).find(|seq| *seq > acked);
    let next = next_stored.into_iter().chain(next_open).min();
    next.map_or(last_seq, |next| (next - 1).min(last_seq)).max(acked)
}

/// The last number of the page after `after`: as many stored and queued messages as fit, and at least one. No queued message
/// overtakes a stored message that was not read.
fn page_end(stored: &StoredMessages, queue: &Queue, after: i64, limit: u32) -> i64 {
    let horizon = stored.messages.last().filter(|_| !stored.is_all).map_or(i64::MAX, |last| last.seq);
    let open = queue.open.iter().copied().filter(|(seq, _)| *seq > after && *seq < horizon);
    let sized = stored.messages.iter().map(|message| (message.seq, message.payload.as_str().len()));
    let mut all: Vec<(i64, usize)> = sized.chain(open).collect();
    all.sort_unstable();
    let (mut end, mut bytes) = (after, 0);
    for (seq, size) in all.into_iter().take(limit as usize) {
        bytes += size;
        if bytes > PULL_BYTES_MAX && end > after {
            break;
        }
        end = seq;
    }
    end
}

/// Moves the acknowledged number of a device slot, and notifies the senders of the messages that it now covers.
pub(crate) async fn ack(app: &App, caller: &MeshCaller, params: AckParams) -> Result<AckResult, Failure> {
    let place = caller.place.of_call(params.device_id.as_deref(), params.slot_id.as_deref())?;
    if params.seq < 0 {
        return Err(Failure::invalid(Rule::AckSeq, "seq: 0 or more").detail("field", "seq"));
    }
    let ack = Ack { aid: caller.aid.clone(), place: place.clone(), seq: params.seq };
    let MailboxOutcome::Acked(Acked { ack_seq, senders, .. }) = post(app, MailboxRequest::Ack(ack)).await? else {
        return Err(Failure::internal("an acknowledgement was answered with something else"));
    };
    let event = AckEvent {
        to: caller.aid.clone(),
        device_id: place.device_id.clone(),
        slot_id: place.slot_id.clone(),
        ack_seq,
        timestamp: app.now().as_millisecond(),
    };
    senders.iter().for_each(|sender| notify(app, sender, ACK_EVENT, &event));
    Ok(AckResult { success: true, ack_seq })
}

/// Sends an event to every connection of an identity, on this server and on others.
fn notify(app: &App, aid: &Aid, event: &str, params: &impl Serialize) {
    let frame = notification(event, params);
    Mesh::of(app).connections.push(aid, &frame);
    MAILBOX.send_to_others(app, aid, &frame);
}

/// Recalls messages that were sent a short while ago. If a hold covers one of them, the others are recalled and the request
/// fails: a request for the others alone then reports them as recalled already.
pub(crate) async fn recall(app: &App, caller: &MeshCaller, params: RecallParams) -> Result<RecallResult, Failure> {
    params.check()?;
    let (mut recalled, mut errors): (BTreeMap<Aid, Vec<String>>, Vec<RecallFailure>) = (BTreeMap::new(), vec![]);
    let (accepted, mut first_held) = (params.message_ids.len(), None);
    for message_id in params.message_ids {
        match store::recall(&app.db, &caller.aid, &message_id, app.now()).await? {
            Some(Ok(to)) => recalled.entry(to).or_default().push(message_id),
            Some(Err(error)) => errors.push(RecallFailure { message_id, error }),
            None => first_held = first_held.or(Some(message_id)),
        }
    }
    let count = recalled.values().map(Vec::len).sum();
    for (to, message_ids) in recalled {
        let timestamp = app.now().as_millisecond();
        let event = RecalledEvent { from: caller.aid.clone(), to: to.clone(), message_ids, timestamp };
        notify(app, &to, RECALLED_EVENT, &event);
    }
    if let Some(message_id) = first_held {
        return Err(under_hold(&format!("message {message_id:?}")));
    }
    let errors = (!errors.is_empty()).then_some(errors);
    Ok(RecallResult { success: true, accepted, recalled: count, errors })
}

pub(crate) async fn query_online(
    app: &App,
    _: &MeshCaller,
    params: QueryOnlineParams,
) -> Result<QueryOnlineResult, Failure> {
    params.check()?;
    let mut online = BTreeMap::new();
    for name in params.aids {
        let is_online = match name.parse() {
            Ok(aid) => presence::is_online(app, &aid).await?,
            Err(_) => false,
        };
        online.insert(name, is_online);
    }
    Ok(QueryOnlineResult { online })
}

/// Stores a prekey that its owner signed.
pub(crate) async fn put_prekey(app: &App, caller: &MeshCaller, mut prekey: Prekey) -> Result<PutPrekeyResult, Failure> {
    prekey.check()?;
    let device_id = caller.place.of_call(prekey.device_id.as_deref(), None)?.device_id.clone();
    let identity = identities::version(app, &caller.aid, Some(&prekey.cert_fingerprint)).await?;
    let certificate =
        Certificate::from_pem(&identity.certificate).ok_or_else(|| Failure::internal("a kept certificate"))?;
    if identity.revoked_at.is_some() || !certificate.is_valid_at(app.wall()) {
        let message = "the certificate that the prekey names is good no longer";
        return Err(Failure::rule(Rule::PrekeyCertificate, message));
    }
    if !is_signed(&prekey, certificate) {
        let message = "the prekey is not signed by the key of the certificate that it names";
        return Err(Failure::rule(Rule::PrekeySignature, message));
    }
    prekey.device_id = (!device_id.is_empty()).then(|| device_id.clone());
    stored_prekeys::update(&app.db, &caller.aid, &device_id, &prekey, app.now()).await?;
    Ok(PutPrekeyResult { ok: true })
}

fn is_signed(prekey: &Prekey, owner: Certificate) -> bool {
    let signed = prekeys::Prekey {
        prekey_id: prekey.prekey_id.clone(),
        public_key: prekey.public_key.clone(),
        signature: prekey.signature.clone(),
        created_at: prekey.created_at,
        cert_fingerprint: prekey.cert_fingerprint.clone(),
        device_id: String::new(),
    };
    signed.verify(&Peer::pinned(owner)).is_some()
}

/// The newest prekeys of an identity. Reading does not consume them.
pub(crate) async fn get_prekey(app: &App, _: &MeshCaller, params: GetPrekeyParams) -> Result<GetPrekeyResult, Failure> {
    let device_prekeys = stored_prekeys::list(&app.db, &params.aid).await?;
    let prekey = device_prekeys.first().cloned();
    Ok(GetPrekeyResult { found: prekey.is_some(), prekey, device_prekeys })
}

/// Deletes expired messages and stale presence rows.
pub(crate) async fn sweep(app: &App) -> Result<(), Failure> {
    let idle = app.now().checked_sub(ACKS_KEPT).unwrap_or_default();
    store::delete_expired(&app.db, app.now(), idle).await?;
    presence::sweep(app).await
}

/// Messages are removed after their limit, even before they expire.
pub(crate) fn retention() -> RetentionStep {
    RetentionStep::new(
        RetentionNoun::Messages,
        Ownership::NoTenant,
        |app, page| async move { store::list_removable(&app.db, &page.scope, page.after.as_deref(), page.limit).await },
        |app, scope, keys| async move { Ok(store::remove(&app.db, &scope, &keys).await?) },
    )
    .tables(&["mesh_messages", "mesh_message_copies"])
    .bulk()
}
