use ostler_crypto::proofs::{self, OperationSignature};

use crate::fixture::{VECTORS, known, known_identity};

#[test]
fn the_published_clients_login_verifies_only_as_transmitted() {
    let alice = known_identity("alice.probe.test");
    let key = alice.certificate().public_key();
    let (nonce, time, signature) = (known("/login2/nonce"), known("/login2/client_time"), known("/login2/signature"));
    assert_eq!(proofs::login(nonce, time), known("/login2/signed_text").as_bytes());
    assert!(key.verifies_base64(&proofs::login(nonce, time), signature));
    let reprinted = format!("{:.6}", time.parse::<f64>().unwrap());
    assert!(!key.verifies_base64(&proofs::login(nonce, &reprinted), signature));
    assert!(!key.verifies_base64(&proofs::login("another-nonce", time), signature));
}

#[test]
fn the_published_clients_operation_signature_covers_method_and_parameters() {
    let alice = known_identity("alice.probe.test");
    let key = alice.certificate().public_key();
    let vector = &VECTORS["client_signature"];
    let mut params = vector["params_with_signature"].as_object().unwrap().clone();
    let signature: OperationSignature = serde_json::from_value(params[OperationSignature::FIELD].clone()).unwrap();
    assert!(signature.verifies(key, "group.send", &params));
    assert!(!signature.verifies(key, "group.kick", &params));
    // Fields that a server adds are not covered; everything else is.
    params.insert("_federation".into(), true.into());
    assert!(signature.verifies(key, "group.send", &params));
    params.insert("extra".into(), 1.into());
    assert!(!signature.verifies(key, "group.send", &params));

    let ours = OperationSignature::sign(&alice, "group.send", &params, 1_794_701_640);
    assert!(ours.verifies(key, "group.send", &params));
    assert!(!OperationSignature { timestamp: "1".into(), ..ours }.verifies(key, "group.send", &params));
}
