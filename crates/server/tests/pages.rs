//! Every list in pages: whatever their size, they hold every item once and in one order, also while new ones come; and a
//! cursor of one list opens no other.

use ostler_protocol::{
    FailureKind::{self, RunInputInvalid, SchemaInvalid},
    limits::PAGE_ITEMS_MAX,
};
use ostler_trust::config::WebhooksSection;
use serde_json::{Value, json};

use crate::{
    harness::{Caller, Engine, Identity, TestServer, both_engines, id, one_engine, openapi},
    operations::{automation, calendar_event},
};

/// How many of each there are: more than two pages of most sizes.
const ITEMS: usize = 11;

/// A list, the field of its items, and the field that tells them apart.
type List = (String, &'static str, &'static str);

/// It starts no run by itself, which would change other lists.
fn paused_automation(number: usize) -> Value {
    let mut automation = automation();
    automation["title"] = json!(format!("Digest {number}"));
    automation["status"] = json!("disabled");
    automation
}

/// The kind of a refused query.
fn invalid(path: &str) -> FailureKind {
    let is_of_run_input = ["/api/v1/automations", "/api/v1/calendar-events"].iter().any(|noun| path.starts_with(noun));
    if is_of_run_input { RunInputInvalid } else { SchemaInvalid }
}

struct Scene {
    server: TestServer,
    run_id: String,
    /// With a webhook, at whose address no receiver listens.
    agent_id: String,
}

impl Scene {
    async fn set(engine: Engine) -> Self {
        let server = TestServer::with(engine, |setup| {
            setup.config.change(|webhooks: &mut WebhooksSection| webhooks.allow_loopback = true)
        })
        .await;
        let run_id = server.create_run().await;
        let (agent_id, _) = server.agent().await;
        let webhook = json!({"url": "http://127.0.0.1:9/"});
        server.call("PUT", &format!("/agents/{agent_id}/webhook"), &webhook).await.with_status(200);
        let scene = Self { server, run_id, agent_id };
        for number in 0..ITEMS {
            scene.add(number).await;
        }
        scene
    }

    /// One more of everything; some at the very same time.
    async fn add(&self, number: usize) {
        let server: &Caller = &self.server;
        let session_id = format!("session-{number}");
        let labels = json!({"kind": "page", "number": number.to_string()});
        let run = |run: &mut Value| {
            run["sessionRef"] = json!({"sessionId": session_id});
            run["labels"] = labels.clone();
        };
        server.create_run_with(run).await;
        server.patch(&format!("/api/v1/sessions/{session_id}"), &json!({"labels": labels})).await.with_status(200);
        let turn = server.turn(&self.run_id, "x").await;
        server.create_job(&self.run_id, &json!({"commandId": turn})).await.with_status(201);
        let token = json!({"name": format!("token-{number}"), "role": "client", "tenants": ["hwlab"]});
        server.post("/api/v1/tokens", &token).await.with_status(201);
        let user = json!({"name": format!("user-{number}"), "timezone": "UTC", "tenants": ["hwlab"]});
        server.post("/api/v1/users", &user).await.with_status(201);
        let hold = json!({"identity": format!("peer-{number}.localhost.test"), "reason": "case 7"});
        server.post("/api/v1/retention/holds", &hold).await.with_status(201);
        let credential = json!({"apiKey": format!("key-of-page-{number}")});
        server.call("PUT", "/api/v1/provider-profiles/codex/credential", &credential).await.with_status(200);
        let (agent_id, _) = self.server.agent().await;
        server.post("/h2a/relations", &json!({"agent_id": agent_id})).await.with_status(201);
        let peer = Identity::stranger(&format!("peer-{number}"));
        let identity = json!({"aid": peer.aid, "publicKey": peer.key.public_key().to_base64()});
        server.post("/api/v1/identities", &identity).await.with_status(201);
        server.post("/api/v1/automations", &paused_automation(number)).await.with_status(201);
        server.post("/api/v1/calendar-events", &calendar_event()).await.with_status(201);
        let test = server.request("POST", &format!("/agents/{}/webhook/test", self.agent_id));
        server.send(test).await.with_status(202);
        self.server.clock.advance_ms((number % 3) as i64);
    }

    fn lists(&self) -> Vec<List> {
        vec![
            ("/api/v1/runs?tenantId=hwlab".into(), "runs", "runId"),
            ("/api/v1/runs?sort=cost".into(), "runs", "runId"),
            ("/api/v1/runs?label=kind=page".into(), "runs", "runId"),
            ("/api/v1/sessions?state=all&label=kind=page".into(), "sessions", "sessionId"),
            ("/api/v1/sessions?state=all".into(), "sessions", "sessionId"),
            ("/api/v1/sessions?readerId=me".into(), "sessions", "sessionId"),
            (format!("/api/v1/runs/{}/runner-jobs?", self.run_id), "runnerJobs", "runnerJobId"),
            ("/api/v1/tokens?".into(), "tokens", "tokenId"),
            ("/api/v1/users?".into(), "users", "userId"),
            ("/api/v1/retention/holds?".into(), "holds", "holdId"),
            ("/api/v1/provider-profile-changes?".into(), "changes", "changeId"),
            ("/api/v1/identities?".into(), "identities", "aid"),
            ("/agents?".into(), "agents", "id"),
            ("/h2a/relations?".into(), "relations", "id"),
            ("/api/v1/automations?".into(), "automations", "id"),
            ("/api/v1/calendar-events?".into(), "events", "id"),
            (format!("/agents/{}/webhook/deliveries?", self.agent_id), "deliveries", "delivery_id"),
        ]
    }

