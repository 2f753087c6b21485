//! The published client `aun-core` 0.2.10, unmodified, as the judge: it opens what we seal, we open what it seals, and it
//! trusts our certificates, revocation lists, OCSP responses and list of roots.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use jiff::{SignedDuration, Timestamp};
use ostler_crypto::{
    certificates::{Certificate, Peer},
    crl::{self, Reason, Revocation},
    envelope::{Address, Envelope, EnvelopeIdentity, open, seal},
    keys::Curve,
    ocsp::{self, OcspStatus},
    prekeys::Prekey,
    trust_list::{self, Root},
};
use serde_json::{Value, json};

use crate::fixture::{Domain, peer};

#[expect(clippy::disallowed_methods, reason = "the judge reads the machine's clock, so what it judges is made by it")]
fn now() -> Timestamp {
    Timestamp::now()
}

fn person(identity: &EnvelopeIdentity) -> Value {
    let cert = identity.certificate().to_pem();
    json!({"aid": identity.name(), "private_key_pem": identity.key().to_pem().as_str(), "cert": cert})
}

/// The PKI pages of a gateway: path, content type, body.
fn pki(domain: &Domain, good: &[&Certificate], revoked: &Certificate) -> BTreeMap<String, (&'static str, String)> {
    let hour = now().checked_add(SignedDuration::from_hours(1)).unwrap();
    let revocation = Revocation { at: now(), reason: Reason::KeyCompromise };
    let list = crl::make(&domain.issuer, 1, [(&revoked.serial(), revocation)], now(), hour);
    let chain: String = domain.authorities().iter().map(Certificate::to_pem).collect();
    let mut served = BTreeMap::from([
        ("/pki/chain".to_owned(), ("application/x-pem-file", chain)),
        ("/pki/crl.json".to_owned(), ("application/json", json!({"crl_pem": crl::to_pem(&list)}).to_string())),
    ]);
    let known = good.iter().map(|one| (one.serial(), OcspStatus::Good));
    for (serial, status) in known.chain([(revoked.serial(), OcspStatus::Revoked(revocation))]) {
        let answer = ocsp::for_mesh_client(&domain.issuer, &serial, status, now(), hour);
        let body = json!({"status": status.name(), "ocsp_response": BASE64.encode(answer)});
        served.insert(format!("/pki/ocsp/{serial}"), ("application/json", body.to_string()));
    }
    served
}

/// Serves one GET.
fn serve(mut stream: TcpStream, served: &BTreeMap<String, (&'static str, String)>) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).unwrap_or_default() == 0 {
            return;
        }
        request.push(byte[0]);
    }
    let path = String::from_utf8_lossy(&request).split(' ').nth(1).unwrap_or_default().to_owned();
    let (status, kind, body) = match served.get(&path) {
        Some((kind, body)) => ("200 OK", *kind, body.as_str()),
        None => ("404 Not Found", "text/plain", ""),
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    let _ = stream.write_all(&[head.as_bytes(), body.as_bytes()].concat());
}

