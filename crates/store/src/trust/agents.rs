//! Agents and their tokens. A manifest is stored in its canonical form, as the text that was hashed.

use ostler_protocol::{
    Timestamp,
    cursors::Cursor,
    ids::{AgentId, TokenId},
    trust::agents::{Agent, AgentToken},
};

use crate::{
    db::{Db, Statement, StoreError},
    record::{Reader, Value, text},
    trust::{
        manifests::{self, KeptManifest},
        webhooks::{self, NewDelivery},
    },
};

const COLUMNS: &str = "agent_id, name, owner_id, backend_profile, capability_manifest, capability_manifest_version, \
    capability_manifest_hash, created_at, updated_at, retired_at, revision";
/// The same, without what may be 128 KiB long.
const BRIEF: &str = "agent_id, name, owner_id, backend_profile, CAST(NULL AS TEXT), capability_manifest_version, \
    capability_manifest_hash, created_at, updated_at, retired_at, revision";
const TOKEN_COLUMNS: &str = "token_id, agent_id, name, created_at, expires_at, revoked_at";

fn decode(row: &mut Reader<'_>) -> Result<Agent, StoreError> {
    Ok(Agent {
        id: row.id()?,
        name: row.text()?,
        owner_id: row.text()?,
        backend_profile: row.opt_text()?,
        capability_manifest: row.opt_json()?,
        capability_manifest_version: row.int()?,
        capability_manifest_hash: row.opt_text()?,
        created_at: row.time()?,
        updated_at: row.time()?,
        retired_at: row.opt_time()?,
        revision: row.int()?,
    })
}

fn decode_token(row: &mut Reader<'_>) -> Result<AgentToken, StoreError> {
    Ok(AgentToken {
        token_id: row.id()?,
        agent_id: row.id()?,
        name: row.text()?,
        created_at: row.time()?,
        expires_at: row.opt_time()?,
        revoked_at: row.opt_time()?,
    })
}

fn manifest(agent: &Agent) -> Value {
    Value::Text(agent.capability_manifest.as_ref().map(|manifest| manifest.as_str().to_owned()))
}

/// Together with its first manifest, if it has one.
pub async fn insert(db: &Db, agent: &Agent, first: Option<&KeptManifest>) -> Result<(), StoreError> {
    let sql = format!("INSERT INTO agents ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)");
    let args = vec![
        text(agent.id),
        agent.name.as_str().into(),
        agent.owner_id.as_str().into(),
        agent.backend_profile.clone().into(),
        manifest(agent),
        agent.capability_manifest_version.into(),
        agent.capability_manifest_hash.clone().into(),
        agent.created_at.into(),
        agent.updated_at.into(),
        agent.retired_at.into(),
        agent.revision.into(),
    ];
    db.write_together(with_manifest(Statement::new(sql, args), first)).await.map(drop)
}

fn with_manifest(statement: Statement, published: Option<&KeptManifest>) -> Vec<Statement> {
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
    db.read_one(format!("SELECT {COLUMNS} FROM agents WHERE agent_id = $1"), vec![text(id)], decode).await
}

/// Newest first, without their manifests and without those that were retired. `name`: in lower case, what the name must
/// hold.
pub async fn list(db: &Db, name: Option<&str>, after: Option<&Cursor>, limit: u32) -> Result<Vec<Agent>, StoreError> {
    let (mut args, mut filters): (Vec<Value>, _) = (vec![], vec!["retired_at IS NULL".to_owned()]);
    let order = db.byte_order();
    if let Some(name) = name {
        let escaped = name.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
        args.push(format!("%{escaped}%").into());
        filters.push(format!("LOWER(name) LIKE ${} ESCAPE '\\'", args.len()));
    }
    if let Some(cursor) = after {
        args.extend([cursor.created_at_us.into(), cursor.id.as_str().into()]);
        filters.push(format!("(created_at, agent_id{order}) < (${}, ${})", args.len() - 1, args.len()));
    }
    args.push(i64::from(limit).into());
    let (filter, last) = (filters.join(" AND "), args.len());
    let sql = format!(
        "SELECT {BRIEF} FROM agents WHERE {filter} ORDER BY created_at DESC, agent_id{order} DESC LIMIT ${last}"
    );
    db.read(sql, args, decode).await
}

