//! The log of certificates: numbers without a gap whichever server writes, names and revocations that are unique. And tokens
//! of logins, of which only the last pair is valid.

use futures_util::future::join_all;
use ostler_protocol::{
    Timestamp,
    mesh::{
        Aid,
        identities::{CertificateOperation, RevocationReason},
    },
};
use ostler_store::{
    Db,
    mesh::{
        identities::{self, Entry, Made, Revoked, Status},
        logins::{self, Pair},
    },
};

use sqlx::{Connection, Executor, PgConnection};

use crate::{
    store_process::StoreProcess,
    test_store::{Engine, TestStore, both_engines},
};

fn aid(name: &str) -> Aid {
    format!("{name}.probe.test").parse().unwrap()
}

fn made(operation: CertificateOperation, name: &str, serial: &str, at: Timestamp) -> Entry {
    let ends_at = at.checked_add(jiff::SignedDuration::from_hours(1)).unwrap();
    let made = Made { fingerprint: format!("sha256:{serial}"), certificate: format!("PEM {serial}"), ends_at };
    Entry {
        operation,
        aid: aid(name),
        serial: serial.into(),
        made: Some(made),
        revoked: None,
        asked_with: None,
        asked_by: None,
        invite: None,
        at,
    }
}

fn revoked(serial: &str) -> Option<Revoked> {
    Some(Revoked { serial: serial.into(), reason: RevocationReason::KeyCompromise })
}

#[both_engines]
async fn numbers_have_no_gap_whichever_server_writes(test_store: TestStore) {
    let process = StoreProcess::open(&test_store).await;
    let now = process.now();
    // On Postgres, another server as well.
    let other = match test_store.engine() {
        Engine::Sqlite => process.db.clone(),
        Engine::Postgres => Db::open(&test_store.config(), now).await.unwrap(),
    };
    let entries: Vec<Entry> =
        (0..40).map(|n| made(CertificateOperation::Issue, &format!("agent-{n}"), &format!("{n:x}"), now)).collect();
    let writes = entries.iter().enumerate().map(|(n, entry)| {
        let db = if n % 2 == 0 { &process.db } else { &other };
        identities::append(db, entry)
    });
    assert!(join_all(writes).await.into_iter().all(|written| written.unwrap()));
    let log = async |after| identities::log(&process.db, after, 100).await.unwrap();
    assert_eq!(log(0).await.iter().map(|(number, _)| *number).collect::<Vec<_>>(), (1..=40).collect::<Vec<_>>());
    assert_eq!(log(30).await.len(), 10);
    assert!(log(0).await.iter().all(|(_, entry)| entries.contains(entry)));
}

#[both_engines]
async fn a_name_is_given_once_and_a_certificate_revoked_once(test_store: TestStore) {
    let process = StoreProcess::open(&test_store).await;
    let (db, now) = (&process.db, process.now());
    let append = async |entry: Entry| identities::append(db, &entry).await.unwrap();
    assert!(append(made(CertificateOperation::Issue, "alice", "a1", now)).await);
    assert!(!append(made(CertificateOperation::Issue, "alice", "a2", now)).await, "it is taken");
    assert!(append(made(CertificateOperation::Renew, "alice", "a3", now)).await);
    let newest = identities::get(db, &aid("alice")).await.unwrap().unwrap();
    assert_eq!((newest.serial.as_str(), newest.revoked_at), ("a3", None));
    let old = identities::find_by_fingerprint(db, &aid("alice"), "sha256:a1").await.unwrap().unwrap();
    assert_eq!(old.certificate, "PEM a1");
    assert_eq!(identities::find_by_fingerprint(db, &aid("bobby"), "sha256:a1").await.unwrap(), None);
    assert_eq!(identities::last_revocation(db).await.unwrap(), 0);
    let rekey = Entry { revoked: revoked("a3"), ..made(CertificateOperation::Rekey, "alice", "a4", now) };
    assert!(append(rekey).await);
    let again = Entry { made: None, revoked: revoked("a3"), ..made(CertificateOperation::Revoke, "alice", "a3", now) };
    assert!(!append(again).await, "it was revoked");
    let status = async |serial| identities::find_status(db, serial).await.unwrap();
    let ended = Some(Status::Revoked { at: now, reason: RevocationReason::KeyCompromise });
    assert_eq!((status("a1").await, status("a3").await), (ended, ended), "and so was the one before");
    assert_eq!((status("a2").await, status("a4").await), (None, Some(Status::Good)));
    assert_eq!(identities::last_revocation(db).await.unwrap(), 3);
    let list = async |hours| {
        let good_at = now.checked_add(jiff::SignedDuration::from_hours(hours)).unwrap();
        let list = identities::list_revoked(db, good_at).await.unwrap();
        list.into_iter().map(|(serial, ..)| serial).collect::<Vec<_>>()
    };
    assert_eq!(list(0).await, ["a1", "a3"]);
    assert!(list(1).await.is_empty(), "what would have ended anyway is listed no longer");
    assert_eq!(identities::get(db, &aid("alice")).await.unwrap().unwrap().serial, "a4");
    // A certificate of the old key cannot be renewed; one of the new key can.
    let renewal = |with: &str, serial: &str| Entry {
        asked_with: Some(with.into()),
        ..made(CertificateOperation::Renew, "alice", serial, now)
    };
    assert!(!append(renewal("a1", "a5")).await);
    assert!(!append(Entry { revoked: revoked("a4"), ..renewal("a3", "a5") }).await);
    assert!(append(renewal("a4", "a5")).await);
    // Two servers that share their keys find the auth service's next certificate, and each would write it down.
    assert!(!append(made(CertificateOperation::Renew, "alice", "a5", now)).await, "it is there");
    assert_eq!(identities::claim_issuer(db, "probe.test", "first", now).await.unwrap(), "first");
    assert_eq!(identities::claim_issuer(db, "probe.test", "second", now).await.unwrap(), "first");
}

