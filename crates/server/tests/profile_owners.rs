//! Owners of provider profiles: who may see, use and change whose. `docs/profiles-threat-model.md` states what is tried here.

use std::sync::{Arc, Mutex};

use ostler_protocol::{FailureKind::*, limits::PROFILES_PER_TENANT_MAX};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::harness::{Answer, Caller, Engine, Setup, TestServer, both_engines, id, run_body};

const KEY: &str = "pl4nted-key-0123456789";

fn path(profile: &str, rest: &str) -> String {
    format!("/api/v1/provider-profiles/{profile}{rest}")
}

async fn put(caller: &Caller, profile: &str, body: Value) -> Answer {
    caller.call("PUT", &path(profile, "/credential"), &body).await
}

async fn put_config(caller: &Caller, profile: &str, config: &str) -> Answer {
    caller.call("PUT", &path(profile, "/config"), &json!({"config": config})).await
}

async fn delete(caller: &Caller, profile: &str) -> Answer {
    caller.send(caller.request("DELETE", &path(profile, ""))).await
}

/// A profile of Codex's, marked.
fn files(mark: &str) -> Value {
    let auth = json!({"OPENAI_API_KEY": format!("{KEY}-{mark}")}).to_string();
    json!({"files": {"auth.json": auth, "config.toml": format!("model = \"{mark}\"")}})
}

fn model(base_url: &str) -> String {
    format!("[ostler]\nagent = \"model\"\nbase_url = \"{base_url}\"\nmodel = \"m\"")
}

/// A profile that calls this server with a marked key.
fn of_model(base_url: &str, mark: &str) -> Value {
    let auth = json!({"OPENAI_API_KEY": format!("{KEY}-{mark}")}).to_string();
    json!({"files": {"auth.json": auth, "config.toml": model(base_url)}})
}

/// Tokens of both roles in two tenants.
fn two_tenants(setup: &mut Setup) {
    for tenant in ["hwlab", "unidesk"] {
        setup.token(&format!("{tenant}-keys"), "provide", &[tenant]);
        setup.token(tenant, "client", &[tenant]);
    }
}

/// A run of this profile, with its first turn.
fn run_of(tenant: &str, profile: &str) -> Value {
    let mut body = run_body();
    body["tenantId"] = tenant.into();
    body["backendProfile"] = profile.into();
    let secret = json!({"name": format!("agentrun-v01-provider-{profile}"), "keys": ["auth.json", "config.toml"]});
    body["executionPolicy"] =
        json!({"secretScope": {"providerCredentials": [{"profile": profile, "secretRef": secret}]}});
    body["command"] = json!({"type": "turn", "payload": {"prompt": "x"}});
    body
}

async fn names(caller: &Caller) -> Vec<(String, Value)> {
    let list = caller.get("/api/v1/provider-profiles").await.with_status(200);
    let all = list["providerProfiles"].as_array().unwrap().clone();
    let own = all.iter().filter(|profile| profile["builtIn"] == false && profile["agent"] != "external");
    own.map(|profile| (id(profile, "profile"), profile["tenantId"].clone())).collect()
}

async fn changes(caller: &Caller, query: &str) -> Vec<Value> {
    let page = caller.get(&format!("/api/v1/provider-profile-changes{query}")).await.with_status(200);
    page["changes"].as_array().unwrap().clone()
}

/// A model server that refuses every key, and remembers what it was sent.
async fn provider() -> (String, Arc<Mutex<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (url, heard) = (format!("http://{}/v1", listener.local_addr().unwrap()), Arc::<Mutex<String>>::default());
    let hearing = heard.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 16 * 1024];
            let read = stream.read(&mut request).await.unwrap_or(0);
            hearing.lock().unwrap().push_str(&String::from_utf8_lossy(&request[..read]));
            let _ = stream.write_all(b"HTTP/1.1 401 -\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
        }
    });
    (url, heard)
}