/// Runs the client while our PKI is served to it, and returns its verdict.
fn judge(mut input: Value, served: &BTreeMap<String, (&'static str, String)>) -> Value {
    let python =
        std::env::var("OSTLER_TEST_PYTHON").expect("`cargo xtask test` installs the judge and names its Python");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    input["gateway"] = format!("ws://{address}/aun").into();
    let over = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            while let (Ok((stream, _)), false) = (listener.accept(), over.load(Ordering::SeqCst)) {
                serve(stream, served);
            }
        });
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/crypto/judge.py");
        let mut child = Command::new(python);
        let child = child.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let output = child.and_then(|mut child| {
            child.stdin.take().expect("it is a pipe").write_all(input.to_string().as_bytes())?;
            child.wait_with_output()
        });
        over.store(true, Ordering::SeqCst);
        // Wakes the server, so that it ends.
        let _ = TcpStream::connect(address);
        output.unwrap()
    });
    assert!(output.status.success(), "the judge: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_published_client_interoperates_with_us() {
    let mut domain = Domain::at(1, now());
    let [alice, bobby, carol] = ["alice", "bobby", "carol"].map(|name| domain.identity(&format!("{name}.probe.test")));
    let (prekey, authority) = (domain.key(Curve::P256), domain.key(Curve::P384));
    let now_ms = now().as_millisecond();
    let text = json!({"type": "text", "text": "你好 \"\\\u{1}", "n": 7, "x": [1.5, null, {"z": true, "a": "é"}]});
    let uploaded = Prekey::sign(&bobby, "pk-1", &prekey, now_ms, "");
    let mut sealed = |id: &str, prekey: Option<(&str, &_)>| {
        let letter = (bobby.name(), id, now_ms);
        let plain = text.to_string();
        let envelope =
            seal(&alice, &peer(&bobby), prekey, letter, plain.as_bytes(), &mut |bytes| domain.random.fill(bytes));
        json!({
            "from": alice.name(), "to": bobby.name(), "message_id": id, "timestamp": now_ms, "encrypted": true,
            "type": "e2ee.encrypted", "payload": envelope.unwrap(),
        })
    };
    let with_prekey = sealed("ours-1", Some(("pk-1", &prekey.public_key())));
    let messages = [with_prekey.clone(), sealed("ours-2", None), {
        let mut forged = sealed("ours-3", None);
        forged["from"] = carol.name().into();
        forged
    }];
    let mut bobby_with_prekey = person(&bobby);
    bobby_with_prekey["prekey"] =
        json!({"prekey_id": "pk-1", "private_key_pem": prekey.to_pem().as_str(), "created_at": now_ms});
    let root = Root::active("root-1", "Probe", domain.root.certificate(), "http://crl", "http://ocsp");
    let tomorrow = now().checked_add(SignedDuration::from_hours(24)).unwrap();
    let served = pki(&domain, &[alice.certificate(), bobby.certificate(), &domain.auth], carol.certificate());
    let answer = judge(
        json!({
            "alice": person(&alice), "bobby": bobby_with_prekey, "carol": person(&carol),
            "auth": {"aid": "auth.probe.test", "cert": domain.auth.to_pem()},
            "sealed": messages, "text": text, "prekey": uploaded, "now_ms": now_ms,
            "root": domain.root.certificate().to_pem(), "other_root": Domain::at(2, now()).root.certificate().to_pem(),
            "trust_list": trust_list::sign(&authority, 1, now(), tomorrow, &[root]),
            "authority": authority.public_key().to_pem(),
        }),
        &served,
    );

    // It opens both, once, but not the one whose sender was changed.
    assert_eq!(answer["opened"], json!([text, text, null]));
    assert_eq!(answer["again"], json!([null, null, null]));
    // We open both of its messages.
    for (number, mode) in ["prekey_ecdh_v2", "long_term_key"].into_iter().enumerate() {
        let theirs = &answer["sealed"][number];
        assert_eq!(theirs["mode"], mode);
        let envelope: Envelope = serde_json::from_value(theirs["envelope"].clone()).unwrap();
        let id = format!("theirs-{number}");
        let address = Address { from: alice.name(), to: bobby.name(), message_id: &id };
        let key = (number == 0).then_some(&prekey);
        let opened = open(&envelope, address, &peer(&alice), &bobby, key).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&opened).unwrap(), text);
    }
    let prekey: Prekey = serde_json::from_value(answer["prekey"].clone()).unwrap();
    assert!(prekey.verify(&Peer::pinned(alice.certificate().clone())).is_some());
    // It trusts the right identities, without a warning.
    let judged = &answer["judged"];
    let content = json!({"refused": null, "warnings": []});
    assert_eq!(judged["alice under root"], content);
    assert_eq!(judged["auth under root"], content);
    let refused = |who: &str| judged[who]["refused"].as_str().unwrap_or_default().to_owned();
    assert!(refused("carol under root").contains("revoked"), "{judged}");
    assert!(refused("alice under other_root").contains("not anchored"), "{judged}");
    assert_eq!(answer["trusted"], 1);
}
