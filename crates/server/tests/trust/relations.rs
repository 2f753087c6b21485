//! Relations: people grant agents scopes, agents change, people answer again. What an agent may use is never more than what
//! its person saw and agreed to, and every answer leaves a receipt.

mod taking_back;

use ostler_protocol::{
    FailureKind::*,
    trust::{
        receipts::ReceiptVerifier,
        relations::{GRANT_LIFE_MS_MAX, RELATIONS_PER_USER_MAX},
    },
};
use serde_json::{Value, json};

use crate::harness::{Answer, Caller, Engine, TestServer, both_engines, id};

/// How a scope is declared: its id and how sensitive it is.
type Declared<'a> = (&'a str, &'a str);

pub(crate) fn manifest(scopes: &[Declared<'_>]) -> Value {
    let scope = |(id, sensitivity): &Declared<'_>| {
        json!({"id": id, "label_i18n_key": "agent.scope.x.label", "label_fallback": format!("May {id}"),
            "description_fallback": "What it says.", "sensitivity": sensitivity})
    };
    let scopes: Vec<_> = scopes.iter().map(scope).collect();
    json!({"schema_version": "1.0", "agent_version": "1.0.0", "tools": [], "permission_scopes": scopes})
}

/// A tool of this scope whose arguments must have these fields.
fn with_tool(mut manifest: Value, scope: &str, required: &[&str]) -> Value {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": required,
        "additionalProperties": false});
    manifest["tools"] = json!([{"name": "read_it", "description_i18n_key": "agent.cap.x.description",
        "description_fallback": "Reads it.", "input_schema": schema, "permission_scope": scope}]);
    manifest
}

struct Scene {
    server: TestServer,
    agent_id: String,
}

impl Scene {
    /// An agent of the operator's, who is the user `local`.
    async fn set(engine: Engine, manifest: &Value) -> Self {
        let server = TestServer::start(engine).await;
        let made = server.post("/agents", &json!({"name": "notes-helper", "capability_manifest": manifest})).await;
        let agent_id = id(&made.with_status(201), "id");
        Self { server, agent_id }
    }

    /// Changes the agent's manifest, and answers the new one's hash.
    async fn publish(&self, manifest: &Value) -> String {
        let path = format!("/agents/{}", self.agent_id);
        let changed = self.server.patch(&path, &json!({"capability_manifest": manifest})).await.with_status(200);
        id(&changed, "capability_manifest_hash")
    }

    async fn hash(&self) -> String {
        id(&self.server.get(&format!("/agents/{}", self.agent_id)).await.ok(), "capability_manifest_hash")
    }

    async fn person(&self, name: &str) -> Caller {
        self.server.post("/api/v1/users", &json!({"name": name, "timezone": "UTC"})).await.with_status(201);
        let made = self.server.post(&format!("/api/v1/users/{name}/token"), &json!({})).await.with_status(201);
        self.server.with_token(Some(&id(&made, "token")))
    }

    async fn grant(&self, who: &Caller, scopes: &[&str]) -> String {
        let body = json!({"agent_id": self.agent_id, "granted_scopes": scopes});
        id(&who.post("/h2a/relations", &body).await.with_status(201), "id")
    }
}

async fn relation(who: &Caller, relation_id: &str) -> Value {
    who.get(&format!("/h2a/relations/{relation_id}")).await.ok()
}

async fn answer(who: &Caller, relation_id: &str, body: &Value) -> Answer {
    who.patch(&format!("/h2a/relations/{relation_id}"), body).await
}

#[both_engines]
async fn a_relation_grants_the_requested_scopes_and_none_by_default(engine: Engine) {
    let scene = Scene::set(engine, &manifest(&[("notes:read", "low"), ("notes:write", "medium")])).await;
    let (ada, bob) = (scene.person("ada").await, scene.person("bob").await);
    let made = ada.post("/h2a/relations", &json!({"agent_id": scene.agent_id})).await.with_status(201);
    assert_eq!(made["granted_scopes"], json!([]));
    assert_eq!((&made["consented_manifest_version"], &made["reauth_required"]), (&json!(1), &json!(false)));
    assert_eq!(made["consented_manifest_hash"], scene.hash().await);
    let one = scene.grant(&bob, &["notes:read"]).await;
    let seen = relation(&bob, &one).await;
    assert_eq!(seen["granted_scopes"], json!(["notes:read"]));
    assert_eq!(seen["scopes"][1]["state"], "unanswered");
    let listed = bob.get(&format!("/h2a/relations?agent_id={}", scene.agent_id)).await.ok();
    assert_eq!(listed["relations"], json!([seen]));
}

