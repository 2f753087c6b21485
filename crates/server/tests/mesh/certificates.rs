//! What is served of the authorities: the chain, the root, what was revoked, in the mesh's form and in the standard's. Judged by
//! OpenSSL where it has a say.

use ostler_mesh::{
    config::MeshSection,
    pki::{Pki, Supplied},
};
use std::process::Command;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use ostler_crypto::{
    certificates::{Authority, Certificate, CertificateKind, Serial},
    crl::Revocations,
    keys::{Curve, PrivateKey},
    ocsp::{self, OcspStatus, ResponseForm},
    trust_list,
};
use ostler_protocol::{Failure, FailureKind};
use ostler_server::{
    Config,
    clock::{Clock, fill},
};
use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Engine, Identity, TestServer, both_engines, id};

async fn get(server: &TestServer, path: &str) -> String {
    let answer = server.with_token(None).get(path).await;
    assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    answer.text
}

#[both_engines]
async fn the_chain_and_the_root_are_served_and_lie_in_the_data_directory(engine: Engine) {
    let server = TestServer::start(engine).await;
    let chain = Certificate::list_from_pem(&get(&server, "/pki/chain").await).unwrap();
    assert_eq!(
        chain.iter().map(Certificate::name).collect::<Vec<_>>(),
        ["localhost.test", "Ostler Registry", "Ostler Root"]
    );
    let file = server.config.server.data_dir.clone().unwrap().join("pki/root.crt");
    let root = std::fs::read_to_string(file).unwrap();
    assert_eq!(root, chain[2].to_pem());
    for path in ["/pki/root.crt", "/root.crt"] {
        assert_eq!(get(&server, path).await, root);
    }
    let unknown = server.with_token(None).get("/pki/cert/nobody.localhost.test").await;
    assert!(unknown.refused(FailureKind::NotFound).message.contains("not registered"));
    let identity = Identity::register(&server, "alice").await;
    let other = format!("/pki/cert/{}?cert_fingerprint=sha256:00", identity.aid);
    server.with_token(None).get(&other).await.refused(FailureKind::NotFound);
}

#[both_engines]
async fn a_revoked_certificate_is_on_the_list_and_in_the_answers(engine: Engine) {
    let server = TestServer::start(engine).await;
    let (alice, bobby) = (Identity::register(&server, "alice").await, Identity::register(&server, "bobby").await);
    let issuer = Certificate::list_from_pem(&get(&server, "/pki/chain").await).unwrap().remove(0);
    let serial = |identity: &Identity| Certificate::from_pem(&identity.cert).unwrap().serial();
    let listed = async |identity: &Identity| {
        let der = server.with_token(None).bytes("/pki/crl").await;
        let list = Revocations::verify(&der, &issuer, server.clock.now()).unwrap();
        let document: serde_json::Value = serde_json::from_str(&get(&server, "/pki/crl.json").await).unwrap();
        assert_eq!(document["crl_pem"], ostler_crypto::crl::to_pem(&der));
        list.revoked_at(&serial(identity)).is_some()
    };
    let status = async |serial: &Serial| {
        let answer: serde_json::Value =
            serde_json::from_str(&get(&server, &format!("/pki/ocsp/{serial}")).await).unwrap();
        let der = BASE64.decode(id(&answer, "ocsp_response")).unwrap();
        let status = ocsp::read(&der, ResponseForm::MeshClient, &issuer, serial, server.clock.now()).unwrap();
        assert_eq!(answer["status"], status.name());
        status
    };
    assert!(!listed(&alice).await);
    assert_eq!(status(&serial(&alice)).await, OcspStatus::Good);
    server.post(&format!("/api/v1/identities/{}/revoke", alice.aid), &json!({"reason": "key-compromise"})).await.ok();
    assert!(listed(&alice).await && !listed(&bobby).await, "at once");
    assert!(matches!(status(&serial(&alice)).await, OcspStatus::Revoked(_)));
    assert_eq!(status(&serial(&bobby)).await, OcspStatus::Good);
    assert_eq!(status(&"1234".parse().unwrap()).await, OcspStatus::Unknown);
    // The auth service's own, which clients ask about when they log in.
    let auth = Certificate::from_pem(&get(&server, "/pki/cert/auth.localhost.test").await).unwrap();
    assert_eq!(status(&auth.serial()).await, OcspStatus::Good);
    server.with_token(None).get("/pki/ocsp/zz").await.refused(FailureKind::NotFound);
}

/// Runs OpenSSL. Returns its output.
fn openssl(arguments: &[&str], directory: &TempDir) -> String {
    let output = Command::new("openssl").args(arguments).current_dir(directory).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "openssl {arguments:?}: {said}");
    said
}

