//! A backend that is a separate program: a child process that speaks JSON-RPC over its standard streams, one frame per
//! line, with calls in both directions. Everything it sends arrives in order from [`Process::next`], including the replies
//! to calls that were only started. [`Process::call`] waits for its own reply and queues the rest.
//!
//! The child has its own process group, and an environment without any of our variables that could hold a secret. Its
//! guard makes sure that no process outlives it. Without a guard, its process group ends with it, and nothing more is
//! guaranteed.

use std::{
    collections::{HashSet, VecDeque},
    ffi::OsString,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
};

use ostler_protocol::{
    RawJson,
    rpc::{Lines, NotAFrame, RpcError, RpcFrame, RpcId, Version},
};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde::Serialize;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, ChildStdin, Command},
    sync::mpsc,
    task::JoinHandle,
    time::{Duration, Instant, timeout, timeout_at},
};

use crate::{guard::Guarded, log_tail::LogTail, text_cutter::TextCutter};

/// The variables of our environment that a program inherits: none that could hold a secret.
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
/// Frames that are read ahead. Then the child has to wait.
const AHEAD_FRAMES_MAX: usize = 32;
/// Frames to write that the child has not read yet.
const UNREAD_FRAMES_MAX: usize = 256;
/// Size of the frames that may arrive while a call waits for its reply.
const QUEUED_BYTES_MAX: usize = 16 * 1024 * 1024;
const READ_BYTES: usize = 64 * 1024;
/// How long to wait for the status and the rest of the log of a child that has closed its output.
const END_MS: u64 = 500;
/// Maximum characters of the log line that explains a child's exit.
const LOG_LINE_CHARS_MAX: usize = 200;
/// How long the child may take to end after its standard input was closed.
const CLOSE_MS: u64 = 3_000;

/// The program to start.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) directory: Option<PathBuf>,
    /// In addition to the few variables that every program inherits.
    pub(crate) environment: Vec<(OsString, OsString)>,
    pub(crate) version: Version,
    /// The guard of the program. `None` if it runs unguarded.
    pub(crate) guarded: Option<Guarded>,
}

impl Program {
    /// The command that starts the program. All programs are started by it.
    pub(crate) fn command(&self) -> Command {
        let mut command = guarded_command(&self.path, &self.arguments, self.guarded.as_ref());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command
    }
}

