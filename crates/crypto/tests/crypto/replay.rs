use ostler_crypto::{
    envelope::{Envelope, Unopened, seal},
    replay::{REMEMBERED_MAX, Refused, ReplayGuard, WINDOW_MS},
};

use crate::scene::{Domain, peer};

const NOW: i64 = 1_794_700_000_000;

/// An envelope with this id and time. Only those are looked at here; what opens is decided by the test.
fn envelope() -> impl FnMut(&str, i64) -> Envelope {
    let mut domain = Domain::new(1);
    let (alice, bobby) = (domain.agent("alice.probe.test"), domain.agent("bobby.probe.test"));
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
    assert_eq!(guard.admit(&first, NOW, || Ok(2)), Err(Refused::Replayed));
    assert_eq!(guard.admit(&envelope("m-2", NOW), NOW, || Ok(3)), Ok(3));
    // Another sender may use the same id.
    let mut other = first.clone();
    other.aad.from = "carol.probe.test".into();
    assert_eq!(guard.admit(&other, NOW, || Ok(4)), Ok(4));
}

#[test]
fn a_forgery_does_not_keep_the_true_message_out() {
    let (mut guard, mut envelope) = (ReplayGuard::default(), envelope());
    let message = envelope("m-1", NOW);
    let refused = guard.admit(&message, NOW, || Err::<(), _>(Unopened::Signature));
    assert_eq!(refused, Err(Refused::Unopened(Unopened::Signature)));
    assert_eq!(guard.admit(&message, NOW, || Ok(())), Ok(()));
}

#[test]
fn a_message_from_too_far_away_in_time_is_not_opened() {
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
fn there_is_no_moment_at_which_a_message_comes_in_twice() {
    let (mut guard, mut envelope) = (ReplayGuard::default(), envelope());
    // From a sender whose clock is ahead: it stays inside the window for twice the time.
    let message = envelope("m-1", NOW + WINDOW_MS);
    guard.admit(&message, NOW, || Ok(())).unwrap();
    for later in (0..=3 * WINDOW_MS).step_by(10_000) {
        let other = envelope(&format!("other-{later}"), NOW + later);
        guard.admit(&other, NOW + later, || Ok(())).unwrap();
        assert!(guard.admit(&message, NOW + later, || Ok(())).is_err(), "{later}");
    }
}

#[test]
fn more_than_it_can_remember_narrows_the_window() {
    let (mut guard, mut envelope) = (ReplayGuard::default(), envelope());
    for number in 0..=REMEMBERED_MAX {
        let message = envelope(&number.to_string(), NOW + number as i64);
        guard.admit(&message, NOW + 60_000, || Ok(())).unwrap();
    }
    // The first was forgotten, and yet is not let in; what is newer still is.
    assert_eq!(guard.admit(&envelope("0", NOW), NOW + 60_000, || Ok(())), Err(Refused::OutsideWindow));
    assert_eq!(guard.admit(&envelope("1", NOW + 1), NOW + 60_000, || Ok(())), Err(Refused::Replayed));
    assert_eq!(guard.admit(&envelope("new", NOW + 1), NOW + 60_000, || Ok(())), Ok(()));
}
