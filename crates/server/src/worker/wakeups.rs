//! Wake-ups between servers of one store: what was committed here wakes followers, waits and launchers there. A session that
//! is followed here is read once for all its followers. Lost wake-ups are harmless, because every waiting task also reads the
//! store from time to time.

mod pending;
pub(crate) use pending::Pending;

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use futures_util::{StreamExt, stream};
use jiff::SignedDuration;
use ostler_protocol::{Failure, ids::SessionId};
use ostler_store::{
    self as store, StoreError,
    wakeups::{LegacyWord, Receiver, Sender, Wakeups},
};

use crate::{app::App, dialect::Dialects, net::sockets::Frame};

/// The first wake-ups are sent at once, the next ones together after this long.
const SEND_PAUSE: Duration = Duration::from_millis(10);
/// "Read everything" is expensive for the others and is sent less often.
const SEND_EVERYTHING_PAUSE: Duration = Duration::from_millis(250);
/// Pause before the first reconnect; it doubles with each attempt.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Sessions read at once for the followers here.
const READS_MAX: usize = 4;
/// A follower that lacks more than this reads for itself.
const EVENTS_MAX: i64 = 256;
/// Frames that do not fit into a wake-up are read as soon as it arrives, and kept a little longer.
const FRAMES_KEPT: SignedDuration = SignedDuration::from_mins(1);

/// Sends, receives and passes on wake-ups until the server stops.
pub(crate) async fn run(app: App, outgoing: Arc<Pending>) {
    let Some(sender) = Sender::new(&app.db, app.server_number) else { return };
    let incoming = Pending::default();
    tokio::select! {
        () = send(&app, &outgoing, sender) => {}
        () = receive(&app, &incoming) => {}
        () = pass_on(&app, &incoming) => {}
        () = app.stopped() => {}
    }
}

async fn send(app: &App, outgoing: &Pending, mut sender: Sender) {
    let mut retry = RETRY_MIN;
    loop {
        let wakeups = outgoing.take().await;
        let pause = match sender.send(&wakeups, app.now()).await {
            Ok(()) => {
                retry = RETRY_MIN;
                let is_expensive = wakeups.all_sessions || wakeups.topics.values().any(|keys| keys.all);
                if is_expensive { SEND_EVERYTHING_PAUSE } else { SEND_PAUSE }
            }
            Err(error) => {
                tracing::warn!(%error, "waking the other servers failed; until it works, their followers poll the store");
                outgoing.add(wakeups);
                longer(&mut retry)
            }
        };
        tokio::time::sleep(pause).await;
    }
}

async fn receive(app: &App, incoming: &Pending) {
    let mut retry = RETRY_MIN;
    loop {
        let lost = match Receiver::connect(&app.db, app.server_number).await {
            Ok(None) => return,
            Ok(Some(receiver)) => {
                // Wake-ups that were sent while this server was not connected are unknown.
                incoming.add(Wakeups::everything());
                match before_listening(app).await {
                    Ok(()) => {
                        retry = RETRY_MIN;
                        listen(receiver, incoming).await.to_string()
                    }
                    Err(failure) => {
                        format!("a dialect could not prepare for wake-ups: {}", failure.cause.unwrap_or_default())
                    }
                }
            }
            Err(error) => error.to_string(),
        };
        tracing::warn!(error = %lost, "wake-ups of other servers are not received; until then followers poll the store");
        tokio::time::sleep(longer(&mut retry)).await;
    }
}

/// Runs what dialects have to store before this server counts as connected.
async fn before_listening(app: &App) -> Result<(), Failure> {
    for chore in Dialects::of(app).iter().filter_map(|dialect| dialect.before_listening.as_ref()) {
        chore(app.clone()).await?;
    }
    Ok(())
}

async fn listen(mut receiver: Receiver, incoming: &Pending) -> StoreError {
    loop {
        match receiver.receive().await {
            Ok(wakeups) => incoming.add(wakeups),
            Err(error) => return error,
        }
    }
}