#[both_engines]
async fn openssl_believes_what_we_make(engine: Engine) {
    let server = TestServer::start(engine).await;
    server.clock.catch_up(0);
    let (alice, bobby) = (Identity::register(&server, "alice").await, Identity::register(&server, "bobby").await);
    server.post(&format!("/api/v1/identities/{}/revoke", bobby.aid), &json!({})).await.ok();
    let scratch = TempDir::new().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(scratch.path().join(name), bytes).unwrap();
    let chain = Certificate::list_from_pem(&get(&server, "/pki/chain").await).unwrap();
    write("root.pem", get(&server, "/pki/root.crt").await.as_bytes());
    write("issuer.pem", chain[0].to_pem().as_bytes());
    write("above.pem", format!("{}{}", chain[0].to_pem(), chain[1].to_pem()).as_bytes());
    write("alice.pem", alice.cert.as_bytes());
    write("bobby.pem", bobby.cert.as_bytes());
    write("list.der", &server.with_token(None).bytes("/pki/crl").await);
    let verified =
        openssl(&["verify", "-x509_strict", "-CAfile", "root.pem", "-untrusted", "above.pem", "alice.pem"], &scratch);
    assert!(verified.contains("alice.pem: OK"), "{verified}");
    let list =
        openssl(&["crl", "-inform", "DER", "-in", "list.der", "-CAfile", "above.pem", "-noout", "-text"], &scratch);
    assert!(list.contains("verify OK") && list.contains("Serial Number"), "{list}");
    for (leaf, expected) in [("alice.pem", "good"), ("bobby.pem", "revoked")] {
        openssl(&["ocsp", "-issuer", "issuer.pem", "-sha256", "-cert", leaf, "-reqout", "request.der"], &scratch);
        let request = std::fs::read(scratch.path().join("request.der")).unwrap();
        let asked = server.with_token(None).request("POST", "/pki/ocsp");
        let asked = asked.header("content-type", "application/ocsp-request").body(request.clone());
        write("posted.der", &asked.send().await.unwrap().bytes().await.unwrap());
        // As RFC 6960 has it in its appendix A.1: a slash of the base64 is no slash of the path.
        let text = BASE64.encode(request).replace('/', "%2F").replace('+', "%2B").replace('=', "%3D");
        let answer = server.with_token(None).request("GET", &format!("/pki/ocsp/{text}")).send().await.unwrap();
        assert_eq!(answer.headers()["content-type"], "application/ocsp-response");
        write("got.der", &answer.bytes().await.unwrap());
        for response in ["posted.der", "got.der"] {
            let respin = ["ocsp", "-respin", response, "-issuer", "issuer.pem", "-sha256", "-cert", leaf];
            let believed = ["-CAfile", "root.pem", "-verify_other", "above.pem", "-no_nonce"];
            let read = openssl(&[&respin[..], &believed[..]].concat(), &scratch);
            let is_stated = read.contains("Response verify OK") && read.contains(&format!("{leaf}: {expected}"));
            assert!(is_stated, "{response}: {read}");
        }
    }
    server.with_token(None).get("/pki/ocsp/MAA=").await.refused(FailureKind::NotFound);
    let nonsense =
        server.with_token(None).request("POST", "/pki/ocsp").header("content-type", "application/ocsp-request");
    let answer = nonsense.body("nonsense").send().await.unwrap();
    assert_eq!(answer.bytes().await.unwrap(), ocsp::malformed());
}

#[both_engines]
async fn the_list_of_roots_is_signed_by_its_own_key(engine: Engine) {
    let server = TestServer::start(engine).await;
    let text = get(&server, "/pki/trust-roots.json").await;
    assert_eq!(get(&server, "/trust-root.json").await, text);
    let list: serde_json::Value = serde_json::from_str(&text).unwrap();
    let pki = Pki::open(&server.config, server.clock.now()).unwrap();
    let believed = trust_list::verify(list.as_object().unwrap(), &pki.authority(), None, server.clock.now()).unwrap();
    assert_eq!(believed.roots[0].to_pem(), get(&server, "/pki/root.crt").await);
}

#[both_engines]
async fn the_gateway_is_found_under_every_name_of_the_domain(engine: Engine) {
    let server = TestServer::start(engine).await;
    let found = async |host: &str| {
        let asked = server.with_token(None).request("GET", "/.well-known/aun-gateway").header("host", host);
        id(&server.send(asked).await.ok()["gateways"][0], "url")
    };
    for name in ["localhost.test", "alice.localhost.test", "gateway.localhost.test"] {
        assert_eq!(found(&format!("{name}:7000")).await, "ws://gateway.localhost.test:7000/aun");
    }
    assert_eq!(found("127.0.0.1:7000").await, "ws://127.0.0.1:7000/aun");
    let asked =
        server.with_token(None).request("GET", "/.well-known/aun-gateway").header("host", "evil-localhost.test");
    server.send(asked).await.refused(FailureKind::OriginDenied);
}

