//! Discovery of the gateway, and the gateway itself.

use axum::{
    Json,
    extract::{ConnectInfo, State, WebSocketUpgrade, ws::rejection::WebSocketUpgradeRejection},
    response::Response,
};
use http::HeaderMap;
use ostler_protocol::{Failure, Rule, failures::Problem, mesh::pki::Discovery};

use super::plain::host;
use crate::{
    gateway::{self, FRAME_READ_BYTES_MAX},
    service,
    state::Mesh,
};
use ostler_server::{
    app::App,
    net::{Peer, problem::Refusal, sockets::fitted},
};

/// Get the URL of the gateway of this host's domain.
#[utoipa::path(get, path = "/.well-known/aun-gateway", tag = "mesh", security(("mesh" = [])),
    responses((status = 200, body = Discovery), (status = "4XX", body = Problem)))]
pub(crate) async fn discover(State(app): State<App>, headers: HeaderMap) -> Result<Json<Discovery>, Refusal> {
    Ok(Json(service::pki::discover(&app, host(&headers)?)?))
}

/// Connects to the mesh. The server sends the first frame, a challenge; `docs/generated/methods.md` lists the methods.
pub(crate) async fn connect(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    app.accepting()?;
    Mesh::of(&app).pki()?;
    let upgrade = upgrade.map_err(|why| Failure::invalid(Rule::Websocket, format!("this is a WebSocket: {why}")))?;
    let peer = peer.0.ip();
    let permits = gateway::GatewayPermits::acquire(&app, peer)?;
    let upgrade = fitted(upgrade, FRAME_READ_BYTES_MAX);
    Ok(upgrade.on_upgrade(move |socket| gateway::serve(app, socket, peer, permits)))
}
