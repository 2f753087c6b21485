//! A day's load in a quarter of an hour, on both engines: what the server holds at the quarter marks, and how long appends take
//! while retention, checkpoints and vacuum run beside them.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::future::try_join;
use sqlx::{Connection as _, PgConnection};
use tokio::io::AsyncReadExt;
use tokio::time::{interval, sleep};

use crate::calls::{Append, claimed_run};
use crate::engine::{Bench, Engine, Place};
use crate::follow;
use crate::http::{Connection, field, number, request};
use crate::machine::{anonymous_mib, now, open_files, since};
use crate::outcome::Outcome;
use crate::report::Report;
use crate::run::Load;
use crate::server::Server;

const QUARTERS: u32 = 4;
const APPENDS_PER_S: u32 = 50;
const FOLLOWERS: usize = 20;
/// Runs of one round, and the pause after it.
const RUNS: usize = 16;
const RUN_PAUSE: Duration = Duration::from_millis(500);
const SESSION_PAUSE: Duration = Duration::from_millis(200);
const DELIVERY_PAUSE: Duration = Duration::from_millis(500);
/// Notes to followers, one a second, before the lease is taken again.
const NOTES_PER_LEASE: u32 = 200;
const MIB: f64 = 1024.0 * 1024.0;

/// What there is at a quarter mark.
#[derive(Clone, Copy)]
struct Mark {
    anonymous_mib: f64,
    fds: f64,
    tables_mib: f64,
    wal_mib: f64,
}

pub async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let mut worst = [0.0_f64; 3];
    for engine in Engine::BOTH {
        let place = bench.place(engine)?;
        let workspace = workspace(bench, engine)?;
        let workspace = workspace.to_string_lossy();
        // Payloads live for a fraction of the time, so that retention has work in every quarter.
        let retention_ms = (bench.sizes.soak_s * 1_000 / 10).to_string();
        let settings = [
            ("OSTLER_SERVER__WORKSPACE", &*workspace),
            ("OSTLER_WEBHOOKS__ALLOW_LOOPBACK", "true"),
            ("OSTLER_RETENTION__EVENTS_MS", retention_ms.as_str()),
            ("OSTLER_RETENTION__WEBHOOK_DELIVERIES_MS", retention_ms.as_str()),
            ("OSTLER_RETENTION__SWEEP_MS", retention_ms.as_str()),
        ];
        let server = bench.serve_with(&place, &settings)?;
        let until = now() + Duration::from_secs(bench.sizes.soak_s);
        let load = async {
            let (appended, _) = try_join(append(&server, until), follow_all(&server, until)).await?;
            Outcome::Ok(appended)
        };
        let others = async {
            try_join(runs(&server, until), try_join(open_sessions(&server, &workspace, until), deliver(&server, until)))
                .await
        };
        let (marks, (latencies, _)) = try_join(sample(bench, &place, &server, until), try_join(load, others)).await?;
        server.stop()?;
        let growth = report_marks(report, engine, &marks, latencies);
        for (worst, growth) in worst.iter_mut().zip(growth) {
            *worst = worst.max(growth);
        }
    }
    let [anonymous, fds, wal] = worst;
    report.figure("soak.anonymous_growth", anonymous);
    report.figure("soak.fds_growth", fds);
    report.figure("soak.wal_growth", wal);
    report.note(format!(
        "soak: {} s of {APPENDS_PER_S} appends per second, runs, {FOLLOWERS} followers, sessions of the daemon, deliveries and \
         retention; growth: the last quarter mark divided by the second, on the engine where it is worse",
        bench.sizes.soak_s
    ));
    Ok(())
}

fn workspace(bench: &Bench, engine: Engine) -> Outcome<PathBuf> {
    let workspace = bench.scratch().join(format!("soak-workspace-{}", engine.name()));
    std::fs::create_dir_all(&workspace)?;
    Ok(workspace.canonicalize()?)
}

