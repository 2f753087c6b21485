//! The first process of a backend's namespaces. It mounts their `/proc`, starts the inner step, and waits. When it ends,
//! the kernel ends every other process of the namespace, so nothing that the program has started can outlive it.

use std::{ffi::OsString, io, path::Path};

use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, set_parent_process_death_signal, wait},
};

use super::{
    namespaces,
    order::Order,
    privileges,
    watch::{exit_code, leave_pipes, next_step},
};

/// Runs the program in this namespace. Returns its exit code.
pub fn init(order: &Order, guard_pid: i32, program: &Path, arguments: &[OsString]) -> io::Result<u8> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if parent_outside()? != guard_pid {
        return Err(io::Error::other("the guard is gone"));
    }
    namespaces::mount_proc()?;
    privileges::drop_privileges()?;
    privileges::hide_memory()?;
    let program = next_step("--within", order, program, arguments)?.spawn()?;
    leave_pipes()?;
    let program = Pid::from_child(&program);
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == program => return Ok(exit_code(status).try_into().unwrap_or(u8::MAX)),
            // Processes that lost their parent become children of this one.
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The guard's process id. The guard is outside this namespace, so `getppid` returns 0; the outer `/proc`, which is still
/// mounted, has it.
fn parent_outside() -> io::Result<i32> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
    parent.ok_or_else(|| io::Error::other("/proc does not show the guard"))
}
