//! Shell commands of clients, in the workspace that the server is bound to.

pub use crate::launcher::shell::{ShellRequest, run};
pub use ostler_runner::ShellOutcome;
