//! The outer step: starts the inner one, waits until the program or its runner ends or a signal arrives, and then ends
//! every process below it.

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

use super::{
    namespaces,
    order::{Isolation, Order, VERB},
    privileges,
};

/// How long to keep killing the remaining processes.
const KILL_MS_MAX: u64 = 10_000;
/// Between two passes over the remaining processes.
const KILL_PAUSE_MS: u64 = 2;
/// Exit code base for a program that was ended by a signal, as shells report it.
const SIGNALLED: i32 = 128;

/// Runs the program under guard until it or the runner ends. Returns the exit code for the guard itself.
pub async fn watch(order: &Order, program: &Path, arguments: &[OsString]) -> io::Result<u8> {
    namespaces::enter_user(order.isolation)?;
    let mut runner = runner_end(order.runner_pid)?;
    set_child_subreaper(Some(getpid()))?;
    let mut children = signal(SignalKind::child())?;
    let [mut term, mut int, mut hup] =
        [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?];
    namespaces::enter_pid(order.isolation)?;
    privileges::hide_memory()?;
    let step = if order.isolation == Isolation::None { "--within" } else { "--init" };
    let inner = next_step(step, order, program, arguments)?.spawn()?;
    let backend = Pid::from_raw(inner.id() as i32).ok_or_else(runner_gone)?;
    leave_pipes()?;
    let ended = loop {
        tokio::select! {
            _ = children.recv() => {
                if let Some(status) = reap(backend).1 {
                    break Some(status);
                }
            }
            _ = &mut runner => break None,
            _ = term.recv() => break None,
            _ = int.recv() => break None,
            _ = hup.recv() => break None,
        }
    };
    let killed = kill_descendants(backend).await;
    let ended = ended.or(killed);
    Ok(ended.map_or(SIGNALLED + Signal::KILL.as_raw(), exit_code).try_into().unwrap_or(u8::MAX))
}

/// Resolves when the runner's process has ended. A parent-death signal would not do: it is tied to the runner's thread.
fn runner_end(runner_pid: u32) -> io::Result<oneshot::Receiver<()>> {
    let runner = getppid().filter(|pid| pid.as_raw_nonzero().get() as u32 == runner_pid);
    let runner = pidfd_open(runner.ok_or_else(runner_gone)?, PidfdFlags::empty())?;
    let (gone, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        while let Err(rustix::io::Errno::INTR) = poll(&mut [PollFd::new(&runner, PollFlags::IN)], None) {}
        let _ = gone.send(());
    });
    Ok(receiver)
}

fn runner_gone() -> io::Error {
    io::Error::other("the runner is gone")
}

/// The command that starts the next step of the guard as a child of this process.
pub(super) fn next_step(step: &str, order: &Order, program: &Path, arguments: &[OsString]) -> io::Result<Command> {
    let order = serde_json::to_string(order)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("ostler").args([VERB, step, &getpid().as_raw_nonzero().to_string(), &order]);
    command.arg(program).args(arguments);
    Ok(command)
}

/// Closes our copies of the program's pipes, so that the runner notices when the program closes its own.
pub(super) fn leave_pipes() -> io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(rustix::stdio::dup2_stdout(&null)?)
}

/// Reaps every child that has ended. Returns whether any child is left, and the backend's exit status if it is among the
/// reaped ones.
fn reap(backend: Pid) -> (bool, Option<WaitStatus>) {
    let mut ended = None;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == backend => ended = Some(status),
            Ok(Some(_)) => {}
            Ok(None) => return (true, ended),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return (false, ended),
        }
    }
}

/// Kills processes until none is left. A process that loses its parent becomes a child of ours, so none can escape.
async fn kill_descendants(backend: Pid) -> Option<WaitStatus> {
    let until = Instant::now() + Duration::from_millis(KILL_MS_MAX);
    let mut ended = None;
    loop {
        let (any_left, status) = reap(backend);
        ended = ended.or(status);
        if !any_left || Instant::now() > until {
            return ended;
        }
        for pid in descendants() {
            let _ = kill_process(pid, Signal::KILL);
        }
        tokio::time::sleep(Duration::from_millis(KILL_PAUSE_MS)).await;
    }
}

/// All processes below this one, from the process table.
fn descendants() -> Vec<Pid> {
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        // The name in parentheses may contain anything. The state and the parent follow it.
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
