//! Shell commands that a client runs in the workspace that the server is bound to. They are confined as the tools of agents are.

use std::{path::PathBuf, time::Duration};

use ostler_protocol::{
    Failure, Rule,
    kernel::policy::{Network, Sandbox},
};
use ostler_runner::{ShellOrder, ShellOutcome, run_shell};

use super::guard::guard;
use crate::app::App;

/// A command and its bounds.
#[derive(Clone, Debug)]
pub struct ShellRequest {
    pub command: String,
    pub workspace: PathBuf,
    pub time_max: Duration,
    pub output_bytes_max: usize,
}

/// Runs a command until it ends, its time is over, or `unwanted` resolves. It may access what the tools of an agent may that
/// requests nothing else.
pub async fn run(
    app: &App,
    request: ShellRequest,
    unwanted: impl Future<Output = ()>,
) -> Result<ShellOutcome, Failure> {
    let ceiling = &app.config.policy.ceiling;
    if ceiling.network == Network::Disabled {
        let message = "the policy disables the network, which cannot be enforced for a shell command";
        return Err(Failure::rule(Rule::SessionShellDisabled, message));
    }
    let ShellRequest { command, workspace, time_max, output_bytes_max } = request;
    let order = ShellOrder {
        command,
        workspace,
        sandbox: ceiling.sandbox.min(Sandbox::WorkspaceWrite),
        guard: guard(app).await,
        hidden: vec![app.config.data_dir()?],
        time_max,
        output_bytes_max,
    };
    run_shell(order, unwanted).await.map_err(Failure::internal)
}