/// The command that starts a program with its guard, in a process group of its own and with none of our variables that could
/// hold a secret.
pub fn guarded_command(path: &Path, arguments: &[OsString], guarded: Option<&Guarded>) -> Command {
    let mut command = match guarded {
        None => Command::new(path),
        Some(guarded) => Command::new(&guarded.guard),
    };
    match guarded {
        None => command.args(arguments),
        Some(guarded) => command.arg0("ostler").args(guarded.arguments(path, arguments)),
    };
    command.env_clear().process_group(0);
    command.envs(ENVIRONMENT.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command
}

/// Something that the child sent.
#[derive(Debug)]
pub(crate) enum Incoming {
    Frame(RpcFrame),
    /// A line that is no frame. The next one may be.
    Invalid(NotAFrame),
}

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum CallError {
    Refused(RpcError),
    TimedOut,
    /// The child is gone, or has closed its output.
    Gone,
    /// The child's output is not its protocol, so the reply will not arrive, or was lost.
    Broken(NotAFrame),
}

/// A line from the child, and the memory it takes.
struct Line {
    incoming: Incoming,
    bytes: usize,
}

impl Line {
    fn read(line: Result<&[u8], NotAFrame>) -> Self {
        let bytes = size_of::<Self>() + line.as_ref().map_or(0, |line| line.len());
        Self { incoming: line.and_then(RpcFrame::read).map_or_else(Incoming::Invalid, Incoming::Frame), bytes }
    }
}

pub(crate) struct Process {
    child: Child,
    group: Pid,
    version: Version,
    /// `None` after its input was closed.
    input: Option<mpsc::Sender<String>>,
    output: mpsc::Receiver<Line>,
    /// Received while a call waited, oldest first.
    queued: VecDeque<Line>,
    last_id: i64,
    /// Calls that timed out. Their replies are skipped.
    expired: HashSet<i64>,
    log: Arc<Mutex<LogTail>>,
    log_reader: JoinHandle<()>,
    cutter: TextCutter,
    is_guarded: bool,
    is_closed: bool,
}

impl Process {
    pub(crate) fn start(program: &Program, cutter: TextCutter) -> std::io::Result<Self> {
        let mut command = program.command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let piped = || std::io::Error::other("the child has no pipes");
        let group = child.id().and_then(|id| Pid::from_raw(id as i32)).ok_or_else(piped)?;
        let stdin = child.stdin.take().ok_or_else(piped)?;
        let stdout = child.stdout.take().ok_or_else(piped)?;
        let stderr = child.stderr.take().ok_or_else(piped)?;
        let (input, unread) = mpsc::channel(UNREAD_FRAMES_MAX);
        let (ahead, output) = mpsc::channel(AHEAD_FRAMES_MAX);
        let log = Arc::new(Mutex::new(LogTail::default()));
        // Each task ends with its pipe, or when the process is dropped.
        tokio::spawn(write_frames(unread, stdin));
        tokio::spawn(read_frames(stdout, ahead));
        let log_reader = tokio::spawn(read_log(stderr, log.clone()));
        Ok(Self {
            child,
            group,
            version: program.version,
            input: Some(input),
            output,
            queued: VecDeque::new(),
            last_id: 0,
            expired: HashSet::new(),
            log,
            log_reader,
            cutter,
            is_guarded: program.guarded.is_some(),
            is_closed: false,
        })
    }

    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub(crate) fn id(&self) -> i32 {
        self.group.as_raw_nonzero().get()
    }

    /// Calls a method and waits for the reply. Other frames that arrive before it are queued for [`Process::next`].
    pub(crate) async fn call<P: Serialize>(
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
        let mut queued_bytes: usize = self.queued.iter().map(|line| line.bytes).sum();
        loop {
            let line = match timeout_at(until, self.receive()).await {
                Ok(Some(line)) => line,
                Ok(None) => return Err(CallError::Gone),
                Err(_) => {
                    self.expired.insert(number);
                    return Err(CallError::TimedOut);
                }
            };
            match line.incoming {
                Incoming::Frame(RpcFrame::Answer { id: of, result }) if of == id => return Ok(result),
                Incoming::Frame(RpcFrame::Error { id: Some(of), error }) if of == id => {
                    return Err(CallError::Refused(error));
                }
                Incoming::Invalid(fault) if self.version == Version::Two && fault.is_fatal() => {
                    return Err(CallError::Broken(fault));
                }
                incoming => {
                    queued_bytes += line.bytes;
                    self.queued.push_back(Line { incoming, ..line });
                }
            }
            // A child that sends this much without replying will not reply.
            if queued_bytes > QUEUED_BYTES_MAX {
                self.expired.insert(number);
                return Err(CallError::TimedOut);
            }
        }
    }

    /// Starts a call without waiting. The reply arrives from [`Process::next`] under the returned id.
    pub(crate) async fn start_call<P: Serialize>(&mut self, method: &str, params: &P) -> Result<i64, CallError> {
        self.last_id += 1;
        let (id, params) = (RpcId::Number(self.last_id), RawJson::of(params));
        self.send(&RpcFrame::Request { id, method: method.to_owned(), params }).await?;
        Ok(self.last_id)
    }

    pub(crate) async fn notify<P: Serialize>(&mut self, method: &str, params: &P) -> Result<(), CallError> {
        self.send(&RpcFrame::Notification { method: method.to_owned(), params: RawJson::of(params) }).await
    }

    /// Replies to a request of the child.
    pub(crate) async fn reply<R: Serialize>(
        &mut self,
        id: RpcId,
        reply: Result<&R, RpcError>,
    ) -> Result<(), CallError> {
        let frame = match reply {
            Ok(result) => RpcFrame::Answer { id, result: RawJson::of(result) },
            Err(error) => RpcFrame::Error { id: Some(id), error },
        };
        self.send(&frame).await
    }

    /// The next thing that the child sent. `None` if it has closed its output. Cancel safe: nothing is lost when the future
    /// is dropped.
    pub(crate) async fn next(&mut self) -> Option<Incoming> {
        match self.queued.pop_front() {
            Some(line) => Some(line.incoming),
            None => self.receive().await.map(|line| line.incoming),
        }
    }

    /// Removes the frames, received while a call waited, for which `stays` returns false.
    pub(crate) fn retain_queued(&mut self, mut stays: impl FnMut(&Incoming) -> bool) {
        self.queued.retain(|line| stays(&line.incoming));
    }

    async fn receive(&mut self) -> Option<Line> {
        loop {
            let line = self.output.recv().await?;
            match &line.incoming {
                Incoming::Frame(
                    RpcFrame::Answer { id: RpcId::Number(id), .. }
                    | RpcFrame::Error { id: Some(RpcId::Number(id)), .. },
                ) if self.expired.remove(id) => {}
                _ => return Some(line),
            }
        }
    }

    async fn send(&mut self, frame: &RpcFrame) -> Result<(), CallError> {
        let input = self.input.as_ref().ok_or(CallError::Gone)?;
        input.send(frame.write(self.version) + "\n").await.map_err(|_| CallError::Gone)
    }

    /// Cuts what the child process reports.
    pub(crate) fn cutter(&self) -> &TextCutter {
        &self.cutter
    }

    /// The last lines of its log, redacted.
    pub(crate) fn log_tail(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).redacted(self.cutter.redactor())
    }

    /// How the child has ended, to be appended to a message: its exit code, and the last line of its log.
    pub(crate) async fn end_text(&mut self) -> String {
        let limit = Duration::from_millis(END_MS);
        let status = timeout(limit, self.child.wait()).await.ok().and_then(Result::ok);
        if !self.log_reader.is_finished() {
            // A process that the child has started may hold the log open.
            let _ = timeout(limit, &mut self.log_reader).await;
        }
        let code = status.and_then(|status| status.code()).map(|code| format!(" with exit code {code}"));
        let log = self.log_tail();
        let last = log.lines().rev().find(|line| !line.trim().is_empty());
        let last = last.map(|line| format!(": {}", self.cutter.cut(line.trim(), LOG_LINE_CHARS_MAX)));
        code.unwrap_or_default() + &last.unwrap_or_default()
    }

    /// Ends the child: closes its input and, if it does not end by itself, kills it and all processes that it started.
    pub(crate) async fn close(mut self) -> Option<ExitStatus> {
        self.input = None;
        self.output.close();
        let status = timeout(Duration::from_millis(CLOSE_MS), self.child.wait()).await;
        self.is_closed = true;
        if status.is_err() && self.is_guarded {
            // The guard ends all its processes. The guard itself is killed only if that takes too long.
            let _ = kill_process(self.group, Signal::TERM);
            let _ = timeout(Duration::from_millis(CLOSE_MS), self.child.wait()).await;
        }
        // An error means that no process is left in the group.
        let _ = kill_process_group(self.group, Signal::KILL);
        match status {
            Ok(status) => status.ok(),
            Err(_) => self.child.wait().await.ok(),
        }
    }
}

