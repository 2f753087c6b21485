//! Child processes and the signals meant for them. A signal to us ends the child that is running, never us: the
//! caller then unwinds through its guards, which is what deletes scratch directories and stops servers.

use std::ffi::OsStr;
use std::io::{IsTerminal, stdin};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

struct Foreground {
    child: Option<u32>,
    interrupted: bool,
}

static FOREGROUND: Mutex<Foreground> = Mutex::new(Foreground { child: None, interrupted: false });

pub(crate) fn listen_for_signals() -> Result<(), String> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(|e| format!("cannot listen for signals: {e}"))?;
    thread::spawn(move || {
        for number in signals.forever() {
            let mut foreground = FOREGROUND.lock().unwrap_or_else(PoisonError::into_inner);
            foreground.interrupted = true;
            if let Some(child) = foreground.child {
                forward(number, child);
            }
        }
    });
    Ok(())
}

pub(crate) fn interrupted() -> Result<(), String> {
    let foreground = FOREGROUND.lock().unwrap_or_else(PoisonError::into_inner);
    if foreground.interrupted { Err("interrupted".to_owned()) } else { Ok(()) }
}

/// Whether a terminal speaks to our whole process group. Then the child must stay in it, or it could not read the
/// keyboard, and Ctrl-C reaches it without our help; sent twice it would mean "now!" to a server that is draining.
fn shares_terminal() -> bool {
    stdin().is_terminal()
}

fn forward(number: i32, child: u32) {
    let (Some(pid), Some(signal)) = (i32::try_from(child).ok().and_then(Pid::from_raw), signal_of(number)) else {
        return;
    };
    // The child may have ended in between; a signal to a process that is gone needs no handling.
    let _ = match (shares_terminal(), number) {
        (true, SIGINT) => Ok(()),
        (true, _) => kill_process(pid, signal),
        (false, _) => kill_process_group(pid, signal),
    };
}

fn signal_of(number: i32) -> Option<Signal> {
    match number {
        SIGHUP => Some(Signal::HUP),
        SIGINT => Some(Signal::INT),
        SIGTERM => Some(Signal::TERM),
        _ => None,
    }
}

/// A child that signals are passed on to, from its start until `wait` returns.
pub(crate) struct Running(pub Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Result<Running, String> {
        let mut foreground = FOREGROUND.lock().unwrap_or_else(PoisonError::into_inner);
        if foreground.interrupted {
            return Err("interrupted".to_owned());
        }
        if !shares_terminal() {
            command.process_group(0);
        }
        let child = command.spawn().map_err(|e| format!("cannot start {}: {e}", name(command)))?;
        foreground.child = Some(child.id());
        Ok(Running(child))
    }

    pub(crate) fn wait(&mut self) -> Result<ExitStatus, String> {
        let status = self.0.wait().map_err(|e| format!("cannot wait for a child: {e}"))?;
        FOREGROUND.lock().unwrap_or_else(PoisonError::into_inner).child = None;
        Ok(status)
    }
}

/// Runs a command to its end with our own standard streams; anything but success is an error.
pub(crate) fn run(command: &mut Command) -> Result<(), String> {
    let status = Running::start(command)?.wait()?;
    interrupted()?;
    if status.success() { Ok(()) } else { Err(format!("{} failed ({status})", name(command))) }
}

fn name(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let first = command.get_args().next().filter(|argument| !argument.to_string_lossy().starts_with('-'));
    let words = std::iter::once(program).chain(first);
    format!("`{}`", words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" "))
}

/// The checkout we work on. Taken at run time: a cached binary may have been built from another one.
pub(crate) fn workspace_root() -> Result<PathBuf, String> {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").ok_or("start this as `cargo xtask`, not by its path")?;
    let root = Path::new(&manifest).parent().ok_or("xtask is not inside a workspace")?;
    Ok(root.to_owned())
}

/// Cargo, at the workspace root.
pub(crate) fn cargo() -> Result<Command, String> {
    in_workspace(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// A command at the workspace root, without what `cargo run` put into our environment: build scripts that watch
/// those variables would rebuild at each change between `cargo xtask` and plain `cargo`.
pub(crate) fn in_workspace(program: impl AsRef<OsStr>) -> Result<Command, String> {
    let mut command = Command::new(program);
    for (key, _) in std::env::vars_os() {
        if key.to_str().is_some_and(|k| k.starts_with("CARGO_PKG_") || k.starts_with("CARGO_MANIFEST_")) {
            command.env_remove(key);
        }
    }
    command.current_dir(workspace_root()?);
    Ok(command)
}

pub(crate) fn find_on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|candidate| candidate.is_file())
}

/// Seconds since `started`, for people.
pub(crate) fn seconds_since(started: Instant) -> String {
    format!("{:.1} s", (now() - started).as_secs_f64())
}

#[expect(clippy::disallowed_methods, reason = "how long a step really took; nothing here is replayed or tested")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
