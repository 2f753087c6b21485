//! Settings that could lose an acknowledged write are rejected at start, unless `--unsafe-durability` is given.

use crate::fixtures::{
    http::Http,
    test_home::{Engine, TestHome, both_engines},
};

#[both_engines]
fn weak_durability_is_rejected_unless_requested(engine: Engine) {
    let mut home = TestHome::on_disk(engine);
    let named = match engine {
        Engine::Sqlite => {
            home.set("OSTLER_STORE__SQLITE_SYNCHRONOUS", "normal");
            "synchronous=1"
        }
        Engine::Postgres => {
            let (_, name) = home.database_url().rsplit_once('/').unwrap();
            home.execute(&format!("ALTER DATABASE {name} SET synchronous_commit = off"));
            "synchronous_commit=off"
        }
    };
    let status = home.try_serve().err().expect("it does not start");
    assert_ne!(status.code(), Some(0));
    let log = home.log();
    assert!(log.contains("would lose answered writes in a power cut") && log.contains(named), "{log}");

    home.flags.push("--unsafe-durability".into());
    let server = home.serve();
    let readiness = Http::with_token(&server.address, None).get("/health/readiness").good();
    assert_eq!(readiness["status"], "ready");
    assert_eq!(readiness["durability"], serde_json::json!({"durable": false, "weakSettings": [named]}));
    server.stop();
}
