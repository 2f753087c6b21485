//! The turns of a session and its rewinds, in the order of the log.

use ostler_protocol::{
    RawJson,
    ids::{CommandId, SessionId},
    kernel::{
        fold::CommandFold,
        turns::{SessionTurn, TurnMark},
    },
};
use serde::Deserialize;

use super::events::is_change;
use crate::{
    db::Db,
    error::StoreError,
    record::{Reader, text},
};

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ChangeView {
    change: String,
    before_command_id: Option<CommandId>,
}

/// The turns and rewinds up to `last`, at most `limit` of them.
pub async fn list_marks(db: &Db, session: SessionId, last: i64, limit: u32) -> Result<Vec<TurnMark>, StoreError> {
    let change = is_change(&["rewound"]);
    let sql = format!(
        "SELECT e.session_id AS session_id, e.run_id AS run_id, e.command_id AS command_id, e.created_at AS created_at, c.fold AS fold,
            c.rolled_back_at AS rolled_back_at, CASE WHEN e.type = 'session' THEN CAST(e.payload AS TEXT) END AS fact
        FROM (SELECT * FROM events WHERE session_id = $1 AND session_seq <= $2
            AND (type = 'user_message' OR {change})) e
        LEFT JOIN commands c ON c.command_id = e.command_id
        WHERE e.type = 'session' OR c.type = 'turn' ORDER BY e.session_seq LIMIT $3"
    );
    let args = vec![text(session), last.into(), i64::from(limit).into()];
    Ok(db.read(sql, args, decode).await?.into_iter().flatten().collect())
}

/// `None` if the row is neither a turn nor a rewind.
fn decode(row: &mut Reader<'_>) -> Result<Option<TurnMark>, StoreError> {
    if let Some(fact) = row.at("fact")?.opt_text()? {
        let view = RawJson::parse(fact).ok().and_then(|raw| raw.view::<ChangeView>()).unwrap_or_default();
        let before = view.before_command_id.filter(|_| view.change == "rewound");
        return Ok(before.map(|before| TurnMark::Rewound { before }));
    }
    let fold: CommandFold = row.at("fold")?.json()?;
    Ok(Some(TurnMark::Turn(Box::new(SessionTurn {
        session: row.at("session_id")?.id()?,
        run_id: row.at("run_id")?.id()?,
        command_id: row.at("command_id")?.id()?,
        submitted_at: row.at("created_at")?.time()?,
        is_rolled_back: row.at("rolled_back_at")?.opt_time()?.is_some(),
        changes: fold.changes,
    }))))
}