#[both_engines]
async fn a_grant_of_what_the_agent_does_not_declare_is_refused(engine: Engine) {
    let scene = Scene::set(engine, &manifest(&[("notes:read", "low")])).await;
    let asked = |scopes: Value| json!({"agent_id": scene.agent_id, "granted_scopes": scopes});
    let refused = scene.server.post("/h2a/relations", &asked(json!(["notes:read", "shell:exec"]))).await;
    assert_eq!(refused.body["error"]["code"], "SCOPE_UNKNOWN");
    refused.refused_by(SchemaInvalid, "scope-unknown");
    scene.server.post("/h2a/relations", &asked(json!(["notes:read", "notes:read"]))).await.refused(SchemaInvalid);
    let unknown = json!({"agent_id": format!("agt_{:032x}", 7), "granted_scopes": []});
    scene.server.post("/h2a/relations", &unknown).await.refused(NotFound);
    let bare = id(&scene.server.post("/agents", &json!({"name": "bare"})).await.with_status(201), "id");
    let bare = json!({"agent_id": bare, "granted_scopes": []});
    scene.server.post("/h2a/relations", &bare).await.refused_by(StateConflict, "manifest-missing");
    assert_eq!(scene.server.get("/h2a/relations").await.ok()["relations"], json!([]));
    assert_eq!(scene.server.get("/h2a/receipts").await.text, "", "what is refused leaves no receipt");
}

#[both_engines]
async fn the_same_relation_again_is_the_same_and_another_is_refused(engine: Engine) {
    let scene = Scene::set(engine, &manifest(&[("notes:read", "low")])).await;
    let body = json!({"agent_id": scene.agent_id, "granted_scopes": ["notes:read"]});
    let made = scene.server.post("/h2a/relations", &body).await.with_status(201);
    scene.server.clock.advance_ms(5);
    assert_eq!(scene.server.post("/h2a/relations", &body).await.with_status(200), made);
    let other = json!({"agent_id": scene.agent_id, "granted_scopes": []});
    let refused = scene.server.post("/h2a/relations", &other).await.refused_by(StateConflict, "relation-exists");
    assert_eq!(refused.details["relation_id"], made["id"]);
}

#[both_engines]
async fn a_changed_agent_needs_another_consent_and_its_scopes_wait(engine: Engine) {
    let two = [("notes:read", "low"), ("notes:write", "medium")];
    let scene = Scene::set(engine, &with_tool(manifest(&two), "notes:write", &[])).await;
    let ada = scene.person("ada").await;
    let one = scene.grant(&ada, &["notes:read", "notes:write"]).await;
    let hash = scene.publish(&with_tool(manifest(&two), "notes:write", &["path"])).await;
    let seen = relation(&ada, &one).await;
    assert_eq!((&seen["granted_scopes"], &seen["suspended_scopes"]), (&json!(["notes:read"]), &json!(["notes:write"])));
    assert_eq!((&seen["reauth_required"], &seen["manifest_hash"]), (&json!(true), &json!(hash)));
    let used = json!({"scope": "notes:write", "call_id": "call_1"});
    let path = format!("/h2a/relations/{one}/uses");
    ada.post(&path, &used).await.refused_by(PermissionDenied, "scope-not-granted");
    let changes = ada.get(&format!("/h2a/relations/{one}/changes")).await.ok();
    assert_eq!((&changes["breaking"], &changes["scopes_requiring_reauth"]), (&json!(true), &json!(["notes:write"])));
    let body = json!({"granted_scopes": ["notes:write"], "manifest_hash": hash});
    let answered = answer(&ada, &one, &body).await.with_status(200);
    assert_eq!((&answered["granted_scopes"], &answered["reauth_required"]), (&json!(["notes:write"]), &json!(false)));
    assert_eq!(answered["consented_manifest_version"], 2);
    ada.post(&path, &used).await.with_status(200);
}

