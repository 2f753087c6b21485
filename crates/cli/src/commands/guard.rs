//! `ostler guard`: the process that a runner starts to supervise an agent's program. Internal.

use std::{ffi::OsString, path::PathBuf};

use ostler_protocol::{Failure, Rule};
use ostler_runner::guard::Order;

#[cfg(target_os = "linux")]
use crate::terminal::output;

/// Supervise an agent's program
#[derive(clap::Args, Debug)]
pub(crate) struct GuardArgs {
    /// Execute the program, as a child of the guard with this process id
    #[arg(long, value_name = "PID")]
    within: Option<i32>,
    /// Be the first process of the program's namespaces, as a child of the guard with this process id
    #[arg(long, value_name = "PID", conflicts_with = "within")]
    init: Option<i32>,
    /// Read the arguments as bubblewrap's, and execute their command in a sandbox of Landlock. ORDER and PROGRAM have no meaning
    #[arg(long, conflicts_with_all = ["within", "init"])]
    tools: bool,
    order: String,
    program: PathBuf,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Closes inherited descriptors: an agent inherits only its standard streams.
pub(crate) fn protect() -> Result<(), Failure> {
    #[cfg(target_os = "linux")]
    ostler_runner::guard::close_inherited().map_err(|error| not_started(Rule::Descriptors, &error))?;
    Ok(())
}

#[cfg(target_os = "linux")]
pub(crate) async fn guard(args: &GuardArgs) -> Result<u8, Failure> {
    if args.tools {
        return run_tool(args);
    }
    let order: Order = serde_json::from_str(&args.order).map_err(|error| not_started(Rule::Order, &error))?;
    match (args.within, args.init) {
        (Some(pid), _) => {
            let error = ostler_runner::guard::confine(&order, pid, &args.program, &args.arguments);
            Err(not_started(Rule::Start, &format!("{}: {error}", args.program.display())))
        }
        (None, Some(pid)) => {
            let ended = ostler_runner::guard::init(&order, pid, &args.program, &args.arguments);
            ended.map_err(|error| not_started(Rule::Namespaces, &error))
        }
        (None, None) => {
            let watched = ostler_runner::guard::watch(&order, &args.program, &args.arguments).await;
            watched.map_err(|error| not_started(Rule::Guard, &error))
        }
    }
}

/// Takes the place of bubblewrap.
#[cfg(target_os = "linux")]
fn run_tool(args: &GuardArgs) -> Result<u8, Failure> {
    use ostler_runner::guard::{TOOL_SANDBOX_HELP, run_tool};
    if args.arguments.first().is_some_and(|first| first == "--help") {
        output::data(TOOL_SANDBOX_HELP);
        return Ok(0);
    }
    Err(not_started(Rule::Start, &run_tool(&args.arguments)))
}

#[cfg(not(target_os = "linux"))]
pub(crate) async fn guard(_: &GuardArgs) -> Result<u8, Failure> {
    Err(not_started(Rule::Guard, &"the guard is not available on this system"))
}

fn not_started(rule: Rule, why: &dyn std::fmt::Display) -> Failure {
    Failure::rule(rule, format!("the agent's program was not started: {why}"))
}
