//! Deliveries of webhooks, and holds that are placed while they are deleted.

use std::time::Duration;

use ostler_protocol::{
    RawJson, Timestamp,
    ids::{AgentId, RunId, UserId},
    trust::{
        agents::Agent,
        webhooks::{DeliveryId, DeliveryStatus, Webhook},
    },
    users::User,
};
use ostler_store::{
    Db,
    trust::{
        agents, run_webhooks,
        webhooks::{self, NewDelivery, Subject},
    },
    users,
};
use serde_json::json;
use sqlx::{Connection, Executor, PgConnection};
use uuid::Uuid;

use crate::{
    holds::{release_all, while_placing},
    mesh::limits::run,
    test_store::{Engine, TestStore, both_engines},
};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// An agent of a user of the tenant `hwlab`, with a delivery that has ended.
async fn agent_with_delivery(db: &Db, test_store: &TestStore) -> AgentId {
    let user = User {
        user_id: UserId::new(Uuid::from_u128(1)),
        name: "ada".into(),
        tenants: vec!["hwlab".into()],
        timezone: "UTC".into(),
        issuer: "ostler".into(),
        subject: "ada".into(),
        created_at: NOW,
        removed_at: None,
    };
    assert!(users::insert(db, &user).await.unwrap());
    let agent_id = AgentId::new(Uuid::from_u128(2));
    let agent = Agent::new(agent_id, "helper".into(), user.user_id.to_string(), None, NOW);
    agents::insert(db, &agent, None).await.unwrap();
    let webhook = Webhook { agent_id, url: "https://example.com".into(), created_at: NOW, disabled_at: None };
    assert!(webhooks::insert(db, &webhook, "sealed").await.unwrap());
    let delivery = NewDelivery {
        delivery_id: DeliveryId::new(Uuid::from_u128(3)),
        agent_id,
        event_type: "h2a.test",
        body: RawJson::of(&json!({})),
        created_at: NOW,
        run_id: None,
    };
    webhooks::insert_delivery(db, &delivery).await.unwrap();
    run(test_store, "UPDATE webhook_deliveries SET status = 'delivered', due_at = NULL".into()).await;
    agent_id
}

#[both_engines]
async fn the_deletion_of_excess_deliveries_waits_for_a_hold_that_is_being_placed(test_store: TestStore) {
    let db = Db::open(&test_store.config(), NOW).await.unwrap();
    let agent_id = agent_with_delivery(&db, &test_store).await;
    let delete = || webhooks::delete_oldest(&db, Subject::Consent, (agent_id, DeliveryStatus::Delivered), 0, 10);
    assert_eq!(while_placing(&test_store, "tenant_id", "hwlab", delete()).await.unwrap(), 0);
    release_all(&test_store).await;
    assert_eq!(delete().await.unwrap(), 1);
    db.close().await;
}

/// SQLite does one write after the other.
#[tokio::test]
async fn a_cursor_that_is_moved_while_unused_ones_are_deleted_stays() {
    let test_store = TestStore::new(Engine::Postgres);
    let db = Db::open(&test_store.config(), NOW).await.unwrap();
    let run_id = RunId::new(Uuid::from_u128(1));
    let agent_id = AgentId::new(Uuid::from_u128(2));
    run(&test_store, format!("INSERT INTO webhook_runs VALUES ('{run_id}', '{agent_id}', 5)")).await;
    let mut connection = PgConnection::connect(&test_store.url()).await.unwrap();
    let mut moving = connection.begin().await.unwrap();
    moving.execute("UPDATE webhook_runs SET reported_seq = 8").await.unwrap();
    let commit = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        moving.commit().await.unwrap();
    };
    assert_eq!(tokio::join!(run_webhooks::delete_unused(&db, 10), commit).0.unwrap(), 0);
    assert_eq!(run_webhooks::delete_unused(&db, 10).await.unwrap(), 1);
    db.close().await;
}
