//! What the guard is ordered to enforce on one program, and how the order reaches it.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

/// The hidden verb of our binary that runs the guard.
pub const VERB: &str = "guard";

/// The program that guards backends, and the limits that apply to all of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Guard {
    /// Our own binary.
    pub program: PathBuf,
    pub limits: Limits,
    /// Confine programs to their part of the file system, where the kernel supports it.
    pub landlock: bool,
    pub isolation: Isolation,
}

/// Which namespaces a program gets, so that it sees only its own processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Isolation {
    /// None: it sees every process of the machine, as far as the system allows its user.
    #[default]
    None,
    /// A PID namespace within a user namespace.
    UserNamespace,
    /// A PID namespace alone, which requires root. For systems that do not allow user namespaces.
    Root,
}

/// Resource limits of a program and of each process that it starts. The system's own limit applies where one is unset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Limits {
    pub memory_bytes: Option<u64>,
    pub cpu_seconds: Option<u64>,
    pub file_bytes: Option<u64>,
    pub open_files: Option<u64>,
    pub processes: Option<u64>,
}

/// A part of the file system. Everything outside it can be read, unless it is hidden, and cannot be written.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reach {
    pub writable: Vec<PathBuf>,
    /// Readable although it is within a hidden directory.
    pub readable: Vec<PathBuf>,
    pub hidden: Vec<PathBuf>,
    /// A directory for temporary files, within a writable one. Created when the program starts.
    pub tmp: Option<PathBuf>,
}

/// What the guard enforces on one program.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Order {
    pub limits: Limits,
    /// `None` if the program may access whatever its user may.
    pub reach: Option<Reach>,
    /// The runner's process. The guard ends when it does.
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
    /// The arguments that make the guard start `program`.
    pub fn arguments(&self, program: &Path, arguments: &[OsString]) -> Vec<OsString> {
        #[expect(clippy::expect_used, reason = "strings, numbers and paths of our own always serialise")]
        let order = serde_json::to_string(&self.order).expect("an order serialises");
        let own = [VERB.into(), order.into(), program.into()];
        own.into_iter().chain(arguments.iter().cloned()).collect()
    }
}
