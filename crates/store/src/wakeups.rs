//! Wake-ups between servers on one Postgres: what was just made durable by one server, sent to the others. A wake-up is a hint
//! and may be lost; the store is the truth. It is sent after the commit and on a connection of its own, because a commit that
//! notifies takes a lock that all of Postgres shares. With SQLite there is one process, and none of this happens.

mod legacy_format;
mod message;

use std::time::Duration;

use ostler_protocol::Timestamp;
use sqlx::{
    Executor, PgConnection,
    postgres::{PgListener, PgPoolOptions},
};

use crate::{
    db::{Db, Engine},
    error::StoreError,
    postgres::{
        connections::{ANSWER_MAX, connect, within},
        hosts::Hosts,
    },
};

use message::FRAMES_BYTES_MAX;
pub use message::{Frame, Keys, LegacyWord, Wakeups};

const CHANNEL: &str = "ostler";
/// A receiver that has received nothing for this long checks whether its connection still works.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Has Postgres probe a silent server, and give up on it.
const MISSED_AFTER: [&str; 3] =
    ["SET tcp_keepalives_idle = 15", "SET tcp_keepalives_interval = 5", "SET tcp_keepalives_count = 3"];
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The frames that are stored in a row. Empty if it was deleted.
pub async fn get_frames(db: &Db, row: i64) -> Result<Wakeups, StoreError> {
    let found = db.read_one("SELECT said FROM wakeups WHERE number = $1", vec![row.into()], |row| row.text()).await?;
    Ok(decode_frames(&found.unwrap_or_default()))
}

fn decode_frames(text: &str) -> Wakeups {
    Wakeups::decode_frames(text).unwrap_or_else(|| legacy_format::decode_frames(text))
}

/// The server that sent a message, and its content.
fn decode(text: &str) -> (Option<i64>, Wakeups) {
    Wakeups::decode(text).unwrap_or_else(|| legacy_format::decode(text))
}

/// Deletes rows of frames that were sent before this.
pub async fn delete_sent(db: &Db, before: Timestamp) -> Result<(), StoreError> {
    db.execute("DELETE FROM wakeups WHERE told_at < $1", vec![before.into()]).await
}

/// Wakes the other servers.
pub struct Sender {
    server: i64,
    hosts: Hosts,
    connection: Option<PgConnection>,
}

impl Sender {
    /// `None` if this store has no other servers. The number keeps this server from waking itself.
    pub fn new(db: &Db, server: i64) -> Option<Self> {
        let Engine::Postgres(connections) = &db.engine else { return None };
        Some(Self { server, hosts: connections.hosts.clone(), connection: None })
    }

    pub async fn send(&mut self, wakeups: &Wakeups, now: Timestamp) -> Result<(), StoreError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => connect(&self.hosts).await?,
        };
        let mut row = None;
        if wakeups.frames_bytes() > FRAMES_BYTES_MAX {
            let insert = "INSERT INTO wakeups (said, told_at) VALUES ($1, $2) RETURNING number";
            let left = sqlx::query_scalar::<_, i64>(insert).bind(wakeups.encode_frames()).bind(now.as_microsecond());
            row = Some(within(ANSWER_MAX, "no answer", left.fetch_one(&mut connection)).await?);
        }
        let notify = sqlx::query("SELECT pg_notify($1, $2)").bind(CHANNEL).bind(wakeups.encode(self.server, row));
        within(ANSWER_MAX, "no answer", notify.execute(&mut connection)).await?;
        // One that failed is not used again.
        self.connection = Some(connection);
        Ok(())
    }
}

/// Receives the wake-ups of other servers, for as long as its connection lasts.
pub struct Receiver {
    server: i64,
    /// How this server's own messages begin.
    own: String,
    inner: PgListener,
}

impl Receiver {
    /// `None` if this store has no other servers. While it is connected, it holds a lock by which the other servers know that
    /// this server runs; Postgres releases the lock of one that vanishes after half a minute.
    pub async fn connect(db: &Db, server: i64) -> Result<Option<Self>, StoreError> {
        let Engine::Postgres(connections) = &db.engine else { return Ok(None) };
        let alone = PgPoolOptions::new().max_connections(1).max_lifetime(None).idle_timeout(None);
        let host = connections.hosts.find().await?;
        let alone = alone.acquire_timeout(CONNECT_TIMEOUT).connect_with(host).await?;
        let mut inner = PgListener::connect_with(&alone).await?;
        // The caller must notice a reconnect, because wake-ups in between are lost.
        inner.eager_reconnect(false);
        for setting in MISSED_AFTER {
            inner.execute(setting).await?;
        }
        inner.execute(sqlx::query("SELECT pg_advisory_lock_shared($1)").bind(server)).await?;
        inner.listen(CHANNEL).await?;
        Ok(Some(Self { server, own: Wakeups::beginning_of(server), inner }))
    }

    /// The next wake-ups of another server. After an error the connection is not used again.
    pub async fn receive(&mut self) -> Result<Wakeups, StoreError> {
        loop {
            // On the heap: the future is large, and the time limit would be moved with it.
            let next = Box::pin(self.inner.try_recv());
            match tokio::time::timeout(SILENCE_MAX, next).await {
                Ok(received) => {
                    let received = received?.ok_or(StoreError::Stopped)?;
                    if received.payload().starts_with(&self.own) {
                        continue;
                    }
                    let (server, wakeups) = decode(received.payload());
                    if server != Some(self.server) {
                        return Ok(wakeups);
                    }
                }
                Err(_) => {
                    let responds = tokio::time::timeout(CONNECT_TIMEOUT, self.inner.execute("SELECT 1")).await;
                    responds.map_err(|_| StoreError::Stopped)??;
                }
            }
        }
    }
}