#[both_engines]
async fn an_answer_must_name_the_manifest_that_was_seen(engine: Engine) {
    let scene = Scene::set(engine, &manifest(&[("notes:read", "low")])).await;
    let one = scene.grant(&scene.server, &[]).await;
    let seen = scene.hash().await;
    let silent = json!({"manifest_hash": seen});
    answer(&scene.server, &one, &silent).await.refused_by(SchemaInvalid, "granted-scopes-missing");
    let wider = json!({"granted_scopes": ["notes:read"]});
    answer(&scene.server, &one, &wider).await.refused_by(SchemaInvalid, "manifest-hash-missing");
    // The page was open while the agent changed.
    let now = scene.publish(&manifest(&[("notes:read", "high")])).await;
    let stale = json!({"granted_scopes": ["notes:read"], "manifest_hash": seen});
    let refused = answer(&scene.server, &one, &stale).await.refused_by(StateConflict, "version-conflict");
    assert_eq!((&refused.details["manifest_hash"], &refused.details["manifest_version"]), (&json!(now), &json!(2)));
    // Also where what they chose is not there any more.
    scene.publish(&manifest(&[("notes:write", "low")])).await;
    let refused = answer(&scene.server, &one, &stale).await;
    assert_eq!(refused.body["error"]["code"], "VERSION_CONFLICT");
    refused.refused_by(StateConflict, "version-conflict");
    let begun = json!({"agent_id": scene.agent_id, "granted_scopes": ["notes:read"], "manifest_hash": seen});
    scene.person("bob").await.post("/h2a/relations", &begun).await.refused_by(StateConflict, "version-conflict");
    let now = scene.publish(&manifest(&[("notes:read", "high")])).await;
    let right = json!({"granted_scopes": ["notes:read"], "manifest_hash": now});
    answer(&scene.server, &one, &right).await.with_status(200);
    let other = json!({"agent_id": scene.agent_id, "granted_scopes": [], "manifest_hash": seen});
    scene.person("ada").await.post("/h2a/relations", &other).await.refused_by(StateConflict, "version-conflict");
}

#[both_engines]
async fn taking_back_needs_no_hash(engine: Engine) {
    let scene = Scene::set(engine, &manifest(&[("notes:read", "low"), ("notes:write", "low")])).await;
    let one = scene.grant(&scene.server, &["notes:read", "notes:write"]).await;
    scene.publish(&manifest(&[("notes:read", "low"), ("notes:write", "high")])).await;
    let less = json!({"granted_scopes": ["notes:read"]});
    let answered = answer(&scene.server, &one, &less).await.with_status(200);
    assert_eq!(answered["granted_scopes"], json!(["notes:read"]));
    assert_eq!((&answered["consented_manifest_version"], &answered["reauth_required"]), (&json!(1), &json!(true)));
    // What was suspended was given up with it.
    assert_eq!(answered["suspended_scopes"], json!([]));
    let suspended = json!({"granted_scopes": ["notes:read", "notes:write"]});
    answer(&scene.server, &one, &suspended).await.refused_by(SchemaInvalid, "manifest-hash-missing");
    // A page of before still names what the agent does not declare any more: the receipt does not say that it is granted.
    scene.publish(&manifest(&[("notes:write", "high")])).await;
    let answered = answer(&scene.server, &one, &less).await.with_status(200);
    assert_eq!(answered["granted_scopes"], json!([]));
    let last = ledger(&scene.server).await.pop().unwrap();
    assert_eq!((&last["act"], &last["scopes"]), (&json!("narrowed"), &json!([])));
}

#[both_engines]
async fn a_scope_that_was_removed_and_came_back_is_not_granted(engine: Engine) {
    let both = manifest(&[("notes:read", "low"), ("shell:exec", "high")]);
    let scene = Scene::set(engine, &both).await;
    let one = scene.grant(&scene.server, &["notes:read", "shell:exec"]).await;
    scene.publish(&manifest(&[("notes:read", "low")])).await;
    let seen = relation(&scene.server, &one).await;
    assert_eq!((&seen["granted_scopes"], &seen["reauth_required"]), (&json!(["notes:read"]), &json!(false)));
    scene.publish(&both).await;
    let seen = relation(&scene.server, &one).await;
    assert_eq!(seen["granted_scopes"], json!(["notes:read"]));
    assert_eq!((&seen["suspended_scopes"], &seen["reauth_required"]), (&json!([]), &json!(true)));
    assert_eq!(seen["scopes_requiring_reauth"], json!(["shell:exec"]));
}

