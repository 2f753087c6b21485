//! Checks of the machine that the server runs on.

use std::path::Path;

use ostler_protocol::health::{ConfinementReadiness, WorkspaceReadiness};

use super::checks::{Check, CheckState, worst};
use crate::terminal::output::line;

const DISK_BYTES_WARN: u64 = 1 << 30;
const DISK_BYTES_FAIL: u64 = 100 << 20;

/// Free space at the data directory of the server on this machine.
pub(super) fn disk(dir: &Path) -> Option<Check> {
    let there = dir.ancestors().find(|path| path.exists())?;
    let space = rustix::fs::statvfs(there).ok()?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let state = worst(free < DISK_BYTES_FAIL, free < DISK_BYTES_WARN);
    let absent = if dir.exists() { String::new() } else { format!("; {} does not exist", dir.display()) };
    let found = format!("{:.1} GiB free at {}{absent}", free as f64 / f64::from(1 << 30), there.display());
    Some(Check::of("disk", state, found, "free space: a full disk stops every write"))
}

/// Agents run as the server's user, which should not be root.
pub(super) fn user(found: &ConfinementReadiness) -> Check {
    if !found.root {
        return Check::ok("user", "the server does not run as root");
    }
    let what = "the server runs as root, and so do its agents: they can read and change root's files";
    Check::of("user", CheckState::Warn, what, "run it as a separate user, as deploy/ostler.service does")
}

pub(super) fn git(found: &WorkspaceReadiness) -> Check {
    match &found.reason {
        None => Check::ok("git", "installed"),
        Some(why) => {
            let what = format!("{}; checkouts fail, and the changes of a turn are unknown", line(why, 200));
            Check::of("git", CheckState::Warn, what, "install git on the server's machine, and restart the server")
        }
    }
}
