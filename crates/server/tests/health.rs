//! T1: health and readiness say what is ready and what is not, and never a secret.

use serde_json::{Value, json};

use crate::harness::{Engine, TestServer, both_engines, one_engine};

#[one_engine]
async fn health_identifies_the_service_without_a_token(engine: Engine) {
    let server = TestServer::start(engine).await;
    let anonymous = server.with_token(None);
    for path in ["/health", "/health/live"] {
        let answer = anonymous.get(path).await;
        assert!(answer.headers["content-type"].to_str().unwrap().starts_with("application/json"));
        let health = answer.with_status(200);
        assert_eq!(health["serviceId"], "ostler");
        assert_eq!(health["status"], "ok");
        for field in ["version", "sourceCommit"] {
            assert!(health[field].as_str().is_some_and(|text| !text.is_empty()), "{field} in {health}");
        }
    }
}

#[one_engine]
async fn health_names_the_commit_of_the_program(engine: Engine) {
    let server =
        TestServer::with(engine, |setup| setup.config.server.source_commit = Some("0123456789ab".into())).await;
    for path in ["/health", "/health/live", "/health/readiness"] {
        assert_eq!(server.get(path).await.with_status(200)["sourceCommit"], "0123456789ab", "{path}");
    }
}

#[both_engines]
async fn readiness_names_store_migrations_durability_and_secrets(engine: Engine) {
    let server = TestServer::start(engine).await;
    let readiness = server.with_token(None).get("/health/readiness").await.with_status(200);
    assert_eq!(readiness["serviceId"], "ostler");
    assert_eq!(readiness["status"], "ready");
    assert!(readiness["sourceCommit"].is_string());
    let (name, replicas, url) = match engine {
        Engine::Sqlite => ("sqlite", false, "not configured"),
        Engine::Postgres => ("postgres", true, "configured"),
    };
    let store = json!({"engine": name, "reachable": true, "writable": true, "reason": null, "multiReplica": replicas});
    assert_eq!(readiness["store"], store);
    assert_eq!(readiness["migrations"]["ready"], true);
    assert!(!readiness["migrations"]["applied"].as_array().unwrap().is_empty());
    assert_eq!(readiness["durability"], json!({"durable": true, "weakSettings": []}));
    assert_eq!(
        readiness["secretRefs"],
        json!({"redacted": true, "databaseUrl": url, "providerSecrets": "local-files"})
    );
    // There is no guard in this test: only the program `ostler` has one.
    let is_root = rustix::process::geteuid().is_root();
    let unguarded = json!({"guarded": false, "isolated": false, "root": is_root, "filesConfined": false, "landlock": 0,
        "network": "codex-sandbox"});
    assert_eq!(readiness["confinement"], unguarded);
}

#[both_engines]
async fn health_shows_no_secret(engine: Engine) {
    let server = TestServer::start(engine).await;
    let token = server.operator_token();
    for path in ["/health", "/health/live", "/health/readiness"] {
        let answer = server.get(path).await;
        assert!(!answer.text.contains(&token) && !answer.text.contains("://"), "{}", answer.text);
    }
}

#[both_engines]
async fn backends_are_listed_with_what_they_need(engine: Engine) {
    let server = TestServer::start(engine).await;
    let list = server.get("/api/v1/backends").await.with_status(200);
    let find = |profile: &str| -> Value {
        let found = list["backends"].as_array().unwrap().iter().find(|backend| backend["profile"] == profile);
        found.unwrap_or_else(|| panic!("{profile} in {list}")).clone()
    };
    let scripted = find("scripted");
    assert_eq!((&scripted["available"], &scripted["requiredSecretKeys"]), (&json!(true), &json!([])));
    for profile in ["codex", "deepseek", "minimax-m3", "dsflash-go"] {
        let backend = find(profile);
        assert_eq!(backend["backendKind"], "codex-app-server-stdio");
        assert!(backend["requiredSecretKeys"].as_array().unwrap().contains(&json!("auth.json")), "{backend}");
        assert_eq!(backend["command"], json!(["codex", "app-server"]));
        let isolation = json!({"home": "per-run", "credential": "own-profile", "process": "own-group"});
        assert_eq!(backend["isolation"], isolation);
    }
}

#[one_engine]
async fn a_program_that_is_no_codex_is_reported_as_such(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.config.agents.codex = Some("/bin/true".into())).await;
    let list = server.get("/api/v1/backends").await.with_status(200);
    let codex = &list["codex"];
    assert!(codex["program"].as_str().is_some_and(|program| program.ends_with("true")), "{codex}");
    assert_eq!((&codex["version"], &codex["problem"]), (&Value::Null, &json!("it does not report that it is Codex")));
    let backends = list["backends"].as_array().unwrap();
    assert_eq!(backends.iter().find(|backend| backend["profile"] == "codex").unwrap()["available"], false);
}
