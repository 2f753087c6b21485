//! The authorisation matrix: every operation of the document, on every transport it speaks, with every caller who is wrong
//! for it. Who is wrong follows from what the operation itself declares; an operation that declares nothing, or that
//! this test cannot call, fails here.

use std::collections::BTreeMap;

use ostler_protocol::json::hex;
use ostler_server::clock::Clock;
use serde_json::{Value, json};

use crate::{
    harness::{Caller, EXTERNAL, Engine, Key, TestServer, both_engines, id, one_engine, openapi, signed_by},
    operations::{self, OPERATIONS, Picture, Scene},
};

/// Stands in what the scene holds; no answer to a wrong caller may show it.
const MARKER: &str = "marker-7f3a";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Client,
    ServiceRunner,
    Provider,
    Scraper,
    User,
    RunsRunner,
    Agent,
}

const KINDS: [Kind; 7] =
    [Kind::Client, Kind::ServiceRunner, Kind::Provider, Kind::Scraper, Kind::User, Kind::RunsRunner, Kind::Agent];

/// Which kinds of caller what is declared admits: the table of `docs/callers.md`. The operator is always admitted.
fn admitted(access: &str) -> &'static [Kind] {
    use Kind::*;
    match access {
        "public" | "signed" | "mesh" | "identify" => &KINDS,
        "read" => &[Client, ServiceRunner, User, RunsRunner],
        "browse" => &[Client, ServiceRunner, User],
        "submit" => &[Client, User],
        "own" => &[User],
        "inspect" => &[Client, Provider, User],
        "provide" => &[Provider],
        "run" => &[ServiceRunner, RunsRunner],
        "scrape" => &[Scraper],
        "operate" => &[],
        other => panic!("nobody knows what {other:?} admits"),
    }
}

/// One operation, as it can be called.
struct Operation {
    method: &'static str,
    template: &'static str,
    body: fn(&Scene) -> Value,
    access: String,
    streams: bool,
}

/// Every operation of the document with what it declares, from the table of operations.
fn operations() -> Vec<Operation> {
    let document = openapi().clone();
    let mut declared = BTreeMap::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            declared.insert((method.to_uppercase(), path.clone()), operation.clone());
        }
    }
    let operations: Vec<_> = OPERATIONS
        .iter()
        .map(|(method, template, body)| {
            let operation = declared.remove(&(method.to_string(), template.to_string())).unwrap();
            let requirements =
                operation["security"].as_array().unwrap_or_else(|| panic!("{method} {template}: no security"));
            let requirement = requirements[0].as_object().unwrap();
            let access = match requirement.get("token") {
                None if requirement.contains_key("signature") => "signed".to_owned(),
                None if requirement.contains_key("mesh") => "mesh".to_owned(),
                None => "public".to_owned(),
                Some(names) => names[0].as_str().unwrap().to_owned(),
            };
            let streams = operation["responses"]["200"]["content"]["text/event-stream"].is_object();
            Operation { method, template, body: *body, access, streams }
        })
        .collect();
    let elsewhere = operations::elsewhere();
    declared.retain(|operation, _| !elsewhere.contains(operation));
    assert!(declared.is_empty(), "nobody knows how to call {:?}", declared.keys());
    operations
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Deed {
    See,
    Stop,
    Control,
}

impl Operation {
    fn name(&self) -> String {
        format!("{} {}", self.method, self.template)
    }

    /// Calls it over a socket: plainly, and as a stream where it can be one. Status and text of each; a stream that opens is
    /// not read.
    async fn call(&self, caller: &Caller, scene: &Scene) -> Vec<(u16, String)> {
        self.call_with(caller, scene, str::to_owned).await
    }

    /// As [`Operation::call`], with path and body changed.
    async fn call_with(&self, caller: &Caller, scene: &Scene, change: impl Fn(&str) -> String) -> Vec<(u16, String)> {
        let mut answers = vec![];
        let body: Value = serde_json::from_str(&change(&(self.body)(scene).to_string())).unwrap();
        for accept in ["application/json", "text/event-stream"].into_iter().take(1 + usize::from(self.streams)) {
            let mut request = caller.request(self.method, &change(&scene.path(self.template))).header("accept", accept);
            request = caller.with_body(request, self.template, &body);
            let response = request.send().await.unwrap();
            let status = response.status().as_u16();
            let opened = status == 200 && accept == "text/event-stream";
            answers.push((status, if opened { String::new() } else { response.text().await.unwrap() }));
        }
        answers
    }

