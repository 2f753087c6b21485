//! Agents that are retired, and what others want to give them concurrently.

use ostler_protocol::{
    Timestamp,
    ids::{AgentId, TokenId},
    trust::{
        agents::{Agent, AgentToken},
        webhooks::Webhook,
    },
};
use ostler_store::{
    Db,
    trust::{agents, webhooks},
};
use uuid::Uuid;

use crate::test_store::{TestStore, both_engines};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

async fn made(db: &Db, number: u128) -> AgentId {
    let id = AgentId::new(Uuid::from_u128(number));
    let agent = Agent::new(id, "helper".into(), "local".into(), None, NOW);
    agents::insert(db, &agent, None).await.unwrap();
    agent.id
}

async fn give_token(db: &Db, agent_id: AgentId, number: u128) -> bool {
    let (token_id, name) = (TokenId::new(Uuid::from_u128(number)), "its own".to_owned());
    let token = AgentToken { token_id, agent_id, name, created_at: NOW, expires_at: None, revoked_at: None };
    agents::insert_token(db, &token, &format!("hash {number}")).await.unwrap()
}

async fn give_webhook(db: &Db, agent_id: AgentId) -> bool {
    let webhook = Webhook { agent_id, url: "https://example.com".into(), created_at: NOW, disabled_at: None };
    webhooks::insert(db, &webhook, "sealed").await.unwrap()
}

#[both_engines]
async fn a_retired_agent_gets_neither_tokens_nor_a_webhook(test_store: TestStore) {
    let db = Db::open(&test_store.config(), NOW).await.unwrap();
    for number in 1..=30 {
        let agent = made(&db, number).await;
        if number == 1 {
            assert!(give_token(&db, agent, 1_000).await && give_webhook(&db, agent).await);
        }
        // Whichever comes first: nothing of it outlives the agent.
        let retire = agents::update_retired(&db, agent, NOW);
        let (retired, _, _) = tokio::join!(retire, give_token(&db, agent, number), give_webhook(&db, agent));
        assert!(retired.unwrap());
        assert!(!give_token(&db, agent, 2_000 + number).await && !give_webhook(&db, agent).await);
        assert_eq!(agents::count_tokens(&db, agent, 10).await.unwrap(), 0, "agent {number}");
        assert!(webhooks::get(&db, agent).await.unwrap().is_none(), "agent {number}");
    }
    db.close().await;
}
