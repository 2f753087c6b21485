//! The guard: a process of our own between a runner and an agent's program. It keeps the program to its limits and its
//! part of the file system, and when the program ends, or the runner does, however that happens, it ends every process
//! that the program has started, also those that went into sessions of their own.
//!
//! It takes two or three steps. The outer one watches: it is the reaper of all that comes after it. Where the program gets
//! namespaces of its own, their first process comes next. The inner one confines itself and becomes the program. None of them
//! reads what the runner and the program say to each other. Linux only; elsewhere nobody stands guard.

#[cfg(target_os = "linux")]
mod confine;
#[cfg(target_os = "linux")]
mod init;
#[cfg(target_os = "linux")]
mod namespaces;
#[cfg(target_os = "linux")]
mod privileges;
#[cfg(target_os = "linux")]
mod watch;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

#[cfg(target_os = "linux")]
pub use confine::confine;
#[cfg(target_os = "linux")]
pub use init::init;
#[cfg(target_os = "linux")]
pub use privileges::{close_inherited, hide_memory};
#[cfg(target_os = "linux")]
pub use watch::watch;

/// What the running kernel can do for us: 0 for nothing, else the version of Landlock's interface, as far as we use it.
pub fn landlock_level() -> u32 {
    #[cfg(target_os = "linux")]
    return confine::landlock_level();
    #[cfg(not(target_os = "linux"))]
    0
}

/// The hidden verb of our binary that stands guard.
pub const VERB: &str = "guard";

/// Who stands guard over an agent's program, and what all programs are held to.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Guard {
    /// Our own binary.
    pub program: PathBuf,
    pub limits: Limits,
    /// Keep programs to their part of the file system, where the kernel can.
    pub landlock: bool,
    pub isolation: Isolation,
}

/// Which namespaces a program gets, so that it sees no process but its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Isolation {
    /// None: it sees every process of the machine, as far as the system lets its user.
    #[default]
    None,
    /// A PID namespace within a user namespace.
    UserNamespace,
    /// A PID namespace alone, which takes root. For systems that do not allow user namespaces.
    Root,
}

/// What a program and each process it starts may use; what is unset is the system's affair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    pub memory_bytes: Option<u64>,
    pub cpu_seconds: Option<u64>,
    pub file_bytes: Option<u64>,
    pub open_files: Option<u64>,
    pub processes: Option<u64>,
}

/// A part of the file system. Everything else can be read and nothing else written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reach {
    pub writable: Vec<PathBuf>,
    /// Within what is hidden.
    pub readable: Vec<PathBuf>,
    pub hidden: Vec<PathBuf>,
    /// A directory for passing things, within what is writable; made when the program starts.
    pub tmp: Option<PathBuf>,
}

/// What one program is held to.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Order {
    pub limits: Limits,
    /// `None`: whatever its user may.
    pub reach: Option<Reach>,
    /// The runner's process; the guard ends with it.
    pub runner_pid: u32,
    #[serde(default)]
    pub isolation: Isolation,
}

/// A program with its guard, ready to be started.
#[derive(Clone, Debug)]
pub struct Guarded {
    pub guard: PathBuf,
    pub order: Order,
}

impl Guarded {
    /// The arguments for the guard's program that make it start this one.
    pub fn arguments(&self, program: &Path, arguments: &[OsString]) -> Vec<OsString> {
        let order = serde_json::to_string(&self.order).expect("our own types serialise");
        let own = [VERB.into(), order.into(), program.into()];
        own.into_iter().chain(arguments.iter().cloned()).collect()
    }
}
