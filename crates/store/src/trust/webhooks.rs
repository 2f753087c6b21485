//! Webhooks and their deliveries. A delivery is claimed by one server at a time: it has an owner, and is not due again before
//! the claim expires.

use ostler_protocol::{
    RawJson, Timestamp,
    cursors::Cursor,
    ids::{AgentId, RunId},
    trust::{
        relations::REAUTH_REQUIRED,
        webhooks::{
            CONSENT_DELIVERIES_WAITING_MAX, Delivery, DeliveryId, DeliveryStatus, RELATION_DELIVERIES_WAITING_MAX,
            RUN_DELIVERIES_WAITING_MAX, Webhook,
        },
    },
};

use crate::{
    db::{Db, Engine},
    error::StoreError,
    record::{self, Reader, Record, Statement, Value, json, opt_text, record, replace_stored, text},
    retention::{Removable, RemovedItems, RetentionScope, first_tenant, gate, held_tenants, removable_columns},
    trust::guards,
};

record! {
    Webhook, webhook in "webhooks";
    key {
        agent_id: id;
    }
    fixed {}
    state {
        url: text;
        created_at: time;
        disabled_at: opt_time;
    }
    beside { sealed_secret runs_since }
}

const DELIVERY_NAMES: &str = <Delivery as Record>::NAMES;

record! {
    Delivery, delivery in "webhook_deliveries";
    key {
        delivery_id: id;
    }
    fixed {
        agent_id: id;
        event_type: text;
        body: raw_json;
        created_at: time;
        run_id: opt_id;
    }
    state {
        status: named(DeliveryStatus);
        attempts: int;
        due_at: opt_time;
        last_status: opt_int from delivery.last_status.map(i64::from);
        last_error: opt_text;
        updated_at: time;
    }
    beside { owner }
    build Delivery {
        delivery_id,
        agent_id,
        event_type,
        body,
        created_at,
        run_id,
        status,
        attempts,
        due_at,
        last_status: last_status.map(u16::try_from).transpose().map_err(StoreError::corrupt)?,
        last_error,
        updated_at,
    };
}

/// A webhook with the secret that it is signed with, sealed.
#[derive(Clone, Debug)]
pub struct Sealed {
    pub webhook: Webhook,
    pub secret: String,
}

pub async fn get(db: &Db, agent_id: AgentId) -> Result<Option<Sealed>, StoreError> {
    let sql = format!("SELECT {}, sealed_secret FROM webhooks WHERE agent_id = $1", Webhook::NAMES);
    let decode =
        |row: &mut Reader<'_>| Ok(Sealed { webhook: Webhook::decode(row)?, secret: row.at("sealed_secret")?.text()? });
    db.read_one(sql, vec![text(agent_id)], decode).await
}

/// Webhooks of this owner's agents whose receivers are gone, those that went last first.
pub async fn list_disabled(db: &Db, owner_id: &str, limit: u32) -> Result<Vec<Webhook>, StoreError> {
    let rest = "JOIN agents AS a ON a.agent_id = t.agent_id WHERE a.owner_id = $1 AND t.disabled_at IS NOT NULL
         ORDER BY t.disabled_at DESC, t.agent_id LIMIT $2";
    db.select(rest, vec![owner_id.into(), i64::from(limit).into()]).await
}

/// Sets an agent's webhook, in place of the one it had. Runs are reported since the first of them was set. False: the agent is
/// not there, or was retired.
pub async fn insert(db: &Db, webhook: &Webhook, sealed_secret: &str) -> Result<bool, StoreError> {
    let replaced = format!(
        "{}, sealed_secret = excluded.sealed_secret, runs_since = COALESCE(webhooks.runs_since, webhooks.created_at)",
        replace_stored::<Webhook>()
    );
    let beside = vec![("sealed_secret", sealed_secret.into()), ("runs_since", webhook.created_at.into())];
    let inserted = record::insert(webhook, beside, &replaced);
    db.write_together(vec![guards::is_there(db, webhook.agent_id), inserted]).await
}

