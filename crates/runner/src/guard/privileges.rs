//! What a process gives up before it runs code that is not ours: capabilities, ways to gain new ones, inherited
//! descriptors, and the access that other processes of the same user have to its memory.

use std::{io, os::fd::RawFd};

use rustix::{
    io::Errno,
    process::{DumpableBehavior, set_dumpable_behavior},
    thread::{
        CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
        set_capabilities, set_no_new_privs,
    },
};

/// Standard input, output and error.
const STANDARD_STREAMS: RawFd = 3;

/// Hides this process from other processes of its user: they cannot read its memory, environment or descriptors through
/// `/proc`, and cannot trace it, unless they have `CAP_SYS_PTRACE`. An `exec` undoes it.
pub fn hide_memory() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Closes every descriptor above the standard streams. Call this only at the start of a process, because it also closes
/// descriptors that the process has opened itself. Our own programs open theirs with `CLOEXEC`, so the others were inherited.
pub fn close_inherited() -> io::Result<()> {
    let entries = std::fs::read_dir("/proc/self/fd")?;
    // Collected first: the directory's own descriptor is among them and is closed when the iterator is dropped.
    let open: Vec<RawFd> = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    for descriptor in open.into_iter().filter(|descriptor| *descriptor >= STANDARD_STREAMS) {
        let _ = nix::unistd::close(descriptor);
    }
    Ok(())
}

/// Drops every capability of this process and of all processes that it starts, so that neither a set-user-ID program nor a
/// file's capabilities can restore one.
pub(super) fn drop_privileges() -> io::Result<()> {
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    for bit in 0..u64::BITS {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << bit)) {
            // `INVAL`: the kernel has no such capability. `PERM`: we have no `CAP_SETPCAP`; then `no_new_privs` makes the
            // bounding set irrelevant.
            Ok(()) | Err(Errno::INVAL | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let none = CapabilitySet::empty();
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}