    async fn page(
        &self,
        (path, items, field): &List,
        limit: usize,
        cursor: Option<&str>,
    ) -> (Vec<String>, Option<String>) {
        let cursor = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        let page = self.server.get(&format!("{path}&limit={limit}{cursor}")).await.with_status(200);
        let ids: Vec<_> = page[*items].as_array().unwrap().iter().map(|item| id(item, field)).collect();
        assert!(ids.len() <= limit, "{path}");
        let next = page.get("nextCursor").unwrap_or(&page["next_cursor"]);
        (ids, next.as_str().map(str::to_owned))
    }

    async fn walk(&self, list: &List, limit: usize) -> Vec<String> {
        let (mut all, mut cursor) = (vec![], None);
        loop {
            let (ids, next) = self.page(list, limit, cursor.as_deref()).await;
            all.extend(ids);
            cursor = next;
            if cursor.is_none() {
                return all;
            }
        }
    }
}

#[both_engines]
async fn pages_of_every_list_hold_every_item_once(engine: Engine) {
    let scene = Scene::set(engine).await;
    for list in scene.lists() {
        let whole = scene.walk(&list, PAGE_ITEMS_MAX as usize).await;
        let mut apart = whole.clone();
        apart.sort_unstable();
        apart.dedup();
        assert!(apart.len() == whole.len() && whole.len() >= list_length(&list), "{list:?}: {whole:?}");
        for limit in [1, 2, 3, 5, ITEMS - 1, ITEMS, ITEMS + 1] {
            assert_eq!(scene.walk(&list, limit).await, whole, "{list:?} in pages of {limit}");
        }
    }
    // While a client reads pages, rows are added: what existed is returned once, and nothing twice.
    for (number, list) in scene.lists().into_iter().enumerate() {
        let whole = scene.walk(&list, PAGE_ITEMS_MAX as usize).await;
        let (mut met, mut cursor) = (vec![], None);
        for step in 0.. {
            let (ids, next) = scene.page(&list, 3, cursor.as_deref()).await;
            met.extend(ids);
            cursor = next;
            if step < 2 {
                scene.server.clock.advance_ms(1);
                scene.add(ITEMS + 10 * number + step).await;
            }
            if cursor.is_none() {
                break;
            }
        }
        let old: Vec<_> = met.iter().filter(|id| whole.contains(id)).cloned().collect();
        assert_eq!(old, whole, "{list:?}");
        let mut apart = met.clone();
        apart.sort_unstable();
        apart.dedup();
        assert_eq!(apart.len(), met.len(), "{list:?} has something twice");
    }
}

/// Sessions that nothing ended in and that run: all of them, and the one with the turns.
fn list_length((path, ..): &List) -> usize {
    if path.contains("readerId") { 1 } else { ITEMS }
}

#[one_engine]
async fn a_cursor_opens_only_its_own_list(engine: Engine) {
    let scene = Scene::set(engine).await;
    let mut cursors: Vec<(List, String)> = vec![];
    for list in scene.lists() {
        if let (_, Some(cursor)) = scene.page(&list, 1, None).await {
            cursors.push((list, cursor));
        }
    }
    assert!(cursors.len() >= 5, "{cursors:?}");
    for (from, cursor) in &cursors {
        for list in scene.lists().iter().filter(|list| list.0 != from.0) {
            let answer = scene.server.get(&format!("{}&cursor={cursor}", list.0)).await;
            assert!(answer.status >= 400, "{} took a cursor of {}: {}", list.0, from.0, answer.text);
            answer.refused_by(invalid(&list.0), "cursor-unknown");
        }
    }
}

#[one_engine]
async fn every_list_states_its_limit(engine: Engine) {
    let scene = Scene::set(engine).await;
    let document = openapi().clone();
    for (path, ..) in scene.lists() {
        let most = scene.server.get(&format!("{path}&limit={PAGE_ITEMS_MAX}")).await;
        most.with_status(200);
        let more = scene.server.get(&format!("{path}&limit={}", PAGE_ITEMS_MAX + 1)).await;
        let words = more.body["message"].as_str().unwrap_or_default().to_owned();
        more.refused_by(invalid(&path), "page-limit");
        assert!(words.contains(&PAGE_ITEMS_MAX.to_string()), "{words}");
    }
    // A list that is not tried here would be a list without a cursor or without a test.
    let paged = document["paths"].as_object().unwrap().iter().filter(|(path, item)| {
        let parameters = item["get"]["parameters"].as_array().cloned().unwrap_or_default();
        // The daemon's list has cursors and limits of another form, and tests of its own.
        let is_daemons = item["get"]["tags"][0] == "daemon";
        // Each start makes a session and a run, which would change the other lists. `run_input::automations` reads its pages.
        let is_of_starts = path.ends_with("/automations/{automationId}/runs");
        !is_daemons && !is_of_starts && parameters.iter().any(|parameter: &Value| parameter["name"] == "cursor")
    });
    let named = |path: String| path.replace(&scene.run_id, "{runId}").replace(&scene.agent_id, "{agentId}");
    let tried: Vec<_> = scene.lists().into_iter().map(|(path, ..)| named(path)).collect();
    for (path, _) in paged {
        assert!(tried.iter().any(|list| list.split('?').next() == Some(path)), "{path} has pages nobody tries");
    }
}
