//! The turns of a session, across its runs.

use ostler_protocol::{
    RawJson,
    daemon::stats::{TokenReport, TurnUsage},
    kernel::{commands::Command, sessions::Session},
};

use crate::{
    db::Db,
    error::StoreError,
    kernel::conditions::unfinished,
    record::{Reader, Record, columns, text},
};

/// What the newest turns of the session have used, newest first.
pub async fn list_usage(db: &Db, session: &Session, limit: u32) -> Result<Vec<TurnUsage>, StoreError> {
    let sql = "SELECT r.backend_profile AS backend_profile, c.fold AS fold, c.state AS state, c.acked_at AS acked_at,
            c.updated_at AS updated_at
        FROM runs r JOIN commands c ON c.run_id = r.run_id
        WHERE r.session_name = $1 AND r.session_id = $2 AND c.type = 'turn' ORDER BY c.created_at DESC LIMIT $3";
    let args = vec![session.public_id().into(), text(session.session), i64::from(limit).into()];
    db.read(sql, args, |row| {
        Ok(TurnUsage {
            backend_profile: row.at("backend_profile")?.text()?,
            fold: row.at("fold")?.json()?,
            has_failed: matches!(row.at("state")?.str()?, "failed" | "blocked"),
            acked_at: row.at("acked_at")?.opt_time()?,
            updated_at: row.at("updated_at")?.time()?,
        })
    })
    .await
}

/// The newest reports of usage of the newest turns that have their payload, newest first. The turns are those of [`list_usage`].
pub async fn list_usage_reports(
    db: &Db,
    session: &Session,
    turns_max: u32,
    limit: u32,
) -> Result<Vec<TokenReport>, StoreError> {
    let sql = "SELECT r.backend_profile AS backend_profile, CAST(e.payload AS TEXT) AS payload
        FROM events e JOIN runs r ON r.run_id = e.run_id
        WHERE e.session_id = $1 AND e.type = 'usage' AND e.payload IS NOT NULL AND e.command_id IN
            (SELECT c.command_id FROM runs o JOIN commands c ON c.run_id = o.run_id
            WHERE o.session_name = $2 AND o.session_id = $1 AND c.type = 'turn' ORDER BY c.created_at DESC LIMIT $3)
        ORDER BY e.session_seq DESC LIMIT $4";
    let read = |row: &mut Reader<'_>| Ok((row.at("backend_profile")?.text()?, row.at("payload")?.text()?));
    let args =
        vec![text(session.session), session.public_id().into(), i64::from(turns_max).into(), i64::from(limit).into()];
    let rows = db.read(sql, args, read).await?;
    let report = |(backend_profile, payload): (String, String)| {
        Some(TokenReport { backend_profile, payload: RawJson::parse(payload).ok()? })
    };
    Ok(rows.into_iter().filter_map(report).collect())
}

/// The unfinished turns of the session, in the order in which they are worked on, each with the id under which it was submitted.
pub async fn list_unfinished(db: &Db, session: &Session) -> Result<Vec<(Command, Option<String>)>, StoreError> {
    let sql = format!(
        "SELECT {}, (SELECT a.alias FROM command_aliases a WHERE a.command_id = c.command_id
            ORDER BY a.after_seq LIMIT 1) AS alias
        FROM runs r JOIN commands c ON c.run_id = r.run_id
        WHERE r.session_name = $1 AND r.session_id = $2 AND c.type = 'turn' AND {} ORDER BY c.created_at, c.seq",
        columns::<Command>("c"),
        unfinished("c.")
    );
    let args = vec![session.public_id().into(), text(session.session)];
    db.read(sql, args, |row| {
        let command = Command::decode(row)?;
        Ok((command, row.at("alias")?.opt_text()?))
    })
    .await
}
