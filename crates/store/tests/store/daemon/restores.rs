//! Restores of a session's files hold their session for a limited time.

use ostler_protocol::Timestamp;
use ostler_store::daemon::restores::{self, Restore};

use crate::{
    store_process::StoreProcess,
    test_store::{TestStore, both_engines},
};

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap()
}

#[both_engines]
async fn a_restore_that_has_expired_is_not_extended(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let session = process.mint.session(None, process.now()).session;
    let restore = |expires_at| Restore { session, restore_id: "first".into(), expires_at: at(expires_at) };
    assert!(restores::insert(&process.db, &restore(100), at(0)).await.unwrap());
    assert!(restores::update_expiry(&process.db, &restore(200), at(99)).await.unwrap());
    assert!(!restores::update_expiry(&process.db, &restore(300), at(200)).await.unwrap());
    assert!(!restores::is_under_way(&process.db, session, at(200)).await.unwrap());
}
