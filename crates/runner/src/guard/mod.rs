//! The guard: a process of our own between a runner and a backend's program. It enforces the program's resource limits
//! and its part of the file system. When the program ends, or the runner does for whatever reason, the guard ends every
//! process that the program has started, including those that moved into sessions of their own.
//!
//! It runs in two or three steps. The outer step watches, and reaps all processes below it. If the program gets
//! namespaces of its own, their first process comes next. The inner step confines itself and becomes the program. None of
//! them reads what the runner and the program send each other. Linux only: on other systems programs run unguarded.

#[cfg(target_os = "linux")]
mod confine;
#[cfg(target_os = "linux")]
mod init;
#[cfg(target_os = "linux")]
mod namespaces;
mod order;
#[cfg(target_os = "linux")]
mod privileges;
#[cfg(target_os = "linux")]
mod tool_sandbox;
#[cfg(target_os = "linux")]
mod watch;

#[cfg(target_os = "linux")]
pub use confine::confine;
#[cfg(target_os = "linux")]
pub use init::init;
pub use order::{Guard, Guarded, Isolation, Limits, Order, Reach, VERB};
#[cfg(target_os = "linux")]
pub use privileges::{close_inherited, hide_memory};
#[cfg(target_os = "linux")]
pub(crate) use tool_sandbox::PROTECTED_FOLDERS;
pub use tool_sandbox::{TOOL_SANDBOX_HELP, run_tool};
#[cfg(target_os = "linux")]
pub use watch::watch;

/// The version of Landlock that tools of Codex need in place of its own sandbox. Earlier ones do not control the truncation of files.
pub const TOOL_LANDLOCK_LEVEL_MIN: u32 = 3;

/// The version of the kernel's Landlock interface, up to the newest that we use. 0 if there is none.
pub fn landlock_level() -> u32 {
    #[cfg(target_os = "linux")]
    return confine::landlock_level();
    #[cfg(not(target_os = "linux"))]
    0
}
