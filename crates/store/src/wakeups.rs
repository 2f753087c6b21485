//! Wake-ups between servers on one Postgres: what was just made durable here, told to whoever listens elsewhere. A wake-up is
//! a hint and may be lost; the store is the truth. It goes out after the commit and on a connection of its own, because a
//! commit that notifies takes a lock that all of Postgres shares. SQLite has one process, and nobody to tell.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use ostler_protocol::{Timestamp, ids::SessionId, kernel::events::Event};
use sqlx::{
    Executor, PgConnection,
    postgres::{PgConnectOptions, PgListener, PgPoolOptions},
};

use crate::{
    db::{Db, Engine, StoreError},
    postgres::{ANSWER_MAX, connect, within},
};

const CHANNEL: &str = "ostler";
/// Postgres takes fewer than 8,000 bytes.
const PAYLOAD_BYTES_MAX: usize = 7_999;
/// More than these never fit one payload, so they need not be remembered one by one.
const SESSIONS_MAX: usize = 200;
const LISTENERS_MAX: usize = 200;
/// Of what is urgent, in one payload.
const URGENT_BYTES_MAX: usize = 2_000;
/// Frames for others' connections that go into a payload; where there are more, it names the row that they lie in.
const SAID_BYTES_MAX: usize = 3_000;
/// Frames that wait to be told; more are not, for they are a convenience.
const WAITING_BYTES_MAX: usize = 4 * 1024 * 1024;
/// A listener that has heard nothing for this long asks whether its connection still stands.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Has Postgres ask a silent server whether it is there, and give up on it.
const MISSED_AFTER: [&str; 3] =
    ["SET tcp_keepalives_idle = 15", "SET tcp_keepalives_interval = 5", "SET tcp_keepalives_count = 3"];
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Stand for "more than could be named".
const EVERYTHING: &str = "*";
const EVERYBODY: &str = "@*";
const ALL_URGENT: &str = "^*";

/// What happened since the last wake-up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct News {
    /// Sessions with new events, and the first and the last of their numbers.
    pub sessions: BTreeMap<SessionId, (i64, i64)>,
    /// Whoever has something new waiting for them, by name.
    pub listeners: BTreeSet<String>,
    /// What must not be lost among those, however many there are.
    pub urgent: BTreeSet<String>,
    urgent_bytes: usize,
    /// Frames for an agent's connections elsewhere: whose, and what, as text without blanks.
    pub said: Vec<(String, String)>,
    said_bytes: usize,
    /// Rows with more such frames.
    pub rows: Vec<i64>,
    /// A runner job waits for a launcher.
    pub jobs: bool,
    /// More happened in sessions than was named: read everything again.
    pub everything: bool,
    /// Something waits for more listeners than were named.
    pub everybody: bool,
    /// More is urgent than was named.
    pub all_urgent: bool,
}

