//! The lists that front ends open with, on both engines at the same time: the first page of a history, of a user's threads
//! and of all sessions. Postgres may take at most twice as long as SQLite. The calls of the two engines alternate, and only
//! neighbours are compared.

use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::timeout;

use crate::agui::{RUNS, ended, message};
use crate::engine::{Bench, Engine};
use crate::http::{Connection, field, request};
use crate::machine::{now, since};
use crate::outcome::Outcome;
use crate::report::{Quartiles, Report, median};
use crate::server::Server;
use crate::sessions::execute;

/// Threads of the user, each with one turn.
const THREADS: usize = 200;
/// Turns of the thread whose history is read.
const TURNS: usize = 50;
const WRITERS: usize = 8;
const USER: &str = r#"{"name":"ada","timezone":"UTC"}"#;
const FILL_TIMEOUT: Duration = Duration::from_secs(300);

/// A list: its name in figures, its path, and whether the user reads it instead of the operator.
struct List {
    name: &'static str,
    path: String,
    is_of_user: bool,
}

/// A filled server of one engine.
struct Filled {
    server: Server,
    connection: Connection,
    user_token: String,
}

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let mut sides = vec![];
    for engine in Engine::BOTH {
        sides.push(timeout(FILL_TIMEOUT, fill(bench, engine)).await??);
    }
    let history = RUNS.replace("runs", "history");
    let lists = [
        List { name: "history", path: format!("{history}?threadId={}", thread(0)), is_of_user: true },
        List { name: "threads", path: "/api/v1/sessions?state=all".to_owned(), is_of_user: true },
        List { name: "sessions", path: "/api/v1/sessions?state=all".to_owned(), is_of_user: false },
    ];
    for list in &lists {
        let times = times(bench, &mut sides, list).await?;
        let name = list.name;
        for (engine, times) in Engine::BOTH.into_iter().zip(&times) {
            report.figure(format!("lists.{}.{name}_p50_ms", engine.name()), median(times.iter().copied()));
        }
        let [sqlite, postgres] = times;
        let ratios = sqlite.iter().zip(&postgres).map(|(sqlite, postgres)| postgres / sqlite);
        let ratio = Quartiles::of(ratios).ok_or("no list was read")?;
        let Quartiles { lower, median: middle, upper } = ratio;
        eprintln!("    lists.{name}: {middle:.2} ({lower:.2} to {upper:.2}) times as long on Postgres");
        report.figure(format!("lists.{name}_postgres_to_sqlite"), middle);
    }
    for side in sides {
        side.server.stop()?;
    }
    report.note(format!(
        "lists: first pages of a history of {TURNS} turns, of a user's {THREADS} threads, and of all sessions, in alternating calls; \
         the ratio is the median of those of neighbouring calls"
    ));
    Ok(())
}

fn thread(number: usize) -> String {
    format!("{number:08x}-0000-4000-8000-000000000000")
}

/// The same request, by the user.
fn by_user(server: &Server, user_token: &str, bytes: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(bytes).replacen(&server.token, user_token, 1).into_bytes()
}

/// A server whose user has many threads, one of them with many turns.
async fn fill(bench: &Bench, engine: Engine) -> Outcome<Filled> {
    let place = bench.place(engine)?;
    let server = bench.serve(&place)?;
    let mut connection = Connection::open(&server).await?;
    connection.call(&request(&server, "POST", "/api/v1/users", USER)).await?;
    let token = request(&server, "POST", "/api/v1/users/ada/token", "{}");
    let user_token = field(connection.call(&token).await?, "token")?.to_owned();
    let (writing, token) = (&server, &user_token);
    let writers = (0..WRITERS).map(|writer| async move {
        let mut connection = Connection::open(writing).await?;
        for number in (writer..THREADS).step_by(WRITERS) {
            let turns = if number == 0 { TURNS } else { 1 };
            for turn in 0..turns {
                let posted = by_user(writing, token, &message(writing, &thread(number), turn, true));
                ended(connection.stream(&posted).await?)?;
            }
        }
        Outcome::Ok(())
    });
    try_join_all(writers).await?;
    if engine == Engine::Postgres {
        // As its own daemon would within a minute.
        execute(&place, "VACUUM ANALYZE").await?;
    }
    Ok(Filled { server, connection, user_token })
}

/// The times of the calls of each engine in ms, in the order of the calls.
async fn times(bench: &Bench, sides: &mut [Filled], list: &List) -> Outcome<[Vec<f64>; 2]> {
    let mut times = [vec![], vec![]];
    // The first calls warm up and are not counted.
    let warm_up = bench.sizes.lists / 10;
    for call in 0..bench.sizes.lists + warm_up {
        for (side, times) in sides.iter_mut().zip(&mut times) {
            let mut page = request(&side.server, "GET", &list.path, "");
            if list.is_of_user {
                page = by_user(&side.server, &side.user_token, &page);
            }
            let started = now();
            side.connection.call(&page).await?;
            if call >= warm_up {
                times.push(since(started).as_secs_f64() * 1e3);
            }
        }
    }
    Ok(times)
}