/// However many were revoked since Postgres last looked at the table: the list is made in one pass, with one look for the end
/// of each certificate.
#[both_engines]
async fn what_ends_a_certificate_is_found_by_an_index(test_store: TestStore) {
    let process = StoreProcess::open(&test_store).await;
    let now = process.now();
    let names: Vec<(String, String)> = (0..300).map(|n| (format!("agent-{n}"), format!("{n:x}"))).collect();
    for (name, serial) in &names {
        identities::append(&process.db, &made(CertificateOperation::Issue, name, serial, now)).await.unwrap();
    }
    if test_store.engine() == Engine::Postgres {
        PgConnection::connect(&test_store.url()).await.unwrap().execute("ANALYZE").await.unwrap();
    }
    for (name, serial) in &names {
        let entry = made(CertificateOperation::Revoke, name, serial, now);
        let entry = Entry { made: None, revoked: revoked(serial), ..entry };
        identities::append(&process.db, &entry).await.unwrap();
    }
    let plan = identities::explain_revoked(&process.db, now).await.unwrap();
    assert!(plan.contains("mesh_certificates_revoked_aid"), "{plan}");
    assert!(!plan.contains("Filter: (aid = c.aid)"), "everything is looked through for each:\n{plan}");
    assert_eq!(identities::list_revoked(&process.db, now).await.unwrap().len(), names.len());
}

#[both_engines]
async fn only_the_last_pair_of_a_login_is_good(test_store: TestStore) {
    let process = StoreProcess::open(&test_store).await;
    let (db, now) = (&process.db, process.now());
    let later = |seconds| now.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap();
    let pair = |n: u32| Pair { access_hash: format!("a{n}"), access_until: later(60), refresh_hash: format!("r{n}") };
    let whose = async |hash, at| logins::find_by_access(db, hash, at).await.unwrap().map(|(aid, _)| aid);
    let live = async |at| logins::is_live(db, "login", at).await.unwrap();
    identities::append(db, &made(CertificateOperation::Issue, "alice", "c1", now)).await.unwrap();
    logins::insert(db, "login", (&aid("alice"), "c1"), &pair(0), later(600), 9).await.unwrap();
    assert_eq!(whose("a0", now).await, Some(aid("alice")));
    assert_eq!(whose("a0", later(60)).await, None, "its time is over");
    assert!(live(later(60)).await && !live(later(600)).await);
    let refresh =
        async |hash, n, most, at| logins::update_refreshed(db, hash, &pair(n), most, at).await.unwrap().is_some();
    assert!(refresh("r0", 1, 2, now).await);
    assert!(!refresh("r0", 9, 2, now).await, "it was used");
    assert_eq!((whose("a0", now).await, whose("a1", now).await), (None, Some(aid("alice"))));
    assert!(!refresh("r1", 2, 2, later(600)).await, "the chain has ended");
    assert!(refresh("r1", 2, 2, now).await);
    assert!(!refresh("r2", 3, 2, now).await, "so many times and no more");
    assert_eq!(logins::delete_by_spent(db, "r0").await.unwrap(), None, "long forgotten");
    assert_eq!(logins::delete_by_spent(db, "r1").await.unwrap(), Some(aid("alice")));
    assert_eq!((whose("a2", now).await, live(now).await), (None, false));
    assert!(logins::spend(db, "nonce", later(60)).await.unwrap());
    assert!(!logins::spend(db, "nonce", later(60)).await.unwrap());
    logins::delete_ended(db, later(60)).await.unwrap();
    assert!(logins::spend(db, "nonce", later(60)).await.unwrap());
}