impl News {
    pub fn everything() -> Self {
        Self { everything: true, everybody: true, all_urgent: true, jobs: true, ..Self::default() }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub fn add_event(&mut self, event: &Event) {
        self.add_session(event.session, (event.session_seq, event.session_seq));
    }

    pub fn merge(&mut self, other: Self) {
        self.jobs |= other.jobs;
        self.everything |= other.everything;
        self.everybody |= other.everybody;
        self.all_urgent |= other.all_urgent;
        other.sessions.into_iter().for_each(|(session, numbers)| self.add_session(session, numbers));
        other.listeners.into_iter().for_each(|name| self.add_listener(name));
        other.urgent.into_iter().for_each(|name| self.add_urgent(name));
        other.said.into_iter().for_each(|(name, frame)| self.say(name, frame));
        self.rows.extend(other.rows);
    }

    /// A frame for somebody's connections elsewhere. What is too much is left out.
    pub fn say(&mut self, name: String, frame: String) {
        let bytes = self.said_bytes + name.len() + frame.len();
        if bytes <= WAITING_BYTES_MAX {
            self.said_bytes = bytes;
            self.said.push((name, frame));
        }
    }

    /// What is said, as words: `!name!frame` each.
    fn said(&self) -> String {
        self.said.iter().map(|(name, frame)| format!(" !{name}!{frame}")).collect()
    }

    /// A name is one word.
    pub fn add_listener(&mut self, name: String) {
        self.listeners.insert(name);
        self.everybody |= self.listeners.len() > LISTENERS_MAX;
        if self.everybody {
            self.listeners.clear();
        }
    }

    /// A name is one word.
    pub fn add_urgent(&mut self, name: String) {
        let bytes = name.len() + " ^".len();
        if self.urgent.insert(name) {
            self.urgent_bytes += bytes;
        }
        self.all_urgent |= self.urgent_bytes > URGENT_BYTES_MAX;
        if self.all_urgent {
            self.urgent.clear();
            self.urgent_bytes = 0;
        }
    }

    fn add_session(&mut self, session: SessionId, (first, last): (i64, i64)) {
        let known = self.sessions.entry(session).or_insert((first, last));
        *known = (known.0.min(first), known.1.max(last));
        self.everything |= self.sessions.len() > SESSIONS_MAX;
        if self.everything {
            self.sessions.clear();
        }
    }

    /// Words: who says it, `j` or `-`, and then `^urgent`, `@listener` and `session:first-last`, as many as there are; or
    /// `^*`, `@*` and `*`, when they do not fit. Sessions give way first: whoever waits for one looks anyway, every few
    /// seconds. What is said are words already, or `#row` where those lie.
    fn encode(&self, origin: &str, said: &str) -> String {
        let mut text = format!("{origin} {}", if self.jobs { 'j' } else { '-' });
        let listeners: String = self.listeners.iter().map(|name| format!(" @{name}")).collect();
        text += said;
        match self.all_urgent {
            true => text.extend([" ", ALL_URGENT]),
            false => self.urgent.iter().for_each(|name| text.extend([" ^", name])),
        }
        let is_short = !self.everybody && text.len() + listeners.len() + EVERYTHING.len() < PAYLOAD_BYTES_MAX;
        text += &if is_short { listeners } else { format!(" {EVERYBODY}") };
        let sessions = self.sessions.iter().map(|(session, (first, last))| format!(" {session}:{first}-{last}"));
        let sessions: String = sessions.collect();
        let is_short = !self.everything && text.len() + sessions.len() <= PAYLOAD_BYTES_MAX;
        text += &if is_short { sessions } else { format!(" {EVERYTHING}") };
        text
    }

    /// Who says it and what. What cannot be read, as a newer server may write it, is a reason to read everything.
    fn decode(text: &str) -> (&str, Self) {
        let mut words = text.split(' ');
        let origin = words.next().unwrap_or_default();
        let mut news = Self::default();
        match words.next() {
            Some("j") => news.jobs = true,
            Some("-") => {}
            _ => return (origin, Self::everything()),
        }
        for word in words {
            if let Some((name, frame)) = said(word) {
                news.say(name, frame);
                continue;
            }
            if let Some(row) = word.strip_prefix('#').and_then(|row| row.parse().ok()) {
                news.rows.push(row);
                continue;
            }
            if let Some(name) = word.strip_prefix('^') {
                match word {
                    ALL_URGENT => news.all_urgent = true,
                    _ => news.add_urgent(name.to_owned()),
                }
                continue;
            }
            match (word, word.strip_prefix('@'), range(word)) {
                (EVERYTHING, ..) => news.everything = true,
                (EVERYBODY, ..) => news.everybody = true,
                (_, Some(name), _) => news.add_listener(name.to_owned()),
                (_, None, Some((session, numbers))) => news.add_session(session, numbers),
                (_, None, None) => return (origin, Self::everything()),
            }
        }
        (origin, news)
    }
}

fn said(word: &str) -> Option<(String, String)> {
    let (name, frame) = word.strip_prefix('!')?.split_once('!')?;
    Some((name.to_owned(), frame.to_owned()))
}

/// The frames that lie in a row. None: it was cleared away.
pub async fn get_said(db: &Db, row: i64) -> Result<Vec<(String, String)>, StoreError> {
    let found = db.read_one("SELECT said FROM wakeups WHERE number = $1", vec![row.into()], |row| row.text()).await?;
    Ok(found.unwrap_or_default().split(' ').filter_map(said).collect())
}

/// Clears away what was told before this.
pub async fn delete_told(db: &Db, before: Timestamp) -> Result<(), StoreError> {
    db.execute("DELETE FROM wakeups WHERE told_at < $1", vec![before.into()]).await
}

fn range(word: &str) -> Option<(SessionId, (i64, i64))> {
    let (session, numbers) = word.split_once(':')?;
    let (first, last) = numbers.split_once('-')?;
    Some((session.parse().ok()?, (first.parse().ok()?, last.parse().ok()?)))
}

/// Tells the other servers.
pub struct Speaker {
    origin: String,
    options: PgConnectOptions,
    connection: Option<PgConnection>,
}

impl Speaker {
    /// `None`: this store has no other servers. By its number, this server need not listen to itself.
    pub fn new(db: &Db, server: i64) -> Option<Self> {
        let Engine::Postgres(connections) = &db.engine else { return None };
        Some(Self { origin: server.to_string(), options: connections.options.clone(), connection: None })
    }

