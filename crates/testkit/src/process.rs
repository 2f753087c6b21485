//! Processes as `/proc` shows them: who started which, and whether they run.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

const POLL: Duration = Duration::from_millis(2);
/// A thread that waits for the disk stops when the disk has answered.
const FREEZE_POLLS_MAX: u32 = 5_000;

/// Sends a signal. A process that has ended since it was listed is not an error.
pub fn send(pid: Pid, signal: Signal) {
    let _ = kill_process(pid, signal);
}

/// The id of a child process as `rustix` wants it. `None` if no such id is possible.
pub fn pid(id: u32) -> Option<Pid> {
    i32::try_from(id).ok().and_then(Pid::from_raw)
}

/// The processes whose parent is this one, whatever session or process group they are in.
pub fn children_of(parent: u32) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| parent_of(*pid) == Some(parent)).filter_map(Pid::from_raw).collect()
}

/// Whether the process exists and has not ended. A zombie has ended.
pub fn is_running(pid: Pid) -> bool {
    state_and_parent(pid.as_raw_nonzero().get()).is_some_and(|(state, _)| state != "Z" && state != "X")
}

/// The arguments that a process was started with, its own name included. Empty if it has ended.
pub fn arguments_of(pid: Pid) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    text.split_terminator('\0').map(str::to_owned).collect()
}

/// Stops every thread of a process with SIGSTOP and waits until all of them stand still. `false` if one did not.
pub fn freeze(id: u32) -> bool {
    let Some(pid) = pid(id) else { return false };
    send(pid, Signal::STOP);
    stands_still(pid)
}

/// Waits until every thread of a process that got SIGSTOP has stopped. `false` if one did not. A process that has ended
/// counts as stopped.
pub fn stands_still(pid: Pid) -> bool {
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    for _ in 0..FREEZE_POLLS_MAX {
        let mut tasks = fs::read_dir(&tasks).into_iter().flatten().flatten();
        if tasks.all(|task| is_stopped(&task.path())) {
            return true;
        }
        thread::sleep(POLL);
    }
    false
}

fn is_stopped(task: &Path) -> bool {
    let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
    // The state follows the name, which is in brackets. A thread that ended while the directory was read has no file.
    stat.is_empty() || stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 'Z', 'X']))
}

fn parent_of(pid: i32) -> Option<u32> {
    state_and_parent(pid)?.1.parse().ok()
}

fn state_and_parent(pid: i32) -> Option<(String, String)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may contain spaces; the fields after it do not.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned);
    Some((fields.next()?, fields.next()?))
}
