//! How much one Postgres carries: a thousand runners that each append an event a second, as many followers, and clients that do one
//! run after the other, through two servers over a store of a hundred thousand sessions. What each part used shows which
//! resource runs out first.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use futures_util::future::{try_join, try_join_all};
use memchr::memmem;
use sqlx::{Connection as _, PgConnection};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::calls::{Append, claimed_run};
use crate::engine::{Bench, Engine, Place, ScaleSize};
use crate::follow;
use crate::http::{Connection, field, number, number_after, request};
use crate::machine::{anonymous_mib, cpu, cpu_with_children, now, own_cpu, since};
use crate::outcome::Outcome;
use crate::report::{Report, percentile};
use crate::run::Load;
use crate::server::Server;
use crate::sessions;

/// Each runner appends once in this time.
const PERIOD: Duration = Duration::from_secs(1);
/// Clients that do runs, by the servers' own runners.
const CLIENTS: usize = 16;
const PAYLOAD_BYTES: usize = 500;
/// Runners that are set up at the same time.
const SET_UP_AT_ONCE: usize = 50;
/// For events that are on their way when the load ends.
const TAIL: Duration = Duration::from_secs(2);
const FILL_TIMEOUT: Duration = Duration::from_secs(1_800);
const MIB: f64 = 1024.0 * 1024.0;

/// A runner from elsewhere with a run of its own.
struct Runner {
    connection: Connection,
    append: Append,
    session_id: String,
    /// The number of the session's last event.
    last_seq: i64,
}

/// When each runner sent its last event. With one event a second, it is the event that its followers see next.
type Sent = RefCell<Vec<Instant>>;

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let size = bench.sizes.scale;
    let place = bench.place(Engine::Postgres)?;
    let servers = [bench.serve(&place)?, bench.serve(&bench.same_store(&place))?];
    timeout(FILL_TIMEOUT, sessions::create(&servers[0], size.sessions)).await??;
    sessions::execute(&place, "VACUUM ANALYZE").await?;
    let mut runners = set_up(&servers, size).await?;
    let mut followers = vec![];
    for number in 0..size.followers {
        let (server, runner) = (&servers[number % servers.len()], &runners[number % runners.len()]);
        let follow = follow::follow_request(server, &runner.session_id, usize::try_from(runner.last_seq)?);
        followers.push((number % runners.len(), runner.last_seq, follow::open(server, &follow).await?));
    }
    let mut load = Load::open_clients(&[&servers[0], &servers[1]], CLIENTS).await?;
    // What a first run costs is not counted.
    load.run(CLIENTS).await?;

    let sent: Sent = RefCell::new(vec![now(); runners.len()]);
    let postmaster = bench.postmaster().await?;
    let used = || Outcome::Ok([cpu_of(&servers)?, cpu_with_children(postmaster)?, own_cpu()?]);
    let (before, started) = (used()?, now());
    let until = started + Duration::from_secs(size.seconds);
    let appending =
        try_join_all(runners.iter_mut().enumerate().map(|(index, runner)| append(runner, index, size, &sent, until)));
    let following = try_join_all(followers.iter_mut().map(|follower| follow_until(follower, &sent, until + TAIL)));
    let ((appended, seen), runs) = try_join(try_join(appending, following), run_until(&mut load, until)).await?;
    let (after, seconds) = (used()?, size.seconds as f64);
    let [server_cores, postgres_cores, generator_cores] =
        [0, 1, 2].map(|part| (after[part] - before[part]).as_secs_f64() / since(started).as_secs_f64());

    let (appended, lags) = (sorted(appended), sorted(seen));
    if lags.is_empty() {
        return Err("no follower has seen an event".into());
    }
    report.figure("scale.sessions", size.sessions as f64);
    report.figure("scale.runners", size.runners as f64);
    report.figure("scale.followers", size.followers as f64);
    report.figure("scale.appends_per_s", appended.len() as f64 / seconds);
    report.figure("scale.append_p50_ms", percentile(&appended, 50));
    report.figure("scale.append_p99_ms", percentile(&appended, 99));
    report.figure("scale.follow_p50_ms", percentile(&lags, 50));
    report.figure("scale.follow_p99_ms", percentile(&lags, 99));
    report.figure("scale.runs_per_s", runs as f64 / seconds);
    report.figure("scale.server_cores", server_cores);
    report.figure("scale.postgres_cores", postgres_cores);
    report.generator_share(generator_cores / server_cores);
    report_sizes(report, &servers, &place).await?;
    report.note(format!(
        "scale: {} runners that append an event of {PAYLOAD_BYTES} bytes each second, {} followers and {CLIENTS} clients that do runs, \
         for {} s through {} servers on one Postgres with {} sessions",
        size.runners,
        size.followers,
        size.seconds,
        servers.len(),
        size.sessions
    ));
    for server in servers {
        server.stop()?;
    }
    Ok(())
}

