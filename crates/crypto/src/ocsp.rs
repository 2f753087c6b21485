//! Responses to "is this certificate still valid?" (RFC 6960), signed by the issuer itself. There are two forms: the
//! mesh's published client hashes the issuer's whole key structure, while the standard hashes the key alone. Each takes a
//! response in the other's form for one about another issuer.

use der::{
    Choice, Decode, Enumerated, Sequence,
    asn1::{GeneralizedTime, Null, ObjectIdentifier, OctetString},
};
use jiff::Timestamp;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use x509_cert::{
    AlgorithmIdentifier,
    certificate::Version,
    ext::{Extension, pkix::CrlReason},
    name::Name,
    serial_number::SerialNumber,
};

use crate::{
    certificates::{Authority, Certificate, Serial, date_time},
    crl::Revocation,
    encoding::{octets, to_der},
    signed,
};

/// How long a response is valid. The mesh's published client caches one for at most a day.
pub const ANSWER_HOURS: i64 = 1;
pub const REQUEST_BYTES_MAX: usize = 4 * 1024;
/// Certificates in one request.
pub const QUESTIONS_MAX: usize = 16;
/// RFC 9654.
const NONCE_BYTES_MAX: usize = 128;
const CLOCK_SKEW_SECONDS: i64 = crate::certificates::CLOCK_SKEW_SECONDS;

const BASIC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.48.1.1");
const NONCE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.48.1.2");
const SHA1_OID: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.14.3.2.26");
const SHA256_OID: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.1");

/// The status of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OcspStatus {
    Good,
    Revoked(Revocation),
    /// This issuer never issued it.
    Unknown,
}

impl OcspStatus {
    /// The status's name in the mesh's protocol.
    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Revoked(_) => "revoked",
            Self::Unknown => "unknown",
        }
    }
}

/// How an issuer's key is hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseForm {
    /// RFC 6960: the key's bits.
    Standard,
    /// The published client: the key with its algorithm.
    MeshClient,
}

#[derive(Clone, Debug, PartialEq, Eq, Sequence)]
struct CertId {
    hash_algorithm: AlgorithmIdentifier,
    issuer_name_hash: OctetString,
    issuer_key_hash: OctetString,
    serial: SerialNumber,
}

impl CertId {
    fn new(issuer: &Certificate, serial: &Serial, hash: ObjectIdentifier, form: ResponseForm) -> Option<Self> {
        let (issuer_name_hash, issuer_key_hash) = issuer_hashes(issuer, hash, form)?;
        let hash_algorithm = AlgorithmIdentifier { oid: hash, parameters: None };
        Some(Self { hash_algorithm, issuer_name_hash, issuer_key_hash, serial: serial.number() })
    }

    /// Whether it names a certificate of this issuer. The serial in a request may be one that we could not write.
    fn is_of(&self, issuer: &Certificate, form: ResponseForm) -> bool {
        let named = (&self.issuer_name_hash, &self.issuer_key_hash);
        issuer_hashes(issuer, self.hash_algorithm.oid, form).is_some_and(|(name, key)| named == (&name, &key))
    }
}

/// How a request identifies an issuer: by the hashes of its name and key. `None` if the digest is unknown.
fn issuer_hashes(
    issuer: &Certificate,
    hash: ObjectIdentifier,
    form: ResponseForm,
) -> Option<(OctetString, OctetString)> {
    let algorithm = match hash {
        SHA1_OID => &SHA1_FOR_LEGACY_USE_ONLY,
        SHA256_OID => &SHA256,
        _ => return None,
    };
    let hashed = |bytes: &[u8]| octets(digest(algorithm, bytes).as_ref());
    let key = issuer.public_key();
    let key_hash = match form {
        ResponseForm::Standard => hashed(key.point()),
        ResponseForm::MeshClient => hashed(&key.to_spki_der()),
    };
    Some((hashed(&to_der(issuer.subject())), key_hash))
}

#[derive(Sequence)]
struct RequestOuter {
    body: OcspRequestBody,
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT", optional = "true")]
    signature: Option<der::asn1::Any>,
}

