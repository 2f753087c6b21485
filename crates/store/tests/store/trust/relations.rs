//! Relations and their receipts: written together or not at all, and only against what they were decided from.

use std::collections::BTreeMap;

use ostler_protocol::{
    Timestamp,
    ids::{AgentId, ReceiptId, RelationId},
    limits::PAGE_BYTES_MAX,
    trust::{
        i18n::Language,
        manifest::{Checked, Sensitivity},
        receipts::{ConsentTexts, Head, Receipt, ReceiptAction, ReceiptNote, ReceiptVerifier},
        relations::{Answer, Consented, Relation, UseScope},
    },
};
use ostler_store::{
    Db,
    trust::{
        decisions,
        receipts::{self, Of},
        relations,
    },
};
use uuid::Uuid;

use crate::{
    rows::Witness,
    test_store::{TestStore, both_engines},
};

const MANIFEST: &str = r#"{"agent_version":"1.0.0","permission_scopes":[{"id":"location:read","label_i18n_key":"a.b","sensitivity":"high"}],"schema_version":"1.0","tools":[]}"#;

fn agent() -> AgentId {
    AgentId::new(Uuid::from_u128(1))
}

fn relation(number: u128, user_id: &str) -> Relation {
    let granted = Answer::Granted { sensitivity: Sensitivity::High, once: false, expires_at: None };
    let at = Timestamp::from_second(number as i64).unwrap();
    Relation {
        relation_id: RelationId::new(Uuid::from_u128(number)),
        agent_id: agent(),
        agent_name: "helper".into(),
        agent_owner_id: "local".into(),
        user_id: user_id.into(),
        consented: Consented { version: 1, hash: "h1".into() },
        answers: BTreeMap::from([("location:read".to_owned(), granted)]),
        revision: 1,
        created_at: at,
        updated_at: at,
        revoked_at: None,
    }
}

fn receipt(head: &Head, relation: &Relation) -> Receipt {
    let id = ReceiptId::new(Uuid::from_u128(head.seq as u128 + 1));
    let note = ReceiptNote { id, act: ReceiptAction::Consented, used: None };
    let manifest = Checked::reformatted(MANIFEST).unwrap().manifest;
    Receipt::write(head, note, relation, &ConsentTexts::Displayed { manifest: &manifest, language: Language::En })
}

async fn ledger_head(db: &Db, user_id: &str) -> Head {
    decisions::find_grant_inputs(db, user_id, agent()).await.unwrap().head
}

async fn open(test_store: &TestStore) -> Db {
    Db::open(&test_store.config(), Timestamp::UNIX_EPOCH).await.unwrap()
}

/// A version of the agent's manifest, put there past the store.
async fn publish(test_store: &TestStore, version: i64) {
    let sql = format!(
        "INSERT INTO manifests (agent_id, version, hash, manifest, declared_since, created_at)
         VALUES ('{}', {version}, 'h{version}', '{MANIFEST}', '{{\"location:read\":1}}', 0)",
        agent()
    );
    let current = format!(
        "INSERT INTO agents (agent_id, name, owner_id, capability_manifest_version, created_at, updated_at, revision)
         VALUES ('{}', 'helper', 'local', {version}, 0, 0, {version})
         ON CONFLICT (agent_id) DO UPDATE SET capability_manifest_version = {version}",
        agent()
    );
    let mut witness = Witness::of(test_store).await;
    witness.execute(&sql).await;
    witness.execute(&current).await;
}

/// Opens a store whose agent has these versions.
async fn with_versions(test_store: &TestStore, versions: i64) -> Db {
    open(test_store).await.close().await;
    for version in 1..=versions {
        publish(test_store, version).await;
    }
    open(test_store).await
}

#[both_engines]
async fn an_answer_and_its_receipt_are_written_together_or_not_at_all(test_store: TestStore) {
    let db = with_versions(&test_store, 1).await;
    let first = relation(1, "local");
    let written = receipt(&Head::default(), &first);
    assert!(relations::insert(&db, &first, &written, None).await.unwrap());
    assert_eq!(relations::get(&db, first.relation_id).await.unwrap().unwrap(), first);
    assert_eq!(ledger_head(&db, "local").await, written.head());

    let second = relation(2, "local");
    let again = receipt(&written.head(), &second);
    assert!(!relations::insert(&db, &second, &again, None).await.unwrap(), "they have a relation already");
    let next = Relation { revision: 2, answers: BTreeMap::new(), ..first.clone() };
    let good = receipt(&written.head(), &next);
    let taken = receipt(&Head::default(), &next);
    assert!(!relations::update(&db, &next, &taken, Some(1), None).await.unwrap(), "the number is given");
    assert!(
        !relations::update(&db, &next, &good, Some(2), None).await.unwrap(),
        "it was decided under another manifest"
    );
    let skipped = Relation { revision: 3, ..next.clone() };
    assert!(
        !relations::update(&db, &skipped, &good, Some(1), None).await.unwrap(),
        "it was decided from another revision"
    );
    assert_eq!(relations::get(&db, first.relation_id).await.unwrap().unwrap(), first);
    assert_eq!(ledger_head(&db, "local").await, written.head(), "no receipt of what was not written");

    assert!(relations::update(&db, &next, &good, Some(1), None).await.unwrap());
    assert_eq!(relations::get(&db, first.relation_id).await.unwrap().unwrap(), next);
    let page = receipts::list(&db, Of::Relation(first.relation_id), 0, 10).await.unwrap();
    let read: Vec<Receipt> = page.receipts.iter().map(|(_, text)| serde_json::from_str(text).unwrap()).collect();
    assert_eq!((read, page.has_more), (vec![written, good], false));
    db.close().await;
}

