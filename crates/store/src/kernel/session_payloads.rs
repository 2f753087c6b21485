//! Payloads that retention removes of what was recorded in a session beside its runs: notes, and messages that belong to no turn.
//! The session's other facts stay, because its state follows from them. A row per session records up to which event payloads were
//! removed, as in [`super::payloads`].

use ostler_protocol::{Timestamp, ids::SessionId};

use crate::{
    db::{Db, Engine},
    error::StoreError,
    kernel::payload_removals::blank,
    record::{Reader, Statement, insert, record, text},
    retention::{Removable, RemovedItems, RetentionScope, held_session, removable_columns, unless_held},
};

/// Changes that carry contents, and change nothing of the session.
const RECORDED: &str = "'noted', 'message-added'";
/// Most bytes of payloads that one step removes, unless a single one is larger.
const STEP_BYTES_MAX: i64 = 1024 * 1024;

/// Up to which event of a session such payloads were removed.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionPayloadRemoval {
    pub session: SessionId,
    pub through_seq: i64,
    pub removed_at: Timestamp,
}

record! {
    SessionPayloadRemoval, removal in "session_payload_removals";
    key {
        session = "session_id": id;
    }
    fixed {}
    state {
        through_seq: int;
        removed_at: time;
    }
}

/// A condition for events: the session's own fact is one of these changes. Other facts may contain the same text, for example in a
/// label, so that the member itself is compared. Postgres cannot read members of a fact with the escape of the null character; such a
/// fact stays.
fn is_recorded(db: &Db) -> String {
    let is_readable = match db.engine {
        Engine::Sqlite(_) => "payload IS NOT NULL",
        Engine::Postgres(_) => r"strpos(payload, '\u0000') = 0",
    };
    let (change, is_fact) = (db.json_text("payload", "change"), "type = 'session' AND run_id IS NULL");
    // Payloads of other events, which agents have written, are not parsed, in whatever order the conditions are evaluated.
    format!("{is_fact} AND CASE WHEN {is_fact} AND {is_readable} THEN {change} IN ({RECORDED}) ELSE FALSE END")
}

pub async fn get(db: &Db, session: SessionId) -> Result<Option<SessionPayloadRemoval>, StoreError> {
    Ok(db.select("WHERE session_id = $1", vec![text(session)]).await?.pop())
}

/// Sessions of a table with the column `session_id` that have such payloads from before the limit, in the order of their ids. Items
/// are events.
pub(crate) async fn list_removable(
    db: &Db,
    sessions: &str,
    scope: &RetentionScope,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<Removable>, StoreError> {
    let recorded = is_recorded(db);
    let payloads = |what: &str| {
        format!(
            "(SELECT {what} FROM events e WHERE e.session_id = d.session_id AND e.created_at <= $1
             AND e.session_seq > COALESCE(p.through_seq, 0) AND e.payload IS NOT NULL AND {recorded})"
        )
    };
    let columns = removable_columns(
        "d.session_id",
        &payloads("COUNT(*)"),
        &payloads("COALESCE(SUM(octet_length(e.payload)), 0)"),
        &held_session("s.session_id", "s.tenant_id"),
    );
    let exists = format!("EXISTS {}", payloads("1"));
    let sql = format!(
        "SELECT {columns} FROM {sessions} d JOIN sessions s ON s.session_id = d.session_id
         LEFT JOIN session_payload_removals p ON p.session_id = d.session_id
         WHERE d.session_id > $2 AND s.tenant_id = $3 AND s.erased_at IS NULL AND {exists}
         ORDER BY d.session_id LIMIT $4"
    );
    let tenant_id = scope.tenant_id.as_deref().unwrap_or_default();
    let args = vec![scope.before.into(), after.unwrap_or_default().into(), tenant_id.into(), i64::from(limit).into()];
    db.read(sql, args, Removable::decode).await
}

/// Removes the next payloads of a session: so many, and few enough bytes. Removes nothing of a session that is under a hold.
pub async fn remove(
    db: &Db,
    session: SessionId,
    scope: &RetentionScope,
    rows: u32,
    now: Timestamp,
) -> Result<RemovedItems, StoreError> {
    let recorded = is_recorded(db);
    let sql = format!(
        "SELECT session_seq, CAST(octet_length(payload) AS BIGINT) AS bytes FROM events
         WHERE session_id = $1 AND session_seq > $2 AND created_at <= $3 AND payload IS NOT NULL AND {recorded}
         ORDER BY session_seq LIMIT $4"
    );
    let through_seq = get(db, session).await?.map_or(0, |removal| removal.through_seq);
    let args = vec![text(session), through_seq.into(), scope.before.into(), i64::from(rows).into()];
    let sizes = db.read(sql, args, |row| Ok((row.at("session_seq")?.int()?, row.at("bytes")?.int()?))).await?;
    let (mut bytes, mut step) = (0, vec![]);
    for (seq, size) in &sizes {
        bytes += size;
        if bytes > STEP_BYTES_MAX && !step.is_empty() {
            break;
        }
        step.push(*seq);
    }
    let (Some(first), Some(last)) = (step.first(), step.last()) else { return Ok(RemovedItems::default()) };
    let removal = SessionPayloadRemoval { session, through_seq: *last, removed_at: now };
    let range = format!(
        "session_id = $1 AND session_seq >= $2 AND session_seq <= $3 AND created_at <= $4 AND payload IS NOT NULL
         AND {recorded}"
    );
    let args = || vec![text(session), (*first).into(), (*last).into(), scope.before.into()];
    let measured = format!(
        "SELECT COUNT(*) AS items, CAST(COALESCE(SUM(octet_length(payload)), 0) AS BIGINT) AS bytes FROM events
         WHERE {range}"
    );
    let [gate, hold] = unless_held(db, session);
    let statements = vec![
        gate,
        hold,
        Statement::new(measured, args()),
        insert(&removal, vec![], ADVANCED),
        Statement::new(blank(db, &range), args()),
    ];
    let decode = |row: &mut Reader<'_>| Ok((row.at("items")?.int()?, row.at("bytes")?.int()?));
    let counts = db.write_together_returning(statements, 2, decode).await?;
    let Some((items, bytes)) = counts.and_then(|mut counts| counts.pop()) else { return Ok(RemovedItems::default()) };
    Ok(RemovedItems { items, bytes, has_more: step.len() < sizes.len() || sizes.len() == rows as usize })
}

/// Two servers may do the same step.
const ADVANCED: &str = "ON CONFLICT (session_id) DO UPDATE SET removed_at = excluded.removed_at,
    through_seq = CASE WHEN excluded.through_seq > session_payload_removals.through_seq
        THEN excluded.through_seq ELSE session_payload_removals.through_seq END";