fn sorted(parts: Vec<Vec<f64>>) -> Vec<f64> {
    let mut all: Vec<f64> = parts.into_iter().flatten().collect();
    all.sort_by(f64::total_cmp);
    all
}

/// CPU time of both servers.
fn cpu_of(servers: &[Server]) -> Outcome<Duration> {
    let mut sum = Duration::ZERO;
    for server in servers {
        sum += cpu(server.pid())?;
    }
    Ok(sum)
}

async fn report_sizes(report: &mut Report, servers: &[Server], place: &Place) -> Outcome<()> {
    let mut memory_mib = 0.0_f64;
    for server in servers {
        memory_mib = memory_mib.max(anonymous_mib(server.pid())?);
    }
    report.figure("scale.server_anonymous_mib", memory_mib);
    let url = place.database_url.as_ref().ok_or("a place without a database")?;
    let mut connection = PgConnection::connect(url).await?;
    let sql = "SELECT pg_database_size(current_database()), \
               (SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid())";
    let (bytes, connections): (i64, i64) = sqlx::query_as(sql).fetch_one(&mut connection).await?;
    connection.close().await?;
    report.figure("scale.database_mib", bytes as f64 / MIB);
    report.figure("scale.database_connections", connections as f64);
    Ok(())
}

async fn set_up(servers: &[Server], size: ScaleSize) -> Outcome<Vec<Runner>> {
    let mut runners = vec![];
    while runners.len() < size.runners {
        let first = runners.len();
        let next = first..(first + SET_UP_AT_ONCE).min(size.runners);
        runners.extend(try_join_all(next.map(|number| runner(&servers[number % servers.len()]))).await?);
    }
    Ok(runners)
}

async fn runner(server: &Server) -> Outcome<Runner> {
    let mut connection = Connection::open(server).await?;
    let claimed = claimed_run(&mut connection, server).await?;
    let run = connection.call(&request(server, "GET", &format!("/api/v1/runs/{}", claimed.run_id), "")).await?;
    let session_id = field(run, "sessionId")?.to_owned();
    let session = connection.call(&request(server, "GET", &format!("/api/v1/sessions/{session_id}"), "")).await?;
    let last_seq = number(session, "lastSeq")?;
    let payload = format!(r#"{{"name":"note","value":"{}"}}"#, "x".repeat(PAYLOAD_BYTES - 26));
    let append = Append::new(server, &claimed, &[("custom", payload)]);
    Ok(Runner { connection, append, session_id, last_seq })
}

/// Appends once a second, at a moment that differs from runner to runner. Times in ms.
async fn append(runner: &mut Runner, index: usize, size: ScaleSize, sent: &Sent, until: Instant) -> Outcome<Vec<f64>> {
    let mut latencies = vec![];
    let mut next = now() + PERIOD.mul_f64(index as f64 / size.runners as f64);
    while next < until {
        sleep(next.saturating_duration_since(now())).await;
        let started = now();
        sent.borrow_mut()[index] = started;
        runner.append.send(&mut runner.connection).await?;
        latencies.push(since(started).as_secs_f64() * 1e3);
        // A runner that was late does not catch up.
        next = (next + PERIOD).max(now());
    }
    Ok(latencies)
}

/// Reads events, each exactly once and in order: how long after they were sent, in ms.
async fn follow_until(
    (of, last_seq, stream): &mut (usize, i64, TcpStream),
    sent: &Sent,
    until: Instant,
) -> Outcome<Vec<f64>> {
    let mut lags = vec![];
    let mut buffer = Vec::with_capacity(4 * PAYLOAD_BYTES);
    loop {
        let Ok(read) = timeout(until.saturating_duration_since(now()), stream.read_buf(&mut buffer)).await else {
            return Ok(lags);
        };
        if read? == 0 {
            return Err(format!("a stream ended behind {last_seq}").into());
        }
        // Frames end with an empty line; what the chunks are wrapped in does not.
        while let Some(end) = memmem::find(&buffer, b"\n\n") {
            if let Some(number) = number_after(&buffer[..end], b"\nid: ") {
                if number != *last_seq + 1 {
                    return Err(format!("a follower saw {number} behind {last_seq}").into());
                }
                *last_seq = number;
                lags.push(since(sent.borrow()[*of]).as_secs_f64() * 1e3);
            }
            buffer.drain(..end + 2);
        }
    }
}

/// How many runs ended in this time.
async fn run_until(load: &mut Load<'_>, until: Instant) -> Outcome<usize> {
    let mut runs = 0;
    while now() < until {
        load.run(CLIENTS).await?;
        runs += CLIENTS;
    }
    Ok(runs)
}
