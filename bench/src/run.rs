//! A trivial scripted run, end to end, as a client of the manager dialect sees it: create a run, give it a command, order
//! a runner, wait for the end, read the result. The resident runner does the work inside the server.

use std::time::Duration;

use futures_util::future::try_join_all;
use memchr::memmem;
use tokio::time::timeout;

use crate::calls::{WAIT_MS, create_command, create_run};
use crate::engine::{Bench, Engine};
use crate::http::{Connection, number, request};
use crate::machine::{cpu, cpu_with_children, now, own_cpu, since};
use crate::outcome::Outcome;
use crate::report::{Report, median, percentile};
use crate::server::Server;

pub(crate) const CLIENTS: usize = 16;
const WARM_UP_RUNS_PER_CLIENT: usize = 10;
/// A wait that takes more answers than this is not waiting for a trivial run.
const POLLS_MAX: usize = 100;
const ROUND_TIMEOUT: Duration = Duration::from_secs(120);
/// The runner gives back its lease and its job after the client has its result; that belongs to the run.
pub(crate) const TAIL: Duration = Duration::from_millis(100);

struct Round {
    server_ms_per_run: f64,
    postgres_ms_per_run: f64,
    generator_ms_per_run: f64,
    per_s: f64,
    polls_per_run: f64,
    latencies_ms: Vec<f64>,
}

struct Client<'a> {
    server: &'a Server,
    connection: Connection,
    polls: usize,
    latencies_ms: Vec<f64>,
}

/// Clients that each do one run after the other, divided between the servers.
pub(crate) struct Load<'a> {
    clients: Vec<Client<'a>>,
}

