//! Descriptions of identities: written by their owners, read by every client that may.

use ostler_protocol::{
    Failure,
    json::hex,
    mesh::{
        Aid,
        agent_md::{AgentMd, Visibility},
        identities::Identity,
        pki::AgentMdDigest,
    },
};
use ostler_store::{self as store, mesh::agent_md::StoredAgentMd};

use super::{identities, tokens::find_by_token};
use ostler_server::{app::App, auth::unauthenticated};

/// The identity that the token belongs to. It is checked before the body is read.
pub(crate) async fn owner(app: &App, token: Option<&str>) -> Result<Aid, Failure> {
    caller(app, token).await?.ok_or_else(|| unauthenticated("this needs an agent's access token"))
}

pub(crate) async fn put(app: &App, aid: &Aid, text: &str) -> Result<AgentMdDigest, Failure> {
    let read = AgentMd::read(text, aid)?;
    let (content, visibility, updated_at) = (text.to_owned(), read.visibility, app.now());
    let stored = StoredAgentMd { aid: aid.clone(), content, visibility, updated_at };
    store::mesh::agent_md::upsert(&app.db, &stored).await?;
    let agent_md_sha256 = hex(&ostler_crypto::sha256(text.as_bytes()));
    Ok(AgentMdDigest { ok: true, aid: aid.to_string(), agent_md_sha256 })
}

/// Only its owner can read a private description; other callers do not learn that it exists. A revoked name has none.
pub(crate) async fn get(app: &App, token: Option<&str>, aid: &Aid) -> Result<String, Failure> {
    let is_revoked = |identity: &Identity| identity.revoked_at.is_some();
    if identities::find(app, aid).await?.as_ref().is_none_or(is_revoked) {
        return Err(Failure::not_found("agent.md"));
    }
    let stored = store::mesh::agent_md::get(&app.db, aid).await?;
    let stored = stored.ok_or_else(|| Failure::not_found("agent.md"))?;
    if stored.visibility == Visibility::Private && caller(app, token).await?.as_ref() != Some(aid) {
        return Err(Failure::not_found("agent.md"));
    }
    Ok(stored.content)
}

async fn caller(app: &App, token: Option<&str>) -> Result<Option<Aid>, Failure> {
    match token {
        Some(token) => Ok(find_by_token(app, token).await?.map(|(aid, _)| aid)),
        None => Ok(None),
    }
}
