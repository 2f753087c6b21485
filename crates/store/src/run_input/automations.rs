//! Automations: their rows, and those that are due. A row is changed only if it is as it was read.

use ostler_protocol::{
    Timestamp,
    cursors::Cursor,
    ids::AutomationId,
    kernel::sessions::Session,
    run_input::automations::{AUTOMATION_LABEL, Automation, AutomationStatus, DisabledReason, Plan},
};

use crate::{
    db::Db,
    error::StoreError,
    record::{self, Reader, Record, Statement, Value, json, record, select_sql, text, update_where},
    retention::{held_tenant, unless_tenant_held},
};

record! {
    Automation, automation in "automations";
    key {
        id = "automation_id": id;
    }
    fixed {
        owner_id: text;
        tenant_id: text;
        bootstrap_key: opt_text;
        created_at: time;
    }
    state {
        title: text;
        config: json;
        timezone: text;
        next_run_at: opt_time;
        last_run_at: opt_time;
        status: named(AutomationStatus);
        disabled_reason: opt_named(DisabledReason);
        failures: int;
        plan_after: time from automation.plan.after;
        plan_last_date: opt_text from automation.plan.last_date;
        plan_zone_rules: text from automation.plan.zone_rules;
        revision: int;
        updated_at: time;
    }
    build Automation {
        id,
        owner_id,
        tenant_id,
        bootstrap_key,
        created_at,
        title,
        config,
        timezone,
        next_run_at,
        last_run_at,
        status,
        disabled_reason,
        failures,
        plan: Plan { after: plan_after, last_date: plan_last_date, zone_rules: plan_zone_rules },
        revision,
        updated_at,
    };
}

/// What became of a new automation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertedAutomation {
    Yes,
    /// The owner has the most that are allowed.
    TooMany,
    /// Another one of the owner has the key.
    KeyTaken,
}

pub async fn insert(db: &Db, new: &Automation, per_owner_max: i64) -> Result<InsertedAutomation, StoreError> {
    let sql = "SELECT 1 WHERE (SELECT COUNT(*) FROM automations WHERE owner_id = $1) < $2";
    let room = Statement::guard(sql, vec![new.owner_id.as_str().into(), per_owner_max.into()]);
    match db.write_together(vec![room, record::insert(new, vec![], "")]).await {
        Ok(true) => Ok(InsertedAutomation::Yes),
        Ok(false) => Ok(InsertedAutomation::TooMany),
        Err(error) if error.is_unique_violation() => Ok(InsertedAutomation::KeyTaken),
        Err(error) => Err(error),
    }
}

pub async fn get(db: &Db, id: AutomationId) -> Result<Option<Automation>, StoreError> {
    Ok(db.select("WHERE t.automation_id = $1", vec![text(id)]).await?.pop())
}

/// Those of these automations that exist, in no particular order.
pub async fn list_by_ids(db: &Db, ids: &[AutomationId]) -> Result<Vec<Automation>, StoreError> {
    let rest = format!("WHERE t.automation_id IN (SELECT one FROM {})", db.list("$1"));
    db.select(&rest, vec![json(&ids)]).await
}

pub async fn find_by_bootstrap_key(db: &Db, owner_id: &str, key: &str) -> Result<Option<Automation>, StoreError> {
    let rest = "WHERE t.owner_id = $1 AND t.bootstrap_key = $2";
    Ok(db.select(rest, vec![owner_id.into(), key.into()]).await?.pop())
}

/// The automation that has started a thread of this owner.
pub async fn find_by_thread(db: &Db, owner_id: &str, thread_id: &str) -> Result<Option<Automation>, StoreError> {
    let rest = "JOIN automation_starts s ON s.automation_id = t.automation_id
         WHERE s.thread_id = $1 AND s.owner_id = $2 AND t.owner_id = $2 LIMIT 1";
    Ok(db.select(rest, vec![thread_id.into(), owner_id.into()]).await?.pop())
}

/// The newest thread of an owner in these tenants (`None`: all) that no automation has started.
pub async fn find_latest_chat(
    db: &Db,
    owner_id: &str,
    tenants: Option<&[String]>,
) -> Result<Option<Session>, StoreError> {
    if tenants.is_some_and(<[String]>::is_empty) {
        return Ok(None);
    }
    let (sql, args) = latest_chat(owner_id, tenants);
    db.read_one(sql, args, Session::decode).await
}

/// How the engine finds the newest chat of an owner.
pub async fn explain_latest_chat(db: &Db, owner_id: &str) -> Result<String, StoreError> {
    let (sql, args) = latest_chat(owner_id, None);
    Ok(db.explain(&sql, args).await?.join("\n"))
}

/// Threads of automations are in the background, so that the index skips them however many there are. Those that a server of an
/// earlier version has started are recognised by the labels of their runs, in which `"automation":` is a key: quotes of a value are
/// escaped.
fn latest_chat(owner_id: &str, tenants: Option<&[String]>) -> (String, Vec<Value>) {
    let mut args: Vec<Value> = vec![owner_id.into()];
    let within = match tenants {
        None => String::new(),
        Some(tenants) => {
            args.extend(tenants.iter().map(|tenant| Value::from(tenant.as_str())));
            let marks: Vec<_> = (2..=args.len()).map(|number| format!("${number}")).collect();
            format!(" AND t.tenant_id IN ({})", marks.join(", "))
        }
    };
    let rest = format!(
        "WHERE t.owner = $1{within} AND t.background = 0 AND t.external_id IS NOT NULL AND t.erased_at IS NULL
         AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.session_name = t.external_id AND r.session_id = t.session_id
             AND r.labels LIKE '%\"{AUTOMATION_LABEL}\":%')
         AND NOT EXISTS (SELECT 1 FROM automation_starts s WHERE s.thread_id = t.external_id AND s.owner_id = $1)
         ORDER BY t.created_at DESC, t.session_id DESC LIMIT 1"
    );
    (select_sql::<Session>(&rest), args)
}

