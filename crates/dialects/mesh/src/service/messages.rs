//! Messages between agents. What is sent is durable before it is answered, and pushed before it is answered to whoever is
//! connected here; other servers on the same store are woken, and push to theirs. What a payload says is nobody's business
//! here.

use std::collections::BTreeMap;

use std::sync::Arc;

use jiff::SignedDuration;
use ostler_crypto::{
    certificates::{Certificate, Peer},
    prekeys,
};
use ostler_protocol::{
    Failure, FailureKind,
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
};
use ostler_store::{
    lane::LaneError,
    mesh::{
        messages::{self as store, Ack, Acked, Kept, Letter, Mailbox, Outgoing, Post, Posted, Recipients, Sent},
        prekeys as stored_prekeys,
        queue::{self, Queue},
    },
};
use serde::Serialize;

use crate::{
    gateway::notification,
    service::{MeshCaller, identities, presence},
    state::Mesh,
    topics::MAILBOX,
};
use ostler_server::app::App;

/// Marks that have not moved for this long are forgotten: nothing they are about is kept any more.
const MARKS_KEPT: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Where an agent's mailbox stands.
pub async fn mailbox(app: &App, aid: &Aid) -> Result<Option<Mailbox>, Failure> {
    Ok(store::get_mailbox(&app.db, aid).await?)
}

/// A connection has introduced itself, when the mailbox stood so: how its agent takes messages is remembered, and what waits
/// in its queue or came meanwhile is on its way.
pub async fn connected(app: &App, caller: &MeshCaller, mailbox: Option<Mailbox>) -> Result<(), Failure> {
    let mode = caller.delivery_mode.mode;
    if mailbox.map_or(Mode::Fanout, |mailbox| mailbox.mode) != mode {
        store::update_mode(&app.db, &caller.aid, mode).await?;
    }
    Mesh::of(app).delivery.look_again(&caller.aid);
    Ok(())
}

