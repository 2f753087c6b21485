//! From a method of the one table to the service that does it.

use std::net::IpAddr;

use ostler_protocol::{
    Failure, RawJson,
    mesh::{calls::Call, methods::Method},
};
use serde::{Serialize, de::DeserializeOwned};

use crate::service::{MeshCaller, auth, messages, meta};
use ostler_server::app::App;

/// Reads the parameters, does it, writes the result.
async fn run<P: DeserializeOwned, R: Serialize>(
    call: &Call,
    verb: impl AsyncFnOnce(P) -> Result<R, Failure>,
) -> Result<RawJson, Failure> {
    Ok(RawJson::of(&verb(call.params()?).await?))
}

/// What anybody may call on a connection that has not introduced itself.
pub async fn fresh(app: &App, peer: IpAddr, method: Method, call: &Call) -> Result<RawJson, Failure> {
    match method {
        Method::CreateAid => run(call, async |asked| auth::create_aid(app, peer, asked).await).await,
        Method::Login1 => run(call, async |asked| auth::login1(app, asked).await).await,
        Method::Login2 => run(call, async |asked| auth::login2(app, asked).await).await,
        Method::RefreshToken => run(call, async |asked| auth::refresh_token(app, asked).await).await,
        other => Err(Failure::internal(format!("{} is not for fresh connections", other.name()))),
    }
}

/// What an agent may call on a connection of its own.
pub async fn session(app: &App, caller: &MeshCaller, method: Method, call: &Call) -> Result<RawJson, Failure> {
    match method {
        Method::DownloadCert => run(call, async |asked| auth::download_cert(app, caller, asked).await).await,
        Method::RequestCert => run(call, async |asked| auth::request_cert(app, caller, asked).await).await,
        Method::RenewCert => run(call, async |asked| auth::renew_cert(app, caller, asked).await).await,
        Method::Rekey => run(call, async |asked| auth::rekey(app, caller, asked).await).await,
        Method::Send => run(call, async |asked| messages::send(app, caller, asked).await).await,
        Method::Pull => run(call, async |asked| messages::pull(app, caller, asked).await).await,
        Method::Ack => run(call, async |asked| messages::ack(app, caller, asked).await).await,
        Method::Recall => run(call, async |asked| messages::recall(app, caller, asked).await).await,
        Method::QueryOnline => run(call, async |asked| messages::query_online(app, caller, asked).await).await,
        Method::PutPrekey => run(call, async |asked| messages::put_prekey(app, caller, asked).await).await,
        Method::GetPrekey => run(call, async |asked| messages::get_prekey(app, caller, asked).await).await,
        Method::Ping => run(call, async |asked| meta::ping(app, asked)).await,
        Method::Status => run(call, async |asked| meta::status(caller, asked)).await,
        Method::TrustRoots => meta::trust_roots(app).await,
        other => Err(Failure::internal(format!("{} is not for sessions", other.name()))),
    }
}
