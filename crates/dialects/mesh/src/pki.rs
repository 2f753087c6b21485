//! The keys of this server's domain: root, registry, issuer and the auth service, and the key that signs the list of roots.
//! They are generated at the first start, or supplied. Private keys are stored sealed, certificates beside them in the clear.
//! The services decide whom to certify.

use std::sync::Arc;

use jiff::SignedDuration;
use ostler_crypto::{
    Zeroizing,
    certificates::{Authority, Certificate, CertificateKind, Chain, Serial},
    crl,
    keys::{Curve, PrivateKey, PublicKey},
    seal::{KEY_BYTES, NONCE_BYTES, SealingKey},
    trust_list::{self, Root},
};
use ostler_protocol::{
    Failure, FailureKind, Rule, Timestamp,
    json::{hex, unhex},
    mesh::{Aid, Domain},
};
use parking_lot::RwLock;
use secrecy::{ExposeSecret, SecretString};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::config::MeshSection;
use ostler_server::{
    clock,
    config::Config,
    directories,
    secrets::{
        SecretStore,
        sealed::{Found, SealedFiles},
        sealing_key,
    },
};

const ROOT: &str = "root";
const REGISTRY: &str = "registry";
/// The prefix of an issuer's file name, before its domain.
const ISSUER: &str = "issuer-";
const AUTHORITY: &str = "authority";
const TICKETS: &str = "tickets";
/// A client should fetch the list of roots again after this long.
const TRUST_LIST_HOURS: i64 = 24;

pub struct Pki {
    domain: Domain,
    issuer: Authority,
    auth: RwLock<Arc<Holder>>,
    chain: Chain,
    authority: PrivateKey,
    tickets: SealingKey,
}

/// A certificate with its key.
pub struct Holder {
    pub certificate: Certificate,
    key: PrivateKey,
}

impl Holder {
    /// Signs a client's nonce, which proves to the client that it talks to this holder.
    pub fn sign(&self, text: &str) -> String {
        self.key.sign_base64(text.as_bytes())
    }
}

/// An authority that was made elsewhere, as PEM.
pub struct Supplied {
    pub root: String,
    pub registry: String,
    pub issuer: String,
    pub issuer_key: SecretString,
}

impl Pki {
    /// Reads the keys of the configured domain, and generates the missing ones.
    pub fn open(config: &Config, now: Timestamp) -> Result<Self, Failure> {
        let files = open_files(config)?;
        // A server that starts at the same time waits here, and then finds the generated keys.
        let _lock = files.lock()?;
        Self::assemble(section(config).domain()?, &Maker { files: &files, now, makes: true })
    }

    /// Reads the keys without generating or changing any.
    pub fn read(config: &Config, now: Timestamp) -> Result<Self, Failure> {
        if !SecretStore::has_key(config)? {
            return Err(unfit("the key with which they are sealed is missing"));
        }
        let files = SealedFiles::existing(section(config).pki_directory(config)?, sealing_key(config)?);
        Self::assemble(section(config).domain()?, &Maker { files: &files, now, makes: false })
    }

    /// The domains whose issuers' certificates are in the directory, sorted.
    pub fn domains(config: &Config) -> Result<Vec<Domain>, Failure> {
        let entries = std::fs::read_dir(section(config).pki_directory(config)?).into_iter().flatten().flatten();
        let domain = |file: std::ffi::OsString| file.to_str()?.strip_prefix(ISSUER)?.strip_suffix(".crt")?.parse().ok();
        let mut domains: Vec<Domain> = entries.filter_map(|entry| domain(entry.file_name())).collect();
        domains.sort();
        Ok(domains)
    }

    fn assemble(domain: Domain, maker: &Maker<'_>) -> Result<Self, Failure> {
        let root = maker.root()?;
        let registry = maker.registry(&root)?;
        let issuer = maker.issuer(&domain, &registry)?;
        let authorities = [issuer.certificate(), registry.certificate(), root.certificate()].map(Clone::clone);
        let chain = Chain::verify(authorities.to_vec(), std::slice::from_ref(root.certificate()), maker.now)
            .map_err(|fault| unfit(&fault.to_string()))?;
        let auth = RwLock::new(Arc::new(maker.auth(&domain, &issuer)?));
        let authority = maker.key(AUTHORITY, Curve::P384)?;
        let tickets = maker.random(TICKETS)?;
        Ok(Self { domain, issuer, auth, chain, authority, tickets })
    }

