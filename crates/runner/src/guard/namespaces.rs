//! Namespaces for one backend: a PID namespace with its own `/proc`, in which the program sees the processes that it
//! started and no others, neither the server nor other backends.
//!
//! Without root this requires a user namespace, in which the program keeps its user id. Root becomes `nobody` there: the
//! kernel lets a process without capabilities map any user except root into a namespace of its own, and a backend that
//! confines its tools by namespaces (Codex) has to do that. Its files still belong to root outside.

use std::{fs, io};

use nix::sched::{CloneFlags, unshare};
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    process::{getgid, getuid},
    thread::{CapabilitySet, CapabilitySets, capabilities, configure_capability_in_ambient_set, set_capabilities},
};

use super::order::Isolation;

/// The user that root is mapped to. It exists on every system and owns nothing.
const NOBODY: u32 = 65_534;

/// Moves this process into a user namespace, if the isolation has one. The kernel allows that only before its first thread
/// starts.
pub(crate) fn enter_user(isolation: Isolation) -> io::Result<()> {
    if isolation != Isolation::UserNamespace {
        return Ok(());
    }
    let (user, group) = (getuid().as_raw(), getgid().as_raw());
    unshare(CloneFlags::CLONE_NEWUSER)?;
    let own = |id: u32| format!("{} {id} 1", if id == 0 { NOBODY } else { id });
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", own(user))?;
    fs::write("/proc/self/gid_map", own(group))
}

/// Moves the next child of this thread into a PID namespace, as its first process, which must call [`mount_proc`]. This
/// thread can start no other thread from then on.
pub(crate) fn enter_pid(isolation: Isolation) -> io::Result<()> {
    if isolation == Isolation::None {
        return Ok(());
    }
    unshare(CloneFlags::CLONE_NEWPID)?;
    // For [`mount_proc`], and to empty the bounding set.
    [CapabilitySet::SYS_ADMIN, CapabilitySet::SETPCAP].into_iter().try_for_each(keep_for_child)
}

/// Passes a capability on to child processes. Without this, a program started by a user other than root inherits none.
fn keep_for_child(capability: CapabilitySet) -> io::Result<()> {
    let current = capabilities(None)?;
    set_capabilities(None, CapabilitySets { inheritable: current.inheritable | capability, ..current })?;
    Ok(configure_capability_in_ambient_set(capability, true)?)
}

/// Mounts a `/proc` that shows this namespace. The namespace's first process calls it.
pub(crate) fn mount_proc() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Otherwise the mount would be visible outside where `/` is shared.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, c"")?)
}