    /// About the whole installation, which has no tenant. The scene's profile is the operator's.
    fn is_everywhere(&self) -> bool {
        match self.access.as_str() {
            "public" | "signed" | "mesh" | "identify" | "inspect" => true,
            "own" => {
                let nouns = [
                    "/agents",
                    "/h2a/relations",
                    "/api/v1/agent/transcribe",
                    "/api/v1/automations",
                    "/api/v1/calendar-events",
                ];
                nouns.contains(&self.template)
            }
            _ => false,
        }
    }

    /// What it does with a session or what is in it, if it is about one.
    fn deed(&self) -> Option<Deed> {
        let is_about_one = ["{runId}", "{sessionId}", "{commandId}"].iter().any(|part| self.template.contains(part));
        let stops = ["/cancel", "/control"].iter().any(|end| self.template.ends_with(end));
        match self.access.as_str() {
            _ if !is_about_one => None,
            "browse" | "read" => Some(Deed::See),
            "submit" if stops => Some(Deed::Stop),
            "submit" => Some(Deed::Control),
            _ => None,
        }
    }

    /// About one run, command or session, by the manager's routes.
    fn is_of_manager(&self) -> bool {
        let is_about_one = ["{runId}", "{sessionId}", "{commandId}"].iter().any(|part| self.template.contains(part));
        is_about_one && self.template.starts_with("/api/v1/") && !self.template.starts_with("/api/v1/agent/")
    }

    /// Looks for something among all that the caller may have, and finds nothing here.
    fn is_search(&self) -> bool {
        self.template == "/api/v1/runner-jobs/claim"
    }

    /// About everything the caller may see, and not about one thing.
    fn is_list(&self) -> bool {
        self.method == "GET" && !self.template.contains('{') && !self.template.ends_with("signed-url")
    }
}

/// The text with ids of nothing in place of the scene's.
fn absent(scene: &Scene, text: &str) -> String {
    [&scene.run_id, &scene.session_id, &scene.command_id]
        .into_iter()
        .fold(text.to_owned(), |text, id| text.replace(id.as_str(), &format!("{}{:032x}", &id[..4], 7)))
}

/// Answers without their trace ids.
fn untraced(answers: Vec<(u16, String)>) -> Vec<(u16, Value)> {
    let untraced = |(status, text): (u16, String)| {
        let mut body: Value = serde_json::from_str(&text).unwrap_or_default();
        body.as_object_mut().map(|fields| (fields.remove("traceId"), fields.remove("requestId")));
        (status, body)
    };
    answers.into_iter().map(untraced).collect()
}

/// A run of the tenant with everything an operation could be about, marked.
async fn scene(server: &TestServer, name: &str) -> Scene {
    let scene = Scene::set(server, name).await;
    scene.runner.tell(&scene.command_id, "custom", json!({"name": MARKER})).await;
    scene
}

/// A token of the scene's own runner, as a launcher would have made it.
async fn runs_token(server: &TestServer, scene: &Scene, phase: &str) -> Caller {
    let token = format!("ost_run_{}", scene.job_id);
    let hash = hex(&ostler_crypto::sha256(token.as_bytes()));
    let now = server.clock.now().as_microsecond();
    let sql = format!(
        "UPDATE runner_jobs SET token_hash = '{hash}', phase = '{phase}', owner = 'test', heartbeat_at = {now} \
         WHERE runner_job_id = '{}'",
        scene.job_id
    );
    server.store(&sql).await;
    server.with_token(Some(&token))
}

async fn service(server: &TestServer, role: &str, tenant: &str, expires_in_ms: Option<i64>) -> (Caller, String) {
    let mut body = json!({"name": MARKER, "role": role, "tenants": [tenant]});
    if role == "metrics" {
        body["tenants"] = json!([]);
    }
    if let Some(ms) = expires_in_ms {
        body["expiresInMs"] = ms.into();
    }
    let made = server.post("/api/v1/tokens", &body).await.with_status(201);
    (server.with_token(Some(&id(&made, "token"))), id(&made, "tokenId"))
}

