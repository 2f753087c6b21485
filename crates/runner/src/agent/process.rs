//! An agent that is a program of its own: a child process that speaks JSON-RPC over its standard streams, one frame per
//! line, calls in both directions. Everything it says comes in order from [`Process::next`], also the answers to calls
//! that were only started; [`Process::call`] waits for its own answer and keeps the rest for later.
//!
//! The child has a process group of its own and an environment with nothing of ours that could hold a secret. It is its
//! guard that lets nothing outlive it; where nobody stands guard, its group ends with it and no more is promised.

use std::{
    collections::{HashSet, VecDeque},
    ffi::OsString,
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
};

use ostler_protocol::{
    RawJson,
    redaction::Redactor,
    rpc::{Frame, Lines, NotAFrame, RpcError, RpcId, Version},
};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde::Serialize;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, Command},
    sync::mpsc,
    time::{Duration, Instant, timeout, timeout_at},
};

use crate::{Tail, guard::Guarded};

/// What a program gets of our environment: nothing that could hold a secret.
pub const ENVIRONMENT: &[&str] = &[
    "PATH",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];
/// Frames read ahead of whoever takes them; then the child waits.
const AHEAD_FRAMES_MAX: usize = 32;
/// Frames to write that the child has not read.
const UNREAD_FRAMES_MAX: usize = 256;
/// What may arrive while a call waits for its answer.
const KEPT_BYTES_MAX: usize = 16 * 1024 * 1024;
const READ_BYTES: usize = 64 * 1024;
/// After its standard input was closed, for an orderly end.
const CLOSE_MS: u64 = 3_000;

/// What to start.
#[derive(Clone, Debug)]
pub struct Program {
    pub path: PathBuf,
    pub arguments: Vec<OsString>,
    pub directory: Option<PathBuf>,
    /// Beside the few variables that every program gets.
    pub environment: Vec<(OsString, OsString)>,
    pub version: Version,
    /// Who stands guard over it. `None`: nobody.
    pub guarded: Option<Guarded>,
}

impl Program {
    /// The one place that says how a program is started.
    pub(super) fn command(&self) -> Command {
        let mut command = match &self.guarded {
            None => Command::new(&self.path),
            Some(guarded) => Command::new(&guarded.guard),
        };
        match &self.guarded {
            None => command.args(&self.arguments),
            Some(guarded) => command.arg0("ostler").args(guarded.arguments(&self.path, &self.arguments)),
        };
        command.env_clear().process_group(0);
        command.envs(ENVIRONMENT.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command
    }
}

/// Something the child said.
#[derive(Debug)]
pub enum Heard {
    Frame(Frame),
    /// A line that makes no sense; the next one may.
    Noise(NotAFrame),
}

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq)]
pub enum CallError {
    Refused(RpcError),
    TimedOut,
    /// The child is gone, or has closed its output.
    Gone,
    /// The child's output is not its protocol, so the answer would not come, or was lost.
    Broken(NotAFrame),
}

/// A line of the child's: what it says, and the room it takes.
struct Line {
    heard: Heard,
    bytes: usize,
}

impl Line {
    fn read(line: Result<&[u8], NotAFrame>) -> Self {
        let bytes = size_of::<Self>() + line.as_ref().map_or(0, |line| line.len());
        Self { heard: line.and_then(Frame::read).map_or_else(Heard::Noise, Heard::Frame), bytes }
    }
}

pub struct Process {
    child: Child,
    group: Pid,
    version: Version,
    /// `None`: its input was closed.
    input: Option<mpsc::Sender<String>>,
    output: mpsc::Receiver<Line>,
    /// Heard while a call waited, oldest first.
    kept: VecDeque<Line>,
    last_id: i64,
    /// Calls nobody waits for any more; their answers are passed over.
    forgotten: HashSet<i64>,
    log: Arc<Mutex<Tail>>,
    redactor: Arc<Redactor>,
    is_guarded: bool,
    is_closed: bool,
}

impl Process {
    pub fn start(program: &Program, redactor: Arc<Redactor>) -> std::io::Result<Self> {
        let mut command = program.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let piped = || std::io::Error::other("the pipes were asked for");
        let group = child.id().and_then(|id| Pid::from_raw(id as i32)).ok_or_else(piped)?;
        let stdin = child.stdin.take().ok_or_else(piped)?;
        let stdout = child.stdout.take().ok_or_else(piped)?;
        let stderr = child.stderr.take().ok_or_else(piped)?;
        let (input, unread) = mpsc::channel(UNREAD_FRAMES_MAX);
        let (ahead, output) = mpsc::channel(AHEAD_FRAMES_MAX);
        let log = Arc::new(Mutex::new(Tail::default()));
        // Each ends with its pipe, or when this is dropped.
        tokio::spawn(write(unread, stdin));
        tokio::spawn(read(stdout, ahead));
        tokio::spawn(keep_tail(stderr, log.clone()));
        Ok(Self {
            child,
            group,
            version: program.version,
            input: Some(input),
            output,
            kept: VecDeque::new(),
            last_id: 0,
            forgotten: HashSet::new(),
            log,
            redactor,
            is_guarded: program.guarded.is_some(),
            is_closed: false,
        })
    }

    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub fn id(&self) -> i32 {
        self.group.as_raw_nonzero().get()
    }

