//! OpenSSL as the judge: it accepts what we issue, and we reject what it rejects.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    path::Path,
    process::Command,
};

use jiff::SignedDuration;
use ostler_crypto::{
    crl::{self, Reason, Revocation},
    ocsp::{self, OcspRequest, OcspStatus, ResponseForm},
};
use tempfile::TempDir;

use crate::fixture::{Domain, now};

/// A directory with a domain's certificates, in which OpenSSL is run.
struct OpensslFixture {
    domain: Domain,
    directory: TempDir,
}

impl OpensslFixture {
    fn new() -> Self {
        let mut domain = Domain::new(1);
        let directory = tempfile::tempdir().unwrap();
        let alice = domain.identity("alice.probe.test").certificate().clone();
        let fixture = Self { domain, directory };
        let [issuer, registry, root] = fixture.domain.authorities().try_into().unwrap();
        let between = format!("{}{}", issuer.to_pem(), registry.to_pem());
        for (file, text) in [
            ("root.pem", root.to_pem()),
            ("issuer.pem", issuer.to_pem()),
            ("between.pem", between),
            ("auth.pem", fixture.domain.auth.to_pem()),
            ("alice.pem", alice.to_pem()),
        ] {
            fixture.put(file, text.as_bytes());
        }
        fixture
    }

    fn put(&self, file: &str, bytes: &[u8]) {
        fs::write(self.directory.path().join(file), bytes).unwrap();
    }

    fn openssl(&self, arguments: &[&str]) -> (bool, String) {
        run(self.directory.path(), arguments)
    }

    fn accepted(&self, arguments: &[&str]) -> String {
        let (accepted, output) = self.openssl(arguments);
        assert!(accepted, "openssl {}: {output}", arguments.join(" "));
        output
    }
}

/// Whether it succeeded, and its output on both streams.
fn run(directory: &Path, arguments: &[&str]) -> (bool, String) {
    let output = Command::new("openssl").args(arguments).current_dir(directory).output();
    let output = output.expect("openssl, the judge of these tests, can be run");
    let printed = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&printed).into_owned())
}

/// The time of the tests, which is not the system time.
fn at() -> String {
    now().as_second().to_string()
}

#[test]
fn openssl_verifies_our_certificates_strictly() {
    let fixture = OpensslFixture::new();
    for file in ["alice.pem", "auth.pem", "issuer.pem"] {
        fixture.accepted(&[
            "verify",
            "-x509_strict",
            "-check_ss_sig",
            "-attime",
            &at(),
            "-CAfile",
            "root.pem",
            "-untrusted",
            "between.pem",
            file,
        ]);
    }
    let shown = fixture.accepted(&["x509", "-in", "alice.pem", "-noout", "-text"]);
    for expected in [
        "Subject: CN = alice.probe.test",
        "Issuer: CN = probe.test",
        "ASN1 OID: prime256v1",
        "CA:FALSE",
        "Digital Signature, Key Agreement",
        "DNS:alice.probe.test",
        "ecdsa-with-SHA384",
    ] {
        assert!(shown.contains(expected), "{expected} in {shown}");
    }
    let shown = fixture.accepted(&["x509", "-in", "issuer.pem", "-noout", "-text"]);
    assert!(shown.contains("CA:TRUE, pathlen:0") && shown.contains("ASN1 OID: secp384r1"), "{shown}");
}

#[test]
fn openssl_rejects_the_certificate_under_another_root_or_at_another_time() {
    let fixture = OpensslFixture::new();
    let other = Domain::new(2);
    fixture.put("other.pem", other.root.certificate().to_pem().as_bytes());
    let late = now().checked_add(SignedDuration::from_hours(366 * 24)).unwrap().as_second().to_string();
    for (root, time) in [("other.pem", at()), ("root.pem", late)] {
        let (accepted, output) =
            fixture.openssl(&["verify", "-attime", &time, "-CAfile", root, "-untrusted", "between.pem", "alice.pem"]);
        assert!(!accepted, "{root} {time}: {output}");
    }
}

#[test]
fn openssl_reads_and_applies_our_revocation_list() {
    let fixture = OpensslFixture::new();
    let alice = ostler_crypto::certificates::Certificate::from_pem(
        &fs::read_to_string(fixture.directory.path().join("alice.pem")).unwrap(),
    );
    let serial = alice.unwrap().serial();
    let day = now().checked_add(SignedDuration::from_hours(crl::LIST_HOURS)).unwrap();
    let revocation = Revocation { at: now(), reason: Reason::KeyCompromise };
    let list = |number, revoked: Vec<(&_, Revocation)>| {
        crl::to_pem(&crl::make(&fixture.domain.issuer, number, revoked, now(), day))
    };
    fixture.put("empty.pem", list(1, vec![]).as_bytes());
    fixture.put("list.pem", list(2, vec![(&serial, revocation)]).as_bytes());

    let shown = fixture.accepted(&["crl", "-in", "list.pem", "-noout", "-text", "-CAfile", "issuer.pem"]);
    assert!(shown.contains("verify OK") && shown.contains("Key Compromise"), "{shown}");
    assert!(shown.to_lowercase().contains(&serial.to_string()), "{serial} in {shown}");

    let verify = |list: &str| {
        let time = at();
        let arguments = [
            "verify",
            "-crl_check",
            "-x509_strict",
            "-attime",
            &time,
            "-CAfile",
            "root.pem",
            "-untrusted",
            "between.pem",
        ];
        fixture.openssl(&[&arguments[..], &["-CRLfile", list, "alice.pem"]].concat())
    };
    assert!(verify("empty.pem").0, "{}", verify("empty.pem").1);
    let (accepted, output) = verify("list.pem");
    assert!(!accepted && output.contains("certificate revoked"), "{output}");
}

