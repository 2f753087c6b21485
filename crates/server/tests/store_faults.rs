//! A store that fails is noticed: readiness and metrics say so within 2 s and without secrets, callers learn why, and when
//! it works again the server does, too.

use std::time::Duration;

use ostler_protocol::FailureKind::InfraFailed;
use ostler_testkit::postgres::{Cluster, find_binaries};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Executor};
use tokio::time::timeout;

use crate::{
    harness::{Database, Engine, PausableProxy, TestServer, eventually},
    metrics::value,
};

mod postgres {
    #[test]
    fn a_database_that_hangs_is_noticed_at_once() {
        crate::harness::run(super::a_database_that_hangs_is_noticed_at_once());
    }

    #[test]
    fn a_database_that_refuses_writes_is_not_ready() {
        crate::harness::run(super::a_database_that_refuses_writes_is_not_ready());
    }

    #[test]
    fn a_database_that_is_gone_is_reported_as_unreachable() {
        crate::harness::run(super::a_database_that_is_gone_is_reported_as_unreachable());
    }
}

/// Readiness promises 2 s; a busy machine may take somewhat longer to deliver the answer.
const PROMPT: Duration = Duration::from_secs(8);

async fn readiness(server: &TestServer, status: u16) -> Value {
    let anonymous = server.with_token(None);
    let answer = timeout(PROMPT, anonymous.get("/health/readiness")).await.expect("readiness answers");
    assert!(!answer.text.contains("://") && !answer.text.contains("127.0.0.1"), "{}", answer.text);
    answer.with_status(status)
}

/// A server behind a proxy. The database is of the test's own.
async fn server_behind_proxy() -> (TestServer, PausableProxy, Database) {
    let database = Database::migrated();
    let mut config = ostler_server::Config::default();
    config.store.database_url = Some(database.url().into());
    let proxy = PausableProxy::between(&mut config).await;
    let server = TestServer::with(Engine::Postgres, |setup| {
        setup.config.store.database_url = config.store.database_url;
    })
    .await;
    (server, proxy, database)
}

async fn a_database_that_hangs_is_noticed_at_once() {
    let (server, proxy, _database) = server_behind_proxy().await;
    let ready = readiness(&server, 200).await;
    assert_eq!((&ready["store"]["writable"], &ready["store"]["reason"]), (&json!(true), &Value::Null));
    proxy.pause();
    tokio::time::sleep(Duration::from_millis(600)).await;
    let hanging = readiness(&server, 503).await;
    assert_eq!(hanging["status"], "not-ready");
    assert_eq!(hanging["store"]["reason"], "silent");
    assert_eq!((&hanging["store"]["reachable"], &hanging["store"]["writable"]), (&json!(false), &json!(false)));
    assert_eq!(hanging["migrations"], ready["migrations"], "a database that hangs has lost no migration");
    assert_eq!(hanging["durability"], json!({"durable": true, "weakSettings": []}));
    assert_eq!(timeout(PROMPT, value(&server, "ostler_store_reachable")).await.expect("metrics answer"), 0.0);
    assert_eq!(timeout(PROMPT, value(&server, "ostler_store_writable")).await.expect("metrics answer"), 0.0);
    proxy.resume();
    eventually("the server is ready again", async || {
        let answer = server.get("/health/readiness").await;
        (answer.status == 200).then_some(())
    })
    .await;
    server.create_run().await;
    assert_eq!(value(&server, "ostler_store_writable").await, 1.0);
}

