//! What clients need to verify certificates: the chain of authorities, revocations, and the list of roots. A signed response is
//! cached for many clients, and signed again as soon as its content changes.

mod signed;
pub(crate) use signed::{SignedList, StatusResponse};

use std::{net::IpAddr, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use jiff::SignedDuration;
use ostler_crypto::{
    certificates::{CLOCK_SKEW_SECONDS, Serial},
    crl::{self, Reason, Revocation},
    ocsp,
};
use ostler_protocol::{
    Failure, Timestamp,
    mesh::{
        identities::RevocationReason,
        pki::{CertificateStatus, Discovery, GATEWAY_PATH, Gateway},
    },
};
use ostler_server::app::App;
use ostler_store as store;

use crate::{
    pki::{hours_after, list_until},
    state::Mesh,
};

/// A signed response is valid for longer, but is signed again after this.
const SIGN_AGAIN_AFTER: SignedDuration = SignedDuration::from_mins(30);
/// By RFC 6960, requests of up to 255 bytes are sent in the path; longer ones are posted.
const REQUEST_TEXT_BYTES_MAX: usize = 1_024;

fn is_fresh(made_at: Timestamp, now: Timestamp) -> bool {
    (SignedDuration::ZERO..SIGN_AGAIN_AFTER).contains(&now.duration_since(made_at))
}

/// Issuer, registry, root.
pub(crate) fn chain(app: &App) -> Result<String, Failure> {
    Ok(Mesh::of(app).pki()?.chain().to_pem())
}

pub(crate) fn root(app: &App) -> Result<String, Failure> {
    Ok(Mesh::of(app).pki()?.root().to_pem())
}

/// The current revocation list.
pub(crate) async fn revocations(app: &App) -> Result<SignedList, Failure> {
    let pki = Mesh::of(app).pki()?;
    let (now, last) = (app.wall(), store::mesh::identities::last_revocation(&app.db).await?);
    let cached = Mesh::of(app).revocations.lock().clone();
    if let Some(cached) = cached.filter(|cached| cached.last_revocation == last && is_fresh(cached.made_at, now)) {
        return Ok(cached);
    }
    // RFC 5280: a certificate that has expired is on one more list, and then on none.
    let good_at = hours_after(now, -crl::LIST_HOURS);
    let revoked = store::mesh::identities::list_revoked(&app.db, good_at).await?;
    let entries: Vec<(Serial, Revocation)> = revoked
        .into_iter()
        .filter_map(|(serial, at, reason)| Some((serial.parse().ok()?, Revocation { at, reason: signed_as(reason) })))
        .collect();
    // The numbers of lists must rise. The server's time does, also when the wall clock is set back.
    let number = app.now().as_microsecond().max(0) as u64;
    let list = entries.iter().map(|(serial, revocation)| (serial, *revocation));
    // A reader's clock may be a little behind.
    let from = now.saturating_sub(SignedDuration::from_secs(CLOCK_SKEW_SECONDS)).unwrap_or(now);
    let der = crl::make(pki.issuer(), number, list, from, list_until(now));
    let made = SignedList { last_revocation: last, made_at: now, der: der.into() };
    *Mesh::of(app).revocations.lock() = Some(made.clone());
    Ok(made)
}

fn signed_as(reason: RevocationReason) -> Reason {
    match reason {
        RevocationReason::Unspecified => Reason::Unspecified,
        RevocationReason::KeyCompromise => Reason::KeyCompromise,
        RevocationReason::Superseded => Reason::Superseded,
        RevocationReason::CessationOfOperation => Reason::CessationOfOperation,
    }
}

async fn status_of(app: &App, serial: &Serial) -> Result<ocsp::OcspStatus, Failure> {
    let found = store::mesh::identities::find_status(&app.db, &serial.to_string()).await?;
    Ok(match found {
        None => ocsp::OcspStatus::Unknown,
        Some(store::mesh::identities::Status::Good) => ocsp::OcspStatus::Good,
        Some(store::mesh::identities::Status::Revoked { at, reason }) => {
            ocsp::OcspStatus::Revoked(Revocation { at, reason: signed_as(reason) })
        }
    })
}

/// The status of a certificate, in the form that the published client reads.
pub(crate) async fn status(app: &App, peer: IpAddr, serial: &str) -> Result<CertificateStatus, Failure> {
    let pki = Mesh::of(app).pki()?;
    let serial: Serial = serial.parse().map_err(|_| Failure::not_found("certificate"))?;
    let (now, status, name) = (app.wall(), status_of(app, &serial).await?, serial.to_string());
    let cached = Mesh::of(app).status_responses.get(&name);
    let der = match cached.filter(|cached| cached.status == status && is_fresh(cached.made_at, now)) {
        Some(cached) => cached.der,
        None => {
            Mesh::of(app).count_signature(peer, app.now())?;
            let until = hours_after(now, ocsp::ANSWER_HOURS);
            let der: Arc<[u8]> = ocsp::for_mesh_client(pki.issuer(), &serial, status, now, until).into();
            // Serials of no certificate would evict the others from the cache.
            if status != ocsp::OcspStatus::Unknown {
                let response = StatusResponse { status, made_at: now, der: der.clone() };
                Mesh::of(app).status_responses.insert(name, response);
            }
            der
        }
    };
    Ok(CertificateStatus { status: status.name().into(), ocsp_response: BASE64.encode(der) })
}

/// Decodes an RFC 6960 request from a path. `None` if the text is not a request.
pub(crate) fn decode_request(text: &str) -> Option<Vec<u8>> {
    let request = BASE64.decode(text).ok().filter(|_| text.len() <= REQUEST_TEXT_BYTES_MAX)?;
    ocsp::OcspRequest::read(&request).is_some().then_some(request)
}

/// The response to an RFC 6960 request. A malformed request has a response, too.
pub(crate) async fn respond(app: &App, peer: IpAddr, request: &[u8]) -> Result<Vec<u8>, Failure> {
    let pki = Mesh::of(app).pki()?;
    let Some(request) = ocsp::OcspRequest::read(request) else { return Ok(ocsp::malformed()) };
    Mesh::of(app).count_signature(peer, app.now())?;
    let mut statuses = vec![];
    for serial in request.serials(pki.issuer().certificate()) {
        statuses.push(match serial {
            Some(serial) => status_of(app, &serial).await?,
            None => ocsp::OcspStatus::Unknown,
        });
    }
    let now = app.wall();
    Ok(request.answer(pki.issuer(), &statuses, now, hours_after(now, ocsp::ANSWER_HOURS)))
}

/// The signed list of trusted roots.
pub(crate) fn trust_roots(app: &App) -> Result<Arc<str>, Failure> {
    let (pki, now) = (Mesh::of(app).pki()?, app.wall());
    let mut roots = Mesh::of(app).roots.lock();
    if let Some((_, list)) = roots.as_ref().filter(|(made_at, _)| is_fresh(*made_at, now)) {
        return Ok(list.clone());
    }
    let list: Arc<str> =
        serde_json::Value::Object(pki.trust_list(&Mesh::of(app).config.base_url(&app.config), now)).to_string().into();
    *roots = Some((now, list.clone()));
    Ok(list)
}

/// The gateway's URL, for a client whose request had this host name.
pub(crate) fn discover(app: &App, host: &str) -> Result<Discovery, Failure> {
    let pki = Mesh::of(app).pki()?;
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => (name, format!(":{port}")),
        _ => (host, String::new()),
    };
    // All names of the domain are one server; clients of other domains look for its gateway by this one.
    let is_ours = is_within(pki.domain().as_str(), name);
    let authority = if is_ours { format!("gateway.{}{port}", pki.domain()) } else { host.to_owned() };
    let scheme = if app.config.server.tls_cert.is_some() { "wss" } else { "ws" };
    let url = Mesh::of(app).config.gateway_url.clone();
    let url = url.unwrap_or_else(|| format!("{scheme}://{authority}{GATEWAY_PATH}"));
    Ok(Discovery { gateways: vec![Gateway { url, priority: 1 }] })
}

/// Whether a host name is the domain or a name in it.
pub(crate) fn is_within(domain: &str, host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    host.strip_suffix(domain).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}
