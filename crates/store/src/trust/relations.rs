//! Relations between people and agents. Every change is written together with its receipt and the delivery to the agent's
//! webhook, if the relation's revision and the agent's manifest are still those it was decided on.

use ostler_protocol::{
    cursors::Cursor,
    ids::{AgentId, RelationId},
    trust::{
        receipts::Receipt,
        relations::{Consented, Relation},
    },
};

use crate::{
    db::Db,
    error::StoreError,
    record::{self, Record, Statement, Value, record, text},
    trust::{
        guards, receipts,
        webhooks::{self, NewDelivery},
    },
};

const NAMES: &str = <Relation as Record>::NAMES;

record! {
    Relation, relation in "relations";
    key {
        relation_id: id;
    }
    fixed {
        agent_id: id;
        agent_name: text;
        agent_owner_id: text;
        user_id: text;
        created_at: time;
    }
    state {
        consented_version: int from relation.consented.version;
        consented_hash: text from relation.consented.hash;
        answers: json;
        revision: int;
        updated_at: time;
        revoked_at: opt_time;
    }
    build Relation {
        relation_id,
        agent_id,
        agent_name,
        agent_owner_id,
        user_id,
        created_at,
        consented: Consented { version: consented_version, hash: consented_hash },
        answers,
        revision,
        updated_at,
        revoked_at,
    };
}

/// False, and nothing is written, if there is such a relation, the ledger has grown, or the manifest has changed.
pub async fn insert(
    db: &Db,
    relation: &Relation,
    receipt: &Receipt,
    delivery: Option<&NewDelivery>,
) -> Result<bool, StoreError> {
    let current = guards::is_current(db, relation.agent_id, relation.consented.version);
    let written = [current, record::insert(relation, vec![], ""), receipts::appended(receipt)];
    write(db, written.into_iter().chain(delivery.map(webhooks::delivery)).collect()).await
}

/// Replaces the revision before this one, if the agent's current manifest is still `manifest_version`. False if nothing was
/// written.
pub async fn update(
    db: &Db,
    relation: &Relation,
    receipt: &Receipt,
    manifest_version: Option<i64>,
    delivery: Option<&NewDelivery>,
) -> Result<bool, StoreError> {
    let current = manifest_version.map(|version| guards::is_current(db, relation.agent_id, version));
    let replaced = record::update_where(relation, vec![("revision", (relation.revision - 1).into())]);
    let written = [replaced, receipts::appended(receipt)];
    write(db, current.into_iter().chain(written).chain(delivery.map(webhooks::delivery)).collect()).await
}

async fn write(db: &Db, statements: Vec<Statement>) -> Result<bool, StoreError> {
    match db.write_together(statements).await {
        Err(error) if error.is_unique_violation() => Ok(false),
        outcome => outcome,
    }
}

pub async fn get(db: &Db, relation_id: RelationId) -> Result<Option<Relation>, StoreError> {
    Ok(db.select("WHERE relation_id = $1", vec![text(relation_id)]).await?.pop())
}

/// Active ones whose person was removed, or whose agent was retired.
pub async fn list_orphaned(db: &Db, limit: u32) -> Result<Vec<Relation>, StoreError> {
    let sql = format!(
        "SELECT {NAMES} FROM relations WHERE revoked_at IS NULL
             AND agent_id IN (SELECT agent_id FROM agents WHERE retired_at IS NOT NULL)
         UNION ALL SELECT {NAMES} FROM relations WHERE revoked_at IS NULL
             AND user_id IN (SELECT user_id FROM users WHERE removed_at IS NOT NULL) LIMIT $1"
    );
    db.read(sql, vec![i64::from(limit).into()], Relation::decode).await
}

/// Of one person, newest first: those in force, or those that have ended.
pub async fn list(
    db: &Db,
    user_id: &str,
    (agent_id, has_ended): (Option<AgentId>, bool),
    after: Option<&Cursor>,
    limit: u32,
) -> Result<Vec<Relation>, StoreError> {
    let revoked = if has_ended { "IS NOT NULL" } else { "IS NULL" };
    let (mut args, mut filter): (Vec<Value>, _) =
        (vec![user_id.into()], format!("user_id = $1 AND revoked_at {revoked}"));
    if let Some(agent_id) = agent_id {
        args.push(text(agent_id));
        filter += &format!(" AND agent_id = ${}", args.len());
    }
    let page = db.newest_first("relation_id", &mut args, after, limit);
    db.select(&format!("WHERE {filter}{page}"), args).await
}

/// The relations of a person with agents whose manifest has changed since, each with the agent's current version.
pub async fn list_behind(db: &Db, user_id: &str, limit: u32) -> Result<Vec<(Relation, i64)>, StoreError> {
    let sql = format!(
        "SELECT {NAMES}, latest FROM (SELECT t.*, (SELECT max(m.version) FROM manifests AS m
             WHERE m.agent_id = t.agent_id) AS latest FROM relations AS t WHERE user_id = $1 AND revoked_at IS NULL)
         AS known WHERE consented_version < latest ORDER BY created_at LIMIT $2"
    );
    db.read(sql, vec![user_id.into(), i64::from(limit).into()], |row| {
        Ok((Relation::decode(row)?, row.at("latest")?.int()?))
    })
    .await
}

/// The versions before this one that people with a relation to the agent last consented to, newest first: no more than there
/// are such people.
pub async fn list_consented_before(db: &Db, agent_id: AgentId, version: i64) -> Result<Vec<i64>, StoreError> {
    let sql = "SELECT DISTINCT consented_version FROM relations WHERE agent_id = $1 AND revoked_at IS NULL
         AND consented_version < $2 ORDER BY consented_version DESC";
    db.read(sql, vec![text(agent_id), version.into()], |row| row.int()).await
}

/// With one agent, those that consented to a version before this one, by version and id.
pub async fn list_behind_version(
    db: &Db,
    agent_id: AgentId,
    version: i64,
    after: Option<&Relation>,
    limit: u32,
) -> Result<Vec<Relation>, StoreError> {
    let order = db.byte_order();
    let (after_version, after_id) =
        after.map_or((-1, String::new()), |last| (last.consented.version, last.relation_id.to_string()));
    let rest = format!(
        "WHERE agent_id = $1 AND revoked_at IS NULL AND consented_version < $2
         AND (consented_version, relation_id{order}) > ($3, $4)
         ORDER BY consented_version, relation_id{order} LIMIT $5"
    );
    let args = vec![text(agent_id), version.into(), after_version.into(), after_id.into(), i64::from(limit).into()];
    db.select(&rest, args).await
}