/// Removes an agent's webhook and what waits for it. False: there was none.
pub async fn delete(db: &Db, agent_id: AgentId, now: Timestamp) -> Result<bool, StoreError> {
    let gone = Statement::guard("DELETE FROM webhooks WHERE agent_id = $1 RETURNING 1", vec![text(agent_id)]);
    db.write_together(vec![gone, given_up(agent_id, "the webhook was removed", now)]).await
}

/// The receiver wants no more: waiting deliveries are given up, and can be replayed once the webhook is set again. False if it
/// was set again in the meantime; each has its own secret.
pub async fn update_disabled(db: &Db, disabled: &Sealed, now: Timestamp) -> Result<bool, StoreError> {
    let agent_id = disabled.webhook.agent_id;
    let sql = "UPDATE webhooks SET disabled_at = $1
         WHERE agent_id = $2 AND sealed_secret = $3 AND disabled_at IS NULL RETURNING 1";
    let statement = Statement::guard(sql, vec![now.into(), text(agent_id), disabled.secret.as_str().into()]);
    db.write_together(vec![statement, given_up(agent_id, "the receiver is gone (410)", now)]).await
}

pub(crate) fn given_up(agent_id: AgentId, why: &str, now: Timestamp) -> Statement {
    let sql = "UPDATE webhook_deliveries SET status = 'dead', due_at = NULL, owner = NULL, last_error = $1,
         updated_at = $2 WHERE agent_id = $3 AND status = 'pending'";
    Statement::new(sql, vec![why.into(), now.into(), text(agent_id)])
}

/// What deliveries are about. Each subject has its own limits, so that reports about runs do not crowd out those about consent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The agent's manifest and its relations.
    Consent,
    Run,
}

impl Subject {
    pub const ALL: [Self; 2] = [Self::Consent, Self::Run];

    pub fn of(run_id: Option<RunId>) -> Self {
        if run_id.is_some() { Self::Run } else { Self::Consent }
    }

    /// Deliveries of one agent that may wait.
    pub fn waiting_max(self) -> i64 {
        match self {
            Self::Consent => CONSENT_DELIVERIES_WAITING_MAX,
            Self::Run => RUN_DELIVERIES_WAITING_MAX,
        }
    }

    fn condition(self) -> &'static str {
        match self {
            Self::Consent => "run_id IS NULL",
            Self::Run => "run_id IS NOT NULL",
        }
    }

    /// Counts the waiting deliveries of an agent, no further than to the limit.
    fn count_waiting(self, agent_id: &str) -> String {
        format!(
            "(SELECT COUNT(*) FROM (SELECT 1 FROM webhook_deliveries AS o WHERE o.agent_id = {agent_id}
                 AND o.status = 'pending' AND o.{condition} LIMIT {most}) AS waiting)",
            condition = self.condition(),
            most = self.waiting_max()
        )
    }
}

/// A delivery to be made.
#[derive(Clone, Debug)]
pub struct NewDelivery {
    pub delivery_id: DeliveryId,
    pub agent_id: AgentId,
    pub event_type: &'static str,
    pub body: RawJson,
    pub created_at: Timestamp,
    /// The run that it describes. The delivery is deleted when the run is erased.
    pub run_id: Option<RunId>,
}

