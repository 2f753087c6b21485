//! Taking something back never depends on what the agent's owner does concurrently, and leaves behind what was refused.

use ostler_protocol::FailureKind::*;
use secrecy::ExposeSecret;
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

use super::{Scene, answer, ledger, manifest, relation};
use crate::harness::{Engine, both_engines, eventually, id};

#[both_engines]
async fn a_refusal_outlives_the_relation(engine: Engine) {
    let scene = Scene::set(engine, &manifest(&[("notes:read", "low"), ("shell:exec", "high")])).await;
    let one = scene.grant(&scene.server, &["notes:read"]).await;
    let never = json!({"granted_scopes": ["notes:read"], "denied_scopes": ["shell:exec"]});
    answer(&scene.server, &one, &never).await.with_status(200);
    scene.server.send(scene.server.request("DELETE", &format!("/h2a/relations/{one}"))).await.with_status(200);
    // By it, the screen of the next relation shows what was refused before.
    let ended = scene.server.get("/h2a/relations?ended=true").await.with_status(200);
    assert_eq!(ended["relations"][0]["denied_scopes"], json!(["shell:exec"]));
    assert_eq!(ended["relations"][0]["granted_scopes"], json!([]));
    let receipt = ledger(&scene.server).await.pop().unwrap();
    assert_eq!((&receipt["act"], &receipt["scopes"][0]["granted"]), (&json!("revoked"), &json!(false)));
    assert_eq!(receipt["scopes"][0]["label"], "May shell:exec");
    let next = scene.grant(&scene.server, &["notes:read"]).await;
    assert_eq!(relation(&scene.server, &next).await["denied_scopes"], json!(["shell:exec"]));
    // The same again is the same.
    let body = json!({"agent_id": scene.agent_id, "granted_scopes": ["notes:read"]});
    assert_eq!(id(&scene.server.post("/h2a/relations", &body).await.with_status(200), "id"), next);
}

#[both_engines]
async fn a_grant_keeps_its_limits_when_it_is_given_again(engine: Engine) {
    let scene = Scene::set(engine, &manifest(&[("notes:read", "low")])).await;
    let body = json!({"agent_id": scene.agent_id, "granted_scopes": ["notes:read"],
        "terms": {"notes:read": {"once": true}}});
    let one = id(&scene.server.post("/h2a/relations", &body).await.with_status(201), "id");
    let again = json!({"granted_scopes": ["notes:read"], "manifest_hash": scene.hash().await});
    assert_eq!(answer(&scene.server, &one, &again).await.with_status(200)["scopes"][0]["once"], true);
    let misspelt = json!({"granted_scopes": ["notes:read"], "manifest_hash": scene.hash().await,
        "term": {"notes:read": {"once": true}}});
    answer(&scene.server, &one, &misspelt).await.refused_by(SchemaInvalid, "body-shape");
    let lifted = json!({"granted_scopes": ["notes:read"], "manifest_hash": scene.hash().await,
        "terms": {"notes:read": {}}});
    assert_eq!(answer(&scene.server, &one, &lifted).await.with_status(200)["scopes"][0]["once"], false);
}

#[both_engines]
async fn a_refusal_of_a_new_scope_quotes_the_current_manifest(engine: Engine) {
    let scene = Scene::set(engine, &manifest(&[("notes:read", "low")])).await;
    let one = scene.grant(&scene.server, &["notes:read"]).await;
    scene.publish(&manifest(&[("notes:read", "low"), ("shell:exec", "high")])).await;
    let never = json!({"granted_scopes": ["notes:read"], "denied_scopes": ["shell:exec"]});
    let answered = answer(&scene.server, &one, &never).await.with_status(200);
    assert_eq!(
        (&answered["consented_manifest_version"], &answered["denied_scopes"]),
        (&json!(1), &json!(["shell:exec"]))
    );
    let receipt = ledger(&scene.server).await.pop().unwrap();
    assert_eq!((&receipt["act"], &receipt["manifest_version"]), (&json!("narrowed"), &json!(1)));
    assert_eq!(receipt["scopes"][1]["label"], "May shell:exec");
    let undeclared = json!({"granted_scopes": ["notes:read"], "denied_scopes": ["nothing:known"]});
    answer(&scene.server, &one, &undeclared).await.refused_by(SchemaInvalid, "scope-unknown");
}