async fn user(server: &TestServer, name: &str, tenant: &str) -> Caller {
    let body = json!({"name": name, "timezone": "UTC", "tenants": [tenant]});
    server.post("/api/v1/users", &body).await.with_status(201);
    let made = server.post(&format!("/api/v1/users/{name}/token"), &json!({"expiresInMs": 60_000})).await;
    server.with_token(Some(&id(&made.with_status(201), "token")))
}

async fn agent(server: &TestServer, agent_id: &str) -> Caller {
    let made = server.post(&format!("/agents/{agent_id}/tokens"), &json!({"name": "matrix"})).await.with_status(201);
    server.with_token(Some(&id(&made, "token")))
}

/// Callers that nothing lets in.
async fn strangers(server: &TestServer) -> Vec<(&'static str, Caller)> {
    let (revoked, token_id) = service(server, "client", "hwlab", None).await;
    server.send(server.request("DELETE", &format!("/api/v1/tokens/{token_id}"))).await.with_status(200);
    let (expired, _) = service(server, "runner", "hwlab", Some(1)).await;
    let expired_user = user(server, "expired", "hwlab").await;
    server.clock.advance_ms(91_000);
    let now = server.clock.now().as_microsecond() / 1_000_000;
    let claims = json!({"iss": "ostler", "aud": "ostler", "sub": format!("usr_{:032x}", 0), "exp": now + 3_600});
    let forged = Key::ed25519();
    let keys = server.get("/.well-known/jwks.json").await.ok();
    let kid = keys["keys"][0]["kid"].clone();
    let none = signed_by(&json!({"alg": "none", "kid": kid}), &claims, |_| vec![]);
    let finished = runs_token(server, &Scene::set(server, "finished").await, "succeeded").await;
    let almost = format!("{}0", server.operator_token());
    vec![
        ("nobody", server.with_token(None)),
        ("garbage", server.with_token(Some("garbage"))),
        ("a token of nobody", server.with_token(Some("ost_svc_0123456789abcdef0123456789abcdef"))),
        ("almost the operator", server.with_token(Some(&almost))),
        ("a revoked service", revoked),
        ("an expired service", expired),
        ("an expired user", expired_user),
        ("an unsigned user", server.with_token(Some(&none))),
        ("a forged user", server.with_token(Some(&forged.token(&json!({"alg": "EdDSA", "kid": kid}), &claims)))),
        ("a runner whose job has ended", finished),
    ]
}

/// Good callers of every kind, in one tenant, or for one run.
async fn callers(server: &TestServer, tenant: &str, of: &Scene) -> Vec<(Kind, Caller)> {
    vec![
        (Kind::Client, service(server, "client", tenant, None).await.0),
        (Kind::ServiceRunner, service(server, "runner", tenant, None).await.0),
        (Kind::Provider, service(server, "provide", tenant, None).await.0),
        (Kind::Scraper, service(server, "metrics", tenant, None).await.0),
        (Kind::User, user(server, &format!("user-{tenant}-{}", of.job_id), tenant).await),
        (Kind::RunsRunner, runs_token(server, of, "running").await),
        (Kind::Agent, agent(server, &of.agent_id).await),
    ]
}

/// All that is stored, as far as it can be observed: what operations show, and how much every table holds.
async fn state(server: &TestServer, engine: Engine, scene: &Scene) -> Vec<Value> {
    let tables = match engine {
        Engine::Sqlite => "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name",
        Engine::Postgres => "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename",
    };
    let mut state = server.events(&scene.run_id).await;
    for table in server.store(tables).await {
        let count = server.store(&format!("SELECT CAST(COUNT(*) AS TEXT) FROM {table}")).await;
        state.push(json!([table, count]));
    }
    let run = format!("/api/v1/runs/{}", scene.run_id);
    for path in [
        &format!("{run}/result"),
        &format!("{run}/runner-jobs"),
        &format!("{run}/permissions"),
        "/api/v1/runs",
        "/api/v1/sessions?state=all",
        "/api/v1/tokens",
        "/api/v1/users",
        "/api/v1/provider-profiles",
        "/agents",
        "/h2a/relations",
        "/api/v1/automations",
        "/api/v1/calendar-events",
    ] {
        state.push(server.get(path).await.ok());
    }
    state
}