/// Reports the marks, and returns by what memory, file descriptors and the log grew from the second mark to the last.
fn report_marks(report: &mut Report, engine: Engine, marks: &[Mark], mut latencies: Vec<f64>) -> [f64; 3] {
    let name = engine.name();
    for (index, mark) in marks.iter().enumerate() {
        let quarter = index + 1;
        eprintln!(
            "    soak.{name} {quarter}/{QUARTERS}: {:.1} MiB anonymous, {:.0} files, {:.1} MiB of tables, {:.1} MiB of log",
            mark.anonymous_mib, mark.fds, mark.tables_mib, mark.wal_mib
        );
        report.figure(format!("soak.{name}.q{quarter}_anonymous_mib"), mark.anonymous_mib);
        report.figure(format!("soak.{name}.q{quarter}_fds"), mark.fds);
        report.figure(format!("soak.{name}.q{quarter}_tables_mib"), mark.tables_mib);
        report.figure(format!("soak.{name}.q{quarter}_wal_mib"), mark.wal_mib);
    }
    latencies.sort_by(f64::total_cmp);
    // In thousandths, which a whole percentage cannot name.
    let at = |per_mille: usize| latencies[(latencies.len() * per_mille / 1_000).min(latencies.len() - 1)];
    report.figure(format!("soak.{name}.append_p50_ms"), at(500));
    report.figure(format!("soak.{name}.append_p999_ms"), at(999));
    report.figure(format!("soak.{name}.append_max_ms"), at(1_000));
    let (second, last) = (marks[1], marks[marks.len() - 1]);
    report.figure(format!("soak.{name}.tables_growth"), last.tables_mib / second.tables_mib);
    [
        last.anonymous_mib / second.anonymous_mib,
        last.fds / second.fds,
        // A log that was just written back is empty.
        last.wal_mib.max(1.0) / second.wal_mib.max(1.0),
    ]
}

/// Looks at the end of each quarter, just before the load ends.
async fn sample(bench: &Bench, place: &Place, server: &Server, until: Instant) -> Outcome<Vec<Mark>> {
    let quarter = Duration::from_secs(bench.sizes.soak_s) / QUARTERS;
    let mut marks = vec![];
    for left in (0..QUARTERS).rev() {
        // A little before the end, while everything is still open.
        let at = until - quarter * left - Duration::from_secs(1);
        sleep(at.saturating_duration_since(now())).await;
        let (tables_mib, wal_mib) = sizes_mib(place).await?;
        let (anonymous_mib, fds) = (anonymous_mib(server.pid())?, open_files(server.pid())? as f64);
        marks.push(Mark { anonymous_mib, fds, tables_mib, wal_mib });
    }
    Ok(marks)
}

/// The size of the tables with their indexes, and of the write-ahead log. On Postgres the log is that of the whole cluster.
async fn sizes_mib(place: &Place) -> Outcome<(f64, f64)> {
    let Some(url) = &place.database_url else {
        let size =
            |name: &str| std::fs::metadata(place.data_dir.join(name)).map_or(0.0, |file| file.len() as f64 / MIB);
        return Ok((size("ostler.db"), size("ostler.db-wal")));
    };
    let mut connection = PgConnection::connect(url).await?;
    let sql = "SELECT pg_database_size(current_database()), (SELECT SUM(size)::bigint FROM pg_ls_waldir())";
    let (tables, wal): (i64, i64) = sqlx::query_as(sql).fetch_one(&mut connection).await?;
    connection.close().await?;
    Ok((tables as f64 / MIB, wal as f64 / MIB))
}

