//! The front door for chats, on SQLite: how soon a message is accepted, what a trivial run costs that is followed in the same
//! response, and how soon the first words of an answer reach a follower.

use std::time::Duration;

use futures_util::future::{join, try_join_all};
use memchr::memmem;
use tokio::time::timeout;

use crate::calls::{Append, Claimed};
use crate::engine::{Bench, Engine};
use crate::http::{Connection, field, number, request};
use crate::machine::{cpu, now, own_cpu, since};
use crate::outcome::Outcome;
use crate::report::{Report, median, percentile};
use crate::run::{CLIENTS, TAIL};
use crate::server::Server;

pub(crate) const RUNS: &str = "/api/v1/agent/runs";
const WARM_UP_RUNS_PER_CLIENT: usize = 10;
const FIRST_WORDS: usize = 100;
const ROUND_TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let server = bench.serve(&bench.place(Engine::Sqlite)?)?;
    timeout(ROUND_TIMEOUT, accept(bench, report, &server)).await??;
    runs(bench, report, &server).await?;
    server.stop()?;
    // Here we are the runner, so that it is known when the first words were said.
    let server = bench.serve_with(&bench.place(Engine::Sqlite)?, &[("OSTLER_RUNNER__SLOTS", "0")])?;
    timeout(ROUND_TIMEOUT, first_words(report, &server)).await??;
    server.stop()
}

fn thread(client: usize, number: usize) -> String {
    format!("{client:08x}-0000-4000-8000-{number:012x}")
}

pub(crate) fn message(server: &Server, thread: &str, run: usize, streamed: bool) -> Vec<u8> {
    let body = format!(
        r#"{{"threadId":"{thread}","runId":"run-{run}","messages":[{{"id":"m-{run}","role":"user","content":"hi"}}],"forwardedProps":{{"runtime_mode":"chat"}}}}"#
    );
    let plain = request(server, "POST", RUNS, &body);
    if !streamed {
        return plain;
    }
    let at = memmem::find(&plain, b"\r\n").map_or(0, |at| at + 2);
    [&plain[..at], b"accept: text/event-stream\r\n", &plain[at..]].concat()
}

/// One client, one message after the other, each in a thread of its own; only the acceptance is timed.
async fn accept(bench: &Bench, report: &mut Report, server: &Server) -> Outcome<()> {
    let mut connection = Connection::open(server).await?;
    let mut latencies = vec![];
    for number in 0..bench.sizes.runs_per_client * 4 {
        let thread = thread(usize::MAX >> 32, number);
        let posted = message(server, &thread, 0, false);
        let started = now();
        connection.call(&posted).await?;
        latencies.push(since(started).as_secs_f64() * 1e3);
        let events = request(server, "GET", &format!("{RUNS}/{thread}/events?runId=run-0"), "");
        ended(connection.stream(&events).await?)?;
    }
    latencies.sort_by(f64::total_cmp);
    report.figure("agui.accept_p50_ms", percentile(&latencies, 50));
    report.figure("agui.accept_p99_ms", percentile(&latencies, 99));
    report.note("agui.accept: one client; from the first byte of a message that makes a thread to its 202".into());
    Ok(())
}

pub(crate) fn ended(stream: &[u8]) -> Outcome<()> {
    if memmem::find(stream, br#""outcome":{"type":"success"}"#).is_some() {
        return Ok(());
    }
    Err(format!("a run that did not succeed: {}", String::from_utf8_lossy(stream)).into())
}

/// A client with a thread of its own.
struct Client<'a> {
    server: &'a Server,
    connection: Connection,
    thread: String,
    next: usize,
    latencies_ms: Vec<f64>,
}