    /// Imports an authority that was made elsewhere. Fails if the directory already has keys.
    pub fn import(config: &Config, supplied: &Supplied, now: Timestamp) -> Result<Self, Failure> {
        let domain = section(config).domain()?;
        let read = |what: &str, pem: &str| {
            Certificate::from_pem(pem).ok_or_else(|| mistaken(&format!("{what} is not one certificate in PEM")))
        };
        let (root, registry) = (read("the root", &supplied.root)?, read("the registry", &supplied.registry)?);
        let issuer = read("the issuer", &supplied.issuer)?;
        let key = PrivateKey::from_pem(supplied.issuer_key.expose_secret());
        let key = key.ok_or_else(|| mistaken("the issuer's key is not PKCS#8 in PEM, on P-256 or P-384"))?;
        if issuer.name() != domain.as_str() {
            return Err(mistaken(&format!("the issuer is of {:?}, not of {domain}", issuer.name())));
        }
        if key.curve() != CertificateKind::Issuer.curve() {
            let (is, needed) = (key.curve().name(), CertificateKind::Issuer.curve().name());
            return Err(mistaken(&format!("the issuer's key is on {is}, and has to be on {needed}")));
        }
        let authority = Authority::new(CertificateKind::Issuer, key.clone(), issuer.clone());
        let authority = authority
            .ok_or_else(|| mistaken("the issuer's key is not its certificate's, or the certificate is no issuer's"))?;
        let authorities = vec![issuer.clone(), registry.clone(), root.clone()];
        Chain::verify(authorities, std::slice::from_ref(&root), now).map_err(|fault| mistaken(&fault.to_string()))?;
        // An issuer that cannot certify the auth service is useless, so it is not stored.
        let service = domain.service("auth");
        if authority.issue(CertificateKind::Service, &service, &key.public_key(), &serial(), now).is_none() {
            return Err(mistaken(&format!("the issuer cannot certify {service}")));
        }
        let files = open_files(config)?;
        {
            let _lock = files.lock()?;
            if files.get_plain(&certificate_file(ROOT))?.is_some() {
                let message = "there are keys already; name another mesh.pki_directory, or remove this one";
                return Err(Failure::rule(Rule::PkiThere, message));
            }
            files.put_plain(&certificate_file(ROOT), &root.to_pem())?;
            files.put_plain(&certificate_file(REGISTRY), &registry.to_pem())?;
            let name = issuer_name(&domain);
            files.put(&name, &key.to_pkcs8_der())?;
            files.put_plain(&certificate_file(&name), &issuer.to_pem())?;
        }
        Self::open(config, now)
    }

    pub fn domain(&self) -> &Domain {
        &self.domain
    }

    pub fn issuer(&self) -> &Authority {
        &self.issuer
    }

    pub fn root(&self) -> &Certificate {
        self.chain.root()
    }

    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// The auth service.
    pub fn auth(&self) -> Arc<Holder> {
        self.auth.read().clone()
    }

    /// The auth service with its next certificate, once the current one is past half its life.
    pub fn next_auth(&self, config: &Config, now: Timestamp) -> Result<Option<Holder>, Failure> {
        if !self.auth().certificate.is_due_for_renewal(now) {
            return Ok(None);
        }
        let files = SealedFiles::open(section(config).pki_directory(config)?, sealing_key(config)?)?;
        let _lock = files.lock()?;
        Maker { files: &files, now, makes: true }.auth(&self.domain, &self.issuer).map(Some)
    }

    pub fn put_auth(&self, auth: Holder) {
        *self.auth.write() = Arc::new(auth);
    }

    /// Issues a certificate for a name of this domain. `None` if the key or the name does not qualify.
    pub fn certify(&self, aid: &Aid, key: &PublicKey, now: Timestamp) -> Option<Certificate> {
        self.issuer.issue(CertificateKind::Identity, aid.as_str(), key, &serial(), now)
    }

    /// The signed list of trusted roots, which contains only this domain's root. Its URLs for revocations start with `base`.
    pub fn trust_list(&self, base: &str, now: Timestamp) -> Map<String, Value> {
        let root = self.root();
        let root_entry = Root::active("root-1", "", root, &format!("{base}/pki/crl"), &format!("{base}/pki/ocsp"));
        // A later root makes a later list.
        let version = root.not_before().as_second().max(0) as u64;
        trust_list::sign(&self.authority, version, now, hours_after(now, TRUST_LIST_HOURS), &[root_entry])
    }

    /// The key that clients pin to verify the list of roots.
    pub fn authority(&self) -> PublicKey {
        self.authority.public_key()
    }

