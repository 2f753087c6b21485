//! What agents say of themselves: put by their owners, read by everybody who may.

use ostler_protocol::{
    Failure,
    json::hex,
    mesh::{
        Aid,
        agent_md::{AgentMd, Visibility},
        identities::Identity,
        pki::AgentMdKept,
    },
};
use ostler_store::{self as store, mesh::agent_md::Kept};

use super::{identities, tokens::whose};
use ostler_server::{app::App, auth::unauthenticated};

/// The agent whose token this is; known before anything is read of what it says.
pub async fn owner(app: &App, token: Option<&str>) -> Result<Aid, Failure> {
    caller(app, token).await?.ok_or_else(|| unauthenticated("this needs an agent's access token"))
}

pub async fn put(app: &App, aid: &Aid, text: &str) -> Result<AgentMdKept, Failure> {
    let read = AgentMd::read(text, aid)?;
    let kept = Kept { content: text.to_owned(), visibility: read.visibility, updated_at: app.now() };
    store::mesh::agent_md::upsert(&app.db, aid, &kept).await?;
    let agent_md_sha256 = hex(&ostler_crypto::sha256(text.as_bytes()));
    Ok(AgentMdKept { ok: true, aid: aid.to_string(), agent_md_sha256 })
}

/// A private description is its owner's alone; others do not learn that there is one. A name that was revoked says nothing.
pub async fn get(app: &App, token: Option<&str>, aid: &Aid) -> Result<String, Failure> {
    let is_revoked = |identity: &Identity| identity.revoked_at.is_some();
    if identities::find(app, aid).await?.as_ref().is_none_or(is_revoked) {
        return Err(Failure::not_found("agent.md"));
    }
    let kept = store::mesh::agent_md::get(&app.db, aid).await?;
    let kept = kept.ok_or_else(|| Failure::not_found("agent.md"))?;
    if kept.visibility == Visibility::Private && caller(app, token).await?.as_ref() != Some(aid) {
        return Err(Failure::not_found("agent.md"));
    }
    Ok(kept.content)
}

async fn caller(app: &App, token: Option<&str>) -> Result<Option<Aid>, Failure> {
    match token {
        Some(token) => Ok(whose(app, token).await?.map(|(aid, _)| aid)),
        None => Ok(None),
    }
}
