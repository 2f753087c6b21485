//! `ostler guard`: what a runner starts in front of an agent's program. Not for people.

use std::{ffi::OsString, path::PathBuf};

use ostler_protocol::{Failure, FailureKind};
use ostler_runner::guard::Order;

/// Stand guard over an agent's program
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Become the program, below the guard with this process id
    #[arg(long, value_name = "PID")]
    within: Option<i32>,
    /// Be the first process of the program's namespaces, below the guard with this process id
    #[arg(long, value_name = "PID", conflicts_with = "within")]
    init: Option<i32>,
    order: String,
    program: PathBuf,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// An agent inherits its standard streams and nothing else.
pub fn protect() -> Result<(), Failure> {
    #[cfg(target_os = "linux")]
    ostler_runner::guard::close_inherited().map_err(|error| refused("descriptors", &error))?;
    Ok(())
}

#[cfg(target_os = "linux")]
pub async fn guard(args: &Args) -> Result<u8, Failure> {
    let order: Order = serde_json::from_str(&args.order).map_err(|error| refused("order", &error))?;
    match (args.within, args.init) {
        (Some(pid), _) => {
            let error = ostler_runner::guard::confine(&order, pid, &args.program, &args.arguments);
            Err(refused("start", &format!("{}: {error}", args.program.display())))
        }
        (None, Some(pid)) => {
            let ended = ostler_runner::guard::init(&order, pid, &args.program, &args.arguments);
            ended.map_err(|error| refused("namespaces", &error))
        }
        (None, None) => {
            let watched = ostler_runner::guard::watch(&order, &args.program, &args.arguments).await;
            watched.map_err(|error| refused("guard", &error))
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub async fn guard(_: &Args) -> Result<u8, Failure> {
    Err(refused("guard", &"there is no guard on this system"))
}

fn refused(rule: &'static str, why: &dyn std::fmt::Display) -> Failure {
    Failure::rule(FailureKind::InfraFailed, rule, format!("the agent's program was not started: {why}"))
}
