//! Who may still be believed: the chain of authorities, what was revoked, and the list of roots. What costs a signature is
//! signed once and given to many, and is signed anew as soon as it says something else.

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
use ostler_store as store;

use crate::{
    pki::{hours_after, list_until},
    state::Mesh,
};
use ostler_server::app::App;

/// What is signed is good for longer; it is signed anew after this.
const SIGNED_ANEW: SignedDuration = SignedDuration::from_mins(30);
/// RFC 6960 has requests of up to 255 bytes asked for by their path; longer ones are posted.
const REQUEST_TEXT_BYTES_MAX: usize = 1_024;

/// A revocation list, and what it was made of.
#[derive(Clone)]
pub struct SignedList {
    last_revocation: i64,
    made_at: Timestamp,
    pub der: Arc<[u8]>,
}

/// An answer about one certificate.
#[derive(Clone)]
pub struct StatusAnswer {
    status: ocsp::Status,
    made_at: Timestamp,
    der: Arc<[u8]>,
}

fn is_fresh(made_at: Timestamp, now: Timestamp) -> bool {
    (SignedDuration::ZERO..SIGNED_ANEW).contains(&now.duration_since(made_at))
}

/// Issuer, registry, root.
pub fn chain(app: &App) -> Result<String, Failure> {
    Ok(Mesh::of(app).pki()?.chain().to_pem())
}

pub fn root(app: &App) -> Result<String, Failure> {
    Ok(Mesh::of(app).pki()?.root().to_pem())
}

/// Everything that was revoked, as it stands.
pub async fn revocations(app: &App) -> Result<SignedList, Failure> {
    let pki = Mesh::of(app).pki()?;
    let (now, last) = (app.wall(), store::mesh::identities::last_revocation(&app.db).await?);
    let known = Mesh::of(app).revocations.lock().expect("never poisoned").clone();
    if let Some(known) = known.filter(|known| known.last_revocation == last && is_fresh(known.made_at, now)) {
        return Ok(known);
    }
    // RFC 5280: what has expired is on one more list, and then on none.
    let good_at = hours_after(now, -crl::LIST_HOURS);
    let revoked = store::mesh::identities::list_revoked(&app.db, good_at).await?;
    let entries: Vec<(Serial, Revocation)> = revoked
        .into_iter()
        .filter_map(|(serial, at, reason)| Some((serial.parse().ok()?, Revocation { at, reason: signed_as(reason) })))
        .collect();
    // Numbers of lists rise; so does the server's time, also when the wall clock is set back.
    let number = app.now().as_microsecond().max(0) as u64;
    let list = entries.iter().map(|(serial, revocation)| (serial, *revocation));
    // A reader's clock may be a little behind.
    let from = now.saturating_sub(SignedDuration::from_secs(CLOCK_SKEW_SECONDS)).unwrap_or(now);
    let der = crl::make(pki.issuer(), number, list, from, list_until(now));
    let made = SignedList { last_revocation: last, made_at: now, der: der.into() };
    *Mesh::of(app).revocations.lock().expect("never poisoned") = Some(made.clone());
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

async fn status_of(app: &App, serial: &Serial) -> Result<ocsp::Status, Failure> {
    let known = store::mesh::identities::find_status(&app.db, &serial.to_string()).await?;
    Ok(match known {
        None => ocsp::Status::Unknown,
        Some(store::mesh::identities::Status::Good) => ocsp::Status::Good,
        Some(store::mesh::identities::Status::Revoked { at, reason }) => {
            ocsp::Status::Revoked(Revocation { at, reason: signed_as(reason) })
        }
    })
}

/// What is known of a certificate, in the form that the published client reads.
pub async fn status(app: &App, peer: IpAddr, serial: &str) -> Result<CertificateStatus, Failure> {
    let pki = Mesh::of(app).pki()?;
    let serial: Serial = serial.parse().map_err(|_| Failure::not_found("certificate"))?;
    let (now, status, name) = (app.wall(), status_of(app, &serial).await?, serial.to_string());
    let known = Mesh::of(app).answers.get(&name);
    let der = match known.filter(|known| known.status == status && is_fresh(known.made_at, now)) {
        Some(known) => known.der,
        None => {
            Mesh::of(app).count_signature(peer, app.now())?;
            let until = hours_after(now, ocsp::ANSWER_HOURS);
            let der: Arc<[u8]> = ocsp::for_mesh_client(pki.issuer(), &serial, status, now, until).into();
            // Numbers that nobody has would push out the others.
            if status != ocsp::Status::Unknown {
                Mesh::of(app).answers.insert(name, StatusAnswer { status, made_at: now, der: der.clone() });
            }
            der
        }
    };
    Ok(CertificateStatus { status: status.name().into(), ocsp_response: BASE64.encode(der) })
}

/// A request of RFC 6960 as it stands in a path. `None`: it is none.
pub fn requested(text: &str) -> Option<Vec<u8>> {
    let request = BASE64.decode(text).ok().filter(|_| text.len() <= REQUEST_TEXT_BYTES_MAX)?;
    ocsp::Request::read(&request).is_some().then_some(request)
}

/// An answer as RFC 6960 has it. What is no request has an answer, too.
pub async fn answer(app: &App, peer: IpAddr, request: &[u8]) -> Result<Vec<u8>, Failure> {
    let pki = Mesh::of(app).pki()?;
    let Some(request) = ocsp::Request::read(request) else { return Ok(ocsp::malformed()) };
    Mesh::of(app).count_signature(peer, app.now())?;
    let mut known = vec![];
    for serial in request.serials(pki.issuer().certificate()) {
        known.push(match serial {
            Some(serial) => status_of(app, &serial).await?,
            None => ocsp::Status::Unknown,
        });
    }
    let now = app.wall();
    Ok(request.answer(pki.issuer(), &known, now, hours_after(now, ocsp::ANSWER_HOURS)))
}

/// The signed list of trusted roots.
pub fn trust_roots(app: &App) -> Result<Arc<str>, Failure> {
    let (pki, now) = (Mesh::of(app).pki()?, app.wall());
    let mut roots = Mesh::of(app).roots.lock().expect("never poisoned");
    if let Some((_, list)) = roots.as_ref().filter(|(made_at, _)| is_fresh(*made_at, now)) {
        return Ok(list.clone());
    }
    let list: Arc<str> =
        serde_json::Value::Object(pki.trust_list(&Mesh::of(app).config.base_url(&app.config), now)).to_string().into();
    *roots = Some((now, list.clone()));
    Ok(list)
}

/// Where the gateway is, for somebody who asked under this host name.
pub fn discover(app: &App, host: &str) -> Result<Discovery, Failure> {
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

/// Whether a host name is the domain, or lies in it.
pub fn is_within(domain: &str, host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    host.strip_suffix(domain).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}