#[both_engines]
async fn a_lowered_sensitivity_stays_high_for_users_who_consented_to_it(engine: Engine) {
    let scene = Scene::set(engine, &manifest(&[("shell:exec", "high")])).await;
    let one = scene.grant(&scene.server, &["shell:exec"]).await;
    scene.publish(&manifest(&[("shell:exec", "low")])).await;
    let seen = relation(&scene.server, &one).await;
    assert_eq!((&seen["reauth_required"], &seen["scopes"][0]["sensitivity"]), (&json!(false), &json!("high")));
    let later = scene.person("ada").await;
    let other = scene.grant(&later, &["shell:exec"]).await;
    assert_eq!(relation(&later, &other).await["scopes"][0]["sensitivity"], "low");
}

#[both_engines]
async fn a_preset_scope_is_never_less_sensitive_than_its_floor(engine: Engine) {
    let scene = Scene::set(engine, &manifest(&[("location:read", "high")])).await;
    let one = scene.grant(&scene.server, &["location:read"]).await;
    let lower = json!({"capability_manifest": manifest(&[("location:read", "low")])});
    let path = format!("/agents/{}", scene.agent_id);
    scene.server.patch(&path, &lower).await.refused_by(SchemaInvalid, "manifest-invalid");
    assert_eq!(relation(&scene.server, &one).await["scopes"][0]["sensitivity"], "high");
}

#[both_engines]
async fn a_user_who_was_away_gets_one_request_against_their_last_consent(engine: Engine) {
    let one = [("notes:read", "low")];
    let scene = Scene::set(engine, &with_tool(manifest(&one), "notes:read", &[])).await;
    let relation_id = scene.grant(&scene.server, &["notes:read"]).await;
    let breaking = with_tool(manifest(&one), "notes:read", &["path"]);
    scene.publish(&breaking).await;
    let mut silent = breaking.clone();
    silent["agent_version"] = json!("1.0.1");
    let hash = scene.publish(&silent).await;
    let seen = relation(&scene.server, &relation_id).await;
    assert_eq!((&seen["reauth_required"], &seen["manifest_version"]), (&json!(true), &json!(3)));
    for _ in 0..2 {
        let event = json!({"type": "h2a.reauth_required", "agent_id": scene.agent_id, "relation_id": relation_id,
            "new_manifest_version": 3, "new_manifest_hash": hash, "scopes_requiring_reauth": ["notes:read"],
            "suspended_scopes": ["notes:read"], "unanswered_scopes": []});
        let pending = scene.server.get("/h2a/pending").await.ok();
        assert_eq!(pending["pending"], json!([event]), "one, and the same as long as it is not answered");
    }
    let answered = json!({"granted_scopes": ["notes:read"], "manifest_hash": hash});
    let seen = answer(&scene.server, &relation_id, &answered).await.with_status(200);
    assert_eq!((&seen["reauth_required"], &seen["granted_scopes"]), (&json!(false), &json!(["notes:read"])));
    assert_eq!(scene.server.get("/h2a/pending").await.ok()["pending"], json!([]));
}

#[both_engines]
async fn each_user_sees_the_scopes_that_they_have_to_answer(engine: Engine) {
    let scene = Scene::set(engine, &manifest(&[("notes:read", "low"), ("notes:write", "low")])).await;
    let people = [scene.person("ada").await, scene.person("bob").await, scene.person("eve").await];
    for (who, granted) in people.iter().zip([&["notes:read"][..], &[], &["notes:write"]]) {
        scene.grant(who, granted).await;
    }
    let ended = scene.person("zoe").await;
    let one = scene.grant(&ended, &["notes:read"]).await;
    ended.send(ended.request("DELETE", &format!("/h2a/relations/{one}"))).await.with_status(200);
    let asks_more = [("notes:read", "high"), ("notes:write", "low"), ("shell:exec", "high")];
    scene.publish(&manifest(&asks_more)).await;
    let unanswered = [&["shell:exec"][..], &["notes:read", "shell:exec"], &["notes:read", "shell:exec"]];
    let suspended = [&["notes:read"][..], &[], &[]];
    for ((who, unanswered), suspended) in people.iter().zip(unanswered).zip(suspended) {
        let pending = who.get("/h2a/pending").await.ok();
        let event = &pending["pending"][0];
        assert_eq!(event["scopes_requiring_reauth"], json!(["notes:read", "shell:exec"]), "the same for every person");
        assert_eq!((&event["unanswered_scopes"], &event["suspended_scopes"]), (&json!(unanswered), &json!(suspended)));
    }
    assert_eq!(ended.get("/h2a/pending").await.ok()["pending"], json!([]));
}

