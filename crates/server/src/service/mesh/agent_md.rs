//! What agents say of themselves: put by their owners, read by everybody who may.

use ostler_protocol::{
    Failure,
    json::hex,
    mesh::{
        Aid,
        agent_md::{AgentMd, Visibility},
        pki::AgentMdKept,
    },
};
use ostler_store::{self as store, agent_md::Kept};

use super::tokens::whose;
use crate::{
    app::{App, store_failure},
    auth::unauthenticated,
};

pub async fn put(app: &App, token: Option<&str>, text: &str) -> Result<AgentMdKept, Failure> {
    let aid = caller(app, token).await?.ok_or_else(|| unauthenticated("this needs an agent's access token"))?;
    let read = AgentMd::read(text, &aid)?;
    let kept = Kept { content: text.to_owned(), visibility: read.visibility, updated_at: app.now() };
    store::agent_md::upsert(&app.db, &aid, &kept).await.map_err(store_failure)?;
    let agent_md_sha256 = hex(&ostler_crypto::sha256(text.as_bytes()));
    Ok(AgentMdKept { ok: true, aid: aid.to_string(), agent_md_sha256 })
}

/// A private description is its owner's alone; others do not learn that there is one.
pub async fn get(app: &App, token: Option<&str>, aid: &Aid) -> Result<String, Failure> {
    let kept = store::agent_md::get(&app.db, aid).await.map_err(store_failure)?;
    let kept = kept.ok_or_else(|| Failure::not_found("agent.md"))?;
    if kept.visibility == Visibility::Private && caller(app, token).await?.as_ref() != Some(aid) {
        return Err(Failure::not_found("agent.md"));
    }
    Ok(kept.content)
}

async fn caller(app: &App, token: Option<&str>) -> Result<Option<Aid>, Failure> {
    match token {
        Some(token) => whose(app, token).await,
        None => Ok(None),
    }
}
