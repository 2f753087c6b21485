//! What clients chose for new sessions of a workspace.

use ostler_protocol::Timestamp;

use crate::{db::Db, error::StoreError};

/// The approval mode of new sessions. `None` if none was chosen.
pub async fn get_approval_mode(db: &Db, tenant_id: &str, workspace: &str) -> Result<Option<String>, StoreError> {
    let sql = "SELECT approval_mode FROM daemon_workspaces WHERE tenant_id = $1 AND workspace = $2";
    Ok(db.read_one(sql, vec![tenant_id.into(), workspace.into()], |row| row.opt_text()).await?.flatten())
}

pub async fn update_approval_mode(
    db: &Db,
    (tenant_id, workspace): (&str, &str),
    mode: &str,
    at: Timestamp,
) -> Result<(), StoreError> {
    let sql = "INSERT INTO daemon_workspaces (tenant_id, workspace, approval_mode, updated_at) VALUES ($1, $2, $3, $4)
        ON CONFLICT (tenant_id, workspace) DO UPDATE SET approval_mode = excluded.approval_mode, updated_at = excluded.updated_at
        RETURNING 1";
    db.write(sql, vec![tenant_id.into(), workspace.into(), mode.into(), at.into()], |_| Ok(())).await.map(drop)
}
