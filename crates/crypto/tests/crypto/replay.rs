use ostler_crypto::{
    envelope::{Envelope, Unopened, seal},
    replay::{REMEMBERED_MAX, ReplayError, ReplayGuard, WINDOW_MS},
};

use crate::fixture::{Domain, peer};

const NOW: i64 = 1_794_700_000_000;

/// An envelope with this id and time. Nothing else is used here; the test decides whether it opens.
fn envelope() -> impl FnMut(&str, i64) -> Envelope {
    let mut domain = Domain::new(1);
    let (alice, bobby) = (domain.identity("alice.probe.test"), domain.identity("bobby.probe.test"));
    let mut one =
        seal(&alice, &peer(&bobby), None, (bobby.name(), "m", NOW), b"{}", &mut |bytes| domain.random.fill(bytes));
    move |id, time| {
        let envelope = one.as_mut().unwrap();
        envelope.aad.message_id = id.to_owned();
        envelope.aad.timestamp = time;
        envelope.clone()
    }
}

#[test]
fn a_message_is_opened_once() {
    let (mut guard, mut envelope) = (ReplayGuard::default(), envelope());
    let first = envelope("m-1", NOW);
    assert_eq!(guard.admit(&first, NOW, || Ok(1)), Ok(1));
    assert_eq!(guard.admit(&first, NOW, || Ok(2)), Err(ReplayError::Replayed));
    assert_eq!(guard.admit(&envelope("m-2", NOW), NOW, || Ok(3)), Ok(3));
    // Another sender may use the same id.
    let mut other = first.clone();
    other.aad.from = "carol.probe.test".into();
    assert_eq!(guard.admit(&other, NOW, || Ok(4)), Ok(4));
}

#[test]
fn a_forgery_does_not_block_the_real_message() {
    let (mut guard, mut envelope) = (ReplayGuard::default(), envelope());
    let message = envelope("m-1", NOW);
    let refused = guard.admit(&message, NOW, || Err::<(), _>(Unopened::Signature));
    assert_eq!(refused, Err(ReplayError::Unopened(Unopened::Signature)));
    assert_eq!(guard.admit(&message, NOW, || Ok(())), Ok(()));
}

#[test]
fn a_message_outside_the_window_is_not_opened() {
    let (mut guard, mut envelope) = (ReplayGuard::default(), envelope());
    for (time, admitted) in [
        (NOW - WINDOW_MS, true),
        (NOW - WINDOW_MS - 1, false),
        (NOW + WINDOW_MS, true),
        (NOW + WINDOW_MS + 1, false),
        (i64::MIN, false),
        (i64::MAX, false),
    ] {
        let answer = guard.admit(&envelope(&time.to_string(), time), NOW, || Ok(()));
        assert_eq!(answer.is_ok(), admitted, "{}", time - NOW);
    }
}

#[test]
fn a_message_is_never_admitted_twice() {
    let (mut guard, mut envelope) = (ReplayGuard::default(), envelope());
    // From a sender whose clock is ahead: it is inside the window for twice as long.
    let message = envelope("m-1", NOW + WINDOW_MS);
    guard.admit(&message, NOW, || Ok(())).unwrap();
    for later in (0..=3 * WINDOW_MS).step_by(10_000) {
        let other = envelope(&format!("other-{later}"), NOW + later);
        guard.admit(&other, NOW + later, || Ok(())).unwrap();
        assert!(guard.admit(&message, NOW + later, || Ok(())).is_err(), "{later}");
    }
}

#[test]
fn too_many_messages_narrow_the_window() {
    let (mut guard, mut envelope) = (ReplayGuard::default(), envelope());
    for number in 0..=REMEMBERED_MAX {
        let message = envelope(&number.to_string(), NOW + number as i64);
        guard.admit(&message, NOW + 60_000, || Ok(())).unwrap();
    }
    // The first was forgotten, yet it is not admitted. Newer ones are.
    assert_eq!(guard.admit(&envelope("0", NOW), NOW + 60_000, || Ok(())), Err(ReplayError::OutsideWindow));
    assert_eq!(guard.admit(&envelope("1", NOW + 1), NOW + 60_000, || Ok(())), Err(ReplayError::Replayed));
    assert_eq!(guard.admit(&envelope("new", NOW + 1), NOW + 60_000, || Ok(())), Ok(()));
}