#[both_engines]
async fn a_grant_for_one_call_and_one_for_a_time_end(engine: Engine) {
    let scene = Scene::set(engine, &manifest(&[("notes:read", "low"), ("notes:write", "low")])).await;
    let terms = json!({"notes:read": {"once": true}, "notes:write": {"expires_in_ms": 60_000}});
    let body = json!({"agent_id": scene.agent_id, "granted_scopes": ["notes:read", "notes:write"], "terms": terms});
    let made = scene.server.post("/h2a/relations", &body).await.with_status(201);
    let one = id(&made, "id");
    assert_eq!(made["granted_scopes"], json!(["notes:read", "notes:write"]));
    let path = format!("/h2a/relations/{one}/uses");
    let used = |scope: &str, call_id: &str| json!({"scope": scope, "call_id": call_id});
    for _ in 0..2 {
        let kept = scene.server.post(&path, &used("notes:write", "call_1")).await.with_status(200);
        assert_eq!(kept["granted_scopes"], json!(["notes:read", "notes:write"]), "this one is good for more calls");
    }
    let left = scene.server.post(&path, &used("notes:read", "call_2")).await.with_status(200);
    assert_eq!(left["granted_scopes"], json!(["notes:write"]));
    let again = scene.server.post(&path, &used("notes:read", "call_2")).await.with_status(200);
    assert_eq!(again, left, "a client that lost the response asks again");
    let other = scene.server.post(&path, &used("notes:write", "call_2")).await;
    other.refused_by(StateConflict, "call-id-taken");
    let another = scene.server.post(&path, &used("notes:read", "call_3")).await;
    another.refused_by(PermissionDenied, "scope-not-granted");
    scene.server.clock.advance_ms(59_999);
    assert_eq!(relation(&scene.server, &one).await["granted_scopes"], json!(["notes:write"]));
    scene.server.clock.advance_ms(1);
    let over = relation(&scene.server, &one).await;
    assert_eq!((&over["granted_scopes"], &over["scopes"][1]["state"]), (&json!([]), &json!("expired")));
    let acts: Vec<_> = ledger(&scene.server).await.iter().map(|receipt| receipt["act"].clone()).collect();
    assert_eq!(acts, ["established", "used"]);
    let used = ledger(&scene.server).await.pop().unwrap();
    assert_eq!((&used["used_scope"], &used["call_id"]), (&json!("notes:read"), &json!("call_2")));
}

#[both_engines]
async fn a_refusal_is_remembered(engine: Engine) {
    let scene = Scene::set(engine, &manifest(&[("notes:read", "low"), ("shell:exec", "high")])).await;
    let body = json!({"agent_id": scene.agent_id, "granted_scopes": ["notes:read"], "denied_scopes": ["shell:exec"]});
    let made = scene.server.post("/h2a/relations", &body).await.with_status(201);
    let (one, hash) = (id(&made, "id"), scene.hash().await);
    assert_eq!(made["denied_scopes"], json!(["shell:exec"]));
    let again = json!({"granted_scopes": ["notes:read"], "manifest_hash": hash});
    let kept = answer(&scene.server, &one, &again).await.with_status(200);
    assert_eq!(kept["denied_scopes"], json!(["shell:exec"]));
    let both = json!({"granted_scopes": ["shell:exec"], "denied_scopes": ["shell:exec"], "manifest_hash": hash});
    answer(&scene.server, &one, &both).await.refused_by(SchemaInvalid, "scope-twice");
    let granted = json!({"granted_scopes": ["shell:exec"], "manifest_hash": hash});
    let changed = answer(&scene.server, &one, &granted).await.with_status(200);
    assert_eq!(changed["denied_scopes"], json!([]));
}