/// The pause before this attempt. Doubles `retry` for the next one.
fn longer(retry: &mut Duration) -> Duration {
    std::mem::replace(retry, (*retry * 2).min(RETRY_MAX))
}

/// Deletes stored frames that the others have read.
pub(crate) async fn sweep(app: &App) -> Result<(), Failure> {
    if !app.db.multi_replica() {
        return Ok(());
    }
    let before = app.now().checked_sub(FRAMES_KEPT).unwrap_or_default();
    Ok(store::wakeups::delete_sent(&app.db, before).await?)
}

async fn pass_on(app: &App, incoming: &Pending) {
    loop {
        let mut wakeups = incoming.take().await;
        let mut unread = vec![];
        for row in std::mem::take(&mut wakeups.rows) {
            match store::wakeups::get_frames(&app.db, row).await {
                Ok(frames) => wakeups.merge(frames),
                Err(error) => {
                    tracing::warn!(%error, "frames for connections here could not be read; trying again");
                    unread.push(row);
                }
            }
        }
        let is_unread = !unread.is_empty();
        incoming.lock().rows.extend(unread);
        if wakeups.jobs {
            app.hub.wake_for_jobs();
        }
        if wakeups.all_sessions {
            app.hub.reread_all();
        }
        wake_topics(app, &wakeups);
        let followed = wakeups.sessions.into_iter().filter(|(session, _)| app.hub.is_followed(*session));
        let reads = stream::iter(followed).map(|(session, numbers)| publish(app, session, numbers));
        reads.buffer_unordered(READS_MAX).collect::<()>().await;
        if is_unread {
            tokio::time::sleep(RETRY_MIN).await;
        }
    }
}

fn wake_topics(app: &App, wakeups: &Wakeups) {
    let find_topic = |name: &str| Dialects::of(app).topics().find(|topic| topic.name == name);
    // A newer server may have replaced a topic of this server by another one.
    let is_unknown = wakeups.topics.keys().any(|name| find_topic(name).is_none());
    for topic in Dialects::of(app).topics() {
        let all = if topic.is_urgent { wakeups.all_urgent } else { wakeups.all_topics };
        let keys = wakeups.topics.get(topic.name);
        if all || is_unknown || keys.is_some_and(|keys| keys.all) {
            (topic.wake_all)(app);
        }
        keys.into_iter().flat_map(|keys| &keys.named).for_each(|key| (topic.wake)(app, key));
    }
    for frame in &wakeups.frames {
        if let (Some(topic), Some(text)) = (find_topic(&frame.topic), decoded(&frame.frame)) {
            (topic.receive)(app, &frame.key, text);
        }
    }
    wakeups.legacy_words.iter().for_each(|word| wake_legacy(app, word));
}

/// Handles a word of a server of the former version: it belongs to the first topic that recognises it.
fn wake_legacy(app: &App, word: &LegacyWord) {
    let meant = Dialects::of(app).topics().find_map(|topic| Some((topic, (topic.legacy)(word)?)));
    let Some((topic, key)) = meant else { return };
    match word {
        LegacyWord::Frame(_, frame) => decoded(frame).into_iter().for_each(|frame| (topic.receive)(app, &key, frame)),
        LegacyWord::Listener(_) | LegacyWord::Urgent(_) => (topic.wake)(app, &key),
    }
}

fn decoded(frame: &str) -> Option<Frame> {
    BASE64.decode(frame).ok().and_then(|bytes| String::from_utf8(bytes).ok()).map(Into::into)
}

/// Reads the events that another server wrote, once for all followers here.
async fn publish(app: &App, session: SessionId, (first, last): (i64, i64)) {
    let count = last.saturating_sub(first).saturating_add(1);
    let read = match u32::try_from(count) {
        Ok(limit) if count <= EVENTS_MAX => {
            store::kernel::events::list_by_session(&app.db, session, first - 1, limit).await.ok()
        }
        _ => None,
    };
    match read.filter(|page| !page.events.is_empty()) {
        Some(page) => app.hub.publish(page.events),
        None => app.hub.reread(session),
    }
}