/// Inserts a delivery for the agent's webhook, if it has one, together with the change it reports. One that cannot be delivered
/// now is dead from the beginning, so that it is listed and can be replayed.
pub(crate) fn delivery(new: &NewDelivery) -> Statement {
    let subject = Subject::of(new.run_id);
    let waiting_max = match subject {
        Subject::Consent if new.event_type != REAUTH_REQUIRED => RELATION_DELIVERIES_WAITING_MAX,
        subject => subject.waiting_max(),
    };
    let sql = format!(
        "INSERT INTO webhook_deliveries (delivery_id, agent_id, event_type, body, status, attempts, due_at, last_error,
             created_at, updated_at, run_id)
         SELECT $1, $2, $3, $4, CASE WHEN f.why IS NULL THEN 'pending' ELSE 'dead' END, 0,
             CASE WHEN f.why IS NULL THEN $5 END, f.why, $5, $5, $6
         FROM (SELECT CASE WHEN w.disabled_at IS NOT NULL THEN 'the webhook is disabled'
             WHEN {waiting} >= {waiting_max} THEN 'too many deliveries wait' END AS why
             FROM webhooks AS w WHERE w.agent_id = $2) AS f",
        waiting = subject.count_waiting("$2")
    );
    let args = vec![
        text(new.delivery_id),
        text(new.agent_id),
        new.event_type.into(),
        (&new.body).into(),
        new.created_at.into(),
        opt_text(new.run_id),
    ];
    Statement::new(sql, args)
}

/// As [`delivery`], by itself.
pub async fn insert_delivery(db: &Db, new: &NewDelivery) -> Result<(), StoreError> {
    db.execute_statement(delivery(new)).await
}

pub async fn get_delivery(db: &Db, agent_id: AgentId, id: DeliveryId) -> Result<Option<Delivery>, StoreError> {
    Ok(db.select("WHERE t.delivery_id = $1 AND t.agent_id = $2", vec![text(id), text(agent_id)]).await?.pop())
}

/// Newest first.
pub async fn list_deliveries(
    db: &Db,
    agent_id: AgentId,
    status: Option<DeliveryStatus>,
    after: Option<&Cursor>,
    limit: u32,
) -> Result<Vec<Delivery>, StoreError> {
    let (mut args, mut filter) = (vec![text(agent_id)], String::new());
    if let Some(status) = status {
        args.push(status.as_str().into());
        filter = format!(" AND status = ${}", args.len());
    }
    let page = db.newest_first("delivery_id", &mut args, after, limit);
    db.select(&format!("WHERE agent_id = $1{filter}{page}"), args).await
}

/// Whether a delivery is due: cheaper than a claim without effect.
pub async fn any_due(db: &Db, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM webhook_deliveries WHERE status = 'pending' AND due_at <= $1 LIMIT 1";
    Ok(!db.read(sql, vec![now.into()], |_| Ok(())).await?.is_empty())
}

/// Deliveries that wait, in the whole store.
pub async fn count_waiting(db: &Db) -> Result<i64, StoreError> {
    let sql = "SELECT COUNT(*) FROM webhook_deliveries WHERE status = 'pending'";
    Ok(db.read_one(sql, vec![], |row| row.int()).await?.unwrap_or_default())
}

/// Claims due deliveries for a server, until `until`. No two servers get the same one, and an agent has one delivery at a time:
/// a slow receiver delays no other.
pub async fn claim(
    db: &Db,
    owner: &str,
    until: Timestamp,
    now: Timestamp,
    limit: u32,
) -> Result<Vec<Delivery>, StoreError> {
    // SQLite has one process, whose writes follow each other; only Postgres needs to skip what others hold.
    let skip = match db.engine {
        Engine::Sqlite(_) => "",
        Engine::Postgres(_) => "FOR UPDATE SKIP LOCKED",
    };
    let sql = format!(
        "UPDATE webhook_deliveries SET owner = $1, due_at = $2, updated_at = $3, attempts = attempts + 1
         WHERE delivery_id IN (SELECT c.delivery_id FROM webhook_deliveries AS c WHERE c.status = 'pending'
             AND c.due_at <= $3 AND NOT EXISTS (SELECT 1 FROM webhook_deliveries AS o WHERE o.agent_id = c.agent_id
                 AND o.status = 'pending' AND (o.due_at > $3 AND o.owner IS NOT NULL
                     OR o.due_at <= $3 AND (o.due_at, o.delivery_id) < (c.due_at, c.delivery_id)))
             ORDER BY c.due_at LIMIT $4 {skip})
         RETURNING {DELIVERY_NAMES}"
    );
    let args = vec![owner.into(), until.into(), now.into(), i64::from(limit).into()];
    db.write(sql, args, Delivery::decode).await
}

