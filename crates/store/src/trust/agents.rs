//! Agents and their tokens. A manifest is stored in its canonical form, as the text that was hashed.

use ostler_protocol::{
    Timestamp,
    cursors::Cursor,
    ids::{AgentId, TokenId},
    trust::agents::{Agent, AgentToken},
};

use crate::{
    db::Db,
    error::StoreError,
    record::{self, Record, Statement, Value, columns_except, record, text},
    trust::{
        guards,
        manifests::{self, StoredManifest},
        webhooks::{self, NewDelivery},
    },
};

record! {
    Agent, agent in "agents";
    key {
        agent_id: id from agent.id;
    }
    fixed {
        owner_id: text;
        created_at: time;
        // Only `update_retired` changes it.
        retired_at: opt_time;
    }
    state {
        name: text;
        backend_profile: opt_text;
        capability_manifest: opt_raw_json;
        capability_manifest_version: int;
        capability_manifest_hash: opt_text;
        updated_at: time;
        revision: int;
    }
    build Agent {
        id: agent_id,
        owner_id,
        created_at,
        retired_at,
        name,
        backend_profile,
        capability_manifest,
        capability_manifest_version,
        capability_manifest_hash,
        updated_at,
        revision,
    };
}

record! {
    AgentToken, token in "agent_tokens";
    key {
        token_id: id;
    }
    fixed {
        agent_id: id;
        name: text;
        created_at: time;
        expires_at: opt_time;
        revoked_at: opt_time;
    }
    state {}
    beside { token_hash }
}

/// Together with its first manifest, if it has one.
pub async fn insert(db: &Db, agent: &Agent, first: Option<&StoredManifest>) -> Result<(), StoreError> {
    db.write_together(with_manifest(record::insert(agent, vec![], ""), first)).await.map(drop)
}

fn with_manifest(statement: Statement, published: Option<&StoredManifest>) -> Vec<Statement> {
    [statement].into_iter().chain(published.map(manifests::inserted)).collect()
}

/// How many agents an owner has that were not retired, counted up to a limit.
pub async fn count(db: &Db, owner_id: &str, limit: u32) -> Result<i64, StoreError> {
    let sql =
        "SELECT COUNT(*) FROM (SELECT 1 FROM agents WHERE owner_id = $1 AND retired_at IS NULL LIMIT $2) AS counted";
    let counted = db.read_one(sql, vec![owner_id.into(), i64::from(limit).into()], |row| row.int()).await?;
    Ok(counted.unwrap_or_default())
}

pub async fn get(db: &Db, id: AgentId) -> Result<Option<Agent>, StoreError> {
    Ok(db.select("WHERE agent_id = $1", vec![text(id)]).await?.pop())
}

/// Newest first, without their manifests and without those that were retired. `name`: what the name must contain, with its
/// ASCII letters in lower case. Other letters match only themselves.
pub async fn list(db: &Db, name: Option<&str>, after: Option<&Cursor>, limit: u32) -> Result<Vec<Agent>, StoreError> {
    let (mut args, mut filters): (Vec<Value>, _) = (vec![], vec!["retired_at IS NULL".to_owned()]);
    let order = db.byte_order();
    if let Some(name) = name {
        let escaped = name.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
        args.push(format!("%{escaped}%").into());
        // In the order of bytes, Postgres changes ASCII letters only, as SQLite does.
        filters.push(format!("LOWER(name{order}) LIKE ${} ESCAPE '\\'", args.len()));
    }
    let (filter, page) = (filters.join(" AND "), db.newest_first("agent_id", &mut args, after, limit));
    // A manifest may be 128 KiB long.
    let brief = columns_except::<Agent>("t", "capability_manifest");
    db.read(format!("SELECT {brief} FROM agents AS t WHERE {filter}{page}"), args, Agent::decode).await
}

