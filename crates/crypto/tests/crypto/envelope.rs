use ostler_crypto::{
    envelope::{Address, Envelope, EnvelopeIdentity, EnvelopeMode, Unopened, open, seal},
    keys::{Curve, PrivateKey},
    prekeys::{self, Prekey},
};
use serde_json::{Value, json};

use crate::fixture::{Domain, Random, VECTORS, known, known_identity, peer, scalar};

const TEXT: &[u8] = "{\"type\":\"text\",\"text\":\"你好\"}".as_bytes();

/// Two identities, a prekey of the second, and a message from the first to the second.
struct Fixture {
    alice: EnvelopeIdentity,
    bobby: EnvelopeIdentity,
    prekey: PrivateKey,
    envelope: Envelope,
}

impl Fixture {
    fn new(mode: EnvelopeMode) -> Self {
        let mut domain = Domain::new(1);
        let (alice, bobby) = (domain.identity("alice.probe.test"), domain.identity("bobby.probe.test"));
        let prekey = domain.key(Curve::P256);
        let given = (mode == EnvelopeMode::PrekeyEcdhV2).then(|| ("pk-1", prekey.public_key()));
        let given = given.as_ref().map(|(id, key)| (*id, key));
        let letter = ("bobby.probe.test", "m-1", 1_794_700_000_000);
        let envelope = seal(&alice, &peer(&bobby), given, letter, TEXT, &mut |bytes| domain.random.fill(bytes));
        Self { alice, bobby, prekey, envelope: envelope.unwrap() }
    }

    fn open(&self, envelope: &Envelope) -> Result<Vec<u8>, Unopened> {
        let address = Address { from: "alice.probe.test", to: "bobby.probe.test", message_id: "m-1" };
        self.open_at(envelope, address)
    }

    fn open_at(&self, envelope: &Envelope, address: Address<'_>) -> Result<Vec<u8>, Unopened> {
        let prekey = envelope.prekey_id.as_ref().map(|_| &self.prekey);
        open(envelope, address, &peer(&self.alice), &self.bobby, prekey).map(|text| text.to_vec())
    }
}

const MODES: [EnvelopeMode; 2] = [EnvelopeMode::PrekeyEcdhV2, EnvelopeMode::LongTermKey];

#[test]
fn envelopes_of_the_published_client_open() {
    let (alice, bobby) = (known_identity("alice.probe.test"), known_identity("bobby.probe.test"));
    let prekey = scalar("/bob_prekey/private_scalar_hex");
    for (vector, prekey) in [("prekey_ecdh_v2", Some(&prekey)), ("long_term_key", None)] {
        let envelope: Envelope = serde_json::from_value(VECTORS[vector]["envelope"].clone()).unwrap();
        let message_id = envelope.aad.message_id.clone();
        let address = Address { from: "alice.probe.test", to: "bobby.probe.test", message_id: &message_id };
        let text = open(&envelope, address, &peer(&alice), &bobby, prekey).unwrap();
        assert_eq!(std::str::from_utf8(&text).unwrap(), known(&format!("/{vector}/plaintext_json")));
        // It round-trips without loss.
        assert_eq!(json!(envelope), VECTORS[vector]["envelope"]);
    }
}

#[test]
fn sealed_envelopes_open_in_both_modes() {
    for mode in MODES {
        let fixture = Fixture::new(mode);
        assert_eq!(fixture.envelope.encryption_mode, mode);
        assert_eq!(fixture.open(&fixture.envelope).unwrap(), TEXT);
        assert!(!json!(fixture.envelope).to_string().contains("你好"));
    }
}

#[test]
fn no_byte_of_an_envelope_can_be_changed() {
    for mode in MODES {
        let fixture = Fixture::new(mode);
        let text = serde_json::to_string(&fixture.envelope).unwrap();
        for at in 0..text.len() {
            for flip in [1, 0x20] {
                let mut changed = text.clone().into_bytes();
                changed[at] ^= flip;
                let Ok(envelope) = serde_json::from_slice::<Envelope>(&changed) else { continue };
                let opened = fixture.open(&envelope);
                assert!(opened.is_err(), "{mode:?} byte {at}: {}", String::from_utf8_lossy(&changed));
            }
        }
    }
}

