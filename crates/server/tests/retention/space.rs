//! Disk space that a sweep frees is really returned: on SQLite by the sweep itself, on both engines by `compact`.

use ostler_server::compact;
use ostler_store::retention::space::Compacted;
use serde_json::json;

use super::{DAY_MS, at_work, sweep_all, verify};
use crate::harness::{Engine, TestServer, both_engines, dialects, one_engine};

const MIB: u64 = 1024 * 1024;

/// Small payloads of several MiB in all, in a finished run: each fits into a page, with others.
async fn fill(server: &TestServer) {
    let (runner, command_id) = at_work(server, "hwlab").await;
    let event = json!({"type": "command_output", "commandId": command_id, "payload": {"text": "x".repeat(900)}});
    for _ in 0..16 {
        runner.try_append(None, json!(vec![event.clone(); 400])).await.with_status(200);
    }
    runner.end(&command_id, "completed").await;
    runner.try_end_run("completed").await.with_status(200);
    server.clock.advance_ms(DAY_MS);
}

async fn hourly(engine: Engine) -> TestServer {
    TestServer::with(engine, |setup| {
        setup.config.retention.events_ms = Some(3_600_000);
        setup.config.retention.pause_ms = 0;
    })
    .await
}

fn file_size(server: &TestServer) -> u64 {
    std::fs::metadata(server.config.data_dir().unwrap().join("ostler.db")).unwrap().len()
}

#[one_engine]
async fn a_sweep_returns_the_space_of_a_sqlite_file(_: Engine) {
    let mut server = hourly(Engine::Sqlite).await;
    fill(&server).await;
    // The server writes its log to the file when it stops; before, the size of the file means little.
    server.restart().await;
    let before = file_size(&server);
    assert!(before > 6 * MIB, "{before}");
    sweep_all(&server, json!({})).await;
    let after = file_size(&server);
    assert!(after < before / 2, "{before} before, {after} after");
    assert_eq!(verify(&server, Engine::Sqlite).await.broken, vec![]);
}

#[one_engine]
async fn a_client_that_repeats_a_sweep_while_there_is_more_returns_every_free_page(_: Engine) {
    let mut server = TestServer::with(Engine::Sqlite, |setup| {
        setup.config.retention.events_ms = Some(3_600_000);
        setup.config.retention.pause_ms = 0;
        // Far more pages become free than the steps of one request return.
        setup.config.retention.step_rows = 20;
    })
    .await;
    fill(&server).await;
    sweep_all(&server, json!({})).await;
    let mut free_pages = None;
    server
        .restart_after(async |config| {
            let connection = rusqlite::Connection::open(config.data_dir().unwrap().join("ostler.db")).unwrap();
            let count = connection.query_row("PRAGMA freelist_count", [], |row| row.get::<_, i64>(0));
            free_pages = Some(count.unwrap());
        })
        .await;
    // The server writes a few rows when it stops.
    assert!(free_pages.is_some_and(|count| count < 100), "{free_pages:?} pages are still free");
}

#[both_engines]
async fn compact_returns_all_free_space(engine: Engine) {
    let mut server = hourly(engine).await;
    fill(&server).await;
    if engine == Engine::Sqlite {
        // As in a file of an older version, which returns nothing by itself.
        server
            .restart_after(async |config| {
                let connection = rusqlite::Connection::open(config.data_dir().unwrap().join("ostler.db")).unwrap();
                connection.execute_batch("PRAGMA auto_vacuum = NONE; VACUUM;").unwrap();
            })
            .await;
    }
    sweep_all(&server, json!({})).await;
    if engine == Engine::Sqlite {
        let refused = compact(&server.config, &dialects()).await.unwrap_err();
        assert!(refused.message.contains("the server of this store is running"), "{refused}");
    }
    let mut compacted = None;
    server.restart_after(async |config| compacted = Some(compact(config, &dialects()).await.unwrap())).await;
    let Compacted { before_bytes, after_bytes } = compacted.unwrap();
    assert!(before_bytes > 5 * MIB && after_bytes < before_bytes / 2, "{before_bytes} before, {after_bytes} after");
    assert_eq!(verify(&server, engine).await.broken, vec![]);
}