/// Replaces the previous revision, together with the manifest that this one publishes and the delivery to the agent's
/// webhook. False if another writer has made that revision.
pub async fn update(
    db: &Db,
    agent: &Agent,
    published: Option<&StoredManifest>,
    delivery: Option<&NewDelivery>,
) -> Result<bool, StoreError> {
    let replaced = record::update_where(agent, vec![("revision", (agent.revision - 1).into())]);
    let mut statements = with_manifest(replaced, published);
    statements.extend(delivery.map(webhooks::delivery));
    db.write_together(statements).await
}

/// Ends an agent for good, with its tokens and its webhook. False: it had ended before, or is unknown.
pub async fn update_retired(db: &Db, id: AgentId, now: Timestamp) -> Result<bool, StoreError> {
    let retired = "UPDATE agents SET retired_at = $1, updated_at = $1, revision = revision + 1
         WHERE agent_id = $2 AND retired_at IS NULL RETURNING 1";
    let tokens = "UPDATE agent_tokens SET revoked_at = $1 WHERE agent_id = $2 AND revoked_at IS NULL";
    let webhook = "DELETE FROM webhooks WHERE agent_id = $1";
    let statements = vec![
        Statement::guard(retired, vec![now.into(), text(id)]),
        Statement::new(tokens, vec![now.into(), text(id)]),
        Statement::new(webhook, vec![text(id)]),
        webhooks::given_up(id, "the agent was retired", now),
    ];
    db.write_together(statements).await
}

/// Agents whose owner was removed, and which were not retired yet.
pub async fn list_orphaned(db: &Db, limit: u32) -> Result<Vec<AgentId>, StoreError> {
    let sql = "SELECT agent_id FROM agents WHERE retired_at IS NULL
         AND owner_id IN (SELECT user_id FROM users WHERE removed_at IS NOT NULL) LIMIT $1";
    db.read(sql, vec![i64::from(limit).into()], |row| row.id()).await
}

/// False: the agent is not there, or was retired.
pub async fn insert_token(db: &Db, token: &AgentToken, token_hash: &str) -> Result<bool, StoreError> {
    let inserted = record::insert(token, vec![("token_hash", token_hash.into())], "");
    db.write_together(vec![guards::is_there(db, token.agent_id), inserted]).await
}

/// Also one that was revoked or has expired: whether it is good is the caller's question.
pub async fn find_token_by_hash(db: &Db, token_hash: &str) -> Result<Option<AgentToken>, StoreError> {
    Ok(db.select("WHERE token_hash = $1", vec![token_hash.into()]).await?.pop())
}

/// How many tokens of an agent were not revoked, counted up to a limit.
pub async fn count_tokens(db: &Db, agent: AgentId, limit: u32) -> Result<i64, StoreError> {
    let sql = "SELECT COUNT(*) FROM (SELECT 1 FROM agent_tokens WHERE agent_id = $1 AND revoked_at IS NULL LIMIT $2) AS counted";
    let counted = db.read_one(sql, vec![text(agent), i64::from(limit).into()], |row| row.int()).await?;
    Ok(counted.unwrap_or_default())
}

/// Newest first.
pub async fn list_tokens(db: &Db, agent: AgentId, limit: u32) -> Result<Vec<AgentToken>, StoreError> {
    let rest = format!("WHERE agent_id = $1 ORDER BY created_at DESC, token_id{} DESC LIMIT $2", db.byte_order());
    db.select(&rest, vec![text(agent), i64::from(limit).into()]).await
}

/// The first revocation is final. `None` if the agent has no such token.
pub async fn update_token_revoked(
    db: &Db,
    agent: AgentId,
    token: TokenId,
    now: Timestamp,
) -> Result<Option<AgentToken>, StoreError> {
    let sql = format!(
        "UPDATE agent_tokens SET revoked_at = COALESCE(revoked_at, $1) WHERE token_id = $2 AND agent_id = $3
         RETURNING {}",
        AgentToken::NAMES
    );
    Ok(db.write(sql, vec![now.into(), text(token), text(agent)], AgentToken::decode).await?.pop())
}
