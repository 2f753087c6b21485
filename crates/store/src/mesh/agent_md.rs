//! The self-descriptions of identities (`agent.md`), as they were written.

use ostler_protocol::{Timestamp, mesh::Aid, mesh::agent_md::Visibility};

use crate::{
    db::Db,
    error::StoreError,
    record::{self, record, replace_stored, text},
};

#[derive(Clone, Debug, PartialEq)]
pub struct StoredAgentMd {
    pub aid: Aid,
    pub content: String,
    pub visibility: Visibility,
    pub updated_at: Timestamp,
}

record! {
    StoredAgentMd, stored in "mesh_agent_md";
    key {
        aid: id;
    }
    fixed {}
    state {
        content: text;
        visibility: named(Visibility);
        updated_at: time;
    }
}

/// Replaces the previous one.
pub async fn upsert(db: &Db, stored: &StoredAgentMd) -> Result<(), StoreError> {
    db.execute_statement(record::insert(stored, vec![], &replace_stored::<StoredAgentMd>())).await
}

pub async fn get(db: &Db, aid: &Aid) -> Result<Option<StoredAgentMd>, StoreError> {
    Ok(db.select("WHERE aid = $1", vec![text(aid)]).await?.pop())
}
