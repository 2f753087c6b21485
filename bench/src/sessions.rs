//! A first page of sessions must cost about the same over a hundred sessions and over a hundred thousand: of all of them, and of
//! those that run or are unread, whether the reader has read none or nearly all.

use std::time::Duration;

use futures_util::future::try_join_all;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::time::timeout;

use crate::engine::{Bench, Engine, Place};
use crate::http::{Connection, field, request};
use crate::machine::{now, since};
use crate::outcome::Outcome;
use crate::report::{Report, median};
use crate::server::Server;

const FEW: usize = 100;
const MANY: usize = 100_000;
/// Those the reader has not read, once nearly all are.
const LEFT_UNREAD: usize = 10;
const WRITERS: usize = 16;
const CREATE: &str = r#"{"tenantId":"local","backendProfile":"scripted"}"#;
const TIMEOUT: Duration = Duration::from_secs(600);

/// Every session has had a turn that ended an hour ago. Written past the server, because a hundred thousand runs would take minutes and
/// leave the same rows.
const END_ALL: &str =
    "UPDATE sessions SET version = 1, execution_state = 'terminal', ended_at = created_at - 3600000000";

struct Side {
    place: Place,
    server: Server,
    sessions: Vec<String>,
}

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let mut worst = 0.0_f64;
    for engine in Engine::BOTH {
        let mut sides = vec![];
        for sessions in [FEW, MANY] {
            let place = bench.place(engine)?;
            let server = bench.serve(&place)?;
            let sessions = timeout(TIMEOUT, create(&server, sessions)).await??;
            sides.push(Side { place, server, sessions });
        }
        let mut add_ratio = |name: &str, ratio: f64| {
            report.figure(format!("sessions.{}.{name}_ratio", engine.name()), ratio);
            ratio
        };
        worst = worst.max(add_ratio("all", ratio(bench, &sides, "?state=all").await?));
        worst = worst.max(add_ratio("idle", ratio(bench, &sides, "").await?));
        for side in &sides {
            execute(&side.place, END_ALL).await?;
        }
        worst = worst.max(add_ratio("unread", ratio(bench, &sides, "").await?));
        for side in &sides {
            timeout(TIMEOUT, mark_read(&side.server, &side.sessions[LEFT_UNREAD..])).await??;
        }
        // A hundred thousand marks in seconds leave as many dead index entries, which Postgres clears away within its minute.
        if engine == Engine::Postgres {
            add_ratio("read_unswept", ratio(bench, &sides, "").await?);
            for side in &sides {
                execute(&side.place, "VACUUM ANALYZE session_read_cursors").await?;
            }
        }
        worst = worst.max(add_ratio("read", ratio(bench, &sides, "").await?));
        for side in sides {
            side.server.stop()?;
        }
    }
    report.figure("sessions.list_ratio_100k_to_100", worst);
    report.note(format!(
        "sessions: the time of a first page over {MANY} sessions against {FEW}, medians of alternating calls, of the list and engine \
         where it is worst; read_unswept: before Postgres has cleared away what a hundred thousand marks left"
    ));
    Ok(())
}

/// How much longer the page takes over many sessions than over few.
async fn ratio(bench: &Bench, sides: &[Side], query: &str) -> Outcome<f64> {
    let mut times = vec![vec![]; sides.len()];
    let mut readers = vec![];
    for side in sides {
        let page = request(&side.server, "GET", &format!("/api/v1/sessions{query}"), "");
        readers.push((Connection::open(&side.server).await?, page));
    }
    // The first calls warm up and are not counted.
    let warm_up = bench.sizes.lists / 10;
    for call in 0..bench.sizes.lists + warm_up {
        for ((connection, page), times) in readers.iter_mut().zip(&mut times) {
            let started = now();
            connection.call(page).await?;
            if call >= warm_up {
                times.push(since(started).as_secs_f64() * 1e3);
            }
        }
    }
    let [few, many] = [median(times[0].iter().copied()), median(times[1].iter().copied())];
    eprintln!(
        "    sessions.{} {query:?}: {few:.3} ms over {FEW}, {many:.3} ms over {MANY}",
        sides[0].place.engine.name()
    );
    Ok(many / few)
}

/// Creates so many sessions through the server. Returns their ids.
pub(crate) async fn create(server: &Server, count: usize) -> Outcome<Vec<String>> {
    let create = request(server, "POST", "/api/v1/sessions", CREATE);
    let create = &create;
    let made = try_join_all((0..WRITERS).map(|writer| async move {
        let mut connection = Connection::open(server).await?;
        let mut made = vec![];
        for _ in (writer..count).step_by(WRITERS) {
            made.push(field(connection.call(create).await?, "sessionId")?.to_owned());
        }
        Outcome::Ok(made)
    }));
    Ok(made.await?.into_iter().flatten().collect())
}

async fn mark_read(server: &Server, sessions: &[String]) -> Outcome<()> {
    let marked = try_join_all((0..WRITERS).map(|writer| async move {
        let mut connection = Connection::open(server).await?;
        for session_id in sessions.iter().skip(writer).step_by(WRITERS) {
            connection.call(&request(server, "POST", &format!("/api/v1/sessions/{session_id}/read"), "{}")).await?;
        }
        Outcome::Ok(())
    }));
    marked.await.map(drop)
}

pub(crate) async fn execute(place: &Place, sql: &str) -> Outcome<()> {
    match &place.database_url {
        Some(url) => {
            let mut connection = PgConnection::connect(url).await?;
            sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await?;
            connection.close().await?;
        }
        None => rusqlite::Connection::open(place.data_dir.join("ostler.db"))?.execute_batch(sql)?,
    }
    Ok(())
}

/// The number that a statement selects.
pub(crate) async fn count_rows(place: &Place, sql: &str) -> Outcome<i64> {
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
