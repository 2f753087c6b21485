use jiff::{SignedDuration, Timestamp};
use ostler_crypto::{
    keys::{Curve, PublicKey},
    trust_list::{self, Root, TrustListError},
};
use serde_json::{Map, Value, json};

use crate::fixture::{Domain, VECTORS, known, now};

fn tomorrow() -> Timestamp {
    now().checked_add(SignedDuration::from_hours(24)).unwrap()
}

#[test]
fn the_test_vector_verifies_with_its_authoritys_key() {
    let list = VECTORS["trust_list"]["list"].as_object().unwrap();
    let key = PublicKey::from_pem(known("/trust_list/authority_public_key_pem")).unwrap();
    let believed = trust_list::verify(list, &key, Some(2), now()).unwrap();
    assert_eq!((believed.version, believed.roots.len()), (2, 1));
    assert_eq!(believed.roots[0].to_pem(), known("/root_pem"));
    assert_eq!(trust_list::verify(list, &key, Some(3), now()).unwrap_err(), TrustListError::Rollback);
    let late = now().checked_add(SignedDuration::from_hours(48)).unwrap();
    assert_eq!(trust_list::verify(list, &key, None, late).unwrap_err(), TrustListError::Outdated);
}

#[test]
fn a_list_with_a_forged_key_inside_is_rejected() {
    let mut domain = Domain::new(1);
    let (authority, forger) = (domain.key(Curve::P384), domain.key(Curve::P384));
    let root = Root::active("r", "Forger", Domain::new(2).root.certificate(), "", "");
    let mut list = trust_list::sign(&forger, 9, now(), tomorrow(), &[root]);
    list.insert("authority_cert_pem".into(), domain.root.certificate().to_pem().into());
    let pinned = authority.public_key();
    assert_eq!(trust_list::verify(&list, &pinned, None, now()).unwrap_err(), TrustListError::Signature);
    list.remove("authority_signature");
    assert_eq!(trust_list::verify(&list, &pinned, None, now()).unwrap_err(), TrustListError::Unsigned);
    let legacy = json!({"roots": [], "count": 0});
    let refused = trust_list::verify(legacy.as_object().unwrap(), &pinned, None, now());
    assert_eq!(refused.unwrap_err(), TrustListError::Unsigned);
}

#[test]
fn only_active_roots_are_used_and_each_must_match_its_entry() {
    let mut domain = Domain::new(1);
    let authority = domain.key(Curve::P384);
    let good = Root::active("r-1", "Probe", domain.root.certificate(), "http://crl", "http://ocsp");
    let verify = |roots: &[Root], issued_at: Timestamp, next_update: Timestamp| {
        let list = trust_list::sign(&authority, 1, issued_at, next_update, roots);
        trust_list::verify(&list, &authority.public_key(), None, now()).map(|list| list.roots.len())
    };
    let changed = |change: fn(&mut Root)| {
        let mut root = good.clone();
        change(&mut root);
        root
    };
    let retired = changed(|root| root.status = "retired".into());
    let now_and = |roots: &[Root]| verify(roots, now(), tomorrow());
    assert_eq!(now_and(&[good.clone(), retired.clone()]), Ok(1));
    assert_eq!(now_and(&[retired]), Err(TrustListError::Empty));
    assert_eq!(now_and(&[]), Err(TrustListError::Empty));
    assert_eq!(now_and(&[changed(|root| root.fingerprint_sha256 = "00".repeat(32))]), Err(TrustListError::Root));
    assert_eq!(now_and(&[changed(|root| root.certificate.clear())]), Err(TrustListError::Root));
    let issuer = Root::active("r-2", "Probe", domain.issuer.certificate(), "", "");
    assert_eq!(now_and(&[good.clone(), issuer]), Err(TrustListError::Root));
    // Dates.
    let ahead = |seconds| now().checked_add(SignedDuration::from_secs(seconds)).unwrap();
    assert_eq!(verify(std::slice::from_ref(&good), ahead(300), tomorrow()), Ok(1));
    assert_eq!(verify(std::slice::from_ref(&good), ahead(301), tomorrow()), Err(TrustListError::Dates));
    assert_eq!(verify(&[good], tomorrow(), now()), Err(TrustListError::Dates));
}

#[test]
fn nothing_in_a_list_can_be_changed_added_or_left_out() {
    let mut domain = Domain::new(1);
    let authority = domain.key(Curve::P384);
    let root = Root::active("r-1", "Probé", domain.root.certificate(), "", "");
    let list = trust_list::sign(&authority, 1, now(), tomorrow(), &[root]);
    let refused =
        |list: &Map<String, Value>| trust_list::verify(list, &authority.public_key(), None, now()).unwrap_err();
    for key in list.keys().filter(|key| *key != "authority_signature") {
        let mut without = list.clone();
        without.remove(key);
        assert_eq!(refused(&without), TrustListError::Signature, "without {key}");
        let mut changed = list.clone();
        changed[key] = json!(2);
        assert_eq!(refused(&changed), TrustListError::Signature, "changed {key}");
    }
    let mut more = list.clone();
    more.insert("x".into(), json!(1));
    assert_eq!(refused(&more), TrustListError::Signature);
    // The same signature in another encoding verifies.
    let mut prefixed = list.clone();
    prefixed["authority_signature"] = format!("base64:{}", list["authority_signature"].as_str().unwrap()).into();
    assert!(trust_list::verify(&prefixed, &authority.public_key(), None, now()).is_ok());
}