pub async fn send(app: &App, caller: &MeshCaller, asked: SendParams) -> Result<SendResult, Failure> {
    app.accepting()?;
    let parcel = asked.check()?;
    check_recipient(app, &asked.to).await?;
    let message_id = asked.message_id.unwrap_or_else(|| app.ids.body().to_string());
    let outgoing = Outgoing {
        message_id: message_id.clone(),
        from: caller.aid.clone(),
        to: asked.to.clone(),
        kind: asked.kind,
        encrypted: asked.encrypted,
        payload: asked.payload,
        parcel,
        life: SignedDuration::from_millis(MESSAGE_LIFE_MS_DEFAULT),
    };
    let sent = match post(app, Post::Send(Box::new(outgoing))).await? {
        Posted::Sent(sent) => sent,
        Posted::Full => {
            let message = format!("the mailbox of {} is full; it empties as what is in it expires", asked.to);
            return Err(Failure::rule(FailureKind::RateLimited, "mailbox-full", message));
        }
        Posted::Acked(_) => return Err(Failure::internal("a send was answered with something else")),
    };
    if sent.duplicate {
        if sent.to != asked.to {
            let message = "message_id: it is that of a message to somebody else";
            return Err(Failure::rule(FailureKind::IdempotencyConflict, "message-id-taken", message));
        }
        // Whoever kept it then may have stopped before it told anybody.
        for aid in [&asked.to, &caller.aid] {
            Mesh::of(app).delivery.look_again(aid);
            app.wake_others(&MAILBOX, aid);
        }
    }
    let delivered = sent.delivered || hand_out(app, &asked.to, &sent).await;
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

/// Whether somebody has this name, and a good certificate under it.
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

/// A message of the queue goes to one connection, here if there is one. It is sent in any case: what fails is tried again
/// later.
async fn hand_out(app: &App, to: &Aid, sent: &Sent) -> bool {
    if sent.mode != Mode::Queue || sent.duplicate || !Mesh::of(app).connections.is_online(to) {
        return false;
    }
    let handed_out = async {
        match queue::get_queued(&app.db, to, sent.seq).await? {
            Some(letter) => Mesh::of(app).delivery.hand_out(app, &letter).await,
            None => Ok(queue::is_taken(&app.db, to, sent.seq).await?),
        }
    };
    handed_out.await.unwrap_or_else(|failure| {
        tracing::warn!(%failure, cause = failure.cause.as_deref(), "a message of the queue could not be handed out");
        false
    })
}

/// Gives letters to connections here, and wakes the servers that may have others.
struct LocalConnections(App);

impl Recipients for LocalConnections {
    fn deliver(&self, letter: &Letter) -> bool {
        let Self(app) = self;
        app.wake_others(&MAILBOX, &letter.owner);
        Mesh::of(app).delivery.deliver(letter)
    }
}

async fn post(app: &App, post: Post) -> Result<Posted, Failure> {
    app.lanes.post(post, Arc::new(LocalConnections(app.clone()))).await.map_err(|error| match error {
        LaneError::Refused(failure) => failure,
        LaneError::Taken => Failure::rule(FailureKind::StateConflict, "message-taken", "sent twice at once; try again"),
        LaneError::Store(error) => error.into(),
    })
}

/// What came after a number, kept or queued, in order.
pub async fn pull(app: &App, caller: &MeshCaller, asked: PullParams) -> Result<PullResult, Failure> {
    let place = caller.place.of_call(asked.device_id.as_deref(), asked.slot_id.as_deref())?;
    let (limit, after, now) = (asked.limit()?, asked.after_seq, app.now());
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
    let kept = store::list(&app.db, &caller.aid, &place.device_id, after, limit, PULL_BYTES_MAX, now);
    let kept = kept.await?;
    let queue = queue::get(&app.db, &caller.aid, &mailbox, place, now).await?;
    let end = page_end(&kept, &queue, after, limit);
    let server_ack_seq = if after <= acked { floor(&kept, &queue, acked, mailbox.last_seq) } else { acked };
    let mut messages = kept.messages;
    messages.retain(|message| message.seq <= end);
    if queue.open.iter().any(|(seq, _)| (after + 1..=end).contains(seq)) {
        // What another has taken meanwhile is the other's.
        let claimed = queue::claim_open(&app.db, &caller.aid, place, after, end, now).await?;
        messages.extend(claimed.iter().filter_map(|letter| letter.for_device(&place.device_id)));
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

/// Up to where nothing is left to come for a place: what it has acknowledged, and the hole after that, if there is one. Messages
/// were recalled, have expired or are for others, and the published client waits for every number that it is not told of here.
/// `kept` holds what comes after some number up to `acked`; `last_seq` was read before it.
fn floor(kept: &Kept, queue: &Queue, acked: i64, last_seq: i64) -> i64 {
    let next_kept = kept.messages.iter().map(|message| message.seq).find(|seq| *seq > acked);
    if next_kept.is_none() && !kept.is_all {
        return acked;
    }
    let next_open = queue.open.iter().map(|(seq, _)| *seq).find(|seq| *seq > acked);
    let next = next_kept.into_iter().chain(next_open).min();
    next.map_or(last_seq, |next| (next - 1).min(last_seq)).max(acked)
}

/// The last number of a page that starts after one: as many of both kinds as fit, and at least one. Nothing of the queue goes
/// past a kept message that was not read.
fn page_end(kept: &Kept, queue: &Queue, after: i64, limit: u32) -> i64 {
    let horizon = kept.messages.last().filter(|_| !kept.is_all).map_or(i64::MAX, |last| last.seq);
    let open = queue.open.iter().copied().filter(|(seq, _)| *seq > after && *seq < horizon);
    let sized = kept.messages.iter().map(|message| (message.seq, message.payload.as_str().len()));
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

/// Moves the mark of this place, and tells those whose messages it has passed.
pub async fn ack(app: &App, caller: &MeshCaller, asked: AckParams) -> Result<AckResult, Failure> {
    let place = caller.place.of_call(asked.device_id.as_deref(), asked.slot_id.as_deref())?;
    if asked.seq < 0 {
        return Err(Failure::invalid("ack-seq", "seq: 0 or more").detail("field", "seq"));
    }
    let ack = Ack { aid: caller.aid.clone(), place: place.clone(), seq: asked.seq };
    let Posted::Acked(Acked { ack_seq, senders, .. }) = post(app, Post::Ack(ack)).await? else {
        return Err(Failure::internal("an acknowledgement was answered with something else"));
    };
    let event = AckEvent {
        to: caller.aid.clone(),
        device_id: place.device_id.clone(),
        slot_id: place.slot_id.clone(),
        ack_seq,
        timestamp: app.now().as_millisecond(),
    };
    senders.iter().for_each(|sender| tell(app, sender, ACK_EVENT, &event));
    Ok(AckResult { success: true, ack_seq })
}

/// Tells every connection of an agent, here and elsewhere.
fn tell(app: &App, aid: &Aid, event: &str, params: &impl Serialize) {
    let frame = notification(event, params);
    Mesh::of(app).connections.push(aid, &frame);
    app.send_to_others(&MAILBOX, aid, &frame);
}

/// Takes messages back that were sent a short while ago.
pub async fn recall(app: &App, caller: &MeshCaller, asked: RecallParams) -> Result<RecallResult, Failure> {
    asked.check()?;
    let (mut recalled, mut errors): (BTreeMap<Aid, Vec<String>>, Vec<RecallFailure>) = (BTreeMap::new(), vec![]);
    let accepted = asked.message_ids.len();
    for message_id in asked.message_ids {
        match store::recall(&app.db, &caller.aid, &message_id, app.now()).await? {
            Ok(to) => recalled.entry(to).or_default().push(message_id),
            Err(error) => errors.push(RecallFailure { message_id, error }),
        }
    }
    let count = recalled.values().map(Vec::len).sum();
    for (to, message_ids) in recalled {
        let timestamp = app.now().as_millisecond();
        let event = RecalledEvent { from: caller.aid.clone(), to: to.clone(), message_ids, timestamp };
        tell(app, &to, RECALLED_EVENT, &event);
    }
    let errors = (!errors.is_empty()).then_some(errors);
    Ok(RecallResult { success: true, accepted, recalled: count, errors })
}

pub async fn query_online(app: &App, _: &MeshCaller, asked: QueryOnlineParams) -> Result<QueryOnlineResult, Failure> {
    asked.check()?;
    let mut online = BTreeMap::new();
    for name in asked.aids {
        let is_online = match name.parse() {
            Ok(aid) => presence::is_online(app, &aid).await?,
            Err(_) => false,
        };
        online.insert(name, is_online);
    }
    Ok(QueryOnlineResult { online })
}

/// Keeps a prekey that its owner signed.
pub async fn put_prekey(app: &App, caller: &MeshCaller, mut asked: Prekey) -> Result<PutPrekeyResult, Failure> {
    asked.check()?;
    let device_id = caller.place.of_call(asked.device_id.as_deref(), None)?.device_id.clone();
    let identity = identities::version(app, &caller.aid, Some(&asked.cert_fingerprint)).await?;
    let certificate =
        Certificate::from_pem(&identity.certificate).ok_or_else(|| Failure::internal("a kept certificate"))?;
    if identity.revoked_at.is_some() || !certificate.is_valid_at(app.wall()) {
        let message = "the certificate that the prekey names is good no longer";
        return Err(Failure::rule(FailureKind::Forbidden, "prekey-certificate", message));
    }
    if !is_signed(&asked, certificate) {
        let message = "the prekey is not signed by the key of the certificate that it names";
        return Err(Failure::rule(FailureKind::Forbidden, "prekey-signature", message));
    }
    asked.device_id = (!device_id.is_empty()).then(|| device_id.clone());
    stored_prekeys::update(&app.db, &caller.aid, &device_id, &asked, app.now()).await?;
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

/// The newest prekeys of an agent. Reading takes none away.
pub async fn get_prekey(app: &App, _: &MeshCaller, asked: GetPrekeyParams) -> Result<GetPrekeyResult, Failure> {
    let device_prekeys = stored_prekeys::list(&app.db, &asked.aid).await?;
    let prekey = device_prekeys.first().cloned();
    Ok(GetPrekeyResult { found: prekey.is_some(), prekey, device_prekeys })
}

/// Clears away what has expired.
pub async fn sweep(app: &App) -> Result<(), Failure> {
    let idle = app.now().checked_sub(MARKS_KEPT).unwrap_or_default();
    store::delete_expired(&app.db, app.now(), idle).await?;
    presence::sweep(app).await
}
