//! Wake-ups between servers: what was committed here is told to the others, and what they committed wakes followers, waits and
//! launchers here. A session that is followed here is read once for all its followers. Whatever is lost on the way is made
//! good by reading the store again, which everybody who waits does from time to time anyway.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use futures_util::{StreamExt, stream};
use jiff::SignedDuration;
use ostler_protocol::{
    Failure,
    ids::SessionId,
    mesh::{Aid, connections::Place},
};
use ostler_store::{
    self as store, StoreError,
    lane::Committed,
    wakeups::{Listener, News, Speaker},
};
use tokio::sync::Notify;

use crate::{
    app::{App, store_failure},
    live,
    service::mesh::presence,
};

/// The first news go out at once, the next ones together after this long.
const TELL_PAUSE: Duration = Duration::from_millis(10);
/// "Read everything" costs the others dear and is said less often.
const TELL_EVERYTHING_PAUSE: Duration = Duration::from_millis(250);
/// A connection that was lost is tried again after this long, then after twice as long each time.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Sessions read at once for the followers here.
const READS_MAX: usize = 4;
/// A follower that lacks more than this reads for itself.
const EVENTS_MAX: i64 = 256;

/// Before the name of an agent: not its mailbox, its logins.
const DOUBT: &str = "!";
/// Before a place of an agent's: whether somebody is there is asked, …
const PROBE: &str = "?";
/// … and was settled.
const SETTLED: &str = "=";
/// What does not fit a wake-up is read as soon as that is heard, and kept a little longer.
const TOLD_KEPT: SignedDuration = SignedDuration::from_mins(1);

/// News on their way: whoever takes them gets all there are, as one.
#[derive(Default)]
pub struct Tray {
    news: Mutex<News>,
    some: Notify,
}

impl Tray {
    /// What a flush of this server brought.
    pub fn put_committed(&self, committed: &Committed) {
        let mut news = self.lock();
        committed.events.iter().for_each(|event| news.add_event(event));
        news.jobs |= committed.jobs_waiting;
        if !news.is_empty() {
            self.some.notify_one();
        }
    }

    /// Something new waits for this listener.
    pub fn put_listener(&self, listener: &live::Listener) {
        self.lock().add_listener(listener.to_string());
        self.some.notify_one();
    }

    /// There is something new in an agent's mailbox.
    pub fn put_mailbox(&self, aid: &Aid) {
        self.lock().add_listener(aid.to_string());
        self.some.notify_one();
    }

    /// Logins of an agent have ended.
    pub fn put_doubt(&self, aid: &Aid) {
        self.lock().add_urgent(format!("{DOUBT}{aid}"));
        self.some.notify_one();
    }

    /// Somebody wants a place that another server has given away.
    pub fn put_probe(&self, aid: &Aid, place: &Place) {
        self.put_place(PROBE, aid, place);
    }

    /// Whoever had that place here has it still, or has left it.
    pub fn put_settled(&self, aid: &Aid, place: &Place) {
        self.put_place(SETTLED, aid, place);
    }

    fn put_place(&self, what: &str, aid: &Aid, Place { device_id, slot_id }: &Place) {
        self.lock().add_urgent(format!("{what}{device_id}/{slot_id}/{aid}"));
        self.some.notify_one();
    }

    /// A frame for somebody's connections to other servers.
    pub fn put_frame(&self, name: &impl ToString, frame: &str) {
        self.lock().say(name.to_string(), BASE64.encode(frame));
        self.some.notify_one();
    }

    fn put(&self, more: News) {
        self.lock().merge(more);
        self.some.notify_one();
    }

