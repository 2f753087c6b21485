//! A launcher vouches for its jobs whatever else it waits for. Only on Postgres can one statement wait and another not.

use std::time::Duration;

use sqlx::Executor;

use crate::harness::{Engine, TestServer, eventually, run};

const SILENCE_MS: i64 = 1_000;

#[test]
fn a_launcher_that_waits_for_the_store_keeps_its_jobs() {
    run(async {
        let server = TestServer::with(Engine::Postgres, |setup| {
            setup.config.runner.slots = 1;
            setup.config.runner.job_silence_ms = SILENCE_MS;
        })
        .await;
        server.clock.run();
        let (busy, _) = server.start(r#"{"script": [{"say": "begun"}, {"wait": 600000}]}"#).await;
        eventually("the only slot is in use", async || {
            (!server.events_of(&busy, "assistant_message").await.is_empty()).then_some(())
        })
        .await;
        // With every slot in use, a launcher looks in the leases for a runner to dismiss. This look waits.
        let mut other = server.connection().await;
        other.execute("BEGIN").await.unwrap();
        other.execute("LOCK TABLE leases IN ACCESS EXCLUSIVE MODE").await.unwrap();
        let heartbeat = async || {
            let sql = "SELECT heartbeat_at::text FROM runner_jobs WHERE phase = 'running'";
            server.store(sql).await.pop().expect("the job is running").parse::<i64>().unwrap()
        };
        // The launcher looks again every 2 s at least.
        tokio::time::sleep(Duration::from_secs(3)).await;
        let before = heartbeat().await;
        eventually("the jobs are vouched for while the launcher waits", async || {
            (heartbeat().await >= before + 2 * SILENCE_MS * 1_000).then_some(())
        })
        .await;
        other.execute("ROLLBACK").await.unwrap();
    });
}