#[both_engines]
async fn a_client_token_reads_the_status_of_profiles_and_changes_nothing(engine: Engine) {
    let server = TestServer::with(engine, two_tenants).await;
    let client = server.caller("hwlab");
    let before = put(&server, "shared", files("one")).await.with_status(200);
    put(server.caller("hwlab-keys"), "own", files("two")).await.with_status(200);
    assert_eq!(names(client).await, [("shared".to_owned(), Value::Null), ("own".to_owned(), json!("hwlab"))]);
    for profile in ["shared", "own", "codex"] {
        let seen = client.get(&path(profile, "")).await.with_status(200);
        assert_eq!(seen["configured"], profile != "codex");
        for hidden in ["resourceVersion", "credentialHashSuffix", "configHashSuffix", "updatedAt", "validation"] {
            assert_eq!(seen[hidden], Value::Null, "{profile}: {hidden}");
        }
        put(client, profile, json!({"apiKey": KEY})).await.refused_by(Forbidden, "role");
        put_config(client, profile, &model("https://evil.example")).await.refused_by(Forbidden, "role");
        put_config(client, profile, "[ostler]\nagent = \"acp\"\ncommand = [\"sh\"]")
            .await
            .refused_by(Forbidden, "role");
        delete(client, profile).await.refused_by(Forbidden, "role");
        client.get(&path(profile, "/config")).await.refused_by(Forbidden, "role");
        client.post(&path(profile, "/validate"), &json!({})).await.refused_by(Forbidden, "role");
    }
    client.get("/api/v1/provider-profile-changes").await.refused_by(Forbidden, "role");
    assert_eq!(server.get(&path("shared", "")).await.ok(), before);
    client.post("/api/v1/runs", &run_of("hwlab", "shared")).await.with_status(201);
    client.post("/api/v1/runs", &run_of("hwlab", "own")).await.with_status(201);
}

#[both_engines]
async fn a_tenant_neither_sees_nor_uses_another_tenants_profile(engine: Engine) {
    let server = TestServer::with(engine, two_tenants).await;
    let (ours, theirs) = (server.caller("hwlab-keys"), server.caller("unidesk-keys"));
    put(ours, "mine", files("ours")).await.with_status(200);
    for stranger in [theirs, server.caller("unidesk")] {
        stranger.get(&path("mine", "")).await.refused(NotFound);
        stranger.get(&path("mine", "?tenantId=hwlab")).await.refused_by(Forbidden, "tenant");
        assert_eq!(names(stranger).await, []);
    }
    theirs.get(&path("mine", "/config")).await.refused(NotFound);
    theirs.get(&path("mine", "/config?tenantId=hwlab")).await.refused_by(Forbidden, "tenant");
    theirs
        .call("PUT", &path("mine", "/config?tenantId=hwlab"), &json!({"config": ""}))
        .await
        .refused_by(Forbidden, "tenant");
    theirs.post(&path("mine", "/validate"), &json!({"tenantId": "hwlab"})).await.refused_by(Forbidden, "tenant");
    let trial = ours.post(&path("mine", "/validate"), &json!({})).await.with_status(202);
    assert_eq!(
        (&trial["tenantId"], &server.run(&id(&trial, "runId")).await["tenantId"]),
        (&json!("hwlab"), &json!("hwlab"))
    );
    ours.get(&id(&trial, "poll")).await.with_status(200);
    theirs.get(&id(&trial, "poll")).await.refused(NotFound);
    // As if it were not there.
    let client = server.caller("unidesk");
    for profile in ["mine", "absent"] {
        let refused = client.post("/api/v1/runs", &run_of("unidesk", profile)).await;
        let refused = refused.refused_by(NotFound, "profile-unknown");
        assert_eq!(refused.message, format!("there is no profile {profile:?}"));
    }
    server.caller("hwlab").post("/api/v1/runs", &run_of("hwlab", "mine")).await.with_status(201);
    // The same name is another profile there.
    let same = put(theirs, "mine", files("theirs")).await.with_status(200);
    assert_eq!(same["tenantId"], "unidesk");
    assert_eq!(ours.get(&path("mine", "/config")).await.ok()["config"], "model = \"ours\"");
    assert_eq!(server.get(&path("mine", "/config?tenantId=unidesk")).await.ok()["config"], "model = \"theirs\"");
    server.get(&path("mine", "")).await.refused_by(StateConflict, "tenant-id-required");
    delete(theirs, "mine").await.with_status(200);
    assert_eq!(ours.get(&path("mine", "")).await.ok()["configured"], true);
}