/// The newest first.
pub async fn list(
    db: &Db,
    owner_id: &str,
    status: Option<AutomationStatus>,
    after: Option<&Cursor>,
    limit: u32,
) -> Result<Vec<Automation>, StoreError> {
    let (mut args, mut filter): (Vec<Value>, _) = (vec![owner_id.into()], String::new());
    if let Some(status) = status {
        args.push(status.as_str().into());
        filter = format!(" AND status = ${}", args.len());
    }
    let page = db.newest_first("automation_id", &mut args, after, limit);
    db.select(&format!("WHERE owner_id = $1{filter}{page}"), args).await
}

/// Automations of an owner that the server has paused and the owner has neither resumed nor confirmed as paused. The latest first.
pub async fn list_paused_by_server(db: &Db, owner_id: &str, limit: u32) -> Result<Vec<Automation>, StoreError> {
    let rest = format!(
        "WHERE t.owner_id = $1 AND t.status = '{disabled}' AND t.disabled_reason <> '{requested}'
         ORDER BY t.updated_at DESC, t.automation_id LIMIT $2",
        disabled = AutomationStatus::Disabled.as_str(),
        requested = DisabledReason::Requested.as_str(),
    );
    db.select(&rest, vec![owner_id.into(), i64::from(limit).into()]).await
}

/// Stores the state of an automation that had this revision. False if it was changed or deleted since.
pub async fn update(db: &Db, changed: &Automation, revision: i64) -> Result<bool, StoreError> {
    db.write_together(vec![update_where(changed, vec![("revision", revision.into())])]).await
}

/// Deletes an automation and its starts. False if there is none, or its tenant is under a legal hold.
pub async fn delete(db: &Db, id: AutomationId, tenant_id: &str) -> Result<bool, StoreError> {
    let [gate, unheld] = unless_tenant_held(db, tenant_id);
    let deleted = Statement::guard("DELETE FROM automations WHERE automation_id = $1 RETURNING 1", vec![text(id)]);
    let starts = Statement::new("DELETE FROM automation_starts WHERE automation_id = $1", vec![text(id)]);
    db.write_together(vec![gate, unheld, deleted, starts]).await
}

fn due(now: Timestamp, limit: u32) -> (String, Vec<Value>) {
    let rest = "WHERE t.status = 'active' AND t.next_run_at <= $1 ORDER BY t.next_run_at LIMIT $2";
    (select_sql::<Automation>(rest), vec![now.into(), i64::from(limit).into()])
}

/// Automations whose time has come, those that have waited longest first.
pub async fn list_due(db: &Db, now: Timestamp, limit: u32) -> Result<Vec<Automation>, StoreError> {
    let (sql, args) = due(now, limit);
    db.read(sql, args, Automation::decode).await
}

/// How the engine finds what is due.
pub async fn explain_due(db: &Db, now: Timestamp) -> Result<String, StoreError> {
    let (sql, args) = due(now, 1);
    Ok(db.explain(&sql, args).await?.join("\n"))
}

/// The time of the automation that is due next.
pub async fn find_next_due(db: &Db) -> Result<Option<Timestamp>, StoreError> {
    let sql = "SELECT next_run_at FROM automations WHERE status = 'active' AND next_run_at IS NOT NULL
         ORDER BY next_run_at LIMIT 1";
    db.read_one(sql, vec![], |row| row.time()).await
}

fn planned_before(zone_rules: &str, limit: u32) -> (String, Vec<Value>) {
    let rest = "WHERE t.status = 'active' AND t.plan_zone_rules < $1 ORDER BY t.plan_zone_rules LIMIT $2";
    (select_sql::<Automation>(rest), vec![zone_rules.into(), i64::from(limit).into()])
}

/// Active automations whose next time was computed by older rules of time zones. Versions of the rules are ordered as texts: `2025b`
/// comes before `2025c` and `2026a`.
pub async fn list_planned_before(db: &Db, zone_rules: &str, limit: u32) -> Result<Vec<Automation>, StoreError> {
    let (sql, args) = planned_before(zone_rules, limit);
    db.read(sql, args, Automation::decode).await
}

/// How the engine finds what was planned by older rules.
pub async fn explain_planned_before(db: &Db, zone_rules: &str) -> Result<String, StoreError> {
    let (sql, args) = planned_before(zone_rules, 1);
    Ok(db.explain(&sql, args).await?.join("\n"))
}

/// Automations of users that were removed, with their tenants, except those of tenants that are under a legal hold.
pub async fn list_orphaned(db: &Db, limit: u32) -> Result<Vec<(AutomationId, String)>, StoreError> {
    let sql = format!(
        "SELECT a.automation_id, a.tenant_id FROM automations a
         WHERE a.owner_id IN (SELECT user_id FROM users WHERE removed_at IS NOT NULL) AND NOT {} LIMIT $1",
        held_tenant("a.tenant_id")
    );
    let decode = |row: &mut Reader<'_>| Ok((row.at("automation_id")?.id()?, row.at("tenant_id")?.text()?));
    db.read(sql, vec![i64::from(limit).into()], decode).await
}