async fn runs(bench: &Bench, report: &mut Report, server: &Server) -> Outcome<()> {
    let mut clients = vec![];
    for number in 0..CLIENTS {
        let connection = Connection::open(server).await?;
        clients.push(Client { server, connection, thread: thread(number, 0), next: 0, latencies_ms: vec![] });
    }
    round(&mut clients, WARM_UP_RUNS_PER_CLIENT).await?;
    clients.iter_mut().for_each(|client| client.latencies_ms.clear());
    let (mut per_run, mut per_s, mut generator) = (vec![], vec![], vec![]);
    let count = (CLIENTS * bench.sizes.runs_per_client) as f64;
    for number in 0..bench.sizes.run_rounds {
        let (server_before, own_before, started) = (cpu(server.pid())?, own_cpu()?, now());
        round(&mut clients, bench.sizes.runs_per_client).await?;
        per_s.push(count / since(started).as_secs_f64());
        generator.push((own_cpu()? - own_before).as_secs_f64() * 1e3 / count);
        tokio::time::sleep(TAIL).await;
        per_run.push((cpu(server.pid())? - server_before).as_secs_f64() * 1e3 / count);
        eprintln!("    agui {}: {:.0} runs/s, {:.3} ms of CPU", number + 1, per_s[number], per_run[number]);
    }
    let mut latencies: Vec<f64> = clients.iter().flat_map(|client| client.latencies_ms.iter().copied()).collect();
    latencies.sort_by(f64::total_cmp);
    report.generator_share(median(generator.iter().zip(&per_run).map(|(own, used)| own / used)));
    report.rounds("agui.cpu_ms_per_run", per_run);
    report.rounds("agui.runs_per_s", per_s);
    report.figure("agui.p50_ms", percentile(&latencies, 50));
    report.figure("agui.p99_ms", percentile(&latencies, 99));
    report.note(format!(
        "agui: {CLIENTS} clients on SQLite, each with a thread of its own, post one message after the other and read its run's \
         events in the same response, to RUN_FINISHED"
    ));
    Ok(())
}

async fn round(clients: &mut [Client<'_>], runs: usize) -> Outcome<()> {
    let all = clients.iter_mut().map(|client| async move {
        for _ in 0..runs {
            let started = now();
            let posted = message(client.server, &client.thread, client.next, true);
            client.next += 1;
            ended(client.connection.stream(&posted).await?)?;
            client.latencies_ms.push(since(started).as_secs_f64() * 1e3);
        }
        Outcome::Ok(())
    });
    timeout(ROUND_TIMEOUT, try_join_all(all)).await?.map(drop)
}

/// From the first byte of a runner's append of the first words to the last of the frame that a follower gets.
async fn first_words(report: &mut Report, server: &Server) -> Outcome<()> {
    let mut connection = Connection::open(server).await?;
    let mut latencies = vec![];
    for number in 0..FIRST_WORDS {
        let thread = thread(0, number);
        let accepted = connection.call(&message(server, &thread, 0, false)).await?;
        let command_id = field(accepted, "taskId")?.to_owned();
        let claimed = claim(&mut connection, server, &thread, command_id).await?;
        let mut follower = Connection::open(server).await?;
        let events = request(server, "GET", &format!("{RUNS}/{thread}/events?runId=run-0"), "");
        follower.stream_until(&events, b"RUN_STARTED").await?;
        let words = r#"{"messageId":"m","delta":"First words."}"#.to_owned();
        let mut append = Append::new(server, &claimed, &[("assistant_delta", words)]);
        let started = now();
        let told = async {
            follower.read_until(b"\"delta\":\"First words.\"").await?;
            Outcome::Ok(since(started).as_secs_f64() * 1e3)
        };
        let (told, appended) = join(told, append.send(&mut connection)).await;
        latencies.push(told?);
        appended?;
    }
    latencies.sort_by(f64::total_cmp);
    report.figure("agui.first_delta_lag_ms", percentile(&latencies, 50));
    report.figure("agui.first_delta_lag_p99_ms", percentile(&latencies, 99));
    report.note(
        "agui.first_delta_lag: from a runner's append of an answer's first words to their frame at a follower".into(),
    );
    Ok(())
}

/// Takes the lease of the thread's run, as a runner from outside would.
async fn claim(connection: &mut Connection, server: &Server, thread: &str, command_id: String) -> Outcome<Claimed> {
    let session = connection.call(&request(server, "GET", &format!("/api/v1/sessions/{thread}"), "")).await?;
    let run_id = field(session, "lastRunId")?.to_owned();
    let claim = r#"{"runnerId":"bench","leaseMs":600000}"#;
    let claim = request(server, "POST", &format!("/api/v1/runs/{run_id}/claim"), claim);
    let lease_epoch = number(connection.call(&claim).await?, "leaseEpoch")?;
    Ok(Claimed { run_id, command_id, lease_epoch })
}
