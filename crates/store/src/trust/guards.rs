//! Guards: what must still hold of an agent when something about it is written.

use ostler_protocol::ids::AgentId;

use crate::{
    db::Db,
    record::{Statement, text},
};

/// A guard: the agent exists and is not retired until the transaction has ended. Retiring it afterwards covers what was
/// written together with this.
pub(crate) fn is_there(db: &Db, id: AgentId) -> Statement {
    let sql = format!("SELECT 1 FROM agents WHERE agent_id = $1 AND retired_at IS NULL {}", db.share_lock());
    Statement::guard(sql, vec![text(id)])
}

/// A guard: the agent exists and this is its current manifest, until the transaction has ended.
pub(crate) fn is_current(db: &Db, agent_id: AgentId, version: i64) -> Statement {
    // Publishing a manifest changes this row.
    let sql = format!(
        "SELECT 1 FROM agents WHERE agent_id = $1 AND capability_manifest_version = $2 AND retired_at IS NULL {}",
        db.share_lock()
    );
    Statement::guard(sql, vec![text(agent_id), version.into()])
}
