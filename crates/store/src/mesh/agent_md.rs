//! The self-descriptions of identities (`agent.md`), as they were written.

use ostler_protocol::{Timestamp, mesh::Aid, mesh::agent_md::Visibility};

use crate::{
    db::{Db, StoreError},
    record::text,
};

#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    pub content: String,
    pub visibility: Visibility,
    pub updated_at: Timestamp,
}

/// Replaces the previous one.
pub async fn upsert(db: &Db, aid: &Aid, kept: &Kept) -> Result<(), StoreError> {
    const SQL: &str = "INSERT INTO mesh_agent_md (aid, content, visibility, updated_at) VALUES ($1, $2, $3, $4) \
        ON CONFLICT (aid) DO UPDATE SET content = excluded.content, visibility = excluded.visibility, \
        updated_at = excluded.updated_at";
    let args = vec![text(aid), kept.content.as_str().into(), kept.visibility.as_str().into(), kept.updated_at.into()];
    db.execute(SQL, args).await
}

pub async fn get(db: &Db, aid: &Aid) -> Result<Option<Kept>, StoreError> {
    const SQL: &str = "SELECT content, visibility, updated_at FROM mesh_agent_md WHERE aid = $1";
    db.read_one(SQL, vec![text(aid)], |row| {
        Ok(Kept { content: row.text()?, visibility: row.named(Visibility::parse)?, updated_at: row.time()? })
    })
    .await
}