#[both_engines]
async fn each_tenants_run_carries_its_own_key_to_its_own_server(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        two_tenants(setup);
        setup.config.runner.slots = 4;
        setup.config.outgoing.allow = vec!["127.0.0.1".into()];
    })
    .await;
    let mut heard = vec![];
    for tenant in ["hwlab", "unidesk"] {
        let (url, sent) = provider().await;
        put(server.caller(&format!("{tenant}-keys")), "mine", of_model(&url, tenant)).await.with_status(200);
        heard.push(sent);
    }
    for tenant in ["hwlab", "unidesk"] {
        let created = server.caller(tenant).post("/api/v1/runs", &run_of(tenant, "mine")).await.with_status(201);
        let result = server.ended(&id(&created, "runId"), &id(&created["command"], "commandId")).await;
        assert_eq!(result["failureKind"], "provider-auth-failed", "{result}");
        assert_eq!(result["profileTenantId"], tenant);
    }
    let (url, _) = provider().await;
    put(&server, "shared", of_model(&url, "operator")).await.with_status(200);
    let created = server.caller("hwlab").post("/api/v1/runs", &run_of("hwlab", "shared")).await.with_status(201);
    let result = server.ended(&id(&created, "runId"), &id(&created["command"], "commandId")).await;
    assert_eq!((&result["failureKind"], &result["profileTenantId"]), (&json!("provider-auth-failed"), &Value::Null));
    let sent: Vec<_> = heard.iter().map(|sent| sent.lock().unwrap().clone()).collect();
    assert!(sent[0].contains(&format!("{KEY}-hwlab")) && !sent[0].contains("unidesk"), "{}", sent[0]);
    assert!(sent[1].contains(&format!("{KEY}-unidesk")) && !sent[1].contains("hwlab"), "{}", sent[1]);
}

#[both_engines]
async fn a_name_of_the_operators_cannot_be_taken(engine: Engine) {
    let server = TestServer::with(engine, two_tenants).await;
    let tenant = server.caller("hwlab-keys");
    put(&server, "shared", files("one")).await.with_status(200);
    for profile in ["codex", "deepseek", "minimax-m3", "dsflash-go", "model", "shared"] {
        put(tenant, profile, json!({"apiKey": KEY})).await.refused_by(Forbidden, "profile-name");
        put_config(tenant, profile, "model = \"m\"").await.refused_by(Forbidden, "profile-name");
        delete(tenant, profile).await.refused_by(Forbidden, "profile-name");
        tenant.post(&path(profile, "/validate"), &json!({})).await.refused_by(Forbidden, "profile-owner");
    }
    put(tenant, "scripted", json!({"apiKey": KEY})).await.refused_by(SchemaInvalid, "profile-scripted");
    tenant.get(&path("shared", "/config")).await.refused_by(Forbidden, "profile-owner");
    assert_eq!(names(&server).await, [("shared".to_owned(), Value::Null)]);
}