    /// Calls, and waits for the answer. What else arrives meanwhile is kept for [`Process::next`].
    pub async fn call<P: Serialize>(
        &mut self,
        method: &str,
        params: &P,
        limit: Duration,
    ) -> Result<RawJson, CallError> {
        let until = Instant::now() + limit;
        let number = match timeout_at(until, self.start_call(method, params)).await {
            Ok(id) => id?,
            Err(_) => return Err(CallError::TimedOut),
        };
        let id = RpcId::Number(number);
        let mut kept_bytes: usize = self.kept.iter().map(|line| line.bytes).sum();
        loop {
            let line = match timeout_at(until, self.receive()).await {
                Ok(Some(line)) => line,
                Ok(None) => return Err(CallError::Gone),
                Err(_) => {
                    self.forgotten.insert(number);
                    return Err(CallError::TimedOut);
                }
            };
            match line.heard {
                Heard::Frame(Frame::Answer { id: of, result }) if of == id => return Ok(result),
                Heard::Frame(Frame::Error { id: Some(of), error }) if of == id => {
                    return Err(CallError::Refused(error));
                }
                Heard::Noise(fault) if self.version == Version::Two && fault.is_fatal() => {
                    return Err(CallError::Broken(fault));
                }
                heard => {
                    kept_bytes += line.bytes;
                    self.kept.push_back(Line { heard, ..line });
                }
            }
            // Whoever talks this much and does not answer will not.
            if kept_bytes > KEPT_BYTES_MAX {
                self.forgotten.insert(number);
                return Err(CallError::TimedOut);
            }
        }
    }

    /// Calls without waiting; the answer comes from [`Process::next`] under the id that is returned.
    pub async fn start_call<P: Serialize>(&mut self, method: &str, params: &P) -> Result<i64, CallError> {
        self.last_id += 1;
        let (id, params) = (RpcId::Number(self.last_id), RawJson::of(params));
        self.send(&Frame::Request { id, method: method.to_owned(), params }).await?;
        Ok(self.last_id)
    }

    pub async fn notify<P: Serialize>(&mut self, method: &str, params: &P) -> Result<(), CallError> {
        self.send(&Frame::Notification { method: method.to_owned(), params: RawJson::of(params) }).await
    }

    /// Answers a request of the child's.
    pub async fn answer<R: Serialize>(&mut self, id: RpcId, answer: Result<&R, RpcError>) -> Result<(), CallError> {
        let frame = match answer {
            Ok(result) => Frame::Answer { id, result: RawJson::of(result) },
            Err(error) => Frame::Error { id: Some(id), error },
        };
        self.send(&frame).await
    }

    /// The next thing the child said. `None`: it has closed its output. Nothing is lost when this is dropped half-way.
    pub async fn next(&mut self) -> Option<Heard> {
        match self.kept.pop_front() {
            Some(line) => Some(line.heard),
            None => self.receive().await.map(|line| line.heard),
        }
    }

    /// Looks through what was heard while a call waited, and lets go of what the caller has taken.
    pub fn retain_kept(&mut self, mut stays: impl FnMut(&Heard) -> bool) {
        self.kept.retain(|line| stays(&line.heard));
    }

    async fn receive(&mut self) -> Option<Line> {
        loop {
            let line = self.output.recv().await?;
            match &line.heard {
                Heard::Frame(
                    Frame::Answer { id: RpcId::Number(id), .. } | Frame::Error { id: Some(RpcId::Number(id)), .. },
                ) if self.forgotten.remove(id) => {}
                _ => return Some(line),
            }
        }
    }

    async fn send(&mut self, frame: &Frame) -> Result<(), CallError> {
        let input = self.input.as_ref().ok_or(CallError::Gone)?;
        input.send(frame.write(self.version) + "\n").await.map_err(|_| CallError::Gone)
    }

    /// The end of what it wrote to its log, redacted.
    pub fn log_tail(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).shown(&self.redactor)
    }

    /// Ends the child: its input is closed, then, should it not go by itself, it is killed, and whatever it started.
    pub async fn close(mut self) -> Option<ExitStatus> {
        self.input = None;
        self.output.close();
        let status = timeout(Duration::from_millis(CLOSE_MS), self.child.wait()).await;
        self.is_closed = true;
        if status.is_err() && self.is_guarded {
            // The guard knows its own; it is killed itself only if it does not get done.
            let _ = kill_process(self.group, Signal::TERM);
            let _ = timeout(Duration::from_millis(CLOSE_MS), self.child.wait()).await;
        }
        // That nobody is left in it is as good.
        let _ = kill_process_group(self.group, Signal::KILL);
        match status {
            Ok(status) => status.ok(),
            Err(_) => self.child.wait().await.ok(),
        }
    }
}

impl Drop for Process {
    /// Whoever lets it go unclosed has no time: everything is killed at once.
    fn drop(&mut self) {
        if self.is_closed {
            return;
        }
        if self.is_guarded {
            // The guard goes on without us, and ends everything and then itself.
            let _ = kill_process(self.group, Signal::TERM);
            return;
        }
        let _ = kill_process_group(self.group, Signal::KILL);
    }
}

async fn write(mut frames: mpsc::Receiver<String>, mut to: ChildStdin) {
    while let Some(frame) = frames.recv().await {
        if to.write_all(frame.as_bytes()).await.is_err() {
            // Its end is told by its output.
            return;
        }
    }
}

async fn read(mut from: impl AsyncRead + Unpin, to: mpsc::Sender<Line>) {
    let mut lines = Lines::default();
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let mut complete = vec![];
        lines.push(&buffer[..read], |line| complete.push(Line::read(line)));
        for one in complete {
            if to.send(one).await.is_err() {
                return;
            }
        }
    }
}

async fn keep_tail(mut from: impl AsyncRead + Unpin, log: Arc<Mutex<Tail>>) {
    let mut buffer = [0; 4 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        log.lock().unwrap_or_else(PoisonError::into_inner).push(&buffer[..read]);
    }
}

#[cfg(test)]
mod tests;