async fn a_database_that_refuses_writes_is_not_ready() {
    let server = TestServer::start(Engine::Postgres).await;
    let run_id = server.create_run().await;
    let name = server.store("SELECT current_database()::text").await.remove(0);
    let all_connections = "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    server.store(&format!("ALTER DATABASE {name} SET default_transaction_read_only = on")).await;
    server.store(all_connections).await;
    let refused = eventually("writes are refused", async || {
        let answer = server.post(&format!("/api/v1/runs/{run_id}/cancel"), &json!({})).await;
        let refused = answer.refused(InfraFailed);
        (refused.rule == "store-read-only").then_some(refused)
    })
    .await;
    assert!(refused.message.contains("read-only") && refused.message.contains("hint:"), "{}", refused.message);
    let unready = readiness(&server, 503).await;
    assert_eq!((&unready["store"]["reachable"], &unready["store"]["writable"]), (&json!(true), &json!(false)));
    assert_eq!(unready["store"]["reason"], "read-only");
    assert_eq!(value(&server, "ostler_store_reachable").await, 1.0);
    assert_eq!(value(&server, "ostler_store_writable").await, 0.0);
    assert!(value(&server, "ostler_store_write_failures_total{reason=\"read-only\"}").await >= 1.0);
    let mut connection = server.connection().await;
    for sql in ["SET default_transaction_read_only = off".to_owned(), format!("ALTER DATABASE {name} RESET ALL")] {
        connection.execute(AssertSqlSafe(sql)).await.unwrap();
    }
    server.store(all_connections).await;
    eventually("the run can be cancelled", async || {
        let answer = server.post(&format!("/api/v1/runs/{run_id}/cancel"), &json!({})).await;
        (answer.status == 200).then_some(())
    })
    .await;
    eventually("the server is ready again", async || {
        (server.get("/health/readiness").await.status == 200).then_some(())
    })
    .await;
}

async fn a_database_that_is_gone_is_reported_as_unreachable() {
    let (server, proxy, database) = server_behind_proxy().await;
    let run_id = server.create_run().await;
    drop(proxy);
    // New connections to it are refused, and the old ones are gone.
    let name = database.url().rsplit('/').next().unwrap().to_owned();
    drop(database);
    let refused = eventually("the failure names the problem", async || {
        let answer = server.post(&format!("/api/v1/runs/{run_id}/cancel"), &json!({})).await;
        let refused = answer.refused(InfraFailed);
        ["store-denied", "store-unreachable"].contains(&refused.rule.as_str()).then_some(refused)
    })
    .await;
    assert!(!refused.message.contains(&name) && !refused.message.contains("127.0.0.1"), "{}", refused.message);
    assert_eq!(refused.details["retryAfterMs"], 2_000);
    let unready = readiness(&server, 503).await;
    assert!(!unready.to_string().contains(&name), "{unready}");
    assert_eq!((&unready["status"], &unready["store"]["reachable"]), (&json!("not-ready"), &json!(false)));
}

/// The whole cluster is stopped, as when its machine is off.
#[test]
fn readiness_without_postgres_is_not_ready_and_shows_no_dsn() {
    const PASSWORD: &str = "correct-horse-battery";
    let binaries = find_binaries().expect("Postgres is installed");
    // On this thread, which outlives it.
    let mut cluster = Cluster::start(&binaries).unwrap();
    // The cluster trusts every client; the password is only there to be looked for.
    let url = cluster.url().replacen("@", &format!(":{PASSWORD}@"), 1);
    assert!(url.contains(PASSWORD), "{url}");
    let port = format!(":{}", cluster.port());
    crate::harness::run(async {
        let server = TestServer::with(Engine::Sqlite, |setup| {
            setup.config.store.database_url = Some(url.into());
        })
        .await;
        assert_eq!(readiness(&server, 200).await["status"], "ready");
        cluster.stop().unwrap();
        let gone = eventually("readiness reports it", async || {
            let answer = server.with_token(None).get("/health/readiness").await;
            (answer.status == 503).then_some(())?;
            Some(readiness(&server, 503).await)
        })
        .await;
        assert_eq!(gone["status"], "not-ready");
        assert_eq!((&gone["store"]["engine"], &gone["store"]["reachable"]), (&json!("postgres"), &json!(false)));
        assert_eq!(gone["store"]["writable"], false);
        assert_eq!(gone["migrations"]["ready"], true, "what was found before is still reported");
        assert!(gone["store"]["reason"].is_string(), "{gone}");
        assert_eq!(gone["secretRefs"]["databaseUrl"], "configured");
        let text = gone.to_string();
        for secret in [PASSWORD, port.as_str(), "postgres://", "postgresql://"] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
        // The process is alive all the same.
        server.get("/health/live").await.with_status(200);
        cluster.start_again().unwrap();
        eventually("the server is ready again", async || {
            (server.get("/health/readiness").await.status == 200).then_some(())
        })
        .await;
    });
}