#[both_engines]
async fn a_name_that_becomes_the_operators_means_the_operators_profile(engine: Engine) {
    let server = TestServer::with(engine, two_tenants).await;
    let tenant = server.caller("hwlab-keys");
    put(tenant, "mine", files("tenant")).await.with_status(200);
    put(&server, "mine", files("operator")).await.with_status(200);
    // Each profile names its owner.
    assert_eq!(tenant.get(&path("mine", "")).await.ok()["tenantId"], Value::Null);
    let shadowed = tenant.get(&path("mine", "?tenantId=hwlab")).await.with_status(200);
    assert_eq!((&shadowed["configured"], &shadowed["failureKind"]), (&json!(false), &json!("state-conflict")));
    put(tenant, "mine", files("again")).await.refused_by(Forbidden, "profile-name");
    // The operator's is what runs use: without it the tenant's run is refused for the operator's lack.
    server.call("PUT", &path("mine", "/config"), &json!({"config": "model_provider = \"x\""})).await.with_status(200);
    let refused = server.caller("hwlab").post("/api/v1/runs", &run_of("hwlab", "mine")).await;
    refused.refused_by(SecretUnavailable, "credential-dropped");
    for again in [false, true] {
        let deleted = delete(tenant, "mine").await.with_status(200);
        let kind = &deleted["failureKind"];
        assert!(deleted["configured"] == false && *kind != "state-conflict", "again: {again}: {deleted}");
    }
    delete(tenant, "codex").await.refused_by(Forbidden, "profile-name");
    assert_eq!(names(&server).await, [("mine".to_owned(), Value::Null)]);
}

#[both_engines]
async fn a_tenants_profile_names_no_program_unless_the_operator_allows_it(engine: Engine) {
    let mut server = TestServer::with(engine, two_tenants).await;
    let programs = [
        "[ostler]\nagent = \"acp\"\ncommand = [\"sh\", \"-c\", \"id\"]",
        "notify = [\"sh\", \"-c\", \"id\"]",
        "[mcp_servers.x]\ncommand = \"sh\"",
        "[model_providers.x]\nenv_key = \"OSTLER_SECRETS__KEY\"",
        "[model_providers.x.auth]\ncommand = \"sh\"",
        "[shell_environment_policy.set]\nLD_PRELOAD = \"x\"",
        "sandbox_mode = \"danger-full-access\"",
    ];
    let tenant = server.caller("hwlab-keys").clone();
    for config in programs {
        put_config(&tenant, "mine", config).await.refused_by(TenantPolicyDenied, "profile-command");
        let both = json!({"files": {"auth.json": "{}", "config.toml": config}});
        put(&tenant, "mine", both).await.refused_by(TenantPolicyDenied, "profile-command");
        // Nor may the operator forget that it is a tenant's.
        let body = json!({"config": config});
        let by_operator = server.call("PUT", &path("mine", "/config?tenantId=hwlab"), &body).await;
        by_operator.refused_by(TenantPolicyDenied, "profile-command");
    }
    tenant.get(&path("mine", "")).await.refused(NotFound);
    put_config(&server, "operators", programs[0]).await.with_status(200);

    server.config.profiles.tenant_commands = true;
    server.restart().await;
    let tenant = server.with_token(tenant.token());
    let both = json!({"files": {"auth.json": "{}", "config.toml": programs[0]}});
    put(&tenant, "mine", both).await.with_status(200);
    let client = server.with_token(server.caller("hwlab").token());
    client.post("/api/v1/runs", &run_of("hwlab", "mine")).await.with_status(201);

    server.config.profiles.tenant_commands = false;
    server.restart().await;
    let (tenant, client) = (server.with_token(tenant.token()), server.with_token(client.token()));
    client.post("/api/v1/runs", &run_of("hwlab", "mine")).await.refused_by(TenantPolicyDenied, "profile-command");
    let seen = tenant.get(&path("mine", "")).await.with_status(200);
    assert_eq!((&seen["configured"], &seen["failureKind"]), (&json!(false), &json!("tenant-policy-denied")));
}

