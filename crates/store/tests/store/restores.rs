//! Restores of a session's files hold their session for a limited time.

use ostler_protocol::Timestamp;
use ostler_store::daemon::restores::{self, Restore};

use crate::{
    place::{Place, both_engines},
    workshop::Workshop,
};

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap()
}

#[both_engines]
async fn a_restore_that_has_expired_is_not_extended(place: Place) {
    let mut workshop = Workshop::open(&place).await;
    let session = workshop.mint.session(None, workshop.now()).session;
    let restore = |expires_at| Restore { session, restore_id: "first".into(), expires_at: at(expires_at) };
    assert!(restores::insert(&workshop.db, &restore(100), at(0)).await.unwrap());
    assert!(restores::update_expiry(&workshop.db, &restore(200), at(99)).await.unwrap());
    assert!(!restores::update_expiry(&workshop.db, &restore(300), at(200)).await.unwrap());
    assert!(!restores::is_under_way(&workshop.db, session, at(200)).await.unwrap());
}