#[test]
fn no_byte_of_a_binary_field_can_be_changed() {
    use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
    for mode in MODES {
        let fixture = Fixture::new(mode);
        let whole = json!(fixture.envelope);
        for field in ["ephemeral_public_key", "nonce", "ciphertext", "tag", "sender_signature"] {
            let bytes = BASE64.decode(whole[field].as_str().unwrap()).unwrap();
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 1;
                let mut envelope = whole.clone();
                envelope[field] = BASE64.encode(&changed).into();
                // An attacker changes both copies of the key.
                if field == "ephemeral_public_key" {
                    envelope["aad"][field] = envelope[field].clone();
                }
                let envelope = serde_json::from_value(envelope).unwrap();
                assert!(fixture.open(&envelope).is_err(), "{mode:?} {field} byte {at}");
            }
            let mut cut = whole.clone();
            cut[field] = BASE64.encode(&bytes[..bytes.len() - 1]).into();
            assert!(fixture.open(&serde_json::from_value(cut).unwrap()).is_err(), "{field} cut");
        }
    }
}

#[test]
fn the_message_around_an_envelope_must_match() {
    let fixture = Fixture::new(EnvelopeMode::PrekeyEcdhV2);
    let address =
        |from, to, message_id| fixture.open_at(&fixture.envelope, Address { from, to, message_id }).unwrap_err();
    let (alice, bobby) = ("alice.probe.test", "bobby.probe.test");
    assert_eq!(address("carol.probe.test", bobby, "m-1"), Unopened::Mismatch("from"));
    assert_eq!(address(alice, "carol.probe.test", "m-1"), Unopened::Mismatch("to"));
    assert_eq!(address(alice, bobby, "m-2"), Unopened::Mismatch("message_id"));
}

#[test]
fn only_the_recipients_keys_open_an_envelope() {
    let fixture = Fixture::new(EnvelopeMode::PrekeyEcdhV2);
    let address = Address { from: "alice.probe.test", to: "bobby.probe.test", message_id: "m-1" };
    let mut domain = Domain::new(2);
    let (other, prekey) = (domain.identity("bobby.probe.test"), domain.key(Curve::P256));
    let open = |sender: &EnvelopeIdentity, own: &EnvelopeIdentity, prekey: Option<&PrivateKey>| {
        open(&fixture.envelope, address, &peer(sender), own, prekey).unwrap_err()
    };
    // Another certificate of the same name, another prekey, no prekey, another sender.
    assert_eq!(open(&fixture.alice, &other, Some(&fixture.prekey)), Unopened::NotForUs);
    assert_eq!(open(&fixture.alice, &fixture.bobby, Some(&prekey)), Unopened::Sealing);
    assert_eq!(open(&fixture.alice, &fixture.bobby, None), Unopened::Prekey);
    let forger = domain.identity("alice.probe.test");
    assert_eq!(open(&forger, &fixture.bobby, Some(&fixture.prekey)), Unopened::Mismatch("sender_cert_fingerprint"));
}

#[test]
fn a_copy_for_the_senders_own_devices_names_the_recipient_and_opens_there() {
    let mut domain = Domain::new(1);
    let (alice, bobby) = (domain.identity("alice.probe.test"), domain.identity("bobby.probe.test"));
    let letter = (bobby.name(), "m-1", 1);
    let envelope = seal(&alice, &peer(&alice), None, letter, TEXT, &mut |bytes| domain.random.fill(bytes)).unwrap();
    let address = Address { from: alice.name(), to: bobby.name(), message_id: "m-1" };
    assert_eq!(*open(&envelope, address, &peer(&alice), &alice, None).unwrap(), TEXT);
    assert_eq!(open(&envelope, address, &peer(&alice), &bobby, None).unwrap_err(), Unopened::NotForUs);
}

#[test]
fn no_two_envelopes_share_a_key_or_nonce() {
    let mut domain = Domain::new(1);
    let (alice, bobby) = (domain.identity("alice.probe.test"), domain.identity("bobby.probe.test"));
    let mut sealed = || {
        let letter = (bobby.name(), "m-1", 1);
        seal(&alice, &peer(&bobby), None, letter, TEXT, &mut |bytes| domain.random.fill(bytes)).unwrap()
    };
    let (one, two) = (sealed(), sealed());
    assert!(one.nonce != two.nonce && one.ephemeral_public_key != two.ephemeral_public_key);
    assert!(one.ciphertext != two.ciphertext);
}