/// Appends at a steady rate, to a new run every so often, because only finished runs are cleaned up. Times in ms.
async fn append(server: &Server, until: Instant) -> Outcome<Vec<f64>> {
    const APPENDS_PER_RUN: usize = 500;
    let mut connection = Connection::open(server).await?;
    let mut ticks = interval(Duration::from_secs(1) / APPENDS_PER_S);
    let mut latencies = vec![];
    while now() < until {
        let claimed = claimed_run(&mut connection, server).await?;
        let delta = ("assistant_delta", r#"{"messageId":"m","delta":"one more piece of an answer"}"#.to_owned());
        let mut deltas = Append::new(server, &claimed, &[delta]);
        for _ in 0..APPENDS_PER_RUN {
            ticks.tick().await;
            if now() >= until {
                break;
            }
            let started = now();
            deltas.send(&mut connection).await?;
            latencies.push(since(started).as_secs_f64() * 1e3);
        }
        let end = ("terminal_status", r#"{"status":"completed"}"#.to_owned());
        Append::new(server, &claimed, &[end]).numbered_after(&deltas).send(&mut connection).await?;
    }
    Ok(latencies)
}

/// Followers of a session that stay connected.
async fn follow_all(server: &Server, until: Instant) -> Outcome<()> {
    let mut connection = Connection::open(server).await?;
    let mut claimed = claimed_run(&mut connection, server).await?;
    let run = connection.call(&request(server, "GET", &format!("/api/v1/runs/{}", claimed.run_id), "")).await?;
    let follow = follow::follow_request(server, field(run, "sessionId")?, 0);
    let mut followers = vec![];
    for _ in 0..FOLLOWERS {
        followers.push(follow::open(server, &follow).await?);
    }
    let note = [("custom", r#"{"name":"note"}"#.to_owned())];
    let mut notes = Append::new(server, &claimed, &note);
    let claim = format!("/api/v1/runs/{}/claim", claimed.run_id);
    let claim = request(server, "POST", &claim, r#"{"runnerId":"bench","leaseMs":600000}"#);
    let mut buffer = vec![0; 16 * 1024];
    for sent in 1_u32.. {
        if now() >= until {
            break;
        }
        if sent % NOTES_PER_LEASE == 0 {
            claimed.lease_epoch = number(connection.call(&claim).await?, "leaseEpoch")?;
            notes = Append::new(server, &claimed, &note);
        }
        notes.send(&mut connection).await?;
        for follower in &mut followers {
            if follower.read(&mut buffer).await? == 0 {
                return Err("a stream ended".into());
            }
        }
        sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

async fn runs(server: &Server, until: Instant) -> Outcome<()> {
    let mut load = Load::open_clients(&[server], RUNS).await?;
    while now() < until {
        load.run(RUNS).await?;
        sleep(RUN_PAUSE).await;
    }
    Ok(())
}

/// Sessions of the daemon that are opened and closed.
async fn open_sessions(server: &Server, workspace: &str, until: Instant) -> Outcome<()> {
    let mut connection = Connection::open(server).await?;
    let open = request(server, "POST", "/session", &format!(r#"{{"cwd":"{workspace}","sessionScope":"thread"}}"#));
    while now() < until {
        let session_id = field(connection.call(&open).await?, "sessionId")?.to_owned();
        // An answer without a body has no length: the connection ends with it.
        let close = request(server, "DELETE", &format!("/session/{session_id}"), "");
        let mut closing = Connection::open(server).await?;
        closing.stream_until(&close, b"\r\n\r\n").await?;
        sleep(SESSION_PAUSE).await;
    }
    Ok(())
}

/// Deliveries to a webhook at which nothing listens: each is tried and put off.
async fn deliver(server: &Server, until: Instant) -> Outcome<()> {
    let mut connection = Connection::open(server).await?;
    let made = connection.call(&request(server, "POST", "/agents", r#"{"name":"soak"}"#)).await?;
    let webhook = format!("/agents/{}/webhook", field(made, "id")?);
    let body = r#"{"url":"https://localhost:9/hook"}"#;
    connection.call(&request(server, "PUT", &webhook, body)).await?;
    let test = request(server, "POST", &format!("{webhook}/test"), "");
    while now() < until {
        // A webhook that was disabled, or has too many deliveries, refuses more.
        connection.exchange(&test).await?;
        sleep(DELIVERY_PAUSE).await;
    }
    Ok(())
}
