//! Answers to "is this certificate still good?" (RFC 6960), signed by the issuer itself. There are two forms, for the
//! published client of the mesh hashes the issuer's whole key structure where the standard hashes the key alone: each
//! takes the other's answers for answers about somebody else.

use der::{
    Choice, Decode, Encode, Enumerated, Sequence,
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
    signed,
};

/// How long an answer is good for; the mesh's client keeps one for a day at most.
pub const ANSWER_HOURS: i64 = 1;
pub const REQUEST_BYTES_MAX: usize = 4 * 1024;
/// Certificates asked about at once.
pub const QUESTIONS_MAX: usize = 16;
/// RFC 9654.
const NONCE_BYTES_MAX: usize = 128;
const CLOCK_SKEW_SECONDS: i64 = crate::certificates::CLOCK_SKEW_SECONDS;

const BASIC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.48.1.1");
const NONCE: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.48.1.2");
const SHA1_OID: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.14.3.2.26");
const SHA256_OID: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.16.840.1.101.3.4.2.1");

/// What is known of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Good,
    Revoked(Revocation),
    /// This issuer never made it.
    Unknown,
}

impl Status {
    /// How the mesh writes it beside the answer.
    pub fn name(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Revoked(_) => "revoked",
            Self::Unknown => "unknown",
        }
    }
}

/// Whose idea of an issuer's key hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// RFC 6960: of the key's bits.
    Standard,
    /// The published client: of the key with its algorithm.
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
    fn new(issuer: &Certificate, serial: &Serial, hash: ObjectIdentifier, form: Form) -> Option<Self> {
        let (issuer_name_hash, issuer_key_hash) = issuer_hashes(issuer, hash, form)?;
        let hash_algorithm = AlgorithmIdentifier { oid: hash, parameters: None };
        Some(Self { hash_algorithm, issuer_name_hash, issuer_key_hash, serial: serial.number() })
    }

    /// Whether it names a certificate of this issuer. A stranger's serial may be none that we could write.
    fn is_of(&self, issuer: &Certificate, form: Form) -> bool {
        let named = (&self.issuer_name_hash, &self.issuer_key_hash);
        issuer_hashes(issuer, self.hash_algorithm.oid, form).is_some_and(|(name, key)| named == (&name, &key))
    }
}

/// How a question names an issuer: by its name and its key. `None`: not with this digest.
fn issuer_hashes(issuer: &Certificate, hash: ObjectIdentifier, form: Form) -> Option<(OctetString, OctetString)> {
    let algorithm = match hash {
        SHA1_OID => &SHA1_FOR_LEGACY_USE_ONLY,
        SHA256_OID => &SHA256,
        _ => return None,
    };
    let octets = |bytes: &[u8]| OctetString::new(digest(algorithm, bytes).as_ref()).expect("a digest is short");
    let key = issuer.public_key();
    let key_hash = match form {
        Form::Standard => octets(key.point()),
        Form::MeshClient => octets(&key.to_spki_der()),
    };
    Some((octets(&issuer.subject().to_der().expect("it was read")), key_hash))
}

#[derive(Sequence)]
struct RequestOuter {
    body: RequestBody,
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT", optional = "true")]
    signature: Option<der::asn1::Any>,
}

#[derive(Sequence)]
struct RequestBody {
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT", default = "Default::default")]
    version: Version,
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT", optional = "true")]
    requestor: Option<der::asn1::Any>,
    questions: Vec<Question>,
    #[asn1(context_specific = "2", tag_mode = "EXPLICIT", optional = "true")]
    extensions: Option<Vec<Extension>>,
}

#[derive(Sequence)]
struct Question {
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
struct Answers {
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT", default = "Default::default")]
    version: Version,
    responder: Responder,
    produced_at: GeneralizedTime,
    answers: Vec<Answer>,
    #[asn1(context_specific = "1", tag_mode = "EXPLICIT", optional = "true")]
    extensions: Option<Vec<Extension>>,
}

#[derive(Sequence)]
struct Answer {
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

/// How an answer begins; all but the first stand for no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumerated)]
#[repr(u8)]
enum Outcome {
    Successful = 0,
    MalformedRequest = 1,
    InternalError = 2,
    TryLater = 3,
    SigRequired = 5,
    Unauthorized = 6,
}

#[derive(Sequence)]
struct Response {
    outcome: Outcome,
    #[asn1(context_specific = "0", tag_mode = "EXPLICIT", optional = "true")]
    bytes: Option<ResponseBytes>,
}

#[derive(Sequence)]
struct ResponseBytes {
    kind: ObjectIdentifier,
    bytes: OctetString,
}

/// A question in the standard form.
#[derive(Clone, Debug)]
pub struct Request {
    certificates: Vec<CertId>,
    nonce: Option<Extension>,
}

impl Request {
    /// `None`: not a request that we understand; [`malformed`] is the answer.
    pub fn read(der: &[u8]) -> Option<Self> {
        if der.len() > REQUEST_BYTES_MAX {
            return None;
        }
        let body = RequestOuter::from_der(der).ok()?.body;
        let extensions = body.extensions.unwrap_or_default();
        let asked = body.questions.iter().flat_map(|question| question.extensions.iter().flatten());
        let unknown = |extension: &Extension| extension.critical && extension.extn_id != NONCE;
        let nonce = extensions.iter().find(|extension| extension.extn_id == NONCE).cloned();
        let long = nonce.as_ref().is_some_and(|nonce| nonce.extn_value.as_bytes().len() > NONCE_BYTES_MAX + 4);
        let countable = (1..=QUESTIONS_MAX).contains(&body.questions.len());
        if body.version != Version::V1 || !countable || long || asked.chain(&extensions).any(unknown) {
            return None;
        }
        let certificates = body.questions.into_iter().map(|question| question.certificate).collect();
        Some(Self { certificates, nonce })
    }

