//! Attachments: their owners, sizes, and whether a message uses them. Their bytes are in the object store.

use ostler_protocol::{
    Timestamp,
    run_input::attachments::{NoPath, ObjectPath},
};

use crate::{
    db::Db,
    error::StoreError,
    kernel::events::INDEXED,
    record::{Statement, Value, insert_select, record, sql, text},
    retention::{Removable, RemovedItems, RetentionScope, gate, held_session, removable_columns},
};

/// The most that one user may store.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    pub bytes: i64,
    pub files: i64,
}

pub(crate) struct Attachment {
    path: String,
    owner: String,
    thread_id: String,
    bytes: i64,
    /// When it was uploaded, or a message that was about to be sent last referred to it.
    asked_for_at: Timestamp,
    let_go_at: Option<Timestamp>,
    used_at: Option<Timestamp>,
    created_at: Timestamp,
}

record! {
    Attachment, attachment in "attachments";
    key {
        path: text;
    }
    fixed {
        owner: text;
        thread_id: text;
        bytes: int;
        created_at: time;
    }
    state {
        asked_for_at: time;
        let_go_at: opt_time;
        used_at: opt_time;
    }
}

fn paths(found: Vec<Attachment>) -> Result<Vec<ObjectPath>, StoreError> {
    let invalid = |NoPath| StoreError::corrupt("an attachment has a path that none can have");
    found.into_iter().map(|attachment| attachment.path.parse().map_err(invalid)).collect()
}

/// False if the user's quota is exceeded. On Postgres, concurrent uploads may exceed it by each other.
pub async fn insert(db: &Db, file: &ObjectPath, bytes: i64, quota: Quota, now: Timestamp) -> Result<bool, StoreError> {
    let sql = sql!({
        let columns = [
            ("path", "$1"),
            ("owner", "$2"),
            ("thread_id", "$3"),
            ("bytes", "$4"),
            ("asked_for_at", "$5"),
            ("created_at", "$5"),
        ];
        let rest = "WHERE (SELECT COALESCE(SUM(a.bytes), 0) FROM attachments a WHERE a.owner = $2) + $4 <= $6
            AND (SELECT COUNT(*) FROM attachments a WHERE a.owner = $2) < $7 RETURNING 1";
        insert_select::<Attachment>(&columns, rest)
    });
    let args = vec![
        text(file),
        file.owner.as_str().into(),
        file.thread_id.as_str().into(),
        bytes.into(),
        now.into(),
        quota.bytes.into(),
        quota.files.into(),
    ];
    Ok(!db.write(sql, args, |_| Ok(())).await?.is_empty())
}

/// A message that is about to be sent refers to it: it is retained as long as a new upload. False if it is gone.
pub async fn update_asked_for(db: &Db, file: &ObjectPath, now: Timestamp) -> Result<bool, StoreError> {
    let sql = "UPDATE attachments SET asked_for_at = $1 WHERE path = $2 AND let_go_at IS NULL RETURNING 1";
    Ok(!db.write(sql, vec![now.into(), text(file)], |_| Ok(())).await?.is_empty())
}

pub async fn exists(db: &Db, file: &ObjectPath) -> Result<bool, StoreError> {
    let sql = "SELECT 1 FROM attachments WHERE path = $1 AND let_go_at IS NULL";
    Ok(db.read_one(sql, vec![text(file)], |_| Ok(())).await?.is_some())
}

/// Attachments that no message uses and none has referred to since then, and that are under no hold, the oldest first.
pub async fn list_unused(db: &Db, before: Timestamp, limit: u32) -> Result<Vec<ObjectPath>, StoreError> {
    let rest = format!(
        "WHERE t.used_at IS NULL AND t.asked_for_at < $1 AND NOT {} ORDER BY t.asked_for_at LIMIT $2",
        held_attachment("t")
    );
    paths(db.select(&rest, vec![before.into(), i64::from(limit).into()]).await?)
}

/// From here on no message can refer to it. False if one has done so in the meantime, or a hold covers it.
pub async fn update_let_go(db: &Db, file: &ObjectPath, before: Timestamp, now: Timestamp) -> Result<bool, StoreError> {
    let sql = format!(
        "UPDATE attachments SET let_go_at = $1 WHERE path IN (SELECT a.path FROM attachments a
         WHERE a.path = $2 AND a.used_at IS NULL AND a.asked_for_at < $3 AND NOT {held}) RETURNING 1",
        held = held_attachment("a")
    );
    let update = Statement::guard(sql, vec![now.into(), text(file), before.into()]);
    db.write_together(vec![gate(db), update]).await
}