#[both_engines]
async fn a_page_of_receipts_is_bounded_in_bytes(test_store: TestStore) {
    let db = with_versions(&test_store, 1).await;
    let mut known = relation(1, "local");
    // Each receipt is of some 100 kB.
    let long = |number: usize| (format!("{}{number}", "x".repeat(100_000)), Answer::Denied);
    known.answers = BTreeMap::from([long(0)]);
    assert!(relations::insert(&db, &known, &receipt(&Head::default(), &known), None).await.unwrap());
    for number in 1..100 {
        let head = ledger_head(&db, "local").await;
        known = Relation { revision: known.revision + 1, answers: BTreeMap::from([long(number)]), ..known };
        assert!(relations::update(&db, &known, &receipt(&head, &known), None, None).await.unwrap());
    }
    for of in [Of::Person("local"), Of::Relation(known.relation_id)] {
        let (mut seen, mut pages) = (vec![], 0);
        loop {
            let page = receipts::list(&db, of, seen.len() as i64, 1_000).await.unwrap();
            let bytes: usize = page.receipts.iter().map(|(_, text)| text.len()).sum();
            assert!(bytes <= PAGE_BYTES_MAX, "{bytes}");
            seen.extend(page.receipts.iter().map(|(seq, _)| *seq));
            pages += 1;
            if !page.has_more {
                break;
            }
        }
        assert_eq!((seen, pages), ((1..=100).collect(), 2));
    }
    assert!(receipts::list(&db, Of::Person("local"), 0, 3).await.unwrap().has_more);
    db.close().await;
}

#[both_engines]
async fn of_answers_at_once_each_number_is_given_once(test_store: TestStore) {
    let db = with_versions(&test_store, 1).await;
    let first = relation(1, "local");
    assert!(relations::insert(&db, &first, &receipt(&Head::default(), &first), None).await.unwrap());
    let answering = (0..20).map(|_| {
        let (db, relation_id) = (db.clone(), first.relation_id);
        tokio::spawn(async move {
            loop {
                let known = relations::get(&db, relation_id).await.unwrap().unwrap();
                let head = ledger_head(&db, "local").await;
                let next = Relation { revision: known.revision + 1, ..known };
                if relations::update(&db, &next, &receipt(&head, &next), Some(1), None).await.unwrap() {
                    return;
                }
            }
        })
    });
    for one in answering.collect::<Vec<_>>() {
        one.await.unwrap();
    }
    let lines = receipts::list(&db, Of::Person("local"), 0, 100).await.unwrap().receipts;
    let mut verifier = ReceiptVerifier::default();
    lines.iter().for_each(|(_, line)| verifier.take(line).unwrap());
    assert_eq!(verifier.receipts, 21);
    assert_eq!(relations::get(&db, first.relation_id).await.unwrap().unwrap().revision, 21);
    db.close().await;
}

#[both_engines]
async fn relations_that_are_behind_are_found_by_person_and_by_agent(test_store: TestStore) {
    let db = with_versions(&test_store, 1).await;
    for number in 1..=5 {
        let one = relation(number, &format!("usr_{number}"));
        assert!(relations::insert(&db, &one, &receipt(&Head::default(), &one), None).await.unwrap());
    }
    assert!(relations::list_behind(&db, "usr_1", 10).await.unwrap().is_empty());
    db.close().await;
    publish(&test_store, 2).await;
    let db = open(&test_store).await;
    assert_eq!(relations::list_behind(&db, "usr_1", 10).await.unwrap(), [(relation(1, "usr_1"), 2)]);
    let answered =
        Relation { revision: 2, consented: Consented { version: 2, hash: "h2".into() }, ..relation(2, "usr_2") };
    let head = ledger_head(&db, "usr_2").await;
    assert!(relations::update(&db, &answered, &receipt(&head, &answered), Some(2), None).await.unwrap());
    let ended = Relation { revision: 2, revoked_at: Some(Timestamp::UNIX_EPOCH), ..relation(3, "usr_3") };
    let head = ledger_head(&db, "usr_3").await;
    assert!(relations::update(&db, &ended, &receipt(&head, &ended), Some(2), None).await.unwrap());
    let (mut found, mut after) = (vec![], None);
    loop {
        let page = relations::list_behind_version(&db, agent(), 2, after.as_ref(), 2).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.clone());
        found.extend(page.iter().map(|one| one.user_id.clone()));
    }
    assert_eq!(found, ["usr_1", "usr_4", "usr_5"]);
    db.close().await;
}

