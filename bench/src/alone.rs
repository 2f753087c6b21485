//! One client that does one run after the other over AG-UI, on both engines: how long it waits from the first byte of a
//! message to the end of its stream, and how much of that is not the disk.

use std::time::Duration;

use tokio::time::timeout;

use crate::agui::{ended, message};
use crate::engine::{Bench, Engine};
use crate::http::Connection;
use crate::machine::{now, since, sync_us};
use crate::outcome::Outcome;
use crate::report::{Report, median, percentile};
use crate::server::Server;

/// Commits that the client waits for: of the flush that accepts the message and starts its job, and of the append that
/// ends the run.
const COMMITS_PER_RUN: f64 = 2.0;
/// Runs between two measurements of the disk.
const RUNS_PER_SLICE: usize = 20;
const WARM_UP_RUNS: usize = 20;
const THREAD: &str = "a10e0000-0000-4000-8000-000000000000";
const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    for engine in Engine::BOTH {
        let server = bench.serve(&bench.place(engine)?)?;
        timeout(TIMEOUT, runs(bench, report, engine, &server)).await??;
        server.stop()?;
    }
    report.note(format!(
        "agui.*.alone: one client on a thread of its own; less_syncs: less {COMMITS_PER_RUN} times a small write with its fdatasync, \
         because the client waits for as many commits; alone_sync_us is measured around slices of {RUNS_PER_SLICE} runs"
    ));
    Ok(())
}

async fn runs(bench: &Bench, report: &mut Report, engine: Engine, server: &Server) -> Outcome<()> {
    let mut connection = Connection::open(server).await?;
    let (mut all_ms, mut syncs_us, mut less_syncs_ms) = (vec![], vec![], vec![]);
    let mut next = 0;
    slice(server, &mut connection, &mut next, WARM_UP_RUNS).await?;
    for _ in 0..(bench.sizes.runs_per_client * 4).div_ceil(RUNS_PER_SLICE) {
        let before_us = sync_us(bench.scratch())?;
        let times_ms = slice(server, &mut connection, &mut next, RUNS_PER_SLICE).await?;
        let slice_us = (before_us + sync_us(bench.scratch())?) / 2.0;
        less_syncs_ms.push(median(times_ms.iter().copied()) - COMMITS_PER_RUN * slice_us / 1e3);
        syncs_us.push(slice_us);
        all_ms.extend(times_ms);
    }
    all_ms.sort_by(f64::total_cmp);
    let name = engine.name();
    report.figure(format!("agui.{name}.alone_p50_ms"), percentile(&all_ms, 50));
    report.figure(format!("agui.{name}.alone_p99_ms"), percentile(&all_ms, 99));
    report.rounds(format!("agui.{name}.alone_sync_us"), syncs_us);
    report.rounds(format!("agui.{name}.alone_less_syncs_ms"), less_syncs_ms);
    Ok(())
}

/// Milliseconds that each of some runs takes.
async fn slice(server: &Server, connection: &mut Connection, next: &mut usize, runs: usize) -> Outcome<Vec<f64>> {
    let mut times_ms = Vec::with_capacity(runs);
    for _ in 0..runs {
        let posted = message(server, THREAD, *next, true);
        *next += 1;
        let started = now();
        ended(connection.stream(&posted).await?)?;
        times_ms.push(since(started).as_secs_f64() * 1e3);
    }
    Ok(times_ms)
}