    async fn take(&self) -> News {
        loop {
            let news = std::mem::take(&mut *self.lock());
            if !news.is_empty() {
                return news;
            }
            self.some.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, News> {
        self.news.lock().expect("never poisoned")
    }
}

/// Tells, hears and passes on, until the server stops.
pub async fn run(app: App, told: Arc<Tray>) {
    let Some(speaker) = Speaker::new(&app.db, app.mesh.server) else { return };
    let heard = Tray::default();
    tokio::select! {
        () = tell(&app, &told, speaker) => {}
        () = hear(&app, &heard) => {}
        () = pass_on(&app, &heard) => {}
        () = app.stopped() => {}
    }
}

async fn tell(app: &App, told: &Tray, mut speaker: Speaker) {
    let mut retry = RETRY_MIN;
    loop {
        let news = told.take().await;
        let pause = match speaker.tell(&news, app.now()).await {
            Ok(()) => {
                retry = RETRY_MIN;
                if news.everything || news.everybody { TELL_EVERYTHING_PAUSE } else { TELL_PAUSE }
            }
            Err(error) => {
                tracing::warn!(%error, "waking the other servers failed; their followers read the store meanwhile");
                told.put(news);
                longer(&mut retry)
            }
        };
        tokio::time::sleep(pause).await;
    }
}

async fn hear(app: &App, heard: &Tray) {
    let mut retry = RETRY_MIN;
    loop {
        let lost = match Listener::connect(&app.db, app.mesh.server).await {
            Ok(None) => return,
            Ok(Some(listener)) => {
                // Wake-ups that were sent while nothing listened are unknown.
                heard.put(News::everything());
                match presence::tell_all(app).await {
                    Ok(()) => {
                        retry = RETRY_MIN;
                        listen(listener, heard).await.to_string()
                    }
                    // Connect again: until this is stored, the other servers take the agents here for absent.
                    Err(failure) => format!("presence could not be stored: {}", failure.cause.unwrap_or_default()),
                }
            }
            Err(error) => error.to_string(),
        };
        tracing::warn!(error = %lost, "the other servers cannot be heard; followers read the store meanwhile");
        tokio::time::sleep(longer(&mut retry)).await;
    }
}

async fn listen(mut listener: Listener, heard: &Tray) -> StoreError {
    loop {
        match listener.hear().await {
            Ok(news) => heard.put(news),
            Err(error) => return error,
        }
    }
}

/// How long to wait this time; the next time it is twice as long.
fn longer(retry: &mut Duration) -> Duration {
    std::mem::replace(retry, (*retry * 2).min(RETRY_MAX))
}

/// Clears away what the others have read.
pub async fn sweep(app: &App) -> Result<(), Failure> {
    if !app.db.multi_replica() {
        return Ok(());
    }
    let before = app.now().checked_sub(TOLD_KEPT).unwrap_or_default();
    store::wakeups::delete_told(&app.db, before).await.map_err(store_failure)
}

async fn pass_on(app: &App, heard: &Tray) {
    loop {
        let mut news = heard.take().await;
        let mut unread = vec![];
        for row in std::mem::take(&mut news.rows) {
            match store::wakeups::get_said(&app.db, row).await {
                Ok(said) => said.into_iter().for_each(|(name, frame)| news.say(name, frame)),
                Err(error) => {
                    tracing::warn!(%error, "frames for connections here could not be read; trying again");
                    unread.push(row);
                }
            }
        }
        let is_unread = !unread.is_empty();
        heard.lock().rows.extend(unread);
        if news.jobs {
            app.hub.jobs.notify_one();
        }
        if news.everything {
            app.hub.reread_all();
        }
        if news.everybody {
            app.live.reread_all();
            app.mesh.delivery.look_at_all();
        }
        if news.all_urgent {
            // One query for each connection: only where a revocation may have been missed.
            app.mesh.doubt_all();
        }
        news.urgent.iter().chain(&news.listeners).for_each(|name| wake(app, name));
        for (name, frame) in &news.said {
            let frame = BASE64.decode(frame).ok().and_then(|bytes| String::from_utf8(bytes).ok());
            let Some(frame) = frame.map(Into::into) else { continue };
            match name.parse::<Aid>() {
                Ok(aid) => app.mesh.connections.push(&aid, &frame),
                Err(_) => app.live.say(&live::Listener::named(name), &frame),
            }
        }
        let followed = news.sessions.into_iter().filter(|(session, _)| app.hub.is_followed(*session));
        let reads = stream::iter(followed).map(|(session, numbers)| publish(app, session, numbers));
        reads.buffer_unordered(READS_MAX).collect::<()>().await;
        if is_unread {
            tokio::time::sleep(RETRY_MIN).await;
        }
    }
}

/// Somebody here is named by another server.
fn wake(app: &App, name: &str) {
    if let Some(Ok(aid)) = name.strip_prefix(DOUBT).map(str::parse::<Aid>) {
        app.mesh.doubt(&aid);
    } else if let Some((aid, place)) = name.strip_prefix(PROBE).and_then(place) {
        tokio::spawn(presence::answer_probe(app.clone(), aid, place));
    } else if let Some(settled) = name.strip_prefix(SETTLED).and_then(place) {
        // Perhaps nobody waits for it here.
        let _ = app.mesh.connections.settled_elsewhere.send(settled);
    } else if let Ok(aid) = name.parse::<Aid>() {
        // Names of the mesh have a dot in them, and nobody else's have.
        app.mesh.delivery.look_again(&aid);
    } else {
        app.live.reread(&live::Listener::named(name));
    }
}

fn place(name: &str) -> Option<(Aid, Place)> {
    let mut parts = name.splitn(3, '/');
    let (device_id, slot_id) = (parts.next()?.to_owned(), parts.next()?.to_owned());
    Some((parts.next()?.parse().ok()?, Place { device_id, slot_id }))
}

/// Reads what another server wrote, once for all who follow it here.
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
