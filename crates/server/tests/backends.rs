//! The list of backends: whether each profile is ready, and which callers see which profiles.

use ostler_protocol::FailureKind::{Forbidden, NotFound};
use serde_json::{Value, json};

use crate::harness::{Caller, EXTERNAL, Engine, TestServer, both_engines, eventually, id, one_engine};

const OWN: [&str; 4] = ["shared", "barred", "own", "theirs"];

async fn put(caller: &Caller, profile: &str) {
    let files = json!({"auth.json": json!({"OPENAI_API_KEY": "pl4nted-key-0123456789"}).to_string(),
        "config.toml": "model = \"m\""});
    let put =
        caller.call("PUT", &format!("/api/v1/provider-profiles/{profile}/credential"), &json!({"files": files})).await;
    put.with_status(200);
}

async fn backends(caller: &Caller) -> Vec<Value> {
    let list = caller.get("/api/v1/backends").await.with_status(200);
    list["backends"].as_array().unwrap().clone()
}

async fn names(caller: &Caller) -> Vec<String> {
    backends(caller).await.iter().map(|backend| id(backend, "profile")).collect()
}

/// The profiles that this test has set, as `GET /api/v1/provider-profiles` lists them. Each shows a user its status and no more.
async fn own_statuses(user: &Caller) -> Vec<(String, Value)> {
    let list = user.get("/api/v1/provider-profiles").await.with_status(200);
    let all = list["providerProfiles"].as_array().unwrap().clone();
    let own: Vec<_> = all.into_iter().filter(|profile| OWN.iter().any(|name| profile["profile"] == *name)).collect();
    for profile in &own {
        for hidden in ["resourceVersion", "credentialHashSuffix", "configHashSuffix", "updatedAt", "validation"] {
            assert_eq!(profile[hidden], Value::Null, "{hidden} of {profile}");
        }
    }
    own.iter().map(|profile| (id(profile, "profile"), profile["tenantId"].clone())).collect()
}

/// The listed profiles that this test has set, with their tenants.
async fn own(caller: &Caller) -> Vec<(String, Value)> {
    let all = backends(caller).await;
    let all = all.iter().map(|backend| (id(backend, "profile"), backend["tenantId"].clone()));
    all.filter(|(name, _)| OWN.contains(&name.as_str())).collect()
}

#[both_engines]
async fn a_user_sees_the_profiles_that_their_runs_may_name(engine: Engine) {
    let mut server = TestServer::with(engine, |setup| {
        setup.token("hwlab-keys", "provide", &["hwlab"]);
        setup.token("unidesk-keys", "provide", &["unidesk"]);
        setup.token("client", "client", &["hwlab"]);
        setup.token("runner", "runner", &["hwlab"]);
    })
    .await;
    let body = json!({"name": "ada", "timezone": "UTC", "tenants": ["hwlab"]});
    server.post("/api/v1/users", &body).await.with_status(201);
    let made = server.post("/api/v1/users/ada/token", &json!({"expiresInMs": 60_000})).await.with_status(201);
    let user_token = id(&made, "token");
    put(&server, "shared").await;
    put(&server, "barred").await;
    put(server.caller("hwlab-keys"), "own").await;
    put(server.caller("unidesk-keys"), "theirs").await;
    let operators = |name: &str| (name.to_owned(), Value::Null);
    let expected = [operators("barred"), operators("shared"), ("own".to_owned(), json!("hwlab"))];
    assert_eq!(own(&server.with_token(Some(&user_token))).await, expected);
    assert_eq!(own(server.caller("client")).await, expected);
    let user = server.with_token(Some(&user_token));
    assert_eq!(own_statuses(&user).await, expected);
    user.get("/api/v1/provider-profiles/shared").await.with_status(200);
    user.get("/api/v1/provider-profiles/theirs").await.refused(NotFound);
    user.get("/api/v1/provider-profiles/shared/config").await.refused(Forbidden);
    // A service of role runner submits no run.
    let runner = names(server.caller("runner")).await;
    assert!(runner.contains(&"codex".to_owned()) && runner.contains(&EXTERNAL.to_owned()), "{runner:?}");
    assert!(!OWN.iter().any(|name| runner.iter().any(|found| found == name)), "{runner:?}");
    // A user sees no profile that the policy does not let runs name.
    server.config.policy.backend_profiles = ["scripted", "shared", "own", EXTERNAL].map(String::from).to_vec();
    server.restart().await;
    let expected = [operators("shared"), ("own".to_owned(), json!("hwlab"))];
    assert_eq!(own(&server.with_token(Some(&user_token))).await, expected);
    assert_eq!(own_statuses(&server.with_token(Some(&user_token))).await, expected);
}

#[one_engine]
async fn a_profile_whose_codex_is_missing_shows_the_reason_in_every_list(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.agents.codex = Some("/bin/true".into());
        setup.token("client", "client", &["hwlab"]);
    })
    .await;
    put(&server, "codex").await;
    let reason = json!("Codex cannot be started: it does not report that it is Codex");
    let profile = server.get("/api/v1/provider-profiles/codex").await.with_status(200);
    assert_eq!((&profile["configured"], &profile["ready"]), (&json!(true), &json!(false)));
    assert_eq!((&profile["failureKind"], &profile["message"]), (&json!("infra-failed"), &reason));
    let listed = async |caller: &Caller| {
        let found = backends(caller).await.into_iter().find(|backend| backend["profile"] == "codex").unwrap();
        (found["ready"].clone(), found["message"].clone())
    };
    assert_eq!(listed(&server).await, (json!(false), reason));
    let fixed = json!("the profile is not ready; its owner can see why");
    assert_eq!(listed(server.caller("client")).await, (json!(false), fixed));
}

#[both_engines]
async fn a_backend_shows_its_health_and_how_many_runners_the_server_has_room_for(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let slots = server.config.runner.slots;
    let shown = async |profile: &str| backends(&server).await.into_iter().find(|backend| backend["profile"] == profile);
    let capacity = |active: usize| json!({"runnersMax": slots, "runnersActive": active});
    let scripted = shown("scripted").await.unwrap();
    assert_eq!((&scripted["health"], &scripted["capacity"]), (&json!("healthy"), &capacity(0)));
    let codex = shown("codex").await.unwrap();
    assert_eq!((&codex["health"], &codex["ready"]), (&json!("unavailable"), &json!(false)));
    let external = shown(EXTERNAL).await.unwrap();
    assert_eq!((&external["health"], &external["capacity"]), (&Value::Null, &Value::Null));
    let ask = json!({"title": "Go on?", "command": "go on", "waitMs": 60_000});
    let (run_id, command_id) = server.start(&json!({"script": [{"ask": ask}, {"say": "done"}]}).to_string()).await;
    let request = eventually("the turn asks", async || server.permissions(&run_id).await.pop()).await;
    assert_eq!(shown("scripted").await.unwrap()["capacity"], capacity(1));
    server.answer(&request, "allow", &id(&request, "digest")).await.with_status(200);
    server.ended(&run_id, &command_id).await;
    eventually("its place is free", async || {
        (shown("scripted").await.unwrap()["capacity"] == capacity(0)).then_some(())
    })
    .await;
}