impl<'a> Load<'a> {
    pub(crate) async fn open(servers: &[&'a Server]) -> Outcome<Self> {
        Self::open_clients(servers, CLIENTS).await
    }

    pub(crate) async fn open_clients(servers: &[&'a Server], count: usize) -> Outcome<Self> {
        let mut clients = vec![];
        for server in servers.iter().copied().cycle().take(count) {
            let connection = Connection::open(server).await?;
            clients.push(Client { server, connection, polls: 0, latencies_ms: vec![] });
        }
        Ok(Self { clients })
    }

    /// About so many runs in all, and as many by each client.
    pub(crate) async fn run(&mut self, runs: usize) -> Outcome<()> {
        let per_client = runs / self.clients.len();
        let all = self.clients.iter_mut().map(|client| async move {
            for _ in 0..per_client {
                one_run(client).await?;
            }
            Outcome::Ok(())
        });
        timeout(ROUND_TIMEOUT, try_join_all(all)).await?.map(drop)
    }
}

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let mut servers = vec![];
    for engine in Engine::BOTH {
        servers.push((engine, bench.serve(&bench.place(engine)?)?));
    }
    let mut sides = vec![];
    for (engine, server) in &servers {
        let mut load = Load::open(&[server]).await?;
        load.run(CLIENTS * WARM_UP_RUNS_PER_CLIENT).await?;
        sides.push((*engine, server, load, vec![]));
    }
    let postmaster = bench.postmaster().await?;
    for _ in 0..bench.sizes.run_rounds {
        for (engine, server, load, rounds) in &mut sides {
            let round = round(bench, server, load, postmaster).await?;
            let (name, number) = (engine.name(), rounds.len() + 1);
            eprintln!("    run.{name} {number}: {:.0} runs/s, {:.3} ms of CPU", round.per_s, round.server_ms_per_run);
            rounds.push(round);
        }
    }
    for (engine, _, _, rounds) in sides {
        add_figures(report, engine, &rounds);
    }
    for (_, server) in servers {
        server.stop()?;
    }
    Ok(())
}

async fn round(bench: &Bench, server: &Server, load: &mut Load<'_>, postmaster: u32) -> Outcome<Round> {
    for client in &mut load.clients {
        client.polls = 0;
        client.latencies_ms.clear();
    }
    let (server_before, own_before) = (cpu(server.pid())?, own_cpu()?);
    let postgres_before = cpu_with_children(postmaster)?;
    let started = now();
    load.run(CLIENTS * bench.sizes.runs_per_client).await?;
    let seconds = since(started).as_secs_f64();
    let own = own_cpu()? - own_before;
    tokio::time::sleep(TAIL).await;
    let used = cpu(server.pid())? - server_before;
    let postgres = cpu_with_children(postmaster)? - postgres_before;

    let runs = (CLIENTS * bench.sizes.runs_per_client) as f64;
    let per_run = |time: Duration| time.as_secs_f64() * 1e3 / runs;
    Ok(Round {
        server_ms_per_run: per_run(used),
        postgres_ms_per_run: per_run(postgres),
        generator_ms_per_run: per_run(own),
        per_s: runs / seconds,
        polls_per_run: load.clients.iter().map(|client| client.polls).sum::<usize>() as f64 / runs,
        latencies_ms: load.clients.iter().flat_map(|client| client.latencies_ms.iter().copied()).collect(),
    })
}

async fn one_run(client: &mut Client<'_>) -> Outcome<()> {
    let started = now();
    let Client { server, connection, .. } = client;
    let run_id = create_run(connection, server).await?;
    let command_id = create_command(connection, server, &run_id).await?;
    let job = format!(r#"{{"commandId":"{command_id}"}}"#);
    connection.call(&request(server, "POST", &format!("/api/v1/runs/{run_id}/runner-jobs"), &job)).await?;
    let mut after_seq = 0;
    let mut ended = false;
    for _ in 0..POLLS_MAX {
        let path = format!("/api/v1/runs/{run_id}/events?afterSeq={after_seq}&waitMs={WAIT_MS}");
        let page = connection.call(&request(server, "GET", &path, "")).await?;
        client.polls += 1;
        after_seq = number(page, "nextAfterSeq")?;
        ended = memmem::find(page, br#""type":"terminal_status""#).is_some();
        if ended {
            break;
        }
    }
    let path = format!("/api/v1/runs/{run_id}/commands/{command_id}/result");
    let result = connection.call(&request(server, "GET", &path, "")).await?;
    if !ended || memmem::find(result, br#""completed":true"#).is_none() {
        return Err(format!("{run_id} did not complete: {}", String::from_utf8_lossy(result)).into());
    }
    client.latencies_ms.push(since(started).as_secs_f64() * 1e3);
    Ok(())
}

fn add_figures(report: &mut Report, engine: Engine, rounds: &[Round]) {
    let name = engine.name();
    let of = |get: fn(&Round) -> f64| rounds.iter().map(get);
    let mut latencies: Vec<f64> = rounds.iter().flat_map(|round| round.latencies_ms.iter().copied()).collect();
    latencies.sort_by(f64::total_cmp);
    let (p50_ms, p99_ms) = (percentile(&latencies, 50), percentile(&latencies, 99));
    report.rounds(format!("run.{name}.cpu_ms_per_run"), of(|round| round.server_ms_per_run));
    report.rounds(format!("run.{name}.per_s"), of(|round| round.per_s));
    report.figure(format!("run.{name}.p50_ms"), p50_ms);
    report.figure(format!("run.{name}.p99_ms"), p99_ms);
    report.figure(format!("run.{name}.p99_to_p50"), p99_ms / p50_ms);
    report.rounds(format!("run.{name}.polls_per_run"), of(|round| round.polls_per_run));
    report.rounds(format!("run.{name}.generator_cpu_ms_per_run"), of(|round| round.generator_ms_per_run));
    if engine == Engine::Postgres {
        report.rounds("run.postgres.cluster_cpu_ms_per_run", of(|round| round.postgres_ms_per_run));
    }
    report.generator_share(median(of(|round| round.generator_ms_per_run / round.server_ms_per_run)));
    report.note(format!(
        "run: {CLIENTS} clients; each waits with GET events?afterSeq=N&waitMs={WAIT_MS}, from the first event on, until a page \
         brings the command's terminal_status, then reads the result once"
    ));
}
