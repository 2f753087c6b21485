//! Durable append over HTTP, against a bare insert of the same rows into the same table. The two take turns, and the
//! figure is the median of the ratios of neighbours, so that a slow minute of the machine hits both.

use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::timeout;

use crate::bare::InsertMethod;
use crate::calls::{Append, claimed_run};
use crate::engine::{Bench, Engine, Place};
use crate::http::Connection;
use crate::machine::{anonymous_mib, cpu, cpu_with_children, now, own_cpu, rss_mib, since};
use crate::outcome::Outcome;
use crate::report::{Report, median};

pub(crate) const CONNECTIONS: usize = 64;
pub(crate) const BATCH_EVENTS: usize = 16;
pub(crate) const EVENT_TYPE: &str = "assistant_delta";
const PAYLOAD_BYTES: usize = 1_000;
/// Batches of each connection before anything is counted.
const WARM_UP_BATCHES: usize = 4;
const CALIBRATIONS: usize = 2;
const ROUND_TIMEOUT: Duration = Duration::from_secs(120);

/// One event's payload.
pub(crate) fn payload() -> String {
    let around = r#"{"messageId":"msg_1","delta":""}"#.len();
    let words = "A durable event is a fact that nobody can lose or change afterwards. ";
    let text: String = words.chars().cycle().take(PAYLOAD_BYTES - around).collect();
    format!(r#"{{"messageId":"msg_1","delta":"{text}"}}"#)
}

struct Round {
    rows_per_s: f64,
    server_us_per_event: f64,
    postgres_us_per_event: f64,
    generator_us_per_event: f64,
    rss_mib: f64,
    anonymous_mib: f64,
}

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    for engine in Engine::BOTH {
        let place = bench.place(engine)?;
        // The server makes the tables; the bare insert then writes to the very same ones.
        bench.serve(&place)?.stop()?;
        let rows = CONNECTIONS * BATCH_EVENTS * bench.sizes.append_batches_per_connection;
        let method = fastest_method(&place, rows).await?;
        let (mut bare, mut rounds) = (vec![], vec![]);
        for number in 1..=bench.sizes.append_rounds {
            bare.push(method.rows_per_s(&place, rows).await?);
            let round = timeout(ROUND_TIMEOUT, over_http(bench, &place)).await??;
            eprintln!(
                "    append.{} {number}: bare {:.0} rows/s, over HTTP {:.0} rows/s, {:.1} µs of CPU per event",
                engine.name(),
                bare[bare.len() - 1],
                round.rows_per_s,
                round.server_us_per_event
            );
            rounds.push(round);
        }
        add_figures(report, engine, method, &bare, &rounds);
    }
    Ok(())
}

async fn fastest_method(place: &Place, rows: usize) -> Outcome<InsertMethod> {
    let mut tried = vec![];
    for _ in 0..CALIBRATIONS {
        for method in InsertMethod::all(place.engine) {
            tried.push((method.rows_per_s(place, rows).await?, method));
        }
    }
    let best = tried.into_iter().max_by(|(a, _), (b, _)| a.total_cmp(b));
    best.map(|(_, method)| method).ok_or_else(|| "no way to insert".into())
}

/// A fresh server on the same data, with fresh runs: a restart ends the leases of the ones before.
async fn over_http(bench: &Bench, place: &Place) -> Outcome<Round> {
    let server = bench.serve(place)?;
    let events = vec![(EVENT_TYPE, payload()); BATCH_EVENTS];
    let mut clients = vec![];
    for _ in 0..CONNECTIONS {
        let mut connection = Connection::open(&server).await?;
        let claimed = claimed_run(&mut connection, &server).await?;
        clients.push((connection, Append::new(&server, &claimed, &events)));
    }
    send(&mut clients, WARM_UP_BATCHES).await?;
    let postmaster = match place.engine {
        Engine::Postgres => Some(bench.postmaster().await?),
        Engine::Sqlite => None,
    };
    let postgres_cpu = || postmaster.map_or(Ok(Duration::ZERO), cpu_with_children);

    let (server_before, own_before, postgres_before) = (cpu(server.pid())?, own_cpu()?, postgres_cpu()?);
    let started = now();
    send(&mut clients, bench.sizes.append_batches_per_connection).await?;
    let seconds = since(started).as_secs_f64();
    let (own, used) = (own_cpu()? - own_before, cpu(server.pid())? - server_before);
    let postgres = postgres_cpu()? - postgres_before;

    let (rss_mib, anonymous_mib) = (rss_mib(server.pid())?, anonymous_mib(server.pid())?);
    drop(clients);
    server.stop()?;
    let rows = (CONNECTIONS * BATCH_EVENTS * bench.sizes.append_batches_per_connection) as f64;
    let per_event = |time: Duration| time.as_secs_f64() * 1e6 / rows;
    Ok(Round {
        rows_per_s: rows / seconds,
        server_us_per_event: per_event(used),
        postgres_us_per_event: per_event(postgres),
        generator_us_per_event: per_event(own),
        rss_mib,
        anonymous_mib,
    })
}

/// Every client sends so many batches, one after the other; all clients at once.
async fn send(clients: &mut [(Connection, Append)], batches: usize) -> Outcome<()> {
    let all = clients.iter_mut().map(|(connection, append)| async move {
        for _ in 0..batches {
            append.send(connection).await?;
        }
        Outcome::Ok(())
    });
    try_join_all(all).await.map(drop)
}

fn add_figures(report: &mut Report, engine: Engine, method: InsertMethod, bare: &[f64], rounds: &[Round]) {
    let name = engine.name();
    let of = |get: fn(&Round) -> f64| rounds.iter().map(get);
    let ratios = bare.iter().zip(rounds).map(|(bare, round)| round.rows_per_s / bare);
    report.rounds(format!("append.{name}.ratio_to_bare"), ratios);
    report.rounds(format!("append.{name}.bare_rows_per_s"), bare.iter().copied());
    report.rounds(format!("append.{name}.rows_per_s"), of(|round| round.rows_per_s));
    report.rounds(format!("append.{name}.cpu_us_per_event"), of(|round| round.server_us_per_event));
    report.rounds(format!("append.{name}.generator_cpu_us_per_event"), of(|round| round.generator_us_per_event));
    report.rounds(format!("append.{name}.rss_mib"), of(|round| round.rss_mib));
    report.rounds(format!("append.{name}.anonymous_mib"), of(|round| round.anonymous_mib));
    if engine == Engine::Postgres {
        report.rounds("append.postgres.cluster_cpu_us_per_event", of(|round| round.postgres_us_per_event));
    }
    report.generator_share(median(of(|round| round.generator_us_per_event / round.server_us_per_event)));
    report.note(format!(
        "append.{name}: {CONNECTIONS} connections, batches of {BATCH_EVENTS} events of {PAYLOAD_BYTES} bytes; bare: {}",
        method.name()
    ));
}