#[test]
fn the_published_clients_prekey_verifies_and_a_changed_one_does_not() {
    let bobby = known_identity("bobby.probe.test");
    let upload = &VECTORS["bob_prekey"]["upload_params"];
    let prekey: Prekey = serde_json::from_value(upload.clone()).unwrap();
    let key = scalar("/bob_prekey/private_scalar_hex");
    assert_eq!(prekey.verify(&peer(&bobby)), Some(key.public_key()));
    assert_eq!(json!(prekey), *upload);

    let changed = |change: fn(&mut Prekey)| {
        let mut prekey = prekey.clone();
        change(&mut prekey);
        prekey.verify(&peer(&bobby))
    };
    assert_eq!(changed(|prekey| prekey.prekey_id.push('x')), None);
    assert_eq!(changed(|prekey| prekey.created_at += 1), None);
    assert_eq!(changed(|prekey| prekey.cert_fingerprint.push('0')), None);
    assert_eq!(changed(|prekey| prekey.signature.clear()), None);
    assert_eq!(prekey.verify(&peer(&known_identity("alice.probe.test"))), None);

    let ours = Prekey::sign(&bobby, "pk-2", &key, 7, "dev-b");
    assert_eq!(ours.verify(&peer(&bobby)), Some(key.public_key()));
}

#[test]
fn prekeys_expire() {
    const DAY: i64 = 86_400_000;
    let bobby = known_identity("bobby.probe.test");
    let prekey = Prekey::sign(&bobby, "pk", &scalar("/bob_prekey/private_scalar_hex"), 100 * DAY, "");
    assert!(prekey.is_fresh(100 * DAY) && prekey.is_fresh(130 * DAY) && !prekey.is_fresh(130 * DAY + 1));
    assert!(prekey.is_fresh(100 * DAY - 300_000) && !prekey.is_fresh(100 * DAY - 300_001));
    // Ten private halves, a day apart: the seven newest are retained whatever their age, and recent ones whatever their number.
    let made: Vec<i64> = (1..=10).map(|day| day * DAY).collect();
    assert_eq!(prekeys::outdated(&made, 100 * DAY), [2, 1, 0]);
    assert_eq!(prekeys::outdated(&made, 9 * DAY), [0; 1]);
    assert!(prekeys::outdated(&made, 8 * DAY).is_empty());
}

#[test]
fn envelopes_of_unknown_kinds_do_not_open() {
    let fixture = Fixture::new(EnvelopeMode::LongTermKey);
    let changed = |field: &str, value: Value| {
        let mut envelope = json!(fixture.envelope);
        envelope[field] = value;
        serde_json::from_value::<Envelope>(envelope).map(|envelope| fixture.open(&envelope).unwrap_err()).ok()
    };
    assert_eq!(changed("type", json!("e2ee.group_encrypted")), Some(Unopened::Shape));
    assert_eq!(changed("version", json!("2")), Some(Unopened::Shape));
    assert_eq!(changed("suite", json!("NONE")), Some(Unopened::Shape));
    assert_eq!(changed("prekey_id", json!("pk-1")), Some(Unopened::Shape));
    assert_eq!(changed("encryption_mode", json!("none")), None);
    assert_eq!(changed("sender_signature", json!("")), Some(Unopened::Signature));
    assert_eq!(changed("aad", json!(null)), None);
}

#[test]
fn texts_of_any_length_round_trip() {
    let mut random = Random(9);
    let mut domain = Domain::new(1);
    let (alice, bobby) = (domain.identity("alice.probe.test"), domain.identity("bobby.probe.test"));
    for length in [0, 1, 15, 16, 17, 4_096, 1_048_576] {
        let mut text = vec![0; length];
        random.fill(&mut text);
        let letter = (bobby.name(), "m", 1);
        let envelope = seal(&alice, &peer(&bobby), None, letter, &text, &mut |bytes| random.fill(bytes)).unwrap();
        let address = Address { from: alice.name(), to: bobby.name(), message_id: "m" };
        assert!(*open(&envelope, address, &peer(&alice), &bobby, None).unwrap() == text, "{length} bytes");
    }
}