#[derive(Sequence)]
struct OcspRequestBody {
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT", default = "Default::default")]
    version: Version,
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT", optional = "true")]
    requestor: Option<der::asn1::Any>,
    questions: Vec<StatusQuestion>,
    #[asn1(context_specific = "2", tag_mode = "EXPLICIT", optional = "true")]
    extensions: Option<Vec<Extension>>,
}

#[derive(Sequence)]
struct StatusQuestion {
    certificate: CertId,
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT", optional = "true")]
    extensions: Option<Vec<Extension>>,
}

#[derive(Choice)]
enum Responder {
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT", constructed = "true")]
    ByName(Name),
    #[asn1(context_specific = "2", tag_mode = "EXPLICIT", constructed = "true")]
    ByKey(OctetString),
}

#[derive(Sequence)]
struct OcspAnswers {
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT", default = "Default::default")]
    version: Version,
    responder: Responder,
    produced_at: GeneralizedTime,
    answers: Vec<StatusAnswer>,
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT", optional = "true")]
    extensions: Option<Vec<Extension>>,
}

#[derive(Sequence)]
struct StatusAnswer {
    certificate: CertId,
    status: CertStatus,
    this_update: GeneralizedTime,
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT", optional = "true")]
    next_update: Option<GeneralizedTime>,
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT", optional = "true")]
    extensions: Option<Vec<Extension>>,
}

#[derive(Choice)]
enum CertStatus {
    #[asn1(context_specific = "0", tag_mode = "IMPLICIT")]
    Good(Null),
    #[asn1(context_specific = "1", tag_mode = "IMPLICIT", constructed = "true")]
    Revoked(RevokedInfo),
    #[asn1(context_specific = "2", tag_mode = "IMPLICIT")]
    Unknown(Null),
}

#[derive(Sequence)]
struct RevokedInfo {
    at: GeneralizedTime,
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT", optional = "true")]
    reason: Option<CrlReason>,
}

/// The status of a response. All except the first are errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumerated)]
#[repr(u8)]
enum ResponseOutcome {
    Successful = 0,
    MalformedRequest = 1,
    InternalError = 2,
    TryLater = 3,
    SigRequired = 5,
    Unauthorized = 6,
}

#[derive(Sequence)]
struct Response {
    outcome: ResponseOutcome,
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT", optional = "true")]
    bytes: Option<ResponseBytes>,
}

#[derive(Sequence)]
struct ResponseBytes {
    kind: ObjectIdentifier,
    bytes: OctetString,
}

/// A request in the standard form.
#[derive(Clone, Debug)]
pub struct OcspRequest {
    certificates: Vec<CertId>,
    nonce: Option<Extension>,
}

impl OcspRequest {
    /// Parses a request. `None` if we do not support it; the response is then [`malformed`].
    pub fn read(der: &[u8]) -> Option<Self> {
        if der.len() > REQUEST_BYTES_MAX {
            return None;
        }
        let body = RequestOuter::from_der(der).ok()?.body;
        let extensions = body.extensions.unwrap_or_default();
        let per_question = body.questions.iter().flat_map(|question| question.extensions.iter().flatten());
        let unknown = |extension: &Extension| extension.critical && extension.extn_id != NONCE;
        let nonce = extensions.iter().find(|extension| extension.extn_id == NONCE).cloned();
        let long = nonce.as_ref().is_some_and(|nonce| nonce.extn_value.as_bytes().len() > NONCE_BYTES_MAX + 4);
        let countable = (1..=QUESTIONS_MAX).contains(&body.questions.len());
        if body.version != Version::V1 || !countable || long || per_question.chain(&extensions).any(unknown) {
            return None;
        }
        let certificates = body.questions.into_iter().map(|question| question.certificate).collect();
        Some(Self { certificates, nonce })
    }

    /// The requested certificates, in order. `None` for one of another issuer.
    pub fn serials(&self, issuer: &Certificate) -> Vec<Option<Serial>> {
        let ours = |id: &CertId| id.is_of(issuer, ResponseForm::Standard).then(|| Serial::of(&id.serial));
        self.certificates.iter().map(ours).collect()
    }

