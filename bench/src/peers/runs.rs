//! Runs of both sides, by the same generator: 16 clients that each post one message after the other and read the answer to
//! its end, and one client alone.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::try_join_all;
use memchr::memmem;
use tokio::time::timeout;

use super::meter::{Meter, Throughput};
use crate::http::Connection;
use crate::machine::{now, since};
use crate::outcome::Outcome;
use crate::run::CLIENTS;

const WARM_UP_RUNS_PER_CLIENT: usize = 5;
const ANSWER_BYTES_SHOWN_MAX: usize = 600;
/// A round that takes so much longer than it should has failed.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

type Request<'a> = Box<dyn Fn(usize, usize) -> Vec<u8> + 'a>;

/// One side of the comparison.
pub(crate) struct Side<'a> {
    address: SocketAddr,
    /// Their CPU time counts, and that of everything that descends from them.
    pids: Vec<u32>,
    /// The bytes of a run, by the client's number and the run's.
    request: Request<'a>,
    /// Only the answer of a run that succeeded contains this.
    end: &'static [u8],
    /// The number of each client's next run.
    next: Vec<usize>,
}

impl<'a> Side<'a> {
    pub(crate) fn new(address: SocketAddr, pids: Vec<u32>, request: Request<'a>, end: &'static [u8]) -> Self {
        Self { address, pids, request, end, next: vec![0; CLIENTS] }
    }

    /// So many clients for so long. Connections are opened again for each round, because some servers close idle ones.
    pub(crate) async fn round(&mut self, clients: usize, duration: Duration) -> Outcome<Throughput> {
        let mut connections = vec![];
        for _ in 0..clients {
            connections.push(Connection::open_at(self.address).await?);
        }
        let is_warm = |_: Duration, done: usize| done >= WARM_UP_RUNS_PER_CLIENT;
        timeout(WAIT_TIMEOUT, self.work(&mut connections, is_warm)).await??;

        let meter = Meter::start(&self.pids)?;
        let is_over = |elapsed: Duration, _: usize| elapsed >= duration;
        let waiting_ms = timeout(duration + WAIT_TIMEOUT, self.work(&mut connections, is_over)).await??;
        meter.finish(waiting_ms, 1).await
    }

    /// Every client works until this decides that it is over, by the time and the client's runs: what each run has taken.
    async fn work(
        &mut self,
        connections: &mut [Connection],
        is_over: impl Fn(Duration, usize) -> bool,
    ) -> Outcome<Vec<f64>> {
        let Self { request, end, next, .. } = self;
        let (request, end, is_over, started) = (&*request, *end, &is_over, now());
        let clients = connections.iter_mut().zip(next).enumerate();
        let all = clients.map(|(client, (connection, next))| async move {
            let mut waiting_ms = vec![];
            while !is_over(since(started), waiting_ms.len()) {
                let before = now();
                let answer = connection.answer(&request(client, *next)).await?;
                *next += 1;
                if memmem::find(answer, end).is_none() {
                    let shown = &answer[..answer.len().min(ANSWER_BYTES_SHOWN_MAX)];
                    return Err(format!("a run did not succeed: {}", String::from_utf8_lossy(shown)).into());
                }
                waiting_ms.push(since(before).as_secs_f64() * 1e3);
            }
            Outcome::Ok(waiting_ms)
        });
        Ok(try_join_all(all).await?.concat())
    }
}
