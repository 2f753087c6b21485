//! Registration, login and renewal of certificates. The first half of a login stores nothing: what the second half needs is
//! sealed into the request id, so that it may come over another connection and to another server.

use std::net::IpAddr;

use ostler_crypto::{certificates::Certificate, proofs};
use ostler_protocol::{
    Failure, Rule, Timestamp,
    json::hex,
    mesh::{
        Aid,
        auth::{
            CertResult, CreateAidParams, CreateAidResult, DownloadCertParams, LOGIN_MS_MAX, Login1Params, Login1Result,
            Login2Params, Login2Result, NONCE_BYTES_MAX, RefreshTokenParams, RefreshTokenResult, RekeyParams,
            RenewCertParams, RequestCertParams, already_exists, not_registered,
        },
        identities::{CertificateOperation, Identity, RevocationReason},
    },
};
use ostler_store::{self as store, mesh::identities::Revoked};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};

use super::{
    MeshCaller,
    identities::{Grounds, certify, check_name, check_unused, end_logins, find, identity_key, open_invite, version},
    tokens,
};
use crate::state::Mesh;
use ostler_server::{app::App, clock, service::tokens::later};

const LOGIN: &str = "login";

/// What the second half of a login, or a renewal, needs from the first. Sealed.
#[derive(Serialize, Deserialize)]
struct LoginTicket {
    aid: Aid,
    fingerprint: String,
    nonce: String,
    until: Timestamp,
}

pub(crate) async fn create_aid(app: &App, peer: IpAddr, params: CreateAidParams) -> Result<CreateAidResult, Failure> {
    app.accepting()?;
    let pki = Mesh::of(app).pki()?;
    let CreateAidParams { aid, public_key, curve, invite } = params;
    check_name(pki, &aid)?;
    if curve != "P-256" {
        return Err(Failure::invalid(Rule::Curve, "curve: P-256").detail("field", "curve"));
    }
    let key = identity_key(&public_key)?;
    if find(app, &aid).await?.is_some() {
        return Err(already_exists(&aid));
    }
    let invite = match Mesh::of(app).config.registration_is_open(&app.config) {
        true => None,
        false => Some(open_invite(app, pki, &aid, invite.as_deref())?),
    };
    if let Some(invite) = &invite {
        check_unused(app, invite).await?;
    }
    Mesh::of(app).count_registration(peer, &Mesh::of(app).config, app.now())?;
    let grounds = Grounds { invite: invite.clone(), ..Grounds::of(CertificateOperation::Issue) };
    let Some(made) = certify(app, &aid, &key, grounds).await? else {
        // A concurrent request has registered the name or used the invitation.
        if let Some(invite) = &invite {
            check_unused(app, invite).await?;
        }
        return Err(already_exists(&aid));
    };
    Ok(CreateAidResult { aid, cert: made.to_pem(), ca_cert: pki.issuer().certificate().to_pem(), curve })
}

pub(crate) async fn login1(app: &App, params: Login1Params) -> Result<Login1Result, Failure> {
    let pki = Mesh::of(app).pki()?;
    let Login1Params { aid, cert, client_nonce } = params;
    if !(1..=NONCE_BYTES_MAX).contains(&client_nonce.len()) {
        return Err(Failure::invalid(Rule::ClientNonce, format!("client_nonce: 1 to {NONCE_BYTES_MAX} bytes")));
    }
    let shown =
        Certificate::from_pem(&cert).ok_or_else(|| Failure::invalid(Rule::Cert, "cert: one certificate in PEM"))?;
    if find(app, &aid).await?.is_none() {
        // The published client looks for this text in an authentication error, and in no other error.
        return Err(unproved(&not_registered(&aid).message));
    }
    let (_, certificate) = own_certificate(app, &aid, &shown.fingerprint()).await?;
    let now = app.now();
    let mut nonce = [0; 24];
    clock::fill(&mut nonce);
    let nonce = hex(&nonce);
    let until = later(now, LOGIN_MS_MAX)?;
    let ticket = LoginTicket { aid, fingerprint: certificate.fingerprint(), nonce: nonce.clone(), until };
    let auth = pki.auth();
    Ok(Login1Result {
        request_id: pki.ticket(LOGIN, &ticket),
        nonce,
        auth_cert: auth.certificate.to_pem(),
        client_nonce_signature: auth.sign(&client_nonce),
        server_time: app.wall().as_millisecond(),
        auth_curve: auth.certificate.public_key().curve().name().to_owned(),
    })
}

pub(crate) async fn login2(app: &App, params: Login2Params) -> Result<Login2Result, Failure> {
    let Login2Params { aid, request_id, nonce, client_time, signature } = params;
    let signed = proofs::login(&nonce, &client_time);
    let identity = finish(app, &aid, (&request_id, &nonce), &signed, &signature).await?;
    let next = next_certificate(app, &identity).await?;
    tokens::begin(app, &identity, next.map(|next| next.to_pem())).await
}

pub(crate) async fn refresh_token(app: &App, params: RefreshTokenParams) -> Result<RefreshTokenResult, Failure> {
    tokens::refresh(app, params.refresh_token.expose_secret()).await
}

pub(crate) async fn download_cert(
    app: &App,
    caller: &MeshCaller,
    params: DownloadCertParams,
) -> Result<CertResult, Failure> {
    let aid = params.aid.unwrap_or_else(|| caller.aid.clone());
    let identity = version(app, &aid, params.cert_fingerprint.as_deref()).await?;
    Ok(CertResult { aid, cert: identity.certificate, cert_fingerprint: identity.cert_fingerprint })
}

