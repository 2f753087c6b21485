//! Extractors for the caller and the client of a request.

use axum::extract::FromRequestParts;
use http::request::Parts;
use ostler_protocol::{
    Failure, Rule,
    daemon::clients::{CLIENT_HEADER, check_client_id},
};
use ostler_server::{
    app::App,
    auth::Principal,
    net::{
        extract::{At, Caller},
        gate::bearer,
        problem::Refusal,
    },
};

/// The client that a request names, in the form that ids have. Whether it is registered is checked by the services.
pub(crate) struct ClientId(pub Option<String>);

impl FromRequestParts<App> for ClientId {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Refusal> {
        let Some(value) = parts.headers.get(CLIENT_HEADER) else { return Ok(Self(None)) };
        let unreadable = || Failure::invalid(Rule::InvalidClientId, "X-Qwen-Client-Id is not text");
        let text = value.to_str().map_err(|_| unreadable())?;
        Ok(Self(Some(check_client_id(text)?.to_owned())))
    }
}

/// A caller with a token. Routes that change the workspace, or what its agents may do, refuse callers that were only admitted
/// because they are on this machine.
pub(crate) struct Strict(pub Principal);

impl FromRequestParts<App> for Strict {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let has_token = bearer(&parts.headers)?.is_some();
        let Caller(caller) = Caller::from_request_parts(parts, app).await?;
        if has_token {
            return Ok(Self(caller));
        }
        Err(Failure::rule(Rule::TokenRequired, "this needs a token, also from this machine").into())
    }
}

/// A request about the session in its path.
pub(crate) struct SessionRequest {
    pub app: App,
    pub caller: Principal,
    pub session_id: String,
    pub client: Option<String>,
}

impl FromRequestParts<App> for SessionRequest {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let Caller(caller) = Caller::from_request_parts(parts, app).await?;
        let At(session_id) = At::<String>::from_request_parts(parts, app).await?;
        let ClientId(client) = ClientId::from_request_parts(parts, app).await?;
        Ok(Self { app: app.clone(), caller, session_id, client })
    }
}

/// A request of a caller with a token, about the thing of the workspace that its path names: an extension, an MCP server.
pub(crate) struct StrictRequest {
    pub app: App,
    pub caller: Principal,
    pub client: Option<String>,
    pub name: String,
}

impl FromRequestParts<App> for StrictRequest {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refusal> {
        let Strict(caller) = Strict::from_request_parts(parts, app).await?;
        let ClientId(client) = ClientId::from_request_parts(parts, app).await?;
        let At(name) = At::<String>::from_request_parts(parts, app).await?;
        Ok(Self { app: app.clone(), caller, client, name })
    }
}
