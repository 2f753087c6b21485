//! Dispatches each method of the method table to its service.

use std::net::IpAddr;

use ostler_protocol::{
    Failure, RawJson,
    mesh::{calls::Call, methods::Method},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::service::{MeshCaller, auth, messages, meta};
use ostler_server::app::App;

/// Parses the parameters, calls `verb` and encodes the result.
async fn run<P: DeserializeOwned, R: Serialize>(
    call: &Call,
    verb: impl AsyncFnOnce(P) -> Result<R, Failure>,
) -> Result<RawJson, Failure> {
    Ok(RawJson::of(&verb(call.params()?).await?))
}

/// Calls that every peer may make before `auth.connect`.
pub(super) async fn fresh(app: &App, peer: IpAddr, method: Method, call: &Call) -> Result<RawJson, Failure> {
    match method {
        Method::CreateAid => run(call, async |params| auth::create_aid(app, peer, params).await).await,
        Method::Login1 => run(call, async |params| auth::login1(app, params).await).await,
        Method::Login2 => run(call, async |params| auth::login2(app, params).await).await,
        Method::RefreshToken => run(call, async |params| auth::refresh_token(app, params).await).await,
        other => Err(Failure::internal(format!("{} is not for fresh connections", other.name()))),
    }
}

/// Calls that an identity may make after `auth.connect`.
pub(super) async fn session(app: &App, caller: &MeshCaller, method: Method, call: &Call) -> Result<RawJson, Failure> {
    match method {
        Method::DownloadCert => run(call, async |params| auth::download_cert(app, caller, params).await).await,
        Method::RequestCert => run(call, async |params| auth::request_cert(app, caller, params).await).await,
        Method::RenewCert => run(call, async |params| auth::renew_cert(app, caller, params).await).await,
        Method::Rekey => run(call, async |params| auth::rekey(app, caller, params).await).await,
        Method::Send => run(call, async |params| messages::send(app, caller, params).await).await,
        Method::Pull => run(call, async |params| messages::pull(app, caller, params).await).await,
        Method::Ack => run(call, async |params| messages::ack(app, caller, params).await).await,
        Method::Recall => run(call, async |params| messages::recall(app, caller, params).await).await,
        Method::QueryOnline => run(call, async |params| messages::query_online(app, caller, params).await).await,
        Method::PutPrekey => run(call, async |params| messages::put_prekey(app, caller, params).await).await,
        Method::GetPrekey => run(call, async |params| messages::get_prekey(app, caller, params).await).await,
        Method::Ping => run(call, async |params| meta::ping(app, params)).await,
        Method::Status => run(call, async |params| meta::status(caller, params)).await,
        Method::TrustRoots => meta::trust_roots(app).await,
        other => Err(Failure::internal(format!("{} is not for sessions", other.name()))),
    }
}