    /// Seals content for a client, which sends it back unchanged. Only servers with this key can read or make a ticket.
    #[expect(clippy::expect_used, reason = "our own types serialise")]
    pub fn ticket(&self, purpose: &str, content: &impl Serialize) -> String {
        let mut nonce = [0; NONCE_BYTES];
        clock::fill(&mut nonce);
        let text = serde_json::to_vec(content).expect("our own types serialise");
        hex(&self.tickets.seal(nonce, purpose.as_bytes(), &text))
    }

    /// Opens a ticket. `None` if it was not made with this key and for this purpose.
    pub fn open_ticket<T: DeserializeOwned>(&self, purpose: &str, ticket: &str) -> Option<T> {
        serde_json::from_slice(&self.tickets.open(purpose.as_bytes(), &unhex(ticket)?)?).ok()
    }
}

pub fn hours_after(now: Timestamp, hours: i64) -> Timestamp {
    now.saturating_add(SignedDuration::from_hours(hours)).unwrap_or(Timestamp::MAX)
}

/// Until when a revocation list that is made now is valid.
pub fn list_until(now: Timestamp) -> Timestamp {
    hours_after(now, crl::LIST_HOURS)
}

fn serial() -> Serial {
    Serial::random(&mut clock::fill)
}

fn certificate_file(name: &str) -> String {
    format!("{name}.crt")
}

fn issuer_name(domain: &Domain) -> String {
    format!("{ISSUER}{domain}")
}

/// The directory of the keys, created if it is missing: `ostler pki init` may be the first command of all.
fn open_files(config: &Config) -> Result<SealedFiles, Failure> {
    directories::make(&config.data_dir()?)?;
    SealedFiles::open(section(config).pki_directory(config)?, sealing_key(config)?)
}

/// What the directory has of an authority: the private key of a supplied certificate may be elsewhere.
enum StoredAuthority {
    Certificate(Certificate),
    Authority(Authority),
}

impl StoredAuthority {
    fn certificate(&self) -> &Certificate {
        match self {
            Self::Certificate(certificate) => certificate,
            Self::Authority(authority) => authority.certificate(),
        }
    }
}

/// Reads keys and certificates, and generates missing ones if it may.
struct Maker<'a> {
    files: &'a SealedFiles,
    now: Timestamp,
    makes: bool,
}