    /// The response, given the statuses in the order of [`Self::serials`].
    pub fn answer(&self, issuer: &Authority, known: &[OcspStatus], now: Timestamp, next_update: Timestamp) -> Vec<u8> {
        let known = known.iter().copied().chain(std::iter::repeat(OcspStatus::Unknown));
        let answers = self.certificates.iter().cloned().zip(known);
        let answers = answers.map(|(certificate, status)| answer(certificate, status, now, next_update)).collect();
        sign(issuer, answers, self.nonce.clone(), now)
    }
}

/// A response about one certificate in the form of the published client.
#[expect(clippy::expect_used, reason = "the digest is one that we know")]
pub fn for_mesh_client(
    issuer: &Authority,
    serial: &Serial,
    known: OcspStatus,
    now: Timestamp,
    next_update: Timestamp,
) -> Vec<u8> {
    let certificate =
        CertId::new(issuer.certificate(), serial, SHA256_OID, ResponseForm::MeshClient).expect("a known digest");
    sign(issuer, vec![answer(certificate, known, now, next_update)], None, now)
}

/// The response to a malformed request. It is not signed.
pub fn malformed() -> Vec<u8> {
    let response = Response { outcome: ResponseOutcome::MalformedRequest, bytes: None };
    to_der(&response)
}

/// The status of a certificate in a response. `None` if the response is not about it, not signed by the issuer, or not
/// currently valid.
pub fn read(
    der: &[u8],
    form: ResponseForm,
    issuer: &Certificate,
    serial: &Serial,
    now: Timestamp,
) -> Option<OcspStatus> {
    let response = Response::from_der(der).ok()?;
    let bytes =
        response.bytes.filter(|bytes| response.outcome == ResponseOutcome::Successful && bytes.kind == BASIC)?;
    if !signed::is_signed_by(bytes.bytes.as_bytes(), issuer.public_key()) {
        return None;
    }
    let answers: OcspAnswers = signed::body(bytes.bytes.as_bytes())?;
    let ours = |answer: &StatusAnswer| {
        answer.certificate.is_of(issuer, form) && Serial::of(&answer.certificate.serial) == *serial
    };
    let answer = answers.answers.into_iter().find(ours)?;
    let seconds = |time: GeneralizedTime| i64::try_from(time.to_unix_duration().as_secs()).ok();
    let begun = seconds(answer.this_update)? <= now.as_second() + CLOCK_SKEW_SECONDS;
    if !begun || now.as_second() > seconds(answer.next_update?)? {
        return None;
    }
    Some(match answer.status {
        CertStatus::Good(_) => OcspStatus::Good,
        CertStatus::Unknown(_) => OcspStatus::Unknown,
        CertStatus::Revoked(info) => {
            let at = Timestamp::from_second(seconds(info.at)?).ok()?;
            OcspStatus::Revoked(Revocation { at, reason: info.reason.unwrap_or(CrlReason::Unspecified).into() })
        }
    })
}

fn answer(certificate: CertId, known: OcspStatus, now: Timestamp, next_update: Timestamp) -> StatusAnswer {
    let time = |time| GeneralizedTime::from_date_time(date_time(time));
    let status = match known {
        OcspStatus::Good => CertStatus::Good(Null),
        OcspStatus::Unknown => CertStatus::Unknown(Null),
        OcspStatus::Revoked(revocation) => CertStatus::Revoked(RevokedInfo {
            at: time(revocation.at),
            reason: Some(revocation.reason.code()).filter(|reason| *reason != CrlReason::Unspecified),
        }),
    };
    StatusAnswer { certificate, status, this_update: time(now), next_update: Some(time(next_update)), extensions: None }
}

fn sign(issuer: &Authority, answers: Vec<StatusAnswer>, nonce: Option<Extension>, now: Timestamp) -> Vec<u8> {
    let body = OcspAnswers {
        version: Version::V1,
        responder: Responder::ByName(issuer.certificate().subject().clone()),
        produced_at: GeneralizedTime::from_date_time(date_time(now)),
        answers,
        extensions: nonce.map(|nonce| vec![nonce]),
    };
    let bytes = octets(signed::sign(&body, issuer.key()));
    let response = Response { outcome: ResponseOutcome::Successful, bytes: Some(ResponseBytes { kind: BASIC, bytes }) };
    to_der(&response)
}
