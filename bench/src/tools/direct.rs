//! An MCP server that is called directly, by the library that the server uses too, and with nothing around it.

use std::path::Path;
use std::process::Stdio;

use futures_util::future::try_join_all;
use rmcp::model::{CallToolRequestParams, CallToolResponse};
use rmcp::service::{RunningService, serve_client};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::{Peer, RoleClient};
use serde_json::{Map, Value};
use tokio::process::{Child, Command};

use crate::machine::own_cpu;
use crate::outcome::Outcome;

pub(crate) struct Direct {
    service: RunningService<RoleClient, ()>,
    arguments: Map<String, Value>,
    /// Killed when this is dropped.
    _child: Child,
}

impl Direct {
    pub(crate) async fn start(python: &str, script: &Path) -> Outcome<Self> {
        let mut command = Command::new(python);
        command.arg(script).arg("good").kill_on_drop(true);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let stdin = child.stdin.take().ok_or("the MCP server has no stdin")?;
        let stdout = child.stdout.take().ok_or("the MCP server has no stdout")?;
        let service = serve_client((), AsyncRwTransport::new_client(stdout, stdin)).await;
        let service = service.map_err(|error| format!("the MCP server cannot be connected: {error}"))?;
        let arguments = Map::from_iter([("text".to_owned(), Value::from("hello"))]);
        Ok(Self { service, arguments, _child: child })
    }

    /// So many clients that each make so many calls: microseconds of this process's CPU time for one.
    pub(crate) async fn round(&self, clients: usize, calls_each: usize) -> Outcome<f64> {
        let before = own_cpu()?;
        let all = (0..clients).map(|_| async {
            for _ in 0..calls_each {
                self.call().await?;
            }
            Outcome::Ok(())
        });
        try_join_all(all).await?;
        Ok((own_cpu()? - before).as_secs_f64() * 1e6 / (clients * calls_each) as f64)
    }

    pub(crate) async fn call(&self) -> Outcome<()> {
        let peer: &Peer<RoleClient> = self.service.peer();
        let params = CallToolRequestParams::new("echo").with_arguments(self.arguments.clone());
        match peer.call_tool_once(params).await.map_err(|error| error.to_string())? {
            CallToolResponse::Complete(_) => Ok(()),
            _ => Err("a direct call did not complete".into()),
        }
    }
}