/// Even before its row is deleted.
#[both_engines]
async fn a_login_is_good_as_long_as_its_certificate(test_store: TestStore) {
    let process = StoreProcess::open(&test_store).await;
    let (db, now) = (&process.db, process.now());
    let until = now.checked_add(jiff::SignedDuration::from_secs(60)).unwrap();
    let pair =
        |login: &str| Pair { access_hash: login.into(), access_until: until, refresh_hash: format!("r-{login}") };
    let append = async |entry: Entry| assert!(identities::append(db, &entry).await.unwrap());
    let login = async |login: &str, name: &str, serial: &str| {
        logins::insert(db, login, (&aid(name), serial), &pair(login), until, 9).await.unwrap();
    };
    let stands = async |login: &str| {
        let is_live = logins::is_live(db, login, now).await.unwrap();
        let known = logins::find_by_access(db, login, now).await.unwrap();
        assert_eq!(known.is_some(), is_live, "{login}");
        is_live
    };
    for (name, serial) in [("alice", "a1"), ("bobby", "b1")] {
        append(made(CertificateOperation::Issue, name, serial, now)).await;
    }
    login("first", "alice", "a1").await;
    append(made(CertificateOperation::Renew, "alice", "a2", now)).await;
    login("second", "alice", "a2").await;
    login("bobby's", "bobby", "b1").await;
    assert!(stands("first").await && stands("second").await && stands("bobby's").await);
    login("forged", "alice", "a9").await;
    assert!(!stands("forged").await, "there is no such certificate");
    // The second changes the key, and goes on with the new one.
    let by = (Some("a2".to_owned()), Some("second".to_owned()));
    let rekey = Entry {
        revoked: revoked("a2"),
        asked_with: by.0,
        asked_by: by.1,
        ..made(CertificateOperation::Rekey, "alice", "a3", now)
    };
    append(rekey).await;
    assert!(!stands("first").await && stands("second").await && stands("bobby's").await);
    let refresh = async |hash| logins::update_refreshed(db, hash, &pair("next"), 9, now).await.unwrap();
    assert_eq!(refresh("r-first").await, None);
    append(Entry { made: None, revoked: revoked("a3"), ..made(CertificateOperation::Revoke, "alice", "a3", now) })
        .await;
    assert!(!stands("second").await && stands("bobby's").await);
    assert_eq!(refresh("r-second").await, None);
    // Only logins that are no longer valid are deleted, not those that began afterwards.
    append(made(CertificateOperation::Rekey, "alice", "a4", now)).await;
    login("third", "alice", "a4").await;
    for name in ["alice", "bobby"] {
        logins::delete_fallen(db, &aid(name)).await.unwrap();
    }
    assert!(stands("third").await);
    login("second", "alice", "a4").await;
    assert_eq!(refresh("r-bobby's").await, Some(aid("bobby")));
}

#[both_engines]
async fn the_oldest_login_of_a_name_makes_room_for_the_next(test_store: TestStore) {
    let process = StoreProcess::open(&test_store).await;
    let (db, now) = (&process.db, process.now());
    let later = |seconds| now.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap();
    for (name, serial) in [("alice", "a1"), ("bobby", "b1")] {
        assert!(identities::append(db, &made(CertificateOperation::Issue, name, serial, now)).await.unwrap());
    }
    let login = async |login: &str, (name, serial), ends_at| {
        let pair = Pair { access_hash: login.into(), access_until: later(60), refresh_hash: format!("r-{login}") };
        logins::insert(db, login, (&aid(name), serial), &pair, ends_at, 2).await.unwrap();
    };
    let stands = async |login| logins::is_live(db, login, now).await.unwrap();
    login("bobby's", ("bobby", "b1"), later(50)).await;
    for (n, one) in ["1", "2", "3"].into_iter().enumerate() {
        login(one, ("alice", "a1"), later(60 + n as i64)).await;
    }
    assert!(!stands("1").await && stands("2").await && stands("3").await);
    // Of those that began at once, their ids tell.
    login("4", ("alice", "a1"), later(62)).await;
    assert!(!stands("2").await && stands("3").await && stands("4").await && stands("bobby's").await);
}