#[both_engines]
async fn a_relation_ends_for_good_and_a_new_one_can_be_made(engine: Engine) {
    let scene = Scene::set(engine, &manifest(&[("notes:read", "low")])).await;
    let one = scene.grant(&scene.server, &["notes:read"]).await;
    let path = format!("/h2a/relations/{one}");
    let end = || scene.server.send(scene.server.request("DELETE", &path));
    let ended = end().await.with_status(200);
    assert!(ended["revoked_at"].is_string() && ended["granted_scopes"] == json!([]));
    assert_eq!(end().await.with_status(200), ended, "a second time changes nothing");
    let body = json!({"granted_scopes": ["notes:read"], "manifest_hash": scene.hash().await});
    answer(&scene.server, &one, &body).await.refused_by(StateConflict, "relation-revoked");
    assert_eq!(scene.server.get("/h2a/relations").await.ok()["relations"], json!([]));
    let next = scene.grant(&scene.server, &[]).await;
    assert_ne!(next, one);
    assert_eq!(relation(&scene.server, &next).await["granted_scopes"], json!([]));
}

#[both_engines]
async fn relations_are_seen_by_their_person_alone(engine: Engine) {
    let scene = Scene::set(engine, &manifest(&[("notes:read", "low")])).await;
    let (ada, bob) = (scene.person("ada").await, scene.person("bob").await);
    let one = scene.grant(&ada, &["notes:read"]).await;
    let path = format!("/h2a/relations/{one}");
    // The operator runs the server, and answers only for `local`.
    for other in [&bob, &*scene.server] {
        for below in ["", "/changes", "/receipts"] {
            other.get(&format!("{path}{below}")).await.refused(NotFound);
        }
        answer(other, &one, &json!({"granted_scopes": []})).await.refused(NotFound);
        other.send(other.request("DELETE", &path)).await.refused(NotFound);
        other.post(&format!("{path}/uses"), &json!({"scope": "notes:read", "call_id": "c"})).await.refused(NotFound);
        assert_eq!(other.get("/h2a/relations").await.ok()["relations"], json!([]));
        assert_eq!(other.get("/h2a/receipts").await.text, "");
    }
    assert_eq!(relation(&ada, &one).await["granted_scopes"], json!(["notes:read"]));
}

#[both_engines]
async fn every_answer_leaves_a_receipt_with_the_words_that_were_shown(engine: Engine) {
    let mut first = manifest(&[("notes:write", "low")]);
    let preset =
        json!({"id": "location:read", "label_i18n_key": "agent.scope.location_read.label", "sensitivity": "high"});
    first["permission_scopes"].as_array_mut().unwrap().push(preset);
    let scene = Scene::set(engine, &first).await;
    let scopes = ["location:read", "notes:write"];
    let body = json!({"agent_id": scene.agent_id, "granted_scopes": scopes, "language": "zh"});
    let one = id(&scene.server.post("/h2a/relations", &body).await.with_status(201), "id");
    let page = scene.server.get(&format!("/h2a/relations/{one}/receipts")).await.ok();
    let receipt = &page["receipts"][0];
    assert_eq!(
        (&receipt["act"], &receipt["seq"], &receipt["language"]),
        (&json!("established"), &json!(1), &json!("zh"))
    );
    assert_eq!((&receipt["user_id"], &receipt["relation_id"]), (&json!("local"), &json!(one)));
    let agent = json!([receipt["agent_id"], receipt["agent_name"], receipt["agent_owner_id"]]);
    assert_eq!(agent, json!([scene.agent_id, "notes-helper", "local"]));
    assert_eq!((&receipt["manifest_version"], &receipt["manifest_hash"]), (&json!(1), &json!(scene.hash().await)));
    assert_eq!(receipt["scopes"][0]["label"], "读取位置");
    assert_eq!(receipt["scopes"][1]["label"], "May notes:write");
    assert!(receipt["at"].is_string());
    answer(&scene.server, &one, &json!({"granted_scopes": []})).await.with_status(200);
    scene.server.send(scene.server.request("DELETE", &format!("/h2a/relations/{one}"))).await.with_status(200);
    let path = format!("/h2a/relations/{one}/receipts?limit=2");
    let page = scene.server.get(&path).await.ok();
    assert_eq!((&page["next_after_seq"], &page["receipts"][1]["act"]), (&json!(2), &json!("narrowed")));
    let rest = scene.server.get(&format!("{path}&after_seq=2")).await.ok();
    assert_eq!((&rest["next_after_seq"], &rest["receipts"][0]["act"]), (&Value::Null, &json!("revoked")));
}

