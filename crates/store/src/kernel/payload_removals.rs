//! Payloads of events that retention removes. Digests and the hash chain stay, and a row per run records up to which event
//! payloads were removed, written together with each removal: where it does not, a missing payload is damage.

use ostler_protocol::{
    Timestamp,
    ids::{RunId, SessionId},
    kernel::runs::Terminal,
};

use crate::{
    db::{Db, Engine},
    error::StoreError,
    kernel::{conditions::unfinished, removed_texts},
    record::{Record, Statement, insert, record, text},
    retention::{Removable, RemovedItems, RetentionScope, held_session, removable_columns, unless_held},
};

/// Most bytes of payloads that one step removes, unless a single one is larger.
const STEP_BYTES_MAX: i64 = 1024 * 1024;
/// The run has ended, or idles: its turns have ended, and it waits for another that may never come.
const HAS_ENDED: &str = "(r.status IN ('completed', 'failed', 'blocked', 'cancelled')
    OR (r.status = 'pending' AND r.unfinished_commands = 0 AND r.command_count > 0))";

/// Up to which event of a run payloads were removed.
#[derive(Clone, Debug, PartialEq)]
pub struct PayloadRemoval {
    pub run_id: RunId,
    pub session: SessionId,
    pub through_seq: i64,
    pub removed_at: Timestamp,
    /// Whether the texts of the run's commands, jobs and permission requests were removed as well. False while payloads are left,
    /// and where an earlier version has removed them.
    pub texts_removed: bool,
}

record! {
    PayloadRemoval, removal in "payload_removals";
    key {
        run_id: id;
    }
    fixed {
        session = "session_id": id;
    }
    state {
        through_seq: int;
        removed_at: time;
        texts_removed: flag;
    }
}

/// What was removed of a session's runs.
pub async fn list_by_session(db: &Db, session: SessionId) -> Result<Vec<PayloadRemoval>, StoreError> {
    db.select("WHERE session_id = $1", vec![text(session)]).await
}

/// Finished runs that have payloads, or texts in other rows, in the order of their creation. Items are events.
pub async fn list_removable(
    db: &Db,
    scope: &RetentionScope,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<Removable>, StoreError> {
    let order = db.byte_order();
    let (created_at, run_id) = after.and_then(split_key).unwrap_or((i64::MIN, ""));
    let payloads = |what: &str| {
        format!(
            "(SELECT {what} FROM events e WHERE e.session_id = r.session_id AND e.run_id = r.run_id
             AND e.seq > COALESCE(p.through_seq, 0) AND e.payload IS NOT NULL)"
        )
    };
    let columns = removable_columns(
        "r.created_at || ':' || r.run_id",
        &payloads("COUNT(*)"),
        &payloads("COALESCE(SUM(octet_length(e.payload)), 0)"),
        &held_session("r.session_id", "r.tenant_id"),
    );
    let sql = format!(
        "SELECT {columns} FROM runs r JOIN sessions s ON s.session_id = r.session_id
         LEFT JOIN payload_removals p ON p.run_id = r.run_id
         WHERE (r.created_at, r.run_id{order}) > ($1, $2) AND r.created_at <= $3 AND r.updated_at <= $3
         AND r.tenant_id = $4 AND {HAS_ENDED} AND s.erased_at IS NULL
         AND (COALESCE(p.through_seq, 0) < r.last_seq OR p.texts_removed = 0)
         ORDER BY r.created_at, r.run_id{order} LIMIT $5"
    );
    let tenant_id = scope.tenant_id.as_deref().unwrap_or_default();
    let args = vec![created_at.into(), run_id.into(), scope.before.into(), tenant_id.into(), i64::from(limit).into()];
    db.read(sql, args, Removable::decode).await
}

fn split_key(key: &str) -> Option<(i64, &str)> {
    let (created_at, run_id) = key.split_once(':')?;
    Some((created_at.parse().ok()?, run_id))
}

