//! A day's load in a quarter of an hour, on both engines: what the server holds at the quarter marks, and how long appends take
//! while retention, checkpoints and vacuum run concurrently.

use std::collections::BTreeMap;
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
use crate::sessions::count_rows;

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
#[derive(Clone, Copy, Default)]
struct Mark {
    anonymous_mib: f64,
    fds: f64,
    tables_mib: f64,
    wal_mib: f64,
    /// Rows of the event log, which retention never removes.
    events: f64,
}

/// Times of appends in ms, by the quarter in which they began.
type Latencies = [Vec<f64>; QUARTERS as usize];

/// Figures with targets, by name. Most compare the last quarter with the second: in the first one, caches fill.
type Growth = BTreeMap<&'static str, f64>;

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let mut worst = Growth::new();
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
        let whole = Duration::from_secs(bench.sizes.soak_s);
        let until = now() + whole;
        let load = async {
            let (appended, _) = try_join(append(&server, whole, until), follow_all(&server, until)).await?;
            Outcome::Ok(appended)
        };
        let others = async {
            try_join(runs(&server, until), try_join(open_sessions(&server, &workspace, until), deliver(&server, until)))
                .await
        };
        let (marks, (latencies, _)) = try_join(sample(bench, &place, &server, until), try_join(load, others)).await?;
        server.stop()?;
        let name = engine.name();
        for (figure, value) in report_marks(report, engine, &marks, latencies) {
            report.figure(figure.replacen("soak.", &format!("soak.{name}."), 1), value);
            let highest = worst.entry(figure).or_insert(value);
            *highest = value.max(*highest);
        }
    }
    for (figure, value) in worst {
        report.figure(figure, value);
    }
    report.note(format!(
        "soak: {} s of {APPENDS_PER_S} appends per second, runs, {FOLLOWERS} followers, sessions of the daemon, deliveries and \
         retention; growth: the last quarter divided by the second, on the engine where it is worse; tables_per_event: what the \
         tables grow by for each event, whose digest stays",
        bench.sizes.soak_s
    ));
    Ok(())
}

fn workspace(bench: &Bench, engine: Engine) -> Outcome<PathBuf> {
    let workspace = bench.scratch().join(format!("soak-workspace-{}", engine.name()));
    std::fs::create_dir_all(&workspace)?;
    Ok(workspace.canonicalize()?)
}

/// Reports the marks, and returns the figures that have targets.
fn report_marks(report: &mut Report, engine: Engine, marks: &[Mark], mut latencies: Latencies) -> Growth {
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
    for (index, quarter) in latencies.iter_mut().enumerate() {
        quarter.sort_by(f64::total_cmp);
        report.figure(format!("soak.{name}.q{}_append_p999_ms", index + 1), per_mille(quarter, 999));
    }
    let mut all = latencies.concat();
    all.sort_by(f64::total_cmp);
    report.figure(format!("soak.{name}.append_p50_ms"), per_mille(&all, 500));
    report.figure(format!("soak.{name}.append_max_ms"), per_mille(&all, 1_000));
    let [first, second, third, last] = [0_usize, 1, 2, 3].map(|index| marks.get(index).copied().unwrap_or_default());
    report.figure(format!("soak.{name}.tables_growth"), last.tables_mib / second.tables_mib);
    let [_, second_latencies, _, last_latencies] = &latencies;
    let mut growth = Growth::new();
    growth.insert("soak.anonymous_growth", last.anonymous_mib / second.anonymous_mib);
    growth.insert("soak.fds_growth", last.fds / second.fds);
    // A log that was just written back is empty.
    growth.insert("soak.wal_growth", last.wal_mib.max(1.0) / second.wal_mib.max(1.0));
    growth.insert("soak.tables_per_event_growth", kib_per_event(third, last) / kib_per_event(first, second));
    growth.insert("soak.append_p999_ms", per_mille(&all, 999));
    growth.insert("soak.append_p999_growth", per_mille(last_latencies, 999) / per_mille(second_latencies, 999));
    growth
}

/// The value below which so many thousandths of the others are. Zero without values.
fn per_mille(sorted: &[f64], per_mille: usize) -> f64 {
    let index = (sorted.len() * per_mille / 1_000).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or(0.0)
}

