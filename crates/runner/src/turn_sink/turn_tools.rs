//! The server's tools, as a backend calls them through the gateway while it works on a turn.

use std::sync::Arc;

use futures_util::{FutureExt, future::BoxFuture};
use ostler_protocol::{
    Failure, FailureKind,
    tools::wire::{CalledTool, RunTools},
};
use tokio::{
    sync::watch,
    time::{Duration, timeout},
};

use super::shared::SinkShared;
use crate::{budgets::StopReason, tool_gateway::TurnToolkit, tool_port::ToolPort};

/// How long a call waits for earlier events to be durable. A backend that emits all the time never comes to that point.
const FLUSH_MS_MAX: u64 = 1_000;

/// The tools of one turn.
pub(crate) struct TurnTools {
    shared: Arc<SinkShared>,
    stop: watch::Receiver<Option<StopReason>>,
    port: ToolPort,
}

impl TurnTools {
    pub(super) fn new(shared: Arc<SinkShared>, stop: watch::Receiver<Option<StopReason>>, port: ToolPort) -> Self {
        Self { shared, stop, port }
    }

    async fn call_once(&self, name: &str, arguments: &str) -> Result<CalledTool, Failure> {
        if self.stop.borrow().is_some() || !self.shared.count_tool() {
            return Err(stopping());
        }
        let call_id = self.shared.new_gateway_call_id();
        // The server records the call. What the backend emitted before it comes first.
        let _ = timeout(Duration::from_millis(FLUSH_MS_MAX), self.shared.flush()).await;
        let mut stop = self.stop.clone();
        let stopped = async move {
            let _ = stop.wait_for(Option::is_some).await;
        };
        tokio::select! {
            called = self.port.call(&call_id, name, arguments) => called,
            () = stopped => Err(stopping()),
        }
    }
}

fn stopping() -> Failure {
    Failure::new(FailureKind::Cancelled, "the turn is being stopped")
}

impl TurnToolkit for TurnTools {
    fn list(&self) -> BoxFuture<'_, Result<RunTools, Failure>> {
        self.port.list().boxed()
    }

    fn call<'a>(&'a self, name: &'a str, arguments: &'a str) -> BoxFuture<'a, Result<CalledTool, Failure>> {
        self.call_once(name, arguments).boxed()
    }
}