#[one_engine]
async fn callers_without_access_are_refused_by_every_operation(engine: Engine) {
    let server = TestServer::start(engine).await;
    let strangers = strangers(&server).await;
    let scene = scene(&server, MARKER).await;
    let elsewhere = Scene::set(&server, "elsewhere").await;
    let here = callers(&server, "hwlab", &scene).await;
    let there = callers(&server, "unidesk", &elsewhere).await;
    // The list of profiles shows when a runner last requested a job, and some of the callers below may request one.
    let ask = json!({"runnerId": "r", "profiles": [EXTERNAL]});
    server.post("/api/v1/runner-jobs/claim", &ask).await.with_status(204);
    let before = state(&server, engine, &scene).await;
    for operation in operations() {
        let name = operation.name();
        let admitted = admitted(&operation.access);
        for (who, caller) in &strangers {
            for (status, text) in operation.call(caller, &scene).await {
                let expected = match operation.access.as_str() {
                    "public" if caller.token().is_none() => 200,
                    // The URL, or a token of the mesh, is the proof, for any caller.
                    "signed" | "mesh" => 200,
                    _ => 401,
                };
                assert_eq!(status, expected, "{name} by {who}: {text}");
                assert!(!text.contains(MARKER), "{name} by {who}: {text}");
            }
        }
        for (kind, caller) in here.iter().chain(&there).filter(|(kind, _)| !admitted.contains(kind)) {
            for (status, text) in operation.call(caller, &scene).await {
                assert_eq!(status, 403, "{name} by {kind:?}: {text}");
                assert!(text.contains("\"role\"") && !text.contains(MARKER), "{name} by {kind:?}: {text}");
            }
        }
        // What belongs to another tenant answers like what does not exist.
        if operation.is_of_manager() {
            for (kind, caller) in there.iter().filter(|(kind, _)| admitted.contains(kind)) {
                let foreign = operation.call(caller, &scene).await;
                let absent = operation.call_with(caller, &scene, |text| absent(&scene, text)).await;
                assert_eq!(untraced(foreign), untraced(absent), "{name} by {kind:?}");
            }
        }
        let outside = there.iter().filter(|_| !operation.is_everywhere());
        for (kind, caller) in outside.filter(|(kind, _)| admitted.contains(kind)) {
            for (status, text) in operation.call(caller, &scene).await {
                let fits = match operation.is_list() {
                    true => status == 200,
                    false => [403, 404].contains(&status) || operation.is_search() && status == 204,
                };
                assert!(fits, "{name} by {kind:?} from elsewhere: {status} {text}");
                for ours in [MARKER, &scene.run_id, &scene.session_id, &scene.job_id, &scene.command_id] {
                    assert!(!text.contains(ours), "{name} by {kind:?} from elsewhere: {text}");
                }
            }
        }
    }
    for (after, before) in state(&server, engine, &scene).await.iter().zip(&before) {
        assert_eq!(after, before, "something was written");
    }
}

/// Gives the scene's agent, relation and thread to its user, with a picture of theirs.
async fn hand_over(server: &TestServer, scene: &mut Scene, user: &Caller) {
    let owner = format!("SELECT user_id FROM users WHERE name = 'user-hwlab-{}'", scene.job_id);
    let thread = &scene.thread_id;
    let sql = format!("UPDATE sessions SET owner = ({owner}), tenant_id = 'hwlab' WHERE external_id = '{thread}'");
    server.store(&sql).await;
    server.store(&format!("UPDATE agents SET owner_id = ({owner}) WHERE agent_id = '{}'", scene.agent_id)).await;
    let relation = &scene.relation_id;
    server.store(&format!("UPDATE relations SET user_id = ({owner}) WHERE relation_id = '{relation}'")).await;
    for (table, key, id) in
        [("automations", "automation_id", &scene.automation_id), ("calendar_events", "event_id", &scene.event_id)]
    {
        let sql = format!("UPDATE {table} SET owner_id = ({owner}), tenant_id = 'hwlab' WHERE {key} = '{id}'");
        server.store(&sql).await;
    }
    scene.picture = Picture::upload(user, &scene.thread_id).await;
}

