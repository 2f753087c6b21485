//! A command's result must cost the same whether the command has a hundred events or a hundred thousand.

use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::timeout;

use crate::calls::{Append, claimed_run};
use crate::engine::{Bench, Engine};
use crate::http::{Connection, number, request};
use crate::machine::{cpu, now, since};
use crate::outcome::Outcome;
use crate::report::Report;
use crate::server::Server;

const EVENTS_FEW: usize = 100;
const EVENTS_MANY: usize = 100_000;
const BATCH_EVENTS: usize = 100;
const READERS: usize = 4;
const TIMEOUT: Duration = Duration::from_secs(300);

/// What so many results have cost together.
#[derive(Clone, Copy, Default)]
struct Cost {
    requests: usize,
    cpu: Duration,
    wall: Duration,
}

impl Cost {
    fn cpu_us(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.requests as f64
    }
}

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let mut worst: f64 = 0.0;
    for engine in Engine::BOTH {
        let place = bench.place(engine)?;
        let server = bench.serve(&place)?;
        let [few, many] = timeout(TIMEOUT, costs(bench, &server)).await??;
        server.stop()?;
        let name = engine.name();
        let (by_cpu, by_wall) = (many.cpu_us() / few.cpu_us(), many.wall.as_secs_f64() / few.wall.as_secs_f64());
        eprintln!(
            "    result.{name}: {:.0} µs of CPU for {EVENTS_FEW} events, {:.0} for {EVENTS_MANY}",
            few.cpu_us(),
            many.cpu_us()
        );
        report.figure(format!("result.{name}.cpu_us_100"), few.cpu_us());
        report.figure(format!("result.{name}.cpu_us_100k"), many.cpu_us());
        report.figure(format!("result.{name}.wall_ratio"), by_wall);
        worst = worst.max(by_cpu);
    }
    report.figure("result.ratio_100k_to_100", worst);
    report.note("result: the ratio of CPU per request, on the engine where it is higher".into());
    Ok(())
}

async fn costs(bench: &Bench, server: &Server) -> Outcome<[Cost; 2]> {
    let requests = [command_with(server, EVENTS_FEW).await?, command_with(server, EVENTS_MANY).await?];
    let mut readers = vec![];
    for _ in 0..READERS {
        readers.push(Connection::open(server).await?);
    }
    // The first round warms up and is not counted.
    let mut costs = [Cost::default(); 2];
    for round in 0..=bench.sizes.result_rounds {
        for (request, cost) in requests.iter().zip(&mut costs) {
            let (before, started) = (cpu(server.pid())?, now());
            read(&mut readers, request, bench.sizes.results_per_round / READERS).await?;
            if round > 0 {
                cost.wall += since(started);
                cost.cpu += cpu(server.pid())? - before;
                cost.requests += bench.sizes.results_per_round / READERS * READERS;
            }
        }
    }
    Ok(costs)
}

async fn read(readers: &mut [Connection], request: &[u8], times: usize) -> Outcome<()> {
    let all = readers.iter_mut().map(|reader| async move {
        for _ in 0..times {
            reader.call(request).await?;
        }
        Outcome::Ok(())
    });
    try_join_all(all).await.map(drop)
}

/// Makes a finished command with so many events, and the request for its result.
async fn command_with(server: &Server, events: usize) -> Outcome<Vec<u8>> {
    let mut connection = Connection::open(server).await?;
    let claimed = claimed_run(&mut connection, server).await?;
    let delta = ("assistant_delta", r#"{"messageId":"msg_1","delta":"one more piece of a long answer"}"#.to_owned());
    let mut deltas = Append::new(server, &claimed, &vec![delta; BATCH_EVENTS]);
    for _ in 1..events / BATCH_EVENTS {
        deltas.send(&mut connection).await?;
    }
    let message = r#"{"messageId":"msg_1","text":"That was a long answer.","final":true,"replyAuthority":true}"#;
    let mut last = vec![("assistant_delta", r#"{"messageId":"msg_1","delta":"."}"#.to_owned()); BATCH_EVENTS - 3];
    last.push(("assistant_message", message.to_owned()));
    last.push(("terminal_status", r#"{"status":"completed"}"#.to_owned()));
    // Its number must not be one that was used: the server would take it for a repetition.
    let mut last = Append::new(server, &claimed, &last).numbered_after(&deltas);
    last.send(&mut connection).await?;
    let path = format!("/api/v1/runs/{}/commands/{}/result", claimed.run_id, claimed.command_id);
    let request = request(server, "GET", &path, "");
    let counted = usize::try_from(number(connection.call(&request).await?, "scopedEventCount")?)?;
    if counted != events {
        return Err(format!("the command has {counted} events, not {events}").into());
    }
    Ok(request)
}