/// Only Postgres lets a test block all readers of a manifest.
#[test]
fn no_manifest_prevents_taking_back() {
    crate::harness::run(async {
        let both = manifest(&[("notes:read", "low"), ("notes:write", "low")]);
        let scene = Scene::set(Engine::Postgres, &both).await;
        let ada = scene.person("ada").await;
        let narrowed = scene.grant(&scene.server, &["notes:read", "notes:write"]).await;
        let ended = scene.grant(&ada, &["notes:read"]).await;
        scene.publish(&manifest(&[("notes:read", "low"), ("notes:write", "high")])).await;
        let mut holder = holder(&scene).await;
        holder.execute("BEGIN; LOCK TABLE manifests, agents IN ACCESS EXCLUSIVE MODE").await.unwrap();
        let less = json!({"granted_scopes": ["notes:read"]});
        let written = async {
            for (what, condition) in [
                ("the grant is taken back", format!("relation_id = '{narrowed}' AND revision = 2")),
                ("the relation has ended", format!("relation_id = '{ended}' AND revoked_at IS NOT NULL")),
            ] {
                let sql = format!("SELECT relation_id FROM relations WHERE {condition}");
                eventually(what, async || scene.server.store(&sql).await.pop()).await;
            }
            holder.execute("COMMIT").await.unwrap();
        };
        let path = format!("/h2a/relations/{ended}");
        let (narrowed, ended, ()) =
            tokio::join!(answer(&scene.server, &narrowed, &less), ada.send(ada.request("DELETE", &path)), written);
        assert_eq!(narrowed.with_status(200)["granted_scopes"], json!(["notes:read"]));
        assert!(ended.with_status(200)["revoked_at"].is_string());
    });
}

/// What is wrong with an answer whatever the manifest contains is reported although the manifest cannot be read.
#[both_engines]
async fn an_answer_to_an_ended_relation_needs_no_manifest(engine: Engine) {
    let mut scene = Scene::set(engine, &manifest(&[("notes:read", "low")])).await;
    let (one, seen) = (scene.grant(&scene.server, &[]).await, scene.hash().await);
    scene.server.send(scene.server.request("DELETE", &format!("/h2a/relations/{one}"))).await.with_status(200);
    scene.server.store("UPDATE manifests SET manifest = '{' RETURNING 'damaged'").await;
    // The damaged manifest is not in the cache of a server that has just started.
    scene.server.restart().await;
    let late = json!({"granted_scopes": ["notes:read"], "manifest_hash": seen});
    answer(&scene.server, &one, &late).await.refused_by(StateConflict, "relation-revoked");
}

/// An answer is written only while its manifest is still the agent's current one.
#[test]
fn an_answer_waits_for_a_manifest_that_is_being_published() {
    crate::harness::run(async {
        let scene = Scene::set(Engine::Postgres, &manifest(&[("notes:read", "low")])).await;
        let (relation_id, seen) = (scene.grant(&scene.server, &[]).await, scene.hash().await);
        let body = json!({"name": "another", "capability_manifest": manifest(&[("notes:read", "high")])});
        let another = id(&scene.server.post("/agents", &body).await.with_status(201), "id");
        let mut owner = holder(&scene).await;
        let agent = &scene.agent_id;
        let published = format!(
            "BEGIN; UPDATE agents SET capability_manifest_version = 2 WHERE agent_id = '{agent}';
             INSERT INTO manifests (agent_id, version, hash, manifest, declared_since, created_at)
             SELECT '{agent}', 2, hash, manifest, declared_since, created_at FROM manifests WHERE agent_id = '{another}'"
        );
        owner.execute(AssertSqlSafe(published)).await.unwrap();
        let waits = "SELECT 'waits' FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'";
        let committed = async {
            eventually("the answer waits", async || scene.server.store(waits).await.pop()).await;
            owner.execute("COMMIT").await.unwrap();
        };
        let asked = json!({"granted_scopes": ["notes:read"], "manifest_hash": seen});
        let (answered, ()) = tokio::join!(answer(&scene.server, &relation_id, &asked), committed);
        answered.refused_by(StateConflict, "version-conflict");
    });
}

/// A connection beside the server's own.
async fn holder(scene: &Scene) -> PgConnection {
    let url = scene.server.config.store.database_url.clone().unwrap();
    PgConnection::connect(url.expose_secret()).await.unwrap()
}