async fn ledger(who: &Caller) -> Vec<Value> {
    let exported = who.get("/h2a/receipts").await;
    assert_eq!(exported.headers["content-type"], "application/jsonl");
    exported.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[both_engines]
async fn an_exported_ledger_proves_itself_and_shows_what_was_changed(engine: Engine) {
    let scene = Scene::set(engine, &manifest(&[("notes:read", "low")])).await;
    let one = scene.grant(&scene.server, &["notes:read"]).await;
    let hash = scene.hash().await;
    for granted in [json!([]), json!(["notes:read"]), json!([])] {
        let body = json!({"granted_scopes": granted, "manifest_hash": hash});
        answer(&scene.server, &one, &body).await.with_status(200);
    }
    let exported = scene.server.get("/h2a/receipts").await.text;
    let verify = |text: &str| {
        let mut verifier = ReceiptVerifier::default();
        text.lines().try_for_each(|line| verifier.take(line)).map(|()| verifier.receipts)
    };
    assert_eq!(verify(&exported), Ok(4));
    // A writer of the database changes it to say that more was granted.
    scene
        .server
        .store("UPDATE receipts SET receipt = replace(receipt, '\"scopes\":[]', '\"scopes\":[1]') WHERE seq = 2")
        .await;
    let changed = scene.server.get("/h2a/receipts").await.text;
    assert_ne!(changed, exported);
    assert_eq!(verify(&changed).unwrap_err().line, 2);
}

#[both_engines]
async fn answers_at_once_leave_one_chain(engine: Engine) {
    let scene = Scene::set(engine, &manifest(&[("notes:read", "low")])).await;
    let one = scene.grant(&scene.server, &["notes:read"]).await;
    let body = json!({"granted_scopes": ["notes:read"], "manifest_hash": scene.hash().await});
    let answering = (0..8).map(|_| {
        let (who, one, body) = (scene.server.with_token(scene.server.token()), one.clone(), body.clone());
        tokio::spawn(async move { answer(&who, &one, &body).await.with_status(200) })
    });
    for one in answering.collect::<Vec<_>>() {
        one.await.unwrap();
    }
    let mut verifier = ReceiptVerifier::default();
    let exported = scene.server.get("/h2a/receipts").await.text;
    exported.lines().for_each(|line| verifier.take(line).unwrap());
    assert_eq!(verifier.receipts, 9);
}

#[both_engines]
async fn limits_of_a_grant_are_held(engine: Engine) {
    let scene = Scene::set(engine, &manifest(&[("notes:read", "low")])).await;
    let asked = |terms: Value| json!({"agent_id": scene.agent_id, "granted_scopes": ["notes:read"], "terms": terms});
    for ms in [0, -1, GRANT_LIFE_MS_MAX + 1] {
        let body = asked(json!({"notes:read": {"expires_in_ms": ms}}));
        scene.server.post("/h2a/relations", &body).await.refused_by(SchemaInvalid, "expires-in");
    }
    let elsewhere = asked(json!({"shell:exec": {"once": true}}));
    scene.server.post("/h2a/relations", &elsewhere).await.refused_by(SchemaInvalid, "terms");
    // A misspelt limit must not become a grant without one.
    let misspelt = asked(json!({"notes:read": {"expires_in": 5}}));
    scene.server.post("/h2a/relations", &misspelt).await.refused(SchemaInvalid);
    let longest = asked(json!({"notes:read": {"expires_in_ms": GRANT_LIFE_MS_MAX}}));
    scene.server.post("/h2a/relations", &longest).await.with_status(201);
}

#[both_engines]
async fn one_person_has_so_many_relations_and_no_more(engine: Engine) {
    let scene = Scene::set(engine, &manifest(&[("notes:read", "low")])).await;
    let others = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {})
         INSERT INTO relations (relation_id, agent_id, agent_name, agent_owner_id, user_id, consented_version,
            consented_hash, answers, revision, created_at, updated_at)
         SELECT 'rel_' || i, 'agt_' || i, 'a', 'local', 'local', 1, 'h', '{{}}', 1, 0, 0 FROM n",
        RELATIONS_PER_USER_MAX - 1
    );
    scene.server.store(&others).await;
    let last = scene.grant(&scene.server, &[]).await;
    let (agent_id, _) = scene.server.agent().await;
    let one_more = json!({"agent_id": agent_id});
    scene.server.post("/h2a/relations", &one_more).await.refused_by(StateConflict, "relations-limit");
    let path = format!("/h2a/relations/{last}");
    scene.server.send(scene.server.request("DELETE", &path)).await.with_status(200);
    scene.server.post("/h2a/relations", &one_more).await.with_status(201);
}
