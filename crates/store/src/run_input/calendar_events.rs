//! Events of calendars. Each row bounds its occurrences, so that a window is read without the events outside it.

use ostler_protocol::{
    Timestamp,
    cursors::Cursor,
    ids::CalendarEventId,
    run_input::calendar::{CalendarEvent, Window, ZONE_CHANGE_MAX},
};

use crate::{
    db::Db,
    error::StoreError,
    record::{self, Reader, Record, Statement, Value, columns, record, text, update_where},
    retention::{gate, held_tenant, unless_tenant_held},
};

record! {
    CalendarEvent, event in "calendar_events";
    key {
        id = "event_id": id;
    }
    fixed {
        owner_id: text;
        tenant_id: text;
        created_at: time;
    }
    state {
        title: text;
        description: opt_text;
        location: opt_text;
        starts_at: id;
        ends_at: id;
        all_day: flag;
        event_timezone: text;
        recurrence: opt_text;
        revision: int;
        updated_at: time;
    }
    beside { first_at last_at }
}

/// When the first occurrence of an event starts and the last one ends. `None` if there is no last one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EventSpan {
    pub first_at: Timestamp,
    pub last_at: Option<Timestamp>,
}

/// False if the owner has the most that are allowed.
pub async fn insert(db: &Db, new: &CalendarEvent, span: EventSpan, per_owner_max: i64) -> Result<bool, StoreError> {
    let sql = "SELECT 1 WHERE (SELECT COUNT(*) FROM calendar_events WHERE owner_id = $1) < $2";
    let room = Statement::guard(sql, vec![new.owner_id.as_str().into(), per_owner_max.into()]);
    let beside = vec![("first_at", span.first_at.into()), ("last_at", span.last_at.into())];
    db.write_together(vec![room, record::insert(new, beside, "")]).await
}

pub async fn get(db: &Db, id: CalendarEventId) -> Result<Option<CalendarEvent>, StoreError> {
    Ok(db.select("WHERE t.event_id = $1", vec![text(id)]).await?.pop())
}

/// The newest first.
pub async fn list(
    db: &Db,
    owner_id: &str,
    after: Option<&Cursor>,
    limit: u32,
) -> Result<Vec<CalendarEvent>, StoreError> {
    let mut args: Vec<Value> = vec![owner_id.into()];
    let page = db.newest_first("event_id", &mut args, after, limit);
    db.select(&format!("WHERE owner_id = $1{page}"), args).await
}

fn decode_with_end(row: &mut Reader<'_>) -> Result<(CalendarEvent, Option<Timestamp>), StoreError> {
    Ok((CalendarEvent::decode(row)?, row.at("last_at")?.opt_time()?))
}

/// All events of an owner with the ends of their last occurrences, the oldest first.
pub async fn list_with_ends(
    db: &Db,
    owner_id: &str,
    limit: u32,
) -> Result<Vec<(CalendarEvent, Option<Timestamp>)>, StoreError> {
    let sql = format!(
        "SELECT {}, e.last_at AS last_at FROM calendar_events AS e WHERE e.owner_id = $1
         ORDER BY e.created_at, e.event_id{} LIMIT $2",
        columns::<CalendarEvent>("e"),
        db.byte_order()
    );
    let args = vec![owner_id.into(), i64::from(limit).into()];
    db.read(sql, args, decode_with_end).await
}

/// Events that may have occurrences in a window, with the ends of their last ones, in the order of their first ones.
pub async fn list_in_window(
    db: &Db,
    owner_id: &str,
    window: Window,
    limit: u32,
) -> Result<Vec<(CalendarEvent, Option<Timestamp>)>, StoreError> {
    let sql = format!(
        "SELECT {}, e.last_at AS last_at FROM calendar_events AS e WHERE e.owner_id = $1 AND e.first_at < $2
         AND (e.last_at IS NULL OR e.last_at > $3) ORDER BY e.first_at, e.event_id LIMIT $4",
        columns::<CalendarEvent>("e")
    );
    let to = window.to.checked_add(ZONE_CHANGE_MAX).unwrap_or(Timestamp::MAX);
    let from = window.from.checked_sub(ZONE_CHANGE_MAX).unwrap_or(Timestamp::MIN);
    let args = vec![owner_id.into(), to.into(), from.into(), i64::from(limit).into()];
    db.read(sql, args, decode_with_end).await
}

/// Stores the state of an event that had this revision. False if it was changed or deleted since.
pub async fn update(db: &Db, changed: &CalendarEvent, span: EventSpan, revision: i64) -> Result<bool, StoreError> {
    let state = update_where(changed, vec![("revision", revision.into())]);
    let sql = "UPDATE calendar_events SET first_at = $1, last_at = $2 WHERE event_id = $3";
    let bounds = Statement::new(sql, vec![span.first_at.into(), span.last_at.into(), text(changed.id)]);
    db.write_together(vec![state, bounds]).await
}

/// False if there is none, or its tenant is under a legal hold.
pub async fn delete(db: &Db, id: CalendarEventId, tenant_id: &str) -> Result<bool, StoreError> {
    let [gate, unheld] = unless_tenant_held(db, tenant_id);
    let deleted = Statement::guard("DELETE FROM calendar_events WHERE event_id = $1 RETURNING 1", vec![text(id)]);
    db.write_together(vec![gate, unheld, deleted]).await
}

/// Deletes events of users that were removed, at most `limit`, except those of tenants that are under a legal hold.
pub async fn delete_orphaned(db: &Db, limit: u32) -> Result<usize, StoreError> {
    let sql = format!(
        "DELETE FROM calendar_events WHERE event_id IN (SELECT e.event_id FROM calendar_events e
         WHERE e.owner_id IN (SELECT user_id FROM users WHERE removed_at IS NOT NULL) AND NOT {} LIMIT $1) RETURNING 1",
        held_tenant("e.tenant_id")
    );
    let deleted = Statement::new(sql, vec![i64::from(limit).into()]);
    let deleted = db.write_together_returning(vec![gate(db), deleted], 1, |_| Ok(())).await?;
    Ok(deleted.unwrap_or_default().len())
}
