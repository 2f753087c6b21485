//! Durable messages of 1 kB, in batches of the same size, of as many clients: events appended to Ostler over HTTP, and
//! messages published to a JetStream.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::timeout;

use super::jetstream::Publisher;
use super::meter::{Meter, Throughput};
use crate::append::{BATCH_EVENTS, CONNECTIONS, EVENT_TYPE, payload};
use crate::calls::{Append, claimed_run};
use crate::http::Connection;
use crate::machine::{now, since};
use crate::outcome::Outcome;
use crate::server::Server;

const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

enum Client {
    Ostler(Connection, Append),
    JetStream(Publisher),
}

impl Client {
    /// One batch, until it is durable.
    async fn send(&mut self) -> Outcome<()> {
        match self {
            Self::Ostler(connection, append) => append.send(connection).await,
            Self::JetStream(publisher) => publisher.publish().await,
        }
    }
}

/// All clients of one side.
pub(crate) struct Writers {
    clients: Vec<Client>,
    pids: Vec<u32>,
}

impl Writers {
    /// Each client has a run of its own.
    pub(crate) async fn of_ostler(server: &Server, pids: Vec<u32>) -> Outcome<Self> {
        let events = vec![(EVENT_TYPE, payload()); BATCH_EVENTS];
        let mut clients = vec![];
        for _ in 0..CONNECTIONS {
            let mut connection = Connection::open(server).await?;
            let claimed = claimed_run(&mut connection, server).await?;
            clients.push(Client::Ostler(connection, Append::new(server, &claimed, &events)));
        }
        Ok(Self { clients, pids })
    }

    /// Each client has a subject of its own in one stream, which is how its guides model many sessions.
    pub(crate) async fn of_jetstream(address: SocketAddr, pids: Vec<u32>) -> Outcome<Self> {
        let mut clients = vec![];
        for number in 0..CONNECTIONS {
            let mut publisher = Publisher::open(address, number, &payload(), BATCH_EVENTS).await?;
            if number == 0 {
                publisher.create_stream(number).await?;
            }
            clients.push(Client::JetStream(publisher));
        }
        Ok(Self { clients, pids })
    }

    /// All clients for so long.
    pub(crate) async fn round(&mut self, duration: Duration) -> Outcome<Throughput> {
        timeout(WAIT_TIMEOUT, self.work(Duration::ZERO)).await??;
        let meter = Meter::start(&self.pids)?;
        let waiting_ms = timeout(duration + WAIT_TIMEOUT, self.work(duration)).await??;
        meter.finish(waiting_ms, BATCH_EVENTS).await
    }

    /// At least one batch of each client.
    async fn work(&mut self, duration: Duration) -> Outcome<Vec<f64>> {
        let started = now();
        let all = self.clients.iter_mut().map(|client| async move {
            let mut waiting_ms = vec![];
            loop {
                let before = now();
                client.send().await?;
                waiting_ms.push(since(before).as_secs_f64() * 1e3);
                if since(started) >= duration {
                    return Outcome::Ok(waiting_ms);
                }
            }
        });
        Ok(try_join_all(all).await?.concat())
    }
}