/// Removes the next payloads of a run: so many, and few enough bytes. With the last ones go the texts that its commands, jobs and
/// permission requests carry; if those are many rows, in steps before. Removes nothing of a run that is under a hold.
pub async fn remove(
    db: &Db,
    key: &str,
    scope: &RetentionScope,
    rows: u32,
    now: Timestamp,
) -> Result<RemovedItems, StoreError> {
    let Some((_, run_id)) = split_key(key) else { return Ok(RemovedItems::default()) };
    let Ok(run_id) = run_id.parse::<RunId>() else { return Ok(RemovedItems::default()) };
    let sql = format!(
        "SELECT r.session_id, r.last_seq, r.terminal, COALESCE(p.through_seq, 0) AS through_seq,
             COALESCE(p.texts_removed, 0) AS texts_removed FROM runs r
         LEFT JOIN payload_removals p ON p.run_id = r.run_id WHERE r.run_id = $1 AND r.updated_at <= $2 AND {HAS_ENDED}"
    );
    let decode = |row: &mut crate::record::Reader<'_>| {
        let session = row.at("session_id")?.id::<SessionId>()?;
        // An end that cannot be read is left, and keeps nothing else.
        let end = row.at("terminal")?.opt_text()?.and_then(|end| serde_json::from_str::<Terminal>(&end).ok());
        let (last_seq, through_seq) = (row.at("last_seq")?.int()?, row.at("through_seq")?.int()?);
        let is_done = through_seq >= last_seq && row.at("texts_removed")?.flag()?;
        Ok((session, last_seq, through_seq, end, is_done))
    };
    let run = db.read_one(sql, vec![text(run_id), scope.before.into()], decode).await?;
    let Some((session, last_seq, from, end, _)) = run.filter(|(.., is_done)| !is_done) else {
        return Ok(RemovedItems::default());
    };
    let through_seq = end_of_step(db, session, run_id, from, rows).await?.unwrap_or(last_seq);
    let mut texts = vec![];
    if through_seq >= last_seq {
        texts = removed_texts::remove_next(db, run_id, rows).await?;
        if texts.len() >= rows as usize {
            // There may be more: a step of their own. A run with so many commands has lost payloads of earlier events already.
            let statements = unless_held(db, session).into_iter().chain(texts).collect();
            let has_more = db.write_together(statements).await?;
            return Ok(RemovedItems { has_more, ..RemovedItems::default() });
        }
    }
    let removal =
        PayloadRemoval { run_id, session, through_seq, removed_at: now, texts_removed: through_seq >= last_seq };
    let [gate, hold] = unless_held(db, session);
    let range = "session_id = $1 AND run_id = $2 AND seq > $3 AND seq <= $4 AND payload IS NOT NULL";
    let args = || vec![text(session), text(run_id), from.into(), through_seq.into()];
    let measured = format!(
        "SELECT COUNT(*) AS items, CAST(COALESCE(SUM(octet_length(payload)), 0) AS BIGINT) AS bytes FROM events
         WHERE {range}"
    );
    let mut statements = vec![
        gate,
        hold,
        Statement::new(measured, args()),
        insert(&removal, vec![], RECORDED),
        Statement::new(blank(db, range), args()),
    ];
    if through_seq >= last_seq {
        // A run that idled may have received another turn in the meantime.
        let commands = format!("UPDATE commands SET payload = '{{}}' WHERE run_id = $1 AND NOT {}", unfinished(""));
        let permissions = "UPDATE permissions SET title = '', command = NULL, options = '[]', editable = NULL, edited = NULL WHERE run_id = $1 AND status <> 'pending'";
        let whole = format!(
            "DELETE FROM command_payloads WHERE command_id IN
             (SELECT command_id FROM commands WHERE run_id = $1 AND NOT {})",
            unfinished("")
        );
        let rest = [commands, permissions.to_owned(), whole];
        statements.extend(rest.map(|sql| Statement::new(sql, vec![text(run_id)])));
        statements.extend(texts);
        statements.extend(removed_texts::remove_from_end(run_id, end));
    }
    let decode = |row: &mut crate::record::Reader<'_>| Ok((row.at("items")?.int()?, row.at("bytes")?.int()?));
    let counts = db.write_together_returning(statements, 2, decode).await?;
    let Some((items, bytes)) = counts.and_then(|mut counts| counts.pop()) else { return Ok(RemovedItems::default()) };
    Ok(RemovedItems { items, bytes, has_more: through_seq < last_seq })
}

/// Two servers may do the same step.
const RECORDED: &str = "ON CONFLICT (run_id) DO UPDATE SET removed_at = excluded.removed_at,
    texts_removed = excluded.texts_removed,
    through_seq = CASE WHEN excluded.through_seq > payload_removals.through_seq
        THEN excluded.through_seq ELSE payload_removals.through_seq END";

/// The last event of a step that begins after this number. `None`: the rest of the run is one step.
async fn end_of_step(
    db: &Db,
    session: SessionId,
    run_id: RunId,
    from: i64,
    rows: u32,
) -> Result<Option<i64>, StoreError> {
    let sql = "SELECT seq, CAST(COALESCE(octet_length(payload), 0) AS BIGINT) AS bytes FROM events
        WHERE session_id = $1 AND run_id = $2 AND seq > $3 ORDER BY seq LIMIT $4";
    let args = vec![text(session), text(run_id), from.into(), i64::from(rows).into()];
    let sizes = db.read(sql, args, |row| Ok((row.at("seq")?.int()?, row.at("bytes")?.int()?))).await?;
    let (mut bytes, mut end) = (0, None);
    for (seq, size) in &sizes {
        bytes += size;
        if bytes > STEP_BYTES_MAX && end.is_some() {
            return Ok(end);
        }
        end = Some(*seq);
    }
    Ok(end.filter(|_| sizes.len() == rows as usize))
}

/// Removes the payloads of the events of a condition. On SQLite the rows are written again, because an update in place leaves
/// half-empty pages, which are never freed.
pub(crate) fn blank(db: &Db, condition: &str) -> String {
    match db.engine {
        Engine::Sqlite(_) => {
            let names = <ostler_protocol::kernel::events::Event as Record>::NAMES;
            let blanked = names.replace("payload", "NULL");
            format!("INSERT OR REPLACE INTO events ({names}) SELECT {blanked} FROM events WHERE {condition}")
        }
        Engine::Postgres(_) => format!("UPDATE events SET payload = NULL WHERE {condition}"),
    }
}