    /// The certificates asked about, in their order. `None` stands for one of another issuer.
    pub fn serials(&self, issuer: &Certificate) -> Vec<Option<Serial>> {
        let ours = |id: &CertId| id.is_of(issuer, Form::Standard).then(|| Serial::of(&id.serial));
        self.certificates.iter().map(ours).collect()
    }

    /// Answers each question, given what is known in the order of [`Self::serials`].
    pub fn answer(&self, issuer: &Authority, known: &[Status], now: Timestamp, next_update: Timestamp) -> Vec<u8> {
        let known = known.iter().copied().chain(std::iter::repeat(Status::Unknown));
        let answers = self.certificates.iter().cloned().zip(known);
        let answers = answers.map(|(certificate, status)| answer(certificate, status, now, next_update)).collect();
        sign(issuer, answers, self.nonce.clone(), now)
    }
}

/// The answer about one certificate that the published client understands.
pub fn for_mesh_client(
    issuer: &Authority,
    serial: &Serial,
    known: Status,
    now: Timestamp,
    next_update: Timestamp,
) -> Vec<u8> {
    let certificate = CertId::new(issuer.certificate(), serial, SHA256_OID, Form::MeshClient).expect("a known digest");
    sign(issuer, vec![answer(certificate, known, now, next_update)], None, now)
}

/// "This was no request." It is not signed.
pub fn malformed() -> Vec<u8> {
    let response = Response { outcome: Outcome::MalformedRequest, bytes: None };
    response.to_der().expect("our own types can be written")
}

/// What an issuer says of a certificate. `None`: it does not say, or not to this question, or not now.
pub fn read(der: &[u8], form: Form, issuer: &Certificate, serial: &Serial, now: Timestamp) -> Option<Status> {
    let response = Response::from_der(der).ok()?;
    let bytes = response.bytes.filter(|bytes| response.outcome == Outcome::Successful && bytes.kind == BASIC)?;
    if !signed::is_signed_by(bytes.bytes.as_bytes(), issuer.public_key()) {
        return None;
    }
    let answers: Answers = signed::body(bytes.bytes.as_bytes())?;
    let ours =
        |answer: &Answer| answer.certificate.is_of(issuer, form) && Serial::of(&answer.certificate.serial) == *serial;
    let answer = answers.answers.into_iter().find(ours)?;
    let seconds = |time: GeneralizedTime| i64::try_from(time.to_unix_duration().as_secs()).ok();
    let begun = seconds(answer.this_update)? <= now.as_second() + CLOCK_SKEW_SECONDS;
    if !begun || now.as_second() > seconds(answer.next_update?)? {
        return None;
    }
    Some(match answer.status {
        CertStatus::Good(_) => Status::Good,
        CertStatus::Unknown(_) => Status::Unknown,
        CertStatus::Revoked(info) => {
            let at = Timestamp::from_second(seconds(info.at)?).ok()?;
            Status::Revoked(Revocation { at, reason: info.reason.unwrap_or(CrlReason::Unspecified).into() })
        }
    })
}

fn answer(certificate: CertId, known: Status, now: Timestamp, next_update: Timestamp) -> Answer {
    let time = |time| GeneralizedTime::from_date_time(date_time(time));
    let status = match known {
        Status::Good => CertStatus::Good(Null),
        Status::Unknown => CertStatus::Unknown(Null),
        Status::Revoked(revocation) => CertStatus::Revoked(RevokedInfo {
            at: time(revocation.at),
            reason: Some(revocation.reason.code()).filter(|reason| *reason != CrlReason::Unspecified),
        }),
    };
    Answer { certificate, status, this_update: time(now), next_update: Some(time(next_update)), extensions: None }
}

fn sign(issuer: &Authority, answers: Vec<Answer>, nonce: Option<Extension>, now: Timestamp) -> Vec<u8> {
    let body = Answers {
        version: Version::V1,
        responder: Responder::ByName(issuer.certificate().subject().clone()),
        produced_at: GeneralizedTime::from_date_time(date_time(now)),
        answers,
        extensions: nonce.map(|nonce| vec![nonce]),
    };
    let bytes = OctetString::new(signed::sign(&body, issuer.key())).expect("an answer is short");
    let response = Response { outcome: Outcome::Successful, bytes: Some(ResponseBytes { kind: BASIC, bytes }) };
    response.to_der().expect("our own types can be written")
}