/// Has the scene be about a profile of the tenant's own, which was tried.
async fn hand_over_profile(server: &TestServer, scene: &mut Scene) {
    scene.profile = format!("own-{}", &scene.job_id[scene.job_id.len() - 8..]);
    let path = format!("/api/v1/provider-profiles/{}", scene.profile);
    let files = json!({"auth.json": "{}", "config.toml": "model = \"m\""});
    let put = server.call("PUT", &format!("{path}/credential?tenantId=hwlab"), &json!({"files": files})).await;
    put.with_status(200);
    let trial = server.post(&format!("{path}/validate"), &json!({"tenantId": "hwlab"})).await.with_status(202);
    scene.validation_id = id(&trial, "validationId");
}

/// The other half: if every caller were refused everywhere, the first half would pass.
#[one_engine]
async fn callers_with_access_are_admitted_by_every_operation(engine: Engine) {
    let server = TestServer::start(engine).await;
    for kind in KINDS {
        let mut scene = scene(&server, MARKER).await;
        let callers = callers(&server, "hwlab", &scene).await;
        let caller = |wanted: Kind| &callers.iter().find(|(known, _)| *known == wanted).unwrap().1;
        hand_over(&server, &mut scene, caller(Kind::User)).await;
        if kind == Kind::Provider {
            hand_over_profile(&server, &mut scene).await;
        }
        let caller = caller(kind);
        // The runner of a run was started for its job, and may take no other.
        let has_its_job =
            |operation: &Operation| kind == Kind::RunsRunner && operation.template == "/api/v1/runner-jobs/claim";
        let admitted = |operation: &&Operation| admitted(&operation.access).contains(&kind) && !has_its_job(operation);
        for operation in operations().iter().filter(admitted) {
            for (status, text) in operation.call(caller, &scene).await {
                assert!(![401, 403, 404].contains(&status), "{} by {kind:?}: {status} {text}", operation.name());
            }
        }
    }
}

#[both_engines]
async fn a_users_thread_is_closed_to_others_in_the_manager_dialect_too(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    let scene = scene(&server, MARKER).await;
    let owner = user(&server, "owner", "hwlab").await;
    let sql = format!(
        "UPDATE sessions SET owner = (SELECT user_id FROM users WHERE name = 'owner') \
         WHERE session_id = (SELECT session_id FROM runs WHERE run_id = '{}')",
        scene.run_id
    );
    server.store(&sql).await;
    // What never changes about a run is remembered, and here it was changed.
    server.restart().await;
    let owner = server.with_token(owner.token());
    let other = user(&server, "other", "hwlab").await;
    let (client, _) = service(&server, "client", "hwlab", None).await;
    let about_it: Vec<_> = operations().into_iter().filter_map(|it| it.deed().map(|deed| (it, deed))).collect();
    for deed in [Deed::See, Deed::Control, Deed::Stop] {
        assert!(about_it.iter().any(|(_, known)| *known == deed), "no operation to {deed:?}");
        for (operation, _) in about_it.iter().filter(|(_, known)| *known == deed) {
            let name = operation.name();
            let hidden = operation.call(&other, &scene).await;
            for (status, text) in &hidden {
                assert_eq!(*status, 404, "{name} by another user: {text}");
                assert!(!text.contains(MARKER), "{name} by another user: {text}");
            }
            let absent = operation.call_with(&other, &scene, |text| absent(&scene, text)).await;
            assert_eq!(untraced(hidden), untraced(absent), "{name} by another user");
            for (status, text) in operation.call(&client, &scene).await {
                assert_eq!(status == 403, deed == Deed::Control, "{name} by the platform: {status} {text}");
            }
        }
    }
    for (operation, _) in &about_it {
        for (status, text) in operation.call(&owner, &scene).await {
            assert!(![401, 403, 404].contains(&status), "{} by its owner: {status} {text}", operation.name());
        }
    }
    for list in ["/api/v1/runs", "/api/v1/sessions?state=all"] {
        let shows =
            async |caller: &Caller| caller.get(list).await.with_status(200).to_string().contains(&scene.session_id);
        assert!(shows(&owner).await && shows(&client).await && shows(&server).await, "{list}");
        assert!(!shows(&other).await, "{list}");
    }
}
