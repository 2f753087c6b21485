//! A first page of history must cost about the same in a thread of ten messages and in one of ten thousand.

use std::time::Duration;

use tokio::time::timeout;

use crate::agui::{RUNS, ended, message};
use crate::engine::{Bench, Engine};
use crate::http::{Connection, number, request};
use crate::machine::{now, since};
use crate::outcome::Outcome;
use crate::report::{Report, median};
use crate::server::Server;
use crate::sessions::execute;

const FEW: usize = 10;
const MANY: usize = 10_000;
const MESSAGES_PER_TURN: usize = 2;
const MESSAGES_PER_DAY: usize = 10;
const TIMEOUT: Duration = Duration::from_secs(600);

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let mut worst = 0.0_f64;
    for engine in Engine::BOTH {
        let place = bench.place(engine)?;
        let server = bench.serve(&place)?;
        let mut threads = vec![];
        for messages in [FEW, MANY] {
            let thread = format!("{messages:08}-0000-4000-8000-000000000000");
            let last_seq = timeout(TIMEOUT, fill(&server, &thread, messages / MESSAGES_PER_TURN)).await??;
            // Ten messages a day, up to today. Written past the server, which has no other clock than its machine's.
            let events_per_day = (last_seq as usize * MESSAGES_PER_DAY).div_ceil(messages);
            let spread = format!(
                "UPDATE events SET created_at = created_at - 86400000000 * (({last_seq} - session_seq) / {events_per_day}) \
                 WHERE session_id = (SELECT session_id FROM sessions WHERE external_id = '{thread}')"
            );
            execute(&place, &spread).await?;
            threads.push(thread);
        }
        if engine == Engine::Postgres {
            execute(&place, "VACUUM ANALYZE events").await?;
        }
        let ratio = ratio(bench, engine, &server, &threads).await?;
        report.figure(format!("agui.history_{}_ratio", engine.name()), ratio);
        worst = worst.max(ratio);
        server.stop()?;
    }
    report.figure("agui.history_ratio_10k_to_10", worst);
    report.note(format!(
        "agui.history: the time of a first page of a thread of {MANY} messages, {MESSAGES_PER_DAY} a day, against one of {FEW}, \
         medians of alternating calls, on the engine where it is worse"
    ));
    Ok(())
}

/// Adds that many messages to a thread. Returns the number of its last event.
async fn fill(server: &Server, thread: &str, turns: usize) -> Outcome<i64> {
    let mut connection = Connection::open(server).await?;
    for turn in 0..turns {
        ended(connection.stream(&message(server, thread, turn, true)).await?)?;
    }
    let session = request(server, "GET", &format!("/api/v1/sessions/{thread}"), "");
    number(connection.call(&session).await?, "lastSeq")
}

async fn ratio(bench: &Bench, engine: Engine, server: &Server, threads: &[String]) -> Outcome<f64> {
    let mut connection = Connection::open(server).await?;
    let mut times = vec![vec![]; threads.len()];
    // The first calls warm up and are not counted.
    let warm_up = bench.sizes.lists / 10;
    let history = RUNS.replace("runs", "history");
    for call in 0..bench.sizes.lists + warm_up {
        for (thread, times) in threads.iter().zip(&mut times) {
            let page = request(server, "GET", &format!("{history}?threadId={thread}"), "");
            let started = now();
            connection.call(&page).await?;
            if call >= warm_up {
                times.push(since(started).as_secs_f64() * 1e3);
            }
        }
    }
    let [few, many] = [median(times[0].iter().copied()), median(times[1].iter().copied())];
    eprintln!("    agui.history {}: {few:.3} ms of {FEW} messages, {many:.3} ms of {MANY}", engine.name());
    Ok(many / few)
}
