//! The outer step: starts the inner one, waits for the program, its runner or a signal to end, and then ends everything.

use std::{
    collections::HashMap, ffi::OsString, fs::OpenOptions, io, os::unix::process::CommandExt, path::Path,
    process::Command, time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{
        Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, pidfd_open,
        set_child_subreaper, wait,
    },
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    time::Instant,
};

use super::{Isolation, Order, VERB, namespaces, privileges};

/// How long to go on killing what is left.
const KILL_MS_MAX: u64 = 10_000;
/// Between two looks at what is left.
const KILL_PAUSE_MS: u64 = 2;
/// The exit code of a program that a signal has ended, as shells have it.
const SIGNALLED: i32 = 128;

/// Runs the program under guard, to its end or the runner's. Answers with the exit code to take over.
pub async fn watch(order: &Order, program: &Path, arguments: &[OsString]) -> io::Result<u8> {
    namespaces::enter_user(order.isolation)?;
    let mut runner = end_of_runner(order.runner_pid)?;
    set_child_subreaper(Some(getpid()))?;
    let mut children = signal(SignalKind::child())?;
    let [mut term, mut int, mut hup] =
        [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?];
    namespaces::enter_pid(order.isolation)?;
    privileges::hide_memory()?;
    let step = if order.isolation == Isolation::None { "--within" } else { "--init" };
    let inner = inner(step, order, program, arguments)?.spawn()?;
    let agent = Pid::from_raw(inner.id() as i32).ok_or_else(runner_gone)?;
    leave_pipes()?;
    let ended = loop {
        tokio::select! {
            _ = children.recv() => {
                if let Some(status) = reap(agent).1 {
                    break Some(status);
                }
            }
            _ = &mut runner => break None,
            _ = term.recv() => break None,
            _ = int.recv() => break None,
            _ = hup.recv() => break None,
        }
    };
    let killed = end_all(agent).await;
    let ended = ended.or(killed);
    Ok(ended.map_or(SIGNALLED + Signal::KILL.as_raw(), exit_code).try_into().unwrap_or(u8::MAX))
}

/// Resolves when the runner's process is gone: the process, where a parent's death signal would speak of its thread.
fn end_of_runner(runner_pid: u32) -> io::Result<oneshot::Receiver<()>> {
    let runner = getppid().filter(|pid| pid.as_raw_nonzero().get() as u32 == runner_pid);
    let runner = pidfd_open(runner.ok_or_else(runner_gone)?, PidfdFlags::empty())?;
    let (gone, hear) = oneshot::channel();
    std::thread::spawn(move || {
        while let Err(rustix::io::Errno::INTR) = poll(&mut [PollFd::new(&runner, PollFlags::IN)], None) {}
        let _ = gone.send(());
    });
    Ok(hear)
}

fn runner_gone() -> io::Error {
    io::Error::other("the runner is gone")
}

/// The next step of the guard, below this process.
pub(super) fn inner(step: &str, order: &Order, program: &Path, arguments: &[OsString]) -> io::Result<Command> {
    let order = serde_json::to_string(order)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("ostler").args([VERB, step, &getpid().as_raw_nonzero().to_string(), &order]);
    command.arg(program).args(arguments);
    Ok(command)
}

/// The program's pipes are its own: whoever is at their other end must see it close them.
pub(super) fn leave_pipes() -> io::Result<()> {
    let nowhere = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&nowhere)?;
    Ok(rustix::stdio::dup2_stdout(&nowhere)?)
}

/// Takes leave of every child that has ended. Whether any is left, and how the agent ended if it is among them.
fn reap(agent: Pid) -> (bool, Option<WaitStatus>) {
    let mut ended = None;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == agent => ended = Some(status),
            Ok(Some(_)) => {}
            Ok(None) => return (true, ended),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return (false, ended),
        }
    }
}

/// Kills until nobody is left. Whoever loses its parent becomes a child of ours, so nobody can get away.
async fn end_all(agent: Pid) -> Option<WaitStatus> {
    let until = Instant::now() + Duration::from_millis(KILL_MS_MAX);
    let mut ended = None;
    loop {
        let (left, status) = reap(agent);
        ended = ended.or(status);
        if !left || Instant::now() > until {
            return ended;
        }
        for pid in descendants() {
            let _ = kill_process(pid, Signal::KILL);
        }
        tokio::time::sleep(Duration::from_millis(KILL_PAUSE_MS)).await;
    }
}

/// Everybody below us, from the process table.
fn descendants() -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name in parentheses may hold anything; behind it come the state and the parent.
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        if let (Some(pid), Some(parent)) = (pid, parent) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let (mut found, mut next) = (vec![], vec![getpid().as_raw_nonzero().get()]);
    while let Some(parent) = next.pop() {
        let below = children.remove(&parent).unwrap_or_default();
        found.extend(below.iter().filter_map(|pid| Pid::from_raw(*pid)));
        next.extend(below);
    }
    found
}

pub(super) fn exit_code(status: WaitStatus) -> i32 {
    status.exit_status().or(status.terminating_signal().map(|signal| SIGNALLED + signal)).unwrap_or(SIGNALLED)
}