/// By what the tables grew between two marks for each event. At least a page in all: a ratio needs a divisor.
fn kib_per_event(from: Mark, to: Mark) -> f64 {
    const PAGE_KIB: f64 = 8.0;
    ((to.tables_mib - from.tables_mib) * 1024.0).max(PAGE_KIB) / (to.events - from.events).max(1.0)
}

/// The quarter at a time before the end.
fn quarter(left: Duration, whole: Duration) -> usize {
    let quarters_left = left.as_secs_f64() / (whole.as_secs_f64() / f64::from(QUARTERS));
    (QUARTERS as usize).saturating_sub(quarters_left.ceil() as usize).min(QUARTERS as usize - 1)
}

/// Looks at the end of each quarter, just before the load ends.
async fn sample(bench: &Bench, place: &Place, server: &Server, until: Instant) -> Outcome<Vec<Mark>> {
    let quarter = Duration::from_secs(bench.sizes.soak_s) / QUARTERS;
    let mut marks = vec![];
    for left in (0..QUARTERS).rev() {
        // A little before the end, while everything is still open.
        let at = until - quarter * left - Duration::from_secs(1);
        sleep(at.saturating_duration_since(now())).await;
        let (anonymous_mib, fds) = (anonymous_mib(server.pid())?, open_files(server.pid())? as f64);
        let (tables_mib, wal_mib) = sizes_mib(place).await?;
        let events = count_rows(place, "SELECT COUNT(*) FROM events").await? as f64;
        marks.push(Mark { anonymous_mib, fds, tables_mib, wal_mib, events });
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
async fn append(server: &Server, whole: Duration, until: Instant) -> Outcome<Latencies> {
    const APPENDS_PER_RUN: usize = 500;
    let mut connection = Connection::open(server).await?;
    let mut ticks = interval(Duration::from_secs(1) / APPENDS_PER_S);
    let mut latencies = Latencies::default();
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
            let left = until.saturating_duration_since(started);
            latencies[quarter(left, whole)].push(since(started).as_secs_f64() * 1e3);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(tables_mib: f64, events: f64) -> Mark {
        Mark { anonymous_mib: 20.0, fds: 50.0, tables_mib, wal_mib: 16.0, events }
    }

    /// Growth of both engines' figures, from four marks and the slowest append of each quarter.
    fn growth(marks: [Mark; 4], slowest_ms: [f64; 4]) -> (Growth, Report) {
        let mut report = Report::default();
        let latencies = slowest_ms.map(|slowest_ms| vec![1.0, 2.0, slowest_ms]);
        (report_marks(&mut report, Engine::Sqlite, &marks, latencies), report)
    }

    #[test]
    fn tables_that_grow_by_the_same_amount_for_each_event_do_not_count_as_growth() {
        let steady = [mark(10.0, 1_000.0), mark(20.0, 2_000.0), mark(30.0, 3_000.0), mark(50.0, 5_000.0)];
        let (figures, report) = growth(steady, [9.0, 4.0, 5.0, 6.0]);
        assert_eq!(figures["soak.tables_per_event_growth"], 1.0);
        assert_eq!(figures["soak.anonymous_growth"], 1.0);
        assert_eq!(figures["soak.append_p999_growth"], 1.5);
        assert_eq!(figures["soak.append_p999_ms"], 9.0);
        assert!(report.table().contains("soak.sqlite.q4_append_p999_ms"), "{}", report.table());
        let faster = [mark(10.0, 1_000.0), mark(20.0, 2_000.0), mark(30.0, 3_000.0), mark(50.0, 4_000.0)];
        assert_eq!(growth(faster, [1.0; 4]).0["soak.tables_per_event_growth"], 2.0);
    }

    #[test]
    fn an_append_counts_in_the_quarter_in_which_it_began() {
        let whole = Duration::from_secs(40);
        let quarters = [40, 31, 29, 11, 9, 0].map(|left_s| quarter(Duration::from_secs(left_s), whole));
        assert_eq!(quarters, [0, 0, 1, 2, 3, 3]);
    }
}