    pub async fn tell(&mut self, news: &News, now: Timestamp) -> Result<(), StoreError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(&self.options).await?,
        };
        let mut said = news.said();
        if said.len() > SAID_BYTES_MAX {
            let insert = "INSERT INTO wakeups (said, told_at) VALUES ($1, $2) RETURNING number";
            let left = sqlx::query_scalar::<_, i64>(insert).bind(said).bind(now.as_microsecond());
            said = format!(" #{}", within(ANSWER_MAX, "no answer", left.fetch_one(&mut connection)).await?);
        }
        let told = sqlx::query("SELECT pg_notify($1, $2)").bind(CHANNEL).bind(news.encode(&self.origin, &said));
        within(ANSWER_MAX, "no answer", told.execute(&mut connection)).await?;
        // One that failed is not used again.
        self.connection = Some(connection);
        Ok(())
    }
}

/// Hears the other servers, for as long as its connection stands.
pub struct Listener {
    origin: String,
    inner: PgListener,
}

impl Listener {
    /// `None`: this store has no other servers. For as long as it listens, the server is there in the eyes of the others, who
    /// see it by the lock; one that vanishes without a word is missed after half a minute.
    pub async fn connect(db: &Db, server: i64) -> Result<Option<Self>, StoreError> {
        let Engine::Postgres(connections) = &db.engine else { return Ok(None) };
        let alone = PgPoolOptions::new().max_connections(1).max_lifetime(None).idle_timeout(None);
        let alone = alone.acquire_timeout(CONNECT_TIMEOUT).connect_with(connections.options.clone()).await?;
        let mut inner = PgListener::connect_with(&alone).await?;
        // Whoever reconnects has to know, because what was said meanwhile is lost.
        inner.eager_reconnect(false);
        for setting in MISSED_AFTER {
            inner.execute(setting).await?;
        }
        inner.execute(sqlx::query("SELECT pg_advisory_lock_shared($1)").bind(server)).await?;
        inner.listen(CHANNEL).await?;
        Ok(Some(Self { origin: server.to_string(), inner }))
    }

