//! `/pki…`: the chain of authorities, certificates and all their versions, revocations, the list of roots.

use axum::{
    Json,
    body::Bytes,
    extract::{ConnectInfo, Request, State},
    response::{IntoResponse, Response},
};
use ostler_protocol::{
    failures::Problem,
    limits::SMALL_BODY_BYTES_MAX,
    mesh::{
        Aid,
        pki::{CertificateQuery, CertificateStatus, RevocationList},
    },
};

use super::plain::plain;
use crate::service::{identities, pki};
use ostler_server::{
    app::App,
    net::{
        Peer,
        extract::{At, Params, read_raw},
        problem::Refusal,
    },
};

const PEM: &str = "application/x-pem-file";
const JSON: &str = "application/json";
const CRL: &str = "application/pkix-crl";
const OCSP_REQUEST: &str = "application/ocsp-request";
const OCSP_RESPONSE: &str = "application/ocsp-response";

/// The certificates above the domain's identities: issuer, registry, root, in PEM.
#[utoipa::path(get, path = "/pki/chain", tag = "mesh", security(("mesh" = [])),
    responses((status = 200, body = String, content_type = "application/x-pem-file"), (status = "4XX", body = Problem)))]
pub(crate) async fn chain(State(app): State<App>) -> Result<Response, Refusal> {
    Ok(plain(PEM, pki::chain(&app)?))
}

/// The root's certificate, in PEM.
#[utoipa::path(get, path = "/pki/root.crt", tag = "mesh", security(("mesh" = [])),
    responses((status = 200, body = String, content_type = "application/x-pem-file"), (status = "4XX", body = Problem)))]
pub(crate) async fn root(State(app): State<App>) -> Result<Response, Refusal> {
    Ok(plain(PEM, pki::root(&app)?))
}

/// An identity's certificate, in PEM: the newest, or the one with the given fingerprint.
#[utoipa::path(get, path = "/pki/cert/{aid}", tag = "mesh", security(("mesh" = [])),
    params(("aid" = String, Path), CertificateQuery),
    responses((status = 200, body = String, content_type = "application/x-pem-file"), (status = "4XX", body = Problem)))]
pub(crate) async fn certificate(
    State(app): State<App>,
    Params(query): Params<CertificateQuery>,
    At(aid): At<Aid>,
) -> Result<Response, Refusal> {
    let identity = identities::version(&app, &aid, query.cert_fingerprint.as_deref()).await?;
    Ok(plain(PEM, identity.certificate))
}

/// The revocation list, in the form that mesh clients read.
#[utoipa::path(get, path = "/pki/crl.json", tag = "mesh", security(("mesh" = [])),
    responses((status = 200, body = RevocationList), (status = "4XX", body = Problem)))]
pub(crate) async fn revocations(State(app): State<App>) -> Result<Json<RevocationList>, Refusal> {
    let list = pki::revocations(&app).await?;
    Ok(Json(RevocationList { crl_pem: ostler_crypto::crl::to_pem(&list.der) }))
}

/// The same list in DER, for other clients.
#[utoipa::path(get, path = "/pki/crl", tag = "mesh", security(("mesh" = [])),
    responses((status = 200, body = Vec<u8>, content_type = "application/pkix-crl"), (status = "4XX", body = Problem)))]
pub(crate) async fn revocations_der(State(app): State<App>) -> Result<Response, Refusal> {
    let list = pki::revocations(&app).await?;
    Ok(plain(CRL, Bytes::copy_from_slice(&list.der)))
}

/// Whether a certificate is still valid: by its serial in hexadecimal, in the form that mesh clients read; or, instead of the
/// serial, by an RFC 6960 request in base64, as in its appendix A.1.
#[utoipa::path(get, path = "/pki/ocsp/{serial}", tag = "mesh", security(("mesh" = [])), params(("serial" = String, Path)),
    responses(
        (status = 200, content((CertificateStatus = "application/json"), (Vec<u8> = "application/ocsp-response"))),
        (status = "4XX", body = Problem)))]
pub(crate) async fn status(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    At(serial): At<String>,
) -> Result<Response, Refusal> {
    // A serial is short and has hexadecimal digits only; a request is long, and begins with an M.
    match pki::decode_request(&serial) {
        Some(request) => Ok(plain(OCSP_RESPONSE, pki::respond(&app, peer.0.ip(), &request).await?)),
        None => Ok(Json(pki::status(&app, peer.0.ip(), &serial).await?).into_response()),
    }
}

/// Whether certificates are still valid, by RFC 6960.
#[utoipa::path(post, path = "/pki/ocsp", tag = "mesh", security(("mesh" = [])),
    request_body(content = Vec<u8>, content_type = "application/ocsp-request"),
    responses((status = 200, body = Vec<u8>, content_type = "application/ocsp-response"), (status = "4XX", body = Problem)))]
pub(crate) async fn ocsp(
    State(app): State<App>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    request: Request,
) -> Result<Response, Refusal> {
    let body = read_raw(request, &app, OCSP_REQUEST, SMALL_BODY_BYTES_MAX).await?;
    Ok(plain(OCSP_RESPONSE, pki::respond(&app, peer.0.ip(), &body).await?))
}

/// The signed list of trusted roots.
#[utoipa::path(get, path = "/pki/trust-roots.json", tag = "mesh", security(("mesh" = [])),
    responses((status = 200, body = ostler_protocol::mesh::meta::TrustRootsResult), (status = "4XX", body = Problem)))]
pub(crate) async fn trust_roots(State(app): State<App>) -> Result<Response, Refusal> {
    Ok(plain(JSON, pki::trust_roots(&app)?.to_string()))
}
