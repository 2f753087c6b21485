//! Information about the gateway and about a connection.

use ostler_protocol::{
    Failure, RawJson,
    mesh::{
        connections::PROTOCOL,
        meta::{NoParams, PingResult, StatusResult},
    },
};

use super::{MeshCaller, pki};
use ostler_server::app::App;

pub(crate) fn ping(app: &App, _: NoParams) -> Result<PingResult, Failure> {
    Ok(PingResult { pong: true, timestamp: app.wall().as_millisecond() })
}

pub(crate) fn status(caller: &MeshCaller, _: NoParams) -> Result<StatusResult, Failure> {
    Ok(StatusResult {
        mode: "gateway".into(),
        aid: caller.aid.clone(),
        role: "user".into(),
        connected_at: caller.connected_at.as_millisecond(),
        protocol_version: PROTOCOL.into(),
    })
}

/// The list of roots exactly as it was signed, byte by byte.
pub(crate) async fn trust_roots(app: &App) -> Result<RawJson, Failure> {
    RawJson::parse(pki::trust_roots(app)?.to_string()).map_err(Failure::internal)
}