/// How an attempt of this owner has ended.
#[derive(Clone, Debug)]
pub struct Ended<'a> {
    pub delivery_id: DeliveryId,
    pub owner: &'a str,
    pub status: DeliveryStatus,
    pub due_at: Option<Timestamp>,
    pub last_status: Option<u16>,
    pub last_error: Option<String>,
}

/// False if another server has claimed the delivery, or it was given up in the meantime.
pub async fn update_ended(db: &Db, ended: Ended<'_>, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE webhook_deliveries SET status = $1, due_at = $2, last_status = $3, last_error = $4,
         updated_at = $5, owner = NULL WHERE delivery_id = $6 AND owner = $7 AND status = 'pending' RETURNING 1";
    let args = vec![
        ended.status.as_str().into(),
        ended.due_at.into(),
        Value::Int(ended.last_status.map(i64::from)),
        ended.last_error.into(),
        now.into(),
        text(ended.delivery_id),
        ended.owner.into(),
    ];
    Ok(!db.write(sql, args, |_| Ok(())).await?.is_empty())
}

/// Replays a dead delivery. `None` if there is no such dead delivery, or too many wait already.
pub async fn update_replayed(db: &Db, dead: &Delivery, now: Timestamp) -> Result<Option<Delivery>, StoreError> {
    let subject = Subject::of(dead.run_id);
    let sql = format!(
        "UPDATE webhook_deliveries SET status = 'pending', attempts = 0, due_at = $1, last_error = NULL,
             last_status = NULL, updated_at = $1 WHERE delivery_id = $2 AND agent_id = $3 AND status = 'dead'
             AND {waiting} < {waiting_max} RETURNING {DELIVERY_NAMES}",
        waiting = subject.count_waiting("$3"),
        waiting_max = subject.waiting_max()
    );
    Ok(db.write(sql, vec![now.into(), text(dead.delivery_id), text(dead.agent_id)], Delivery::decode).await?.pop())
}

/// Deletes deliveries that ended before this, at most `limit`.
pub async fn delete_ended(db: &Db, before: Timestamp, limit: u32) -> Result<usize, StoreError> {
    let sql = format!(
        "DELETE FROM webhook_deliveries WHERE delivery_id IN (SELECT d.delivery_id FROM webhook_deliveries d {OF_OWNER}
             WHERE d.status <> 'pending' AND d.updated_at < $1 AND NOT {held} LIMIT $2) RETURNING 1",
        held = held_tenants(db, "u.tenants")
    );
    let delete = Statement::new(sql, vec![before.into(), i64::from(limit).into()]);
    let deleted = db.write_together_returning(vec![gate(db), delete], 1, |_| Ok(())).await?;
    Ok(deleted.map_or(0, |deleted| deleted.len()))
}

/// The user whose agent a delivery is for: it belongs to the user's first tenant, and holds of all of them cover it.
pub(crate) const OF_OWNER: &str =
    "LEFT JOIN agents a ON a.agent_id = d.agent_id LEFT JOIN users u ON u.user_id = a.owner_id";

