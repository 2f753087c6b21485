//! The commits that the resource bundles of runs, and their workspaces in pods, are taken from. A branch or tag is resolved once, for
//! all starts of a run.

use ostler_protocol::{
    Timestamp,
    ids::{RunId, SessionId},
};

use crate::{db::Db, error::StoreError, record::text};

/// What a run takes from a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitPurpose {
    Bundle,
    Workspace,
}

impl CommitPurpose {
    fn as_str(self) -> &'static str {
        match self {
            Self::Bundle => "bundle",
            Self::Workspace => "workspace",
        }
    }
}

pub async fn get(db: &Db, run_id: RunId, purpose: CommitPurpose) -> Result<Option<String>, StoreError> {
    let sql = "SELECT commit_id FROM bundle_commits WHERE run_id = $1 AND purpose = $2";
    db.read_one(sql, vec![text(run_id), purpose.as_str().into()], |row| row.text()).await
}

/// Stores the commit of a run, unless it has one: another server may have resolved the ref at the same time. Returns the one that
/// counts.
pub async fn insert(
    db: &Db,
    run_id: RunId,
    purpose: CommitPurpose,
    session: SessionId,
    commit_id: &str,
    now: Timestamp,
) -> Result<String, StoreError> {
    let sql =
        "INSERT INTO bundle_commits (run_id, purpose, session_id, commit_id, resolved_at) VALUES ($1, $2, $3, $4, $5)
        ON CONFLICT (run_id, purpose) DO UPDATE SET commit_id = bundle_commits.commit_id RETURNING commit_id";
    let args = vec![text(run_id), purpose.as_str().into(), text(session), commit_id.into(), now.into()];
    let stored = db.write(sql, args, |row| row.text()).await?.pop();
    stored.ok_or_else(|| StoreError::corrupt("a commit of a repository was not stored"))
}