/// Whether a message of its thread uses it.
pub async fn is_used(db: &Db, file: &ObjectPath) -> Result<bool, StoreError> {
    let sql = format!(
        "SELECT 1 FROM attachments a JOIN sessions s ON s.external_id = a.thread_id AND s.owner = a.owner
         JOIN events e ON e.session_id = s.session_id AND {INDEXED} AND e.type = 'user_message'
         AND e.created_at >= a.created_at
         WHERE a.path = $1 AND s.external_id IS NOT NULL AND e.payload LIKE '%' || a.path || '%' LIMIT 1"
    );
    Ok(db.read_one(sql, vec![text(file)], |_| Ok(())).await?.is_some())
}

/// A message uses it: it is retained as long as its thread.
pub async fn update_used(db: &Db, file: &ObjectPath, now: Timestamp) -> Result<(), StoreError> {
    let sql = "UPDATE attachments SET used_at = $1, let_go_at = NULL WHERE path = $2";
    db.execute(sql, vec![now.into(), text(file)]).await
}

/// The uploads of a thread until then.
pub async fn list_by_thread(
    db: &Db,
    owner: &str,
    thread_id: &str,
    until: Timestamp,
    limit: u32,
) -> Result<Vec<ObjectPath>, StoreError> {
    let rest = "WHERE owner = $1 AND thread_id = $2 AND created_at <= $3 LIMIT $4";
    paths(db.select(rest, vec![owner.into(), thread_id.into(), until.into(), i64::from(limit).into()]).await?)
}

/// The thread of an attachment. A picture whose thread was never created, or is being erased, belongs to no tenant.
const OF_THREAD: &str =
    "LEFT JOIN sessions s ON s.external_id = a.thread_id AND s.owner = a.owner AND s.erased_at IS NULL";

/// A condition: a hold covers a thread of this attachment, also one that is being erased. Threads of several tenants may have
/// the same owner and id; a hold on any of them counts.
fn held_attachment(attachment: &str) -> String {
    let held = held_session("o.session_id", "o.tenant_id");
    format!(
        "EXISTS (SELECT 1 FROM sessions o
         WHERE o.external_id = {attachment}.thread_id AND o.owner = {attachment}.owner AND {held})"
    )
}

/// Pictures that were uploaded before, by path.
pub async fn list_removable(
    db: &Db,
    scope: &RetentionScope,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<Removable>, StoreError> {
    let order = db.byte_order();
    let columns = removable_columns("a.path", "1", "a.bytes", &held_attachment("a"));
    let mut args: Vec<Value> = vec![after.unwrap_or_default().into(), scope.before.into()];
    let tenant = of_tenant(scope, &mut args);
    args.push(i64::from(limit).into());
    let last = args.len();
    let sql = format!(
        "SELECT {columns} FROM attachments a {OF_THREAD} WHERE a.path{order} > $1 AND a.created_at <= $2
         AND {tenant} ORDER BY a.path{order} LIMIT ${last}"
    );
    db.read(sql, args, Removable::decode).await
}

/// From here on no message can refer to it, whether one did or not. `None` if a hold covers it, or it is gone.
pub async fn update_expired(
    db: &Db,
    scope: &RetentionScope,
    path: &str,
    now: Timestamp,
) -> Result<Option<RemovedItems>, StoreError> {
    let mut args: Vec<Value> = vec![now.into(), path.into(), scope.before.into()];
    let tenant = of_tenant(scope, &mut args);
    let sql = format!(
        "UPDATE attachments SET let_go_at = $1 WHERE path IN (SELECT a.path FROM attachments a {OF_THREAD}
         WHERE a.path = $2 AND a.created_at <= $3 AND {tenant} AND NOT {held}) RETURNING bytes",
        held = held_attachment("a")
    );
    let updated = db.write_together_returning(vec![gate(db), Statement::new(sql, args)], 1, |row| row.int()).await?;
    Ok(updated.filter(|bytes| !bytes.is_empty()).map(|bytes| RemovedItems::of(&bytes)))
}

fn of_tenant(scope: &RetentionScope, args: &mut Vec<Value>) -> String {
    match &scope.tenant_id {
        None => "s.session_id IS NULL".into(),
        Some(tenant_id) => {
            args.push(tenant_id.as_str().into());
            format!("s.tenant_id = ${}", args.len())
        }
    }
}

pub async fn delete(db: &Db, file: &ObjectPath) -> Result<(), StoreError> {
    db.execute("DELETE FROM attachments WHERE path = $1", vec![text(file)]).await
}