/// Deliveries that ended before, in the order of their ids.
pub async fn list_removable(
    db: &Db,
    scope: &RetentionScope,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<Removable>, StoreError> {
    let columns = removable_columns("d.delivery_id", "1", "octet_length(d.body)", &held_tenants(db, "u.tenants"));
    let mut args: Vec<Value> = vec![after.unwrap_or_default().into(), scope.before.into()];
    let tenant = of_tenant(db, scope, &mut args);
    args.push(i64::from(limit).into());
    let last = args.len();
    let sql = format!(
        "SELECT {columns} FROM webhook_deliveries d {OF_OWNER} WHERE d.delivery_id > $1 AND d.status <> 'pending'
         AND d.updated_at <= $2 AND {tenant} ORDER BY d.delivery_id LIMIT ${last}"
    );
    db.read(sql, args, Removable::decode).await
}

/// Deletes those of these deliveries that ended before, unless a hold covers them.
pub async fn remove(db: &Db, scope: &RetentionScope, keys: &[String]) -> Result<RemovedItems, StoreError> {
    let mut args: Vec<Value> = vec![json(&keys), scope.before.into()];
    let tenant = of_tenant(db, scope, &mut args);
    let sql = format!(
        "DELETE FROM webhook_deliveries WHERE delivery_id IN (SELECT d.delivery_id FROM webhook_deliveries d {OF_OWNER}
             WHERE d.delivery_id IN (SELECT one FROM {keys}) AND d.status <> 'pending' AND d.updated_at <= $2
             AND {tenant} AND NOT {held}) RETURNING CAST(octet_length(body) AS BIGINT)",
        keys = db.list("$1"),
        held = held_tenants(db, "u.tenants")
    );
    let delete = Statement::new(sql, args);
    let deleted = db.write_together_returning(vec![gate(db), delete], 1, |row| row.int()).await?;
    Ok(RemovedItems::of(&deleted.unwrap_or_default()))
}

fn of_tenant(db: &Db, scope: &RetentionScope, args: &mut Vec<Value>) -> String {
    let tenant = first_tenant(db, "u.tenants");
    match &scope.tenant_id {
        None => format!("{tenant} IS NULL"),
        Some(tenant_id) => {
            args.push(tenant_id.as_str().into());
            format!("{tenant} = ${}", args.len())
        }
    }
}

/// Ended deliveries that any user can cause. It contains the condition of their partial index.
const ENDED_BY_USERS: &str = "status <> 'pending' AND event_type <> 'h2a.reauth_required'";

/// Agents and statuses with more ended deliveries about this subject than `most`, at most `limit`.
pub async fn list_overfull(
    db: &Db,
    subject: Subject,
    most: u32,
    limit: u32,
) -> Result<Vec<(AgentId, DeliveryStatus)>, StoreError> {
    let sql = format!(
        "SELECT agent_id, status FROM webhook_deliveries WHERE {ENDED_BY_USERS} AND {condition}
         GROUP BY agent_id, status HAVING COUNT(*) > $1 LIMIT $2",
        condition = subject.condition()
    );
    let decode =
        |row: &mut Reader<'_>| Ok((row.at("agent_id")?.id()?, row.at("status")?.named(DeliveryStatus::parse)?));
    db.read(sql, vec![i64::from(most).into(), i64::from(limit).into()], decode).await
}

/// Deletes the oldest of these beyond the newest `most`, at most `limit`.
pub async fn delete_oldest(
    db: &Db,
    subject: Subject,
    (agent_id, status): (AgentId, DeliveryStatus),
    most: u32,
    limit: u32,
) -> Result<usize, StoreError> {
    let order = db.byte_order();
    let sql = format!(
        "DELETE FROM webhook_deliveries WHERE delivery_id IN (SELECT delivery_id FROM webhook_deliveries
             WHERE agent_id = $1 AND status = $2 AND {ENDED_BY_USERS} AND {condition} AND NOT EXISTS (SELECT 1 FROM agents a
                 JOIN users u ON u.user_id = a.owner_id WHERE a.agent_id = $1 AND {held})
             ORDER BY created_at DESC, delivery_id{order} DESC LIMIT $3 OFFSET $4) RETURNING 1",
        condition = subject.condition(),
        held = held_tenants(db, "u.tenants")
    );
    let args = vec![text(agent_id), status.as_str().into(), i64::from(limit).into(), i64::from(most).into()];
    let delete = Statement::new(sql, args);
    let deleted = db.write_together_returning(vec![gate(db), delete], 1, |_| Ok(())).await?;
    Ok(deleted.map_or(0, |deleted| deleted.len()))
}
