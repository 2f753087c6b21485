//! `/agent.md` under an identity's own host name: its description.

use axum::{
    Json,
    extract::{Request, State},
    response::Response,
};
use http::HeaderMap;
use ostler_protocol::{
    Failure, Rule,
    failures::Problem,
    limits::SMALL_BODY_BYTES_MAX,
    mesh::{Aid, pki::AgentMdDigest},
};

use super::plain::{host_name, plain};
use crate::service;
use ostler_server::{
    app::App,
    net::{extract::read_raw, gate::bearer, problem::Refusal},
};

const MARKDOWN: &str = "text/markdown";

/// Store the caller's description: a front matter and Markdown. The token is the access token of a mesh login.
#[utoipa::path(put, path = "/agent.md", tag = "mesh", security(("mesh" = [])),
    request_body(content = String, content_type = "text/markdown"),
    responses((status = 200, body = AgentMdDigest), (status = "4XX", body = Problem)))]
pub(crate) async fn put(State(app): State<App>, request: Request) -> Result<Json<AgentMdDigest>, Refusal> {
    let owner = service::agent_md::owner(&app, bearer(request.headers())?).await?;
    let body = read_raw(request, &app, MARKDOWN, SMALL_BODY_BYTES_MAX).await?;
    let text = std::str::from_utf8(&body).map_err(|_| Failure::invalid(Rule::AgentMdUtf8, "agent.md is UTF-8 text"))?;
    Ok(Json(service::agent_md::put(&app, &owner, text).await?))
}

/// Get the description of the identity whose name is the host.
#[utoipa::path(get, path = "/agent.md", tag = "mesh", security(("mesh" = [])),
    responses((status = 200, body = String, content_type = "text/markdown"), (status = "4XX", body = Problem)))]
pub(crate) async fn get(State(app): State<App>, headers: HeaderMap) -> Result<Response, Refusal> {
    let aid: Aid = host_name(&headers)?.to_ascii_lowercase().parse().map_err(|_| Failure::not_found("agent.md"))?;
    let text = service::agent_md::get(&app, bearer(&headers)?, &aid).await?;
    Ok(plain("text/markdown; charset=utf-8", text))
}
