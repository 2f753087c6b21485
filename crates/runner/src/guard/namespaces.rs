//! Namespaces for one agent: a PID namespace with a `/proc` of its own, in which it sees the processes that it started and
//! no others, neither the server nor other agents.
//!
//! Without root this takes a user namespace, in which the agent keeps its user id. Root becomes `nobody` there: the kernel
//! lets a process without capabilities map any user but root into a namespace of its own, and an agent that confines its
//! tools by namespaces (Codex) has to do that. Its files still belong to root outside.

use std::{fs, io};

use nix::sched::{CloneFlags, unshare};
use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    process::{getgid, getuid},
    thread::{CapabilitySet, CapabilitySets, capabilities, configure_capability_in_ambient_set, set_capabilities},
};

use super::Isolation;

/// What root is mapped to: a user that exists on every system and owns nothing.
const NOBODY: u32 = 65_534;

/// Moves this process into a user namespace, if it takes one. The kernel allows that only before its first thread starts.
pub fn enter_user(isolation: Isolation) -> io::Result<()> {
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

/// Moves the next child of this thread into a PID namespace, as its first process, which must call [`settle`]. This thread can
/// start no other thread from then on.
pub fn enter_pid(isolation: Isolation) -> io::Result<()> {
    if isolation == Isolation::None {
        return Ok(());
    }
    unshare(CloneFlags::CLONE_NEWPID)?;
    // For [`settle`], and to empty the bounding set.
    [CapabilitySet::SYS_ADMIN, CapabilitySet::SETPCAP].into_iter().try_for_each(keep_for_child)
}

/// Hands a capability down: a program that a user other than root starts has none of its parent's otherwise.
fn keep_for_child(capability: CapabilitySet) -> io::Result<()> {
    let current = capabilities(None)?;
    set_capabilities(None, CapabilitySets { inheritable: current.inheritable | capability, ..current })?;
    Ok(configure_capability_in_ambient_set(capability, true)?)
}

/// The first process's part: mounts a `/proc` that shows this namespace.
pub fn settle() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    // Without this the mount would show outside where `/` is shared.
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    Ok(mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, c"")?)
}
