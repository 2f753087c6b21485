//! The wait of a call: until a run has a new event, or needs attention, or the call's time has passed. Notifications
//! during the wait follow from the run's log alone, so that another server can continue it.

use ostler_protocol::{
    Failure, Rule,
    kernel::{
        events::{Event, EventType},
        run_views::RunView,
    },
    limits::WAIT_MS_MAX,
    mcp_server::{
        arguments::WaitUntil,
        event_ids::{RunWait, WaitPoint},
    },
};
use ostler_server::service::{
    follow::{self, Follower},
    runs,
};
use tokio::time::{Duration, Instant};

use super::context::RequestContext;

pub(crate) struct Waiter {
    context: RequestContext,
    wait: RunWait,
    follower: Follower,
    until: Instant,
}

pub(crate) enum WaitStep {
    /// The run has a new event, and the wait goes on.
    Progress { seq: i64, event_type: EventType },
    /// The result can be read.
    Over,
    /// The server stops; another one can continue the wait.
    Cut,
}

/// Whether a call begins, or continues on a new connection.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum WaitStart {
    Fresh,
    Resumed,
}

impl Waiter {
    /// `None` if there is nothing to wait for. A fresh wait is moved to the current end of the log.
    pub(crate) async fn open(
        context: &RequestContext,
        point: &mut WaitPoint,
        start: WaitStart,
    ) -> Result<Option<Self>, Failure> {
        let (app, caller, wait) = (&context.app, &context.caller, &point.wait);
        let view = runs::get_view(app, caller, wait.run_id).await?;
        let last_seq = view.run.last_seq;
        if wait.after_seq > last_seq {
            let message =
                format!("the log ends at {last_seq}; nothing numbered {} was ever written to it", wait.after_seq);
            return Err(Failure::invalid(Rule::AfterBeyondEnd, message).detail("lastSeq", last_seq));
        }
        let left_ms = wait.deadline_ms.saturating_sub(app.now().as_millisecond()).clamp(0, WAIT_MS_MAX as i64);
        if left_ms == 0 || is_over(wait, &view) {
            return Ok(None);
        }
        if start == WaitStart::Fresh {
            point.notified_seq = last_seq;
        }
        let follower = follow::run(app, caller, wait.run_id, point.notified_seq).await?;
        let until = Instant::now() + Duration::from_millis(left_ms.unsigned_abs());
        Ok(Some(Self { context: context.clone(), wait: wait.clone(), follower, until }))
    }

    pub(crate) async fn next(&mut self) -> Result<WaitStep, Failure> {
        let Ok(next) = tokio::time::timeout_at(self.until, self.follower.next()).await else {
            return Ok(WaitStep::Over);
        };
        let Some(mut last) = next? else {
            return Ok(if self.context.app.is_draining() { WaitStep::Cut } else { WaitStep::Over });
        };
        let mut is_decisive = decides(&last);
        // One notification for all events that are there.
        while let Some(event) = self.follower.try_next() {
            is_decisive |= decides(&event);
            last = event;
        }
        if self.wait.until == WaitUntil::Event || is_decisive && self.is_over().await? {
            return Ok(WaitStep::Over);
        }
        Ok(WaitStep::Progress { seq: last.seq(), event_type: last.event_type })
    }

    async fn is_over(&self) -> Result<bool, Failure> {
        let view = runs::get_view(&self.context.app, &self.context.caller, self.wait.run_id).await?;
        Ok(is_over(&self.wait, &view))
    }
}

fn is_over(wait: &RunWait, view: &RunView) -> bool {
    match wait.until {
        WaitUntil::Event => view.run.last_seq > wait.after_seq,
        WaitUntil::End => view.standing.state.is_ended() || view.standing.open_permissions > 0,
    }
}

/// Whether a wait for the end may be over with this event.
fn decides(event: &Event) -> bool {
    matches!(event.event_type, EventType::TerminalStatus | EventType::PermissionRequest)
}