impl Drop for Process {
    /// A process that is dropped without being closed is killed at once, with everything it started.
    fn drop(&mut self) {
        if self.is_closed {
            return;
        }
        if self.is_guarded {
            // The guard continues without us, ends everything and then itself.
            let _ = kill_process(self.group, Signal::TERM);
            return;
        }
        let _ = kill_process_group(self.group, Signal::KILL);
    }
}

async fn write_frames(mut frames: mpsc::Receiver<String>, mut to: ChildStdin) {
    while let Some(frame) = frames.recv().await {
        if to.write_all(frame.as_bytes()).await.is_err() {
            // The closed output reports its end.
            return;
        }
    }
}

async fn read_frames(mut from: impl AsyncRead + Unpin, to: mpsc::Sender<Line>) {
    let mut lines = Lines::default();
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let mut complete = vec![];
        lines.push(&buffer[..read], |line| complete.push(Line::read(line)));
        for line in complete {
            if to.send(line).await.is_err() {
                return;
            }
        }
    }
}

async fn read_log(mut from: impl AsyncRead + Unpin, log: Arc<Mutex<LogTail>>) {
    let mut buffer = [0; 4 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        log.lock().unwrap_or_else(PoisonError::into_inner).push(&buffer[..read]);
    }
}

#[cfg(test)]
mod tests;