/// The next certificate, for the same key or for another one.
pub(crate) async fn request_cert(
    app: &App,
    caller: &MeshCaller,
    params: RequestCertParams,
) -> Result<CertResult, Failure> {
    let RequestCertParams { request_id, nonce, public_key, signature } = params;
    match public_key {
        None => renew_cert(app, caller, RenewCertParams { request_id, nonce, signature }).await,
        Some(public_key) => rekey(app, caller, RekeyParams { request_id, nonce, public_key, signature }).await,
    }
}

/// The next certificate for the same key, once the current one is past half its life.
pub(crate) async fn renew_cert(app: &App, caller: &MeshCaller, params: RenewCertParams) -> Result<CertResult, Failure> {
    let RenewCertParams { request_id, nonce, signature } = params;
    let signed = proofs::renewal(&nonce);
    let identity = finish(app, &caller.aid, (&request_id, &nonce), &signed, &signature).await?;
    let next = next_certificate(app, &identity).await?;
    next.map(|next| result(&caller.aid, &next)).ok_or_else(|| {
        let message = "the certificate is not past half its life";
        Failure::rule(Rule::CertificateFresh, message)
    })
}

/// A certificate for a new key. The certificates for the old key are revoked, and all other logins with it end.
pub(crate) async fn rekey(app: &App, caller: &MeshCaller, params: RekeyParams) -> Result<CertResult, Failure> {
    let RekeyParams { request_id, nonce, public_key, signature } = params;
    let key = identity_key(&public_key)?;
    let signed = proofs::rekey(&nonce, &public_key);
    let identity = finish(app, &caller.aid, (&request_id, &nonce), &signed, &signature).await?;
    Mesh::of(app).count_rekey(&caller.aid, app.now())?;
    let (aid, login_id) = (caller.aid.clone(), caller.login_id.clone());
    app.to_the_end(|app| async move {
        let newest = version(&app, &aid, None).await?.serial;
        let grounds = Grounds {
            replaced: Some(Revoked { serial: newest, reason: RevocationReason::Superseded }),
            shown_serial: Some(identity.serial),
            login_id: Some(login_id),
            ..Grounds::of(CertificateOperation::Rekey)
        };
        let made = certify(&app, &aid, &key, grounds).await?.ok_or_else(revoked)?;
        end_logins(&app, &aid).await?;
        Ok(result(&aid, &made))
    })
    .await
}

fn result(aid: &Aid, made: &Certificate) -> CertResult {
    CertResult { aid: aid.clone(), cert: made.to_pem(), cert_fingerprint: made.fingerprint() }
}

/// A certificate that this server issued to the name and that still identifies it: valid, or expired not long ago.
async fn own_certificate(app: &App, aid: &Aid, fingerprint: &str) -> Result<(Identity, Certificate), Failure> {
    let found = store::mesh::identities::find_by_fingerprint(&app.db, aid, fingerprint).await?;
    let identity = found.ok_or_else(|| unproved("the certificate is not one of this name's"))?;
    if identity.revoked_at.is_some() {
        return Err(revoked());
    }
    let certificate = read(&identity)?;
    if !certificate.can_be_renewed(app.wall()) {
        return Err(unproved("the certificate has expired, and long ago"));
    }
    Ok((identity, certificate))
}

/// Checks the signature over the nonce of a login's first half, and spends the nonce.
async fn finish(
    app: &App,
    aid: &Aid,
    (request_id, nonce): (&str, &str),
    signed: &[u8],
    signature: &str,
) -> Result<Identity, Failure> {
    let ticket = Mesh::of(app).pki()?.open_ticket::<LoginTicket>(LOGIN, request_id);
    let ticket = ticket.ok_or_else(|| unproved("request_id: no login of ours"))?;
    if ticket.aid != *aid || !ostler_crypto::equal(ticket.nonce.as_bytes(), nonce.as_bytes()) {
        return Err(unproved("the nonce is of another login"));
    }
    if app.now() > ticket.until {
        return Err(unproved("the login took too long"));
    }
    let (identity, certificate) = own_certificate(app, aid, &ticket.fingerprint).await?;
    if !certificate.public_key().verifies_base64(signed, signature) {
        return Err(unproved("the signature does not check out"));
    }
    let spent = store::mesh::logins::spend(&app.db, &format!("{LOGIN}:{nonce}"), ticket.until).await;
    if spent? { Ok(identity) } else { Err(unproved("the nonce was used")) }
}

/// The successor of the certificate that a client presented: the newest one if the client does not have it yet, or, past half
/// of the newest one's life, another. However often a client presents an old certificate, only one more is issued.
async fn next_certificate(app: &App, shown: &Identity) -> Result<Option<Certificate>, Failure> {
    // It is for the same key: a certificate for another key would have revoked the presented one.
    let newest = version(app, &shown.aid, None).await?;
    let certificate = read(&newest)?;
    if !certificate.is_due_for_renewal(app.wall()) {
        return Ok((newest.serial != shown.serial).then_some(certificate));
    }
    let grounds = Grounds { shown_serial: Some(shown.serial.clone()), ..Grounds::of(CertificateOperation::Renew) };
    certify(app, &shown.aid, certificate.public_key(), grounds).await?.map(Some).ok_or_else(revoked)
}

fn read(identity: &Identity) -> Result<Certificate, Failure> {
    let certificate = Certificate::from_pem(&identity.certificate);
    certificate.ok_or_else(|| Failure::internal("a stored certificate cannot be read"))
}

fn unproved(message: &str) -> Failure {
    Failure::rule(Rule::MeshLogin, message)
}

fn revoked() -> Failure {
    Failure::rule(Rule::CertificateRevoked, "the certificate was revoked")
}