#[test]
fn openssl_requests_in_the_standard_form_and_accepts_the_response() {
    let mut fixture = OpensslFixture::new();
    let carol = fixture.domain.identity("carol.probe.test").certificate().clone();
    fixture.put("carol.pem", carol.to_pem().as_bytes());
    let hour = now().checked_add(SignedDuration::from_hours(ocsp::ANSWER_HOURS)).unwrap();
    let revoked = OcspStatus::Revoked(Revocation { at: now(), reason: Reason::Superseded });
    let respond = |request: &[u8]| {
        let request = OcspRequest::read(request).unwrap();
        let issuer = fixture.domain.issuer.certificate();
        let serials = request.serials(issuer);
        assert_eq!((serials.len(), serials[1].clone()), (3, Some(carol.serial())));
        // For another issuer these are not its certificates.
        assert_eq!(request.serials(fixture.domain.registry.certificate()), [None, None, None]);
        let answer = request.answer(&fixture.domain.issuer, &[OcspStatus::Good, revoked], now(), hour);
        assert_eq!(ocsp::read(&answer, ResponseForm::Standard, issuer, &carol.serial(), now()), Some(revoked));
        answer
    };
    for digest in ["-sha1", "-sha256"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let time = at();
        // OpenSSL compares the response's times with the system clock, which the tests do not use.
        let context =
            ["-CAfile", "root.pem", "-verify_other", "between.pem", "-attime", &time, "-validity_period", "2000000000"];
        let question =
            ["ocsp", "-url", &url, "-issuer", "issuer.pem", digest, "-cert", "alice.pem", "-cert", "carol.pem"];
        let arguments = [&question[..], &["-cert", "auth.pem"], &context[..]].concat();
        let printed = std::thread::scope(|scope| {
            let asking = scope.spawn(|| run(fixture.directory.path(), &arguments));
            serve_one(&listener, respond);
            asking.join().unwrap()
        });
        assert!(printed.0, "{digest}: {}", printed.1);
        for expected in
            ["Response verify OK", "alice.pem: good", "carol.pem: revoked", "Reason: superseded", "auth.pem: unknown"]
        {
            assert!(printed.1.contains(expected), "{digest}: {expected} in {}", printed.1);
        }
        // It sent a nonce and would report if the response lacked it.
        assert!(!printed.1.contains("nonce"), "{}", printed.1);
    }
}

/// Serves one HTTP request.
fn serve_one(listener: &TcpListener, respond: impl Fn(&[u8]) -> Vec<u8>) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut request = Vec::new();
    let body = loop {
        let mut part = [0; 4096];
        let length = stream.read(&mut part).unwrap();
        assert!(length > 0, "a whole request");
        request.extend_from_slice(&part[..length]);
        let text = String::from_utf8_lossy(&request).to_lowercase();
        let Some(head) = request.windows(4).position(|end| end == b"\r\n\r\n") else { continue };
        let (_, length) = text.split_once("content-length:").unwrap();
        let length: usize = length.lines().next().unwrap().trim().parse().unwrap();
        if request.len() >= head + 4 + length {
            break request.split_off(head + 4);
        }
    };
    let answer = respond(&body);
    let head = format!(
        "HTTP/1.0 200 OK\r\nContent-Type: application/ocsp-response\r\nContent-Length: {}\r\n\r\n",
        answer.len()
    );
    stream.write_all(&[head.as_bytes(), &answer].concat()).unwrap();
}

#[test]
fn openssl_reads_an_error_response() {
    let fixture = OpensslFixture::new();
    fixture.put("answer.der", &ocsp::malformed());
    let (_, output) = fixture.openssl(&["ocsp", "-respin", "answer.der", "-noverify"]);
    assert!(output.contains("malformedrequest (1)"), "{output}");
}

#[test]
fn openssl_verifies_our_signatures_and_we_verify_its() {
    use ostler_crypto::keys::{Curve, PrivateKey};
    let mut fixture = OpensslFixture::new();
    for (curve, digest) in [(Curve::P256, "-sha256"), (Curve::P384, "-sha384")] {
        let key = fixture.domain.key(curve);
        fixture.put("key.pem", key.to_pem().as_bytes());
        fixture.put("public.pem", key.public_key().to_pem().as_bytes());
        fixture.put("message", b"message");
        fixture.put("ours", &key.sign(b"message"));
        fixture.accepted(&["dgst", digest, "-verify", "public.pem", "-signature", "ours", "message"]);
        fixture.accepted(&["dgst", digest, "-sign", "key.pem", "-out", "theirs", "message"]);
        let theirs = fs::read(fixture.directory.path().join("theirs")).unwrap();
        assert!(key.public_key().verifies(b"message", &theirs) && !key.public_key().verifies(b"other", &theirs));
        // A key that OpenSSL generated can be imported.
        let name = if curve == Curve::P256 { "P-256" } else { "P-384" };
        let made = fixture.accepted(&["genpkey", "-algorithm", "EC", "-pkeyopt", &format!("ec_paramgen_curve:{name}")]);
        let from = made.find("-----BEGIN").unwrap();
        assert_eq!(PrivateKey::from_pem(&made[from..]).unwrap().curve(), curve);
    }
}
