//! Where a stream begins: after the last frame that the client has, as far as the log still has the frames after it.

use ostler_protocol::{
    Failure,
    daemon::frames::{Resync, first_id, last_id, seq_of},
    kernel::sessions::Session,
};
use ostler_server::app::App;
use ostler_store as store;

/// What a stream sends before the frames that are published from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplayPlan {
    /// Why the client must load the session again, if it must.
    pub resync: Option<Resync>,
    /// The events after this one are replayed.
    pub after: i64,
    /// … up to this one.
    pub until: i64,
    /// Frames up to this id are left out: the client has them.
    pub after_id: i64,
}

impl ReplayPlan {
    /// For a client that asked for the frames after `last_delivered_id`. All that the log has are replayed, or those of the newest
    /// `events_max` events.
    pub(super) async fn new(
        app: &App,
        session: &Session,
        last_delivered_id: i64,
        events_max: Option<u32>,
    ) -> Result<Self, Failure> {
        let plan = Self::within(last_delivered_id, session.last_seq, events_max);
        let removed = store::daemon::frames::last_removed(&app.db, session.session, plan.after, plan.until).await?;
        Ok(match removed {
            Some(removed) => plan.from(removed, last_delivered_id),
            None => plan,
        })
    }

    /// Before it is known what retention has removed.
    fn within(last_delivered_id: i64, until: i64, events_max: Option<u32>) -> Self {
        let oldest = events_max.map_or(0, |events_max| (until - i64::from(events_max)).max(0));
        if last_delivered_id > last_id(until) {
            let reset = Resync::EpochReset { last_delivered_id, earliest_available_id: first_id(oldest + 1) };
            return Self { resync: Some(reset), after: oldest, until, after_id: 0 };
        }
        // The client may have the first of an event's two frames.
        let has_second = last_delivered_id % 2 == 0;
        let after = seq_of(last_delivered_id) - i64::from(!has_second);
        let plan = Self { resync: None, after, until, after_id: last_delivered_id };
        if oldest > after { plan.from(oldest, last_delivered_id) } else { plan }
    }

    /// The same replay, of the events after `oldest`.
    fn from(self, oldest: i64, last_delivered_id: i64) -> Self {
        let has_gap = oldest > seq_of(last_delivered_id) && self.resync.is_none();
        let gap = Resync::RingEvicted { last_delivered_id, earliest_available_id: first_id(oldest + 1) };
        Self { resync: self.resync.or(has_gap.then_some(gap)), after: oldest, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_begins_after_the_last_delivered_frame() {
        let plan = |id, until| ReplayPlan::within(id, until, Some(100));
        let expected = |after, until, after_id| ReplayPlan { resync: None, after, until, after_id };
        assert_eq!(plan(0, 3), expected(0, 3, 0));
        assert_eq!(plan(2, 3), expected(1, 3, 2));
        // The second frame of event 2 may be missing.
        assert_eq!(plan(3, 3), expected(1, 3, 3));
        assert_eq!(plan(6, 3), expected(3, 3, 6));
        assert_eq!(plan(0, 0), expected(0, 0, 0));
    }

    #[test]
    fn a_client_ahead_of_the_log_gets_everything() {
        let plan = ReplayPlan::within(7, 3, Some(2));
        let reset = Resync::EpochReset { last_delivered_id: 7, earliest_available_id: first_id(2) };
        assert_eq!(plan, ReplayPlan { resync: Some(reset), after: 1, until: 3, after_id: 0 });
        assert_eq!(plan.from(2, 7).resync, Some(reset));
    }

    #[test]
    fn a_client_too_far_behind_receives_where_the_frames_begin() {
        let gap = |last_delivered_id, earliest_available_id| {
            Some(Resync::RingEvicted { last_delivered_id, earliest_available_id })
        };
        let plan = ReplayPlan::within(2, 10, Some(4));
        assert_eq!(plan, ReplayPlan { resync: gap(2, 13), after: 6, until: 10, after_id: 2 });
        // Exactly as far behind as frames are replayed.
        assert_eq!(ReplayPlan::within(12, 10, Some(4)).resync, None);
        assert_eq!(ReplayPlan::within(11, 10, Some(4)).resync, None);
        assert_eq!(ReplayPlan::within(0, 10, Some(10)).resync, None);
        // The payloads up to event 8 were removed.
        assert_eq!(ReplayPlan::within(2, 10, None).from(8, 2).resync, gap(2, 17));
    }

    #[test]
    fn without_a_limit_only_retention_makes_a_gap() {
        let plan = ReplayPlan::within(20, 1_000_000, None);
        assert_eq!(plan, ReplayPlan { resync: None, after: 10, until: 1_000_000, after_id: 20 });
        let reset = ReplayPlan::within(9, 3, None);
        assert_eq!((reset.after, reset.until, reset.after_id), (0, 3, 0));
    }
}