impl Maker<'_> {
    /// Fails if a missing key or certificate must not be generated.
    fn check_may_make(&self, name: &str) -> Result<(), Failure> {
        let missing = || Failure::not_found(&format!("{name} among the mesh's keys here; `ostler pki init` makes it"));
        if self.makes { Ok(()) } else { Err(missing()) }
    }

    fn root(&self) -> Result<StoredAuthority, Failure> {
        if let Some(stored) = self.find_authority(CertificateKind::Root, ROOT)? {
            return Ok(stored);
        }
        self.check_may_make(ROOT)?;
        let key = PrivateKey::generate(Curve::P384, &mut clock::fill);
        let root = Authority::root("Ostler Root", key, &serial(), self.now);
        self.store(ROOT, &root)?;
        Ok(StoredAuthority::Authority(root))
    }

    fn registry(&self, root: &StoredAuthority) -> Result<StoredAuthority, Failure> {
        match (self.find_authority(CertificateKind::Registry, REGISTRY)?, root) {
            (Some(stored), _) => Ok(stored),
            (None, StoredAuthority::Authority(root)) => {
                self.below(root, CertificateKind::Registry, REGISTRY, "Ostler Registry").map(StoredAuthority::Authority)
            }
            (None, StoredAuthority::Certificate(_)) => {
                Err(unfit("the root's key is missing, and there is no registry"))
            }
        }
    }

    fn issuer(&self, domain: &Domain, registry: &StoredAuthority) -> Result<Authority, Failure> {
        let name = issuer_name(domain);
        match (self.find_authority(CertificateKind::Issuer, &name)?, registry) {
            (Some(StoredAuthority::Authority(issuer)), _) => Ok(issuer),
            (Some(StoredAuthority::Certificate(_)), _) => {
                Err(unfit(&format!("the key of {domain}'s issuer is missing")))
            }
            (None, StoredAuthority::Authority(registry)) => {
                self.below(registry, CertificateKind::Issuer, &name, domain.as_str())
            }
            (None, StoredAuthority::Certificate(_)) => {
                Err(unfit(&format!("the registry's key is missing, and there is no issuer of {domain}")))
            }
        }
    }

    /// The auth service. Its certificate is renewed in its second half, by the first server that may.
    fn auth(&self, domain: &Domain, issuer: &Authority) -> Result<Holder, Failure> {
        let name = format!("auth-{domain}");
        let key = self.key(&name, Curve::P384)?;
        let stored = self.certificate(&name)?.filter(|stored| {
            let is_fresh = stored.is_valid_at(self.now) && !stored.is_due_for_renewal(self.now);
            *stored.public_key() == key.public_key() && (is_fresh || !self.makes)
        });
        let certificate = match stored {
            Some(stored) => stored,
            None => {
                self.check_may_make(&name)?;
                let service = domain.service("auth");
                let made = issuer.issue(CertificateKind::Service, &service, &key.public_key(), &serial(), self.now);
                let made = made.ok_or_else(|| unfit(&format!("the issuer of {domain} cannot certify {service}")))?;
                self.files.put_plain(&certificate_file(&name), &made.to_pem())?;
                made
            }
        };
        Ok(Holder { certificate, key })
    }

    fn below(&self, above: &Authority, kind: CertificateKind, name: &str, called: &str) -> Result<Authority, Failure> {
        self.check_may_make(name)?;
        let key = PrivateKey::generate(Curve::P384, &mut clock::fill);
        let certificate = above.issue(kind, called, &key.public_key(), &serial(), self.now);
        let authority = certificate.and_then(|certificate| Authority::new(kind, key, certificate));
        let authority = authority.ok_or_else(|| unfit(&format!("{called:?} cannot be certified")))?;
        self.store(name, &authority)?;
        Ok(authority)
    }

    fn find_authority(&self, kind: CertificateKind, name: &str) -> Result<Option<StoredAuthority>, Failure> {
        let Some(certificate) = self.certificate(name)? else { return Ok(None) };
        let Some(key) = self.sealed(name)? else { return Ok(Some(StoredAuthority::Certificate(certificate))) };
        let key = PrivateKey::from_pkcs8_der(&key).ok_or_else(|| unfit(&format!("{name}: not a key")))?;
        let authority = Authority::new(kind, key, certificate);
        authority
            .map(|authority| Some(StoredAuthority::Authority(authority)))
            .ok_or_else(|| unfit(&format!("{name}: the key is not its certificate's")))
    }

    /// Stores the key first: a certificate without a key would be mistaken for a supplied one.
    fn store(&self, name: &str, authority: &Authority) -> Result<(), Failure> {
        self.files.put(name, &authority.key().to_pkcs8_der())?;
        self.files.put_plain(&certificate_file(name), &authority.certificate().to_pem())
    }

    fn certificate(&self, name: &str) -> Result<Option<Certificate>, Failure> {
        let file = certificate_file(name);
        let Some(pem) = self.files.get_plain(&file)? else { return Ok(None) };
        let read = Certificate::from_pem(&pem);
        read.map(Some).ok_or_else(|| unfit(&format!("{file} is not one certificate in PEM")))
    }

    fn key(&self, name: &str, curve: Curve) -> Result<PrivateKey, Failure> {
        if let Some(key) = self.sealed(name)? {
            return PrivateKey::from_pkcs8_der(&key).ok_or_else(|| unfit(&format!("{name}: not a key")));
        }
        self.check_may_make(name)?;
        let key = PrivateKey::generate(curve, &mut clock::fill);
        self.files.put(name, &key.to_pkcs8_der())?;
        Ok(key)
    }

    fn random(&self, name: &str) -> Result<SealingKey, Failure> {
        let bytes = match self.sealed(name)? {
            Some(bytes) => bytes,
            None => {
                self.check_may_make(name)?;
                let mut bytes = Zeroizing::new(vec![0; KEY_BYTES]);
                clock::fill(&mut bytes);
                self.files.put(name, &bytes)?;
                bytes
            }
        };
        SealingKey::new(&bytes).ok_or_else(|| unfit(&format!("{name}: not a key")))
    }

    fn sealed(&self, name: &str) -> Result<Option<Zeroizing<Vec<u8>>>, Failure> {
        match self.files.get(name)? {
            Found::Nothing => Ok(None),
            Found::Text(text) => Ok(Some(text)),
            Found::Damaged => Err(unfit(&format!("{name}: it is damaged, or was sealed under another key"))),
        }
    }
}

fn unfit(why: &str) -> Failure {
    Failure::rule(Rule::Pki, format!("the mesh's keys are of no use: {why}"))
}

/// The supplied authority is invalid.
fn mistaken(why: &str) -> Failure {
    Failure::rule(Rule::Pki, why).with_kind(FailureKind::SchemaInvalid)
}

fn section(config: &Config) -> MeshSection {
    config.section()
}