#[test]
fn an_issuer_that_another_server_has_made_is_taken_over() {
    let scratch = TempDir::new().unwrap();
    let mut config = Config::default();
    config.server.data_dir = Some(scratch.path().to_owned());
    config.change(|mesh: &mut MeshSection| mesh.issuer = "probe.test".into());
    let now = "2026-06-01T00:00:00Z".parse().unwrap();
    let key = || PrivateKey::generate(Curve::P384, &mut fill);
    let serial = || Serial::random(&mut fill);
    let root = Authority::root("Their Root", key(), &serial(), now);
    let below = |above: &Authority, kind, name: &str| {
        let key = key();
        let certificate = above.issue(kind, name, &key.public_key(), &serial(), now).unwrap();
        Authority::new(kind, key, certificate).unwrap()
    };
    let registry = below(&root, CertificateKind::Registry, "Their Registry");
    let issuer = below(&registry, CertificateKind::Issuer, "probe.test");
    let supplied = |issuer_key: &PrivateKey| Supplied {
        root: root.certificate().to_pem(),
        registry: registry.certificate().to_pem(),
        issuer: issuer.certificate().to_pem(),
        issuer_key: issuer_key.to_pem().to_string().into(),
    };
    let rule = |outcome: Result<Pki, Failure>| outcome.err().unwrap().rule_name().unwrap().to_owned();
    assert_eq!(rule(Pki::import(&config, &supplied(&key()), now)), "pki", "the key is another's");
    let short = PrivateKey::generate(Curve::P256, &mut fill);
    let refused = Pki::import(&config, &supplied(&short), now).err().unwrap();
    assert!(refused.message.contains("has to be on P-384"), "{refused}");
    assert!(!scratch.path().join("pki").exists(), "nothing was written");
    let pki = Pki::import(&config, &supplied(issuer.key()), now).unwrap();
    assert_eq!((pki.root(), pki.issuer().certificate()), (root.certificate(), issuer.certificate()));
    assert_eq!(rule(Pki::import(&config, &supplied(issuer.key()), now)), "pki-there");
    let again = Pki::open(&config, now).unwrap();
    assert_eq!(again.auth().certificate, pki.auth().certificate);
    let later = |days: i64| jiff::SignedDuration::from_hours(24 * days);
    assert!(again.next_auth(&config, now.checked_add(later(364)).unwrap()).unwrap().is_none());
    let past_half = now.checked_add(later(366)).unwrap();
    let next = again.next_auth(&config, past_half).unwrap().unwrap();
    assert!(next.certificate.not_after() > pki.auth().certificate.not_after());
    // Another server of the same keys finds what was made.
    assert_eq!(pki.next_auth(&config, past_half).unwrap().unwrap().certificate, next.certificate);
    again.put_auth(next);
    assert!(again.next_auth(&config, past_half).unwrap().is_none());
    config.change(|mesh: &mut MeshSection| mesh.issuer = "other.test".into());
    assert_eq!(rule(Pki::open(&config, now)), "pki", "nobody here can certify another domain");
}

#[both_engines]
async fn private_keys_lie_sealed(engine: Engine) {
    use std::os::unix::fs::PermissionsExt;
    let server = TestServer::start(engine).await;
    let directory = server.config.server.data_dir.clone().unwrap().join("pki");
    let sealed: Vec<_> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "sealed"))
        .collect();
    assert_eq!(sealed.len(), 6, "root, registry, issuer, auth, authority, tickets: {sealed:?}");
    // An EC key in DER names its curve.
    const P384: &[u8] = &[0x06, 0x05, 0x2b, 0x81, 0x04, 0x00, 0x22];
    for file in sealed {
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let bytes = std::fs::read(&file).unwrap();
        assert!(!bytes.windows(P384.len()).any(|part| part == P384), "{}", file.display());
    }
}

#[both_engines]
async fn servers_of_one_store_share_their_keys_or_have_no_mesh(engine: Engine) {
    if engine == Engine::Sqlite {
        // One process has one store.
        return;
    }
    let first = TestServer::start(engine).await;
    let stranger = first.start_another(|_| ()).await;
    let refused = stranger.with_token(None).get("/pki/chain").await.refused_by(FailureKind::InfraFailed, "mesh-off");
    assert!(refused.message.contains("mesh.pki_directory"), "{}", refused.message);
    let second = first.of_one_mesh().await;
    assert_eq!(get(&second, "/pki/chain").await, get(&first, "/pki/chain").await);
    let identity = Identity::register(&first, "alice").await;
    let begun = identity.begin(&first).await;
    let answer = crate::harness::fresh(&second, "auth.aid_login2", identity.proof(&begun, "1")).await;
    assert!(answer["result"]["access_token"].is_string(), "begun here, ended there: {answer}");
}