/// Every write below changes a relation and the ledger together, so each read must find both as they were after the same write.
#[both_engines]
async fn inputs_of_a_decision_are_of_one_moment(test_store: TestStore) {
    const WRITES: i64 = 300;
    let db = with_versions(&test_store, 1).await;
    let writing = tokio::spawn({
        let db = db.clone();
        async move {
            let mut head = Head::default();
            while head.seq < WRITES {
                let one = relation(head.seq as u128 + 1, "local");
                let made = receipt(&head, &one);
                assert!(relations::insert(&db, &one, &made, None).await.unwrap());
                let end = Relation { revision: 2, revoked_at: Some(one.created_at), ..one };
                let ended = receipt(&made.head(), &end);
                assert!(relations::update(&db, &end, &ended, None, None).await.unwrap());
                head = ended.head();
            }
        }
    });
    let mut reads = 0;
    while !writing.is_finished() {
        let found = decisions::find_grant_inputs(&db, "local", agent()).await.unwrap();
        let head = found.head.seq;
        assert_eq!((found.active.is_some(), found.active_count), (head % 2 == 1, head % 2), "after write {head}");
        assert_eq!(found.agent.map(|agent| agent.name), Some("helper".to_owned()));
        assert_eq!(found.manifest_version, Some(1));
        let Some(last) = found.active.or(found.ended) else { continue };
        assert_eq!(last.relation_id, relation((head - (head + 1) % 2) as u128, "local").relation_id);
        let found = decisions::find_decision_inputs(&db, last.relation_id, None).await.unwrap().unwrap();
        let recorded = found.ledger.last_receipt(&db, "local").await.unwrap().unwrap();
        assert_eq!(found.relation.revision, 2 - recorded.seq % 2);
        assert!(recorded.seq == found.ledger.head.seq || found.relation.revision == 2, "{found:?}");
        let found = decisions::find_revocation_inputs(&db, last.relation_id).await.unwrap().unwrap();
        let recorded = found.ledger.last_receipt(&db, "local").await.unwrap().unwrap();
        assert_eq!(found.relation.revision, 2 - recorded.seq % 2);
        reads += 1;
    }
    writing.await.unwrap();
    assert!(reads > 10, "{reads}");
    db.close().await;
}

#[both_engines]
async fn the_receipt_of_a_call_is_found_with_the_relation(test_store: TestStore) {
    let db = with_versions(&test_store, 2).await;
    let first = Relation { consented: Consented { version: 2, hash: "h2".into() }, ..relation(1, "local") };
    let made = receipt(&Head::default(), &first);
    assert!(relations::insert(&db, &first, &made, None).await.unwrap());
    let next = Relation { revision: 2, ..first.clone() };
    let used = Some(UseScope { scope: "location:read".into(), call_id: "call_1".into() });
    let note = ReceiptNote { id: ReceiptId::new(Uuid::from_u128(2)), act: ReceiptAction::Used, used };
    let called = Receipt::write(&made.head(), note, &next, &ConsentTexts::Recorded { before: &made, manifest: None });
    assert!(relations::update(&db, &next, &called, Some(2), None).await.unwrap());
    for (call_id, expected) in [(Some("call_1"), Some(&called)), (Some("call_2"), None), (None, None)] {
        let found = decisions::find_decision_inputs(&db, first.relation_id, call_id).await.unwrap().unwrap();
        assert_eq!((found.call_receipt.as_ref(), found.manifest_version), (expected, Some(2)));
        assert_eq!((found.relation, found.ledger.head.clone()), (next.clone(), called.head()));
        assert_eq!(found.ledger.last_receipt(&db, "local").await.unwrap().as_ref(), Some(&called));
    }
    let nobody = RelationId::new(Uuid::from_u128(9));
    assert!(decisions::find_decision_inputs(&db, nobody, None).await.unwrap().is_none());
    assert!(decisions::find_revocation_inputs(&db, nobody).await.unwrap().is_none());
    let unknown = decisions::find_grant_inputs(&db, "ada", AgentId::new(Uuid::from_u128(9))).await.unwrap();
    assert!(unknown.agent.is_none() && unknown.active.is_none() && unknown.ended.is_none());
    assert_eq!((unknown.manifest_version, unknown.active_count, unknown.head), (None, 0, Head::default()));
    db.close().await;
}