    /// The next news of another server. An error is the connection's end.
    pub async fn hear(&mut self) -> Result<News, StoreError> {
        loop {
            match tokio::time::timeout(SILENCE_MAX, self.inner.try_recv()).await {
                Ok(heard) => {
                    let heard = heard?.ok_or(StoreError::Stopped)?;
                    let (origin, news) = News::decode(heard.payload());
                    if origin != self.origin {
                        return Ok(news);
                    }
                }
                Err(_) => {
                    let asked = tokio::time::timeout(CONNECT_TIMEOUT, self.inner.execute("SELECT 1")).await;
                    asked.map_err(|_| StoreError::Stopped)??;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: usize) -> SessionId {
        format!("ses_{number:032x}").parse().expect("an id")
    }

    fn news(sessions: usize, last: i64) -> News {
        let mut news = News::default();
        (0..sessions).for_each(|number| news.add_session(session(number), (1, last)));
        news
    }

    fn encode(news: &News, origin: &str) -> String {
        news.encode(origin, &news.said())
    }

    #[test]
    fn what_is_told_is_heard() {
        let mut told = news(2, 3);
        told.add_listener("usr_1".into());
        told.add_urgent("!a.b".into());
        let mut speaking = news(1, 2);
        [("a.b", "eA=="), ("c.d", "eQ==")]
            .into_iter()
            .for_each(|(name, frame)| speaking.say(name.into(), frame.into()));
        let everybody = News { everybody: true, ..news(2, 3) };
        let everything = News { everything: true, listeners: told.listeners.clone(), ..News::default() };
        for said in [
            told,
            everybody,
            everything,
            News::everything(),
            news(0, 0),
            news(1, 9),
            News { jobs: true, ..news(3, 2) },
            News { jobs: true, ..news(0, 0) },
            speaking,
        ] {
            assert_eq!(News::decode(&encode(&said, "me")), ("me", said));
        }
    }

    #[test]
    fn many_wake_ups_of_one_session_are_one() {
        let mut all = news(2, 4);
        all.merge(News { jobs: true, ..Default::default() });
        all.merge(News { sessions: [(session(1), (3, 8))].into(), ..Default::default() });
        let sessions = [(session(0), (1, 4)), (session(1), (1, 8))].into();
        assert_eq!(all, News { sessions, jobs: true, ..News::default() });
    }

    #[test]
    fn whatever_happened_fits_a_notification() {
        for (sessions, last) in [(1, 1), (100, 99_999), (150, 9_999), (170, i64::MAX), (200, 9), (5_000, i64::MAX)] {
            let said = news(sessions, last);
            let text = encode(&said, "a-server-of-this-name");
            assert!(text.len() <= PAYLOAD_BYTES_MAX, "{sessions} sessions: {} bytes", text.len());
            let (_, heard) = News::decode(&text);
            assert!(heard == said || heard.everything, "{sessions} sessions");
        }
        assert!(!News::decode(&encode(&news(150, 9_999), "me")).1.everything, "the usual number is named");
    }

    #[test]
    fn more_listeners_than_can_be_named_are_everybody() {
        let mut told = News::default();
        (0..LISTENERS_MAX).for_each(|number| told.add_listener(format!("usr_{number:032x}")));
        assert_eq!(News::decode(&encode(&told, "a-server-of-this-name")).1, told, "the usual number is named");
        let beside = News { listeners: told.listeners.clone(), ..news(SESSIONS_MAX, i64::MAX) };
        let text = encode(&beside, "a-server-of-this-name");
        assert!(text.len() <= PAYLOAD_BYTES_MAX, "{} bytes", text.len());
        assert_eq!(News::decode(&text).1, News { everything: true, ..told.clone() }, "sessions give way");
        told.add_listener("local".into());
        assert_eq!(told, News { everybody: true, ..News::default() });
    }

    #[test]
    fn what_is_urgent_is_not_lost_among_mailboxes() {
        let mut told = News::default();
        told.add_urgent("!alice.localhost.test".into());
        (0..=LISTENERS_MAX).for_each(|number| told.add_listener(format!("agent-{number}.localhost.test")));
        told.say("a.b".into(), "x".repeat(SAID_BYTES_MAX - 6));
        let (_, heard) = News::decode(&encode(&told, "a-server-of-this-name"));
        let mut all = News::default();
        all.merge(heard);
        assert!(all.everybody && !all.all_urgent && all.urgent.contains("!alice.localhost.test"), "{all:?}");
        (0..100).for_each(|number| told.add_urgent(format!("!agent-{number}.localhost.test")));
        let text = encode(&told, "a-server-of-this-name");
        assert!(text.len() <= PAYLOAD_BYTES_MAX, "{} bytes", text.len());
        assert!(News::decode(&text).1.all_urgent, "more than can be named");
    }

    #[test]
    fn frames_that_do_not_fit_are_named_by_their_row() {
        let mut told = news(SESSIONS_MAX, i64::MAX);
        (0..LISTENERS_MAX).for_each(|number| told.add_listener(format!("usr_{number:032x}")));
        told.say("a.b".into(), "x".repeat(2 * PAYLOAD_BYTES_MAX));
        (0..60).for_each(|number| told.add_urgent(format!("!agent-{number}.localhost.test")));
        assert!(!told.all_urgent);
        let text = told.encode("a-server-of-this-name", " #7");
        assert!(text.len() <= PAYLOAD_BYTES_MAX, "{} bytes", text.len());
        assert_eq!(News::decode(&text).1.rows, [7]);
        told.said = vec![("a.b".into(), "x".repeat(SAID_BYTES_MAX - 6))];
        let text = encode(&told, "a-server-of-this-name");
        assert!(text.len() <= PAYLOAD_BYTES_MAX, "{} bytes", text.len());
        assert_eq!(News::decode(&text).1.said, told.said);
    }

    #[test]
    fn what_cannot_be_read_is_a_reason_to_read_everything() {
        for text in ["", "me", "me x", "me j ses_1:1-2", "me - whatever", "me - ses_00000000000000000000000000000001:1"]
        {
            assert_eq!(News::decode(text).1, News::everything(), "{text:?}");
        }
    }
}