#[both_engines]
async fn a_tenants_profile_reaches_no_inner_address(engine: Engine) {
    let mut server = TestServer::with(engine, |setup| {
        two_tenants(setup);
        setup.config.runner.slots = 4;
        setup.config.outgoing.allow = vec!["127.0.0.1".into()];
    })
    .await;
    let (url, sent) = provider().await;
    let tenant = server.caller("hwlab-keys").clone();
    let codex = |url: &str| format!("model_provider = \"x\"\n[model_providers.x]\nbase_url = \"{url}\"");
    for inner in ["http://10.0.0.1/v1", "https://169.254.169.254/v1", "https://[::1]/v1", "http://model.example/v1"] {
        for config in [model(inner), codex(inner)] {
            put_config(&tenant, "other", &config).await.refused_by(TenantPolicyDenied, "profile-address");
        }
    }
    // Codex would follow a redirect from a public server to an inner one. Our own client does not.
    let public = "https://model.example/v1";
    let refused = put_config(&tenant, "other", &codex(public)).await.refused_by(TenantPolicyDenied, "profile-address");
    assert!(
        refused.message.contains("outgoing.allow") && refused.message.contains("model.example"),
        "{}",
        refused.message
    );
    put_config(&tenant, "public", &model(public)).await.with_status(200);
    put_config(&tenant, "listed", &codex(&url)).await.with_status(200);
    put_config(&server, "operators-codex", &codex(public)).await.with_status(200);
    put_config(&server, "operators", &model("http://10.0.0.1/v1")).await.with_status(200);
    put(&tenant, "mine", of_model(&url, "mine")).await.with_status(200);
    // A name is resolved when it is used.
    let named = put(&tenant, "named", of_model("https://localhost.example.invalid/v1", "x")).await.with_status(200);
    assert_eq!(named["configured"], true);

    server.config.outgoing.allow.clear();
    server.restart().await;
    let client = server.with_token(server.caller("hwlab").token());
    client.post("/api/v1/runs", &run_of("hwlab", "mine")).await.refused_by(TenantPolicyDenied, "profile-address");
    assert_eq!(*sent.lock().unwrap(), "");
}

#[both_engines]
async fn another_destination_drops_the_credential_and_asks_for_it_again(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let ((first, sent_first), (second, sent_second)) = (provider().await, provider().await);
    put(&server, "mine", of_model(&first, "mine")).await.with_status(200);
    let kept = put_config(&server, "mine", &model(&first).replace("\"m\"", "\"n\"")).await.with_status(200);
    assert_eq!((&kept["credentialDropped"], &kept["configured"]), (&json!(false), &json!(true)));
    let run = async || {
        let created = server.post("/api/v1/runs", &run_of("hwlab", "mine")).await.with_status(201);
        server.ended(&id(&created, "runId"), &id(&created["command"], "commandId")).await
    };
    assert_eq!(run().await["failureKind"], "provider-auth-failed");
    assert!(sent_first.lock().unwrap().contains(KEY));

    let dropped = put_config(&server, "mine", &model(&second)).await.with_status(200);
    assert_eq!((&dropped["credentialDropped"], &dropped["configured"]), (&json!(true), &json!(false)));
    assert_eq!(
        (&dropped["failureKind"], &dropped["credentialHashSuffix"]),
        (&json!("secret-unavailable"), &Value::Null)
    );
    assert!(id(&dropped, "message").contains("set it again"), "{dropped}");
    server.post("/api/v1/runs", &run_of("hwlab", "mine")).await.refused_by(SecretUnavailable, "credential-dropped");
    server.post(&path("mine", "/validate"), &json!({})).await.refused(SecretUnavailable);
    // Going back does not bring it back.
    put_config(&server, "mine", &model(&first)).await.with_status(200);
    assert_eq!(server.get(&path("mine", "")).await.ok()["credentialDropped"], true);
    put_config(&server, "mine", &model(&second)).await.with_status(200);
    assert_eq!(*sent_second.lock().unwrap(), "", "nothing was ever sent there");

    let again = put(&server, "mine", json!({"apiKey": "another-key-0123456789"})).await.with_status(200);
    assert_eq!((&again["credentialDropped"], &again["configured"]), (&json!(false), &json!(true)));
    assert_eq!(run().await["failureKind"], "provider-auth-failed");
    assert!(sent_second.lock().unwrap().contains("another-key") && !sent_second.lock().unwrap().contains(KEY));
    for program in ["[ostler]\nagent = \"acp\"\ncommand = [\"sh\"]", "notify = [\"sh\"]"] {
        put(&server, "other", files("one")).await.with_status(200);
        assert_eq!(
            put_config(&server, "other", program).await.with_status(200)["credentialDropped"],
            true,
            "{program}"
        );
    }
}

