//! Tools and MCP servers of a workspace that were switched on or off.

use ostler_protocol::Timestamp;

use crate::{db::Db, error::StoreError};

/// What a switch is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchNoun {
    Tool,
    McpServer,
}

impl SwitchNoun {
    fn as_str(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::McpServer => "mcp-server",
        }
    }
}

/// A workspace and the tenant whose sessions work in it: several servers of one store may be bound to the same path.
#[derive(Clone, Debug)]
pub struct SwitchPlace {
    pub tenant_id: String,
    pub workspace: String,
}

/// The names that were switched, sorted, each with whether it is on.
pub async fn list(db: &Db, place: &SwitchPlace, noun: SwitchNoun) -> Result<Vec<(String, bool)>, StoreError> {
    let sql = format!(
        "SELECT name, enabled FROM workspace_switches WHERE tenant_id = $1 AND workspace = $2 AND noun = $3 ORDER BY name{}",
        db.byte_order()
    );
    let args = vec![place.tenant_id.clone().into(), place.workspace.clone().into(), noun.as_str().into()];
    db.read(sql, args, |row| Ok((row.at("name")?.text()?, row.at("enabled")?.flag()?))).await
}

/// Switches a name on or off. Returns whether that changed something.
pub async fn update(
    db: &Db,
    place: &SwitchPlace,
    noun: SwitchNoun,
    name: &str,
    enabled: bool,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let sql = "INSERT INTO workspace_switches (tenant_id, workspace, noun, name, enabled, changed_at)
        VALUES ($1, $2, $3, $4, $5, $6)
        ON CONFLICT (tenant_id, workspace, noun, name) DO UPDATE SET enabled = $5, changed_at = $6
        WHERE workspace_switches.enabled <> $5 RETURNING 1";
    let mut args = vec![place.tenant_id.clone().into(), place.workspace.clone().into(), noun.as_str().into()];
    args.extend([name.into(), i64::from(enabled).into(), now.into()]);
    Ok(!db.write(sql, args, |_| Ok(())).await?.is_empty())
}

/// Forgets a switch, so that the name has its default again. Returns whether there was one.
pub async fn delete(db: &Db, place: &SwitchPlace, noun: SwitchNoun, name: &str) -> Result<bool, StoreError> {
    let sql = "DELETE FROM workspace_switches WHERE tenant_id = $1 AND workspace = $2 AND noun = $3 AND name = $4 RETURNING 1";
    let args = vec![place.tenant_id.clone().into(), place.workspace.clone().into(), noun.as_str().into(), name.into()];
    Ok(!db.write(sql, args, |_| Ok(())).await?.is_empty())
}
