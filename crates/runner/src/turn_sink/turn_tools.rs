//! The server's tools and those of the front end, as a backend calls them through the gateway while it works on a turn.

use std::sync::Arc;

use futures_util::{FutureExt, future::BoxFuture};
use ostler_protocol::{
    Failure, FailureKind,
    kernel::context::Context,
    tools::wire::{CalledTool, RunTools},
};
use tokio::{
    sync::watch,
    time::{Duration, timeout},
};

use super::{front_end_tools::FrontEndTools, shared::SinkShared};
use crate::{budgets::StopReason, tool_gateway::TurnToolkit, tool_port::ToolPort};

/// How long a call waits for earlier events to be durable. A backend that emits all the time never comes to that point.
const FLUSH_MS_MAX: u64 = 1_000;

/// The tools of one turn.
pub(crate) struct TurnTools {
    shared: Arc<SinkShared>,
    stop: watch::Receiver<Option<StopReason>>,
    port: ToolPort,
    front_end: FrontEndTools,
}

impl TurnTools {
    pub(super) fn new(
        shared: Arc<SinkShared>,
        stop: watch::Receiver<Option<StopReason>>,
        port: ToolPort,
        context: Context,
    ) -> Self {
        let front_end = FrontEndTools::new(shared.clone(), context);
        Self { shared, stop, port, front_end }
    }

    /// Handles a call of a front end's tool. The events of such calls count against the budget, and wait while the server is far
    /// behind.
    async fn hand_over(&self, name: &str, arguments: &str) -> Result<CalledTool, Failure> {
        tokio::select! {
            () = self.shared.wait_for_room() => {}
            () = self.stopped() => return Err(stopping()),
        }
        let spent = self.shared.state().meter.check_next_tool();
        if let Some(spent) = spent {
            self.shared.stop(spent);
        }
        if self.stop.borrow().is_some() {
            return Err(stopping());
        }
        Ok(self.front_end.call(self.shared.new_gateway_call_id(), name, arguments))
    }

    async fn call_once(&self, name: &str, arguments: &str) -> Result<CalledTool, Failure> {
        if self.front_end.has(name) {
            return self.hand_over(name, arguments).await;
        }
        if self.stop.borrow().is_some() || !self.shared.count_tool() {
            return Err(stopping());
        }
        let _open = self.front_end.begin_call();
        let call_id = self.shared.new_gateway_call_id();
        // The server records the call. What the backend emitted before it comes first.
        let _ = timeout(Duration::from_millis(FLUSH_MS_MAX), self.shared.flush()).await;
        tokio::select! {
            called = self.port.call(&call_id, name, arguments, &[]) => called.inspect(|called| self.shared.charge_call(called)),
            () = self.stopped() => Err(stopping()),
        }
    }

    async fn stopped(&self) {
        let mut stop = self.stop.clone();
        let _ = stop.wait_for(Option::is_some).await;
    }
}

fn stopping() -> Failure {
    Failure::new(FailureKind::Cancelled, "the turn is being stopped")
}

impl TurnToolkit for TurnTools {
    fn list(&self) -> BoxFuture<'_, Result<RunTools, Failure>> {
        let with_front_end = |listed: RunTools| RunTools { tools: self.front_end.add_to(listed.tools), ..listed };
        async move { self.port.list_without_calls().await.map(with_front_end) }.boxed()
    }

    fn call<'a>(&'a self, name: &'a str, arguments: &'a str) -> BoxFuture<'a, Result<CalledTool, Failure>> {
        self.call_once(name, arguments).boxed()
    }
}