#[both_engines]
async fn every_change_is_recorded_without_a_value(engine: Engine) {
    let mut server = TestServer::with(engine, two_tenants).await;
    let tenant = server.caller("hwlab-keys").clone();
    put(&server, "shared", files("one")).await.with_status(200);
    put(&server, "shared", files("one")).await.with_status(200);
    server.clock.advance_ms(1_000);
    put_config(&server, "shared", "model_provider = \"x\"").await.with_status(200);
    server.clock.advance_ms(1_000);
    put(&tenant, "own", files("two")).await.with_status(200);
    put(server.caller("unidesk-keys"), "own", files("three")).await.with_status(200);
    server.clock.advance_ms(1_000);
    put_config(&tenant, "own", "notify = [\"sh\"]").await.refused(TenantPolicyDenied);
    for _ in 0..2 {
        delete(&tenant, "own").await.with_status(200);
    }
    server.restart().await;
    let (tenant, all) = (server.with_token(tenant.token()), changes(&server, "").await);
    assert_eq!(all.len(), 5, "what changed nothing is no change: {all:?}");
    assert!(!json!(all).to_string().contains("pl4nted"));
    let last = &all[0];
    assert_eq!(
        (&last["action"], &last["profile"], &last["tenantId"]),
        (&json!("deleted"), &json!("own"), &json!("hwlab"))
    );
    assert!(id(last, "by").starts_with("service:tok_"), "{last}");
    assert_eq!(last["fields"], json!(["auth.json", "config.toml: model"]));
    assert_eq!(last["createdAt"], "2026-01-01T00:00:03Z");
    let dropped = &all[3];
    assert_eq!((&dropped["action"], &dropped["by"]), (&json!("config-set"), &json!("operator")));
    assert_eq!(dropped["fields"], json!(["auth.json", "config.toml: model", "config.toml: model_provider"]));
    assert_eq!((&dropped["credentialDropped"], &dropped["tenantId"]), (&json!(true), &Value::Null));
    // Each sees its own.
    let own: Vec<_> = all.iter().filter(|change| change["tenantId"] == "hwlab").cloned().collect();
    assert_eq!((own.len(), changes(&tenant, "").await), (2, own));
    tenant.get("/api/v1/provider-profile-changes?tenantId=unidesk").await.refused_by(Forbidden, "tenant");
    assert_eq!(changes(&server, "?tenantId=unidesk").await.len(), 1);
    assert_eq!(changes(&server, "?profile=shared").await.len(), 2);
    let first = server.get("/api/v1/provider-profile-changes?limit=3").await.with_status(200);
    let rest = changes(&server, &format!("?limit=3&cursor={}", id(&first, "nextCursor"))).await;
    assert_eq!([first["changes"].as_array().unwrap().clone(), rest].concat(), all);
}

