//! Attachments under a hold: they stay, and do not delay the cleanup of others.

use jiff::SignedDuration;
use ostler_protocol::{
    ids::HoldId,
    kernel::sessions::Session,
    retention::Hold,
    run_input::attachments::{ImageType, ObjectPath},
};
use ostler_store::{
    kernel::erasures,
    retention::{self, RetentionScope},
    run_input::attachments::{self, Quota},
};

use crate::{
    build::{TENANT, create_session},
    mesh::limits::run,
    store_process::StoreProcess,
    test_store::{TestStore, both_engines},
};

const OWNER: &str = "ada";
const HELD: &str = "550e8400-e29b-41d4-a716-446655440000";
const OTHER: &str = "550e8400-e29b-41d4-a716-446655440001";

async fn thread(process: &mut StoreProcess, tenant: &str, thread_id: &str) -> Session {
    let new = process.mint.session(Some(thread_id), process.now());
    let session = Session { tenant_id: tenant.into(), owner: Some(OWNER.into()), ..new };
    process.ask(create_session(session.clone())).await;
    session
}

async fn upload(process: &mut StoreProcess, thread_id: &str) -> ObjectPath {
    let path = ObjectPath::new(OWNER, thread_id, "run-1", process.mint.body(), ImageType::Png).unwrap();
    let quota = Quota { bytes: 1_000, files: 10 };
    assert!(attachments::insert(&process.db, &path, 10, quota, process.now()).await.unwrap());
    process.host.advance_ms(1_000);
    path
}

async fn hold(process: &mut StoreProcess, session: &Session) {
    let hold = Hold {
        hold_id: HoldId::new(process.mint.body()),
        tenant_id: Some(session.tenant_id.clone()),
        session: Some(session.session),
        session_id: session.external_id.clone(),
        identity: None,
        reason: "case 7".into(),
        placed_by: "operator".into(),
        placed_at: process.now(),
        released_by: None,
        released_at: None,
    };
    retention::insert_hold(&process.db, &hold).await.unwrap();
}

#[both_engines]
async fn held_threads_do_not_delay_the_cleanup_of_others(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let (held, other) = (thread(&mut process, TENANT, HELD).await, thread(&mut process, TENANT, OTHER).await);
    let (_, unused) = (upload(&mut process, HELD).await, upload(&mut process, OTHER).await);
    hold(&mut process, &held).await;
    let listed = attachments::list_unused(&process.db, process.now(), 1).await.unwrap();
    assert_eq!(listed.iter().map(ToString::to_string).collect::<Vec<_>>(), [unused.to_string()]);
    for (number, session) in [&held, &other].into_iter().enumerate() {
        let sql = format!("UPDATE sessions SET erased_at = {} WHERE session_id = '{}'", number + 1, session.session);
        run(&test_store, sql).await;
    }
    let unfinished = erasures::list_unfinished(&process.db, 1).await.unwrap();
    assert_eq!(unfinished.iter().map(|session| session.session).collect::<Vec<_>>(), [other.session]);
}

#[both_engines]
async fn attachments_of_a_held_thread_stay_while_it_is_being_erased(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let held = thread(&mut process, TENANT, HELD).await;
    let path = upload(&mut process, HELD).await;
    hold(&mut process, &held).await;
    run(&test_store, format!("UPDATE sessions SET erased_at = 1 WHERE session_id = '{}'", held.session)).await;
    assert_stays(&process, &path, None).await;
}

#[both_engines]
async fn a_hold_on_one_of_two_threads_with_the_same_id_covers_their_attachments(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    thread(&mut process, TENANT, HELD).await;
    let held = thread(&mut process, "other", HELD).await;
    let path = upload(&mut process, HELD).await;
    hold(&mut process, &held).await;
    assert_stays(&process, &path, Some(TENANT)).await;
}

/// Neither retention nor the cleanup of unused files removes it, and retention lists it once.
async fn assert_stays(process: &StoreProcess, path: &ObjectPath, tenant: Option<&str>) {
    let (db, now) = (&process.db, process.now());
    let scope = RetentionScope { tenant_id: tenant.map(str::to_owned), before: now };
    let listed = attachments::list_removable(db, &scope, None, 10).await.unwrap();
    assert_eq!(listed.iter().map(|one| one.is_held).collect::<Vec<_>>(), [true]);
    assert_eq!(attachments::update_expired(db, &scope, &path.to_string(), now).await.unwrap(), None);
    let later = now.checked_add(SignedDuration::from_millis(1)).unwrap();
    assert!(!attachments::update_let_go(db, path, later, now).await.unwrap());
    assert!(attachments::exists(db, path).await.unwrap());
}