/// Replaces what can change by the next revision, together with the manifest that is published by it and what the agent's
/// webhook is told of that. False: somebody else has made that revision.
pub async fn update(
    db: &Db,
    agent: &Agent,
    published: Option<&KeptManifest>,
    told: Option<&NewDelivery>,
) -> Result<bool, StoreError> {
    let sql = "UPDATE agents SET name = $1, backend_profile = $2, capability_manifest = $3,
            capability_manifest_version = $4, capability_manifest_hash = $5, updated_at = $6, revision = $7
        WHERE agent_id = $8 AND revision = $9 RETURNING revision";
    let args = vec![
        agent.name.as_str().into(),
        agent.backend_profile.clone().into(),
        manifest(agent),
        agent.capability_manifest_version.into(),
        agent.capability_manifest_hash.clone().into(),
        agent.updated_at.into(),
        agent.revision.into(),
        text(agent.id),
        (agent.revision - 1).into(),
    ];
    let mut statements = with_manifest(Statement::guard(sql, args), published);
    statements.extend(told.map(webhooks::delivery));
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

/// A guard: the agent is there and was not retired, and is not until the transaction has ended. Whoever retires it afterwards
/// finds what was written beside this.
pub(crate) fn is_there(db: &Db, id: AgentId) -> Statement {
    let sql = format!("SELECT 1 FROM agents WHERE agent_id = $1 AND retired_at IS NULL {}", db.share_lock());
    Statement::guard(sql, vec![text(id)])
}

/// False: the agent is not there, or was retired.
pub async fn insert_token(db: &Db, token: &AgentToken, token_hash: &str) -> Result<bool, StoreError> {
    let sql = format!("INSERT INTO agent_tokens ({TOKEN_COLUMNS}, token_hash) VALUES ($1, $2, $3, $4, $5, $6, $7)");
    let args = vec![
        text(token.token_id),
        text(token.agent_id),
        token.name.as_str().into(),
        token.created_at.into(),
        token.expires_at.into(),
        token.revoked_at.into(),
        token_hash.into(),
    ];
    db.write_together(vec![is_there(db, token.agent_id), Statement::new(sql, args)]).await
}

/// Also one that was revoked or has expired: whether it is good is the caller's question.
pub async fn find_token_by_hash(db: &Db, token_hash: &str) -> Result<Option<AgentToken>, StoreError> {
    let sql = format!("SELECT {TOKEN_COLUMNS} FROM agent_tokens WHERE token_hash = $1");
    db.read_one(sql, vec![token_hash.into()], decode_token).await
}

/// How many tokens of an agent were not revoked, counted up to a limit.
pub async fn count_tokens(db: &Db, agent: AgentId, limit: u32) -> Result<i64, StoreError> {
    let sql = "SELECT COUNT(*) FROM (SELECT 1 FROM agent_tokens WHERE agent_id = $1 AND revoked_at IS NULL LIMIT $2) AS counted";
    let counted = db.read_one(sql, vec![text(agent), i64::from(limit).into()], |row| row.int()).await?;
    Ok(counted.unwrap_or_default())
}

/// Newest first.
pub async fn list_tokens(db: &Db, agent: AgentId, limit: u32) -> Result<Vec<AgentToken>, StoreError> {
    let sql = format!(
        "SELECT {TOKEN_COLUMNS} FROM agent_tokens WHERE agent_id = $1 ORDER BY created_at DESC, token_id{} DESC LIMIT $2",
        db.byte_order()
    );
    db.read(sql, vec![text(agent), i64::from(limit).into()], decode_token).await
}

/// The first revocation stands. `None`: the agent has no such token.
pub async fn update_token_revoked(
    db: &Db,
    agent: AgentId,
    token: TokenId,
    now: Timestamp,
) -> Result<Option<AgentToken>, StoreError> {
    let sql = format!(
        "UPDATE agent_tokens SET revoked_at = COALESCE(revoked_at, $1) WHERE token_id = $2 AND agent_id = $3
         RETURNING {TOKEN_COLUMNS}"
    );
    Ok(db.write(sql, vec![now.into(), text(token), text(agent)], decode_token).await?.pop())
}