#[both_engines]
async fn a_provide_token_manages_profiles_and_does_nothing_else(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        two_tenants(setup);
        setup.token("installation", "provide", &[]);
    })
    .await;
    let run_id = server.create_run().await;
    put(server.caller("installation"), "codex", json!({"apiKey": KEY})).await.with_status(200);
    put(server.caller("hwlab-keys"), "own", files("one")).await.with_status(200);
    for name in ["installation", "hwlab-keys"] {
        let caller = server.caller(name);
        for listed in ["/api/v1/runs", "/api/v1/sessions", "/api/v1/backends", "/api/v1/tokens", "/metrics"] {
            caller.get(listed).await.refused_by(Forbidden, "role");
        }
        caller.get(&format!("/api/v1/runs/{run_id}")).await.refused_by(Forbidden, "role");
        caller.post("/api/v1/runs", &run_body()).await.refused_by(Forbidden, "role");
        caller.try_claim(&run_id, "runner-a", 60_000).await.refused_by(Forbidden, "role");
        let more = json!({"name": "more", "role": "provide", "tenants": []});
        caller.post("/api/v1/tokens", &more).await.refused_by(Forbidden, "role");
    }
    // One of the operator's is for the operator's profiles, and for no tenant's.
    let installation = server.caller("installation");
    installation.get(&path("own", "")).await.refused(NotFound);
    installation.get(&path("own", "?tenantId=hwlab")).await.refused_by(Forbidden, "tenant");
    let body = json!({"config": ""});
    installation.call("PUT", &path("own", "/config?tenantId=hwlab"), &body).await.refused_by(Forbidden, "tenant");
    let trial = installation.post(&path("codex", "/validate"), &json!({"tenantId": "hwlab"})).await.with_status(202);
    installation.get(&id(&trial, "poll")).await.with_status(200);
    server.caller("hwlab-keys").get(&id(&trial, "poll")).await.refused(NotFound);
    server
        .post("/api/v1/tokens", &json!({"name": "x", "role": "client", "tenants": []}))
        .await
        .refused_by(SchemaInvalid, "tenants");
}

#[both_engines]
async fn a_token_of_several_tenants_names_the_tenant_of_the_profile(engine: Engine) {
    let server = TestServer::with(engine, |setup| setup.token("both", "provide", &["hwlab", "unidesk"])).await;
    let both = server.caller("both");
    put(both, "mine", files("one")).await.refused_by(StateConflict, "tenant-id-required");
    for tenant in ["hwlab", "unidesk"] {
        let at = path("mine", &format!("/credential?tenantId={tenant}"));
        assert_eq!(both.call("PUT", &at, &files(tenant)).await.with_status(200)["tenantId"], tenant);
    }
    both.get(&path("mine", "")).await.refused_by(StateConflict, "tenant-id-required");
    let config = both.get(&path("mine", "/config?tenantId=unidesk")).await.with_status(200);
    assert_eq!(config["config"], "model = \"unidesk\"");
    let at = path("mine", "/credential?tenantId=local");
    both.call("PUT", &at, &files("x")).await.refused_by(Forbidden, "tenant");
    let at = path("mine", "/credential?tenantId=nobody");
    server.call("PUT", &at, &files("x")).await.refused_by(TenantPolicyDenied, "tenant-allow-list");
}

#[both_engines]
async fn a_tenant_has_a_bounded_number_of_profiles(engine: Engine) {
    let server = TestServer::with(engine, two_tenants).await;
    let tenant = server.caller("hwlab-keys");
    for at in 0..PROFILES_PER_TENANT_MAX {
        put_config(tenant, &format!("p{at}"), "").await.with_status(200);
    }
    put_config(tenant, "one-more", "").await.refused_by(StateConflict, "profiles-max");
    put_config(tenant, "p0", "model = \"m\"").await.with_status(200);
    put_config(server.caller("unidesk-keys"), "one-more", "").await.with_status(200);
    put_config(&server, "one-more", "").await.with_status(200);
}

#[both_engines]
async fn a_profile_that_was_deleted_comes_back_without_its_credential(engine: Engine) {
    let server = TestServer::with(engine, two_tenants).await;
    for (caller, profile) in [(&*server, "codex"), (server.caller("hwlab-keys"), "mine")] {
        put(caller, profile, files("one")).await.with_status(200);
        delete(caller, profile).await.with_status(200);
        let again = put_config(caller, profile, "model = \"one\"").await.with_status(200);
        assert_eq!((&again["configured"], &again["credentialHashSuffix"]), (&json!(false), &Value::Null), "{profile}");
    }
}
