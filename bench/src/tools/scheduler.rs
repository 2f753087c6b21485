//! The scheduler of automations: what it costs to find what is due among few and among many automations that are not, and how soon a
//! thousand that are due at the same time have been started.
//!
//! All automations but one are written past the server, because a hundred thousand requests would take minutes and leave the same rows.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::time::{sleep, timeout};

use crate::engine::{Bench, Engine, Place};
use crate::http::{Connection, field, request};
use crate::machine::{cpu, cpu_with_children, unix_us};
use crate::outcome::Outcome;
use crate::report::Report;
use crate::sessions::execute;

const FEW: usize = 100;
const MANY: usize = 100_000;
const DUE: usize = 1_000;
const CREATE: &str = r#"{"title":"Digest","timezone":"UTC","config":{"input_template":"hi","schedule":{"type":"daily","run_at":{"hour":7,"minute":0}}}}"#;
/// As short as the server allows, so that nearly all of its work is to look for what is due.
const POLL_MS: &str = "10";
const SETTLE: Duration = Duration::from_secs(2);
/// How long the scheduler is observed.
const OBSERVED: Duration = Duration::from_secs(10);
/// From before the server starts until the automations are due.
const AHEAD_US: u64 = 5_000_000;
/// When the first of those that are not due will be.
const LATER_US: u64 = 10 * 24 * 3_600 * 1_000_000;
const CHECK_PAUSE: Duration = Duration::from_millis(20);
const TIMEOUT: Duration = Duration::from_secs(120);

pub async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let (mut worst_ratio, mut worst_s) = (0.0_f64, 0.0_f64);
    for engine in Engine::BOTH {
        let name = engine.name();
        let few = filled(bench, engine, FEW).await?;
        let many = filled(bench, engine, MANY).await?;
        let [few_ms, many_ms] = [busy_ms_per_s(bench, &few).await?, busy_ms_per_s(bench, &many).await?];
        let started_s = timeout(TIMEOUT, start_due(bench, &many)).await??;
        eprintln!(
            "    tools.{name}: {few_ms:.1} ms of CPU in a second with {FEW} automations, {many_ms:.1} ms with {MANY}; {DUE} started in \
             {started_s:.2} s"
        );
        report.figure(format!("tools.{name}.scheduler_100_ms_per_s"), few_ms);
        report.figure(format!("tools.{name}.scheduler_100k_ms_per_s"), many_ms);
        report.figure(format!("tools.{name}.start_1000_s"), started_s);
        (worst_ratio, worst_s) = (worst_ratio.max(many_ms / few_ms), worst_s.max(started_s));
    }
    report.figure("tools.due_ratio_100k_to_100", worst_ratio);
    report.figure("tools.start_1000_s", worst_s);
    report.note(format!(
        "tools: the scheduler looks for what is due every {POLL_MS} ms; its ratio is the CPU time of the server and of Postgres with {MANY} \
         automations of which none is due against {FEW}; {DUE} of {MANY} are due at the same time, until the last run is submitted; on the \
         engine where it is worse"
    ));
    Ok(())
}

/// A store with so many automations, none of which is due for days.
async fn filled(bench: &Bench, engine: Engine, count: usize) -> Outcome<Place> {
    let place = bench.place(engine)?;
    let server = bench.serve(&place)?;
    let mut connection = Connection::open(&server).await?;
    let made = connection.call(&request(&server, "POST", "/api/v1/automations", CREATE)).await?;
    let first = field(made, "id")?.to_owned();
    drop(connection);
    server.stop()?;
    let later = unix_us() + LATER_US;
    // The digits of a number are those of an id, too.
    let zeros = "0".repeat(32);
    let columns = "owner_id, tenant_id, title, bootstrap_key, config, timezone, last_run_at, status, disabled_reason, failures, \
                   plan_after, plan_last_date, plan_zone_rules, revision, created_at, updated_at";
    execute(&place, &format!("UPDATE automations SET next_run_at = {later}")).await?;
    let copy = format!(
        "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {})
         INSERT INTO automations (automation_id, next_run_at, {columns})
         SELECT 'aut_' || substr('{zeros}', 1, 32 - length(CAST(n AS TEXT))) || CAST(n AS TEXT), {later} + CAST(n AS BIGINT) * 1000000, {columns}
         FROM numbers, automations WHERE automation_id = '{first}'",
        count - 1
    );
    execute(&place, &copy).await?;
    if engine == Engine::Postgres {
        // It would do this within its minute.
        execute(&place, "VACUUM ANALYZE automations").await?;
    }
    match count_rows(&place, "SELECT COUNT(*) FROM automations").await? {
        found if found == count as i64 => Ok(place),
        found => Err(format!("{found} automations instead of {count}").into()),
    }
}

/// Milliseconds of CPU time that the server and Postgres use in a second, while nothing is due.
async fn busy_ms_per_s(bench: &Bench, place: &Place) -> Outcome<f64> {
    let server = bench.serve_with(place, &[("OSTLER_AUTOMATIONS__POLL_MS", POLL_MS)])?;
    let postmaster = match place.engine {
        Engine::Postgres => Some(bench.postmaster().await?),
        Engine::Sqlite => None,
    };
    let used =
        || -> Outcome<Duration> { Ok(cpu(server.pid())? + postmaster.map_or(Ok(Duration::ZERO), cpu_with_children)?) };
    sleep(SETTLE).await;
    let before = used()?;
    sleep(OBSERVED).await;
    let busy = used()? - before;
    server.stop()?;
    Ok(busy.as_secs_f64() * 1e3 / OBSERVED.as_secs_f64())
}

/// Makes a thousand due at the same time: seconds from that time until each has its run.
async fn start_due(bench: &Bench, place: &Place) -> Outcome<f64> {
    let due = unix_us() + AHEAD_US;
    let sql = format!(
        "UPDATE automations SET next_run_at = {due} WHERE automation_id IN
         (SELECT automation_id FROM automations ORDER BY automation_id LIMIT {DUE})"
    );
    execute(place, &sql).await?;
    let server = bench.serve(place)?;
    if unix_us() >= due {
        return Err("the server took too long to start".into());
    }
    let started = "SELECT COUNT(DISTINCT automation_id) FROM automation_starts WHERE command_id IS NOT NULL";
    while count_rows(place, started).await? < DUE as i64 {
        sleep(CHECK_PAUSE).await;
    }
    let seconds = (unix_us() - due) as f64 / 1e6;
    let all = count_rows(place, "SELECT COUNT(*) FROM automation_starts").await?;
    // Killed, because the test does not wait for the runs.
    drop(server);
    if all == DUE as i64 { Ok(seconds) } else { Err(format!("{all} starts of {DUE} automations").into()) }
}

async fn count_rows(place: &Place, sql: &str) -> Outcome<i64> {
    match &place.database_url {
        Some(url) => {
            let mut connection = PgConnection::connect(url).await?;
            let count = sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&mut connection).await?;
            connection.close().await?;
            Ok(count)
        }
        None => {
            let connection = rusqlite::Connection::open(place.data_dir.join("ostler.db"))?;
            Ok(connection.query_row(sql, [], |row| row.get(0))?)
        }
    }
}
