//! Terminals: programs that the host runs for a backend, inside the workspace. Their stored output is bounded, and none
//! outlives the turn that started it.

use std::{
    collections::{HashMap, VecDeque},
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::{FutureExt, future::BoxFuture};
use ostler_protocol::rpc::Version;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    process::Child,
    sync::watch,
};

use super::wire::CreateTerminal;
use crate::{backend::process::Program, guard::Guarded};

const TERMINALS_MAX: usize = 16;
const OUTPUT_BYTES_MAX: usize = 1024 * 1024;
const ARGUMENTS_MAX: usize = 1_000;

pub(super) struct Terminals {
    guarded: Option<Guarded>,
    open: HashMap<String, AcpTerminal>,
    created: u32,
}

struct AcpTerminal {
    group: Pid,
    is_guarded: bool,
    output: Arc<Mutex<TerminalOutput>>,
    exit_status: watch::Receiver<Option<Value>>,
}

/// The last part of what was printed.
struct TerminalOutput {
    bytes: VecDeque<u8>,
    bytes_max: usize,
    truncated: bool,
}

impl TerminalOutput {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let over = self.bytes.len().saturating_sub(self.bytes_max);
        self.bytes.drain(..over);
        self.truncated |= over > 0;
    }
}

impl Terminals {
    pub(super) fn new(guarded: Option<Guarded>) -> Self {
        Self { guarded, open: HashMap::new(), created: 0 }
    }

    /// Starts a program and returns the new terminal's id.
    pub(super) fn create(&mut self, params: CreateTerminal, directory: PathBuf) -> Result<String, String> {
        if self.open.len() >= TERMINALS_MAX || params.args.len() > ARGUMENTS_MAX {
            return Err("too many terminals or arguments".into());
        }
        let environment = params.env.into_iter().map(|variable| (variable.name.into(), variable.value.into()));
        let program = Program {
            path: params.command.into(),
            arguments: params.args.into_iter().map(Into::into).collect(),
            // Its home is the workspace, because the backend's home contains credentials.
            environment: [("HOME".into(), directory.clone().into())].into_iter().chain(environment).collect(),
            directory: Some(directory),
            version: Version::Two,
            guarded: self.guarded.clone(),
        };
        let mut command = program.command();
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().map_err(|error| format!("the program did not start: {}", error.kind()))?;
        let group = child.id().and_then(|id| Pid::from_raw(id as i32)).ok_or("the program has already ended")?;
        let bytes_max = params.output_byte_limit.unwrap_or(OUTPUT_BYTES_MAX).min(OUTPUT_BYTES_MAX);
        let output = Arc::new(Mutex::new(TerminalOutput { bytes: VecDeque::new(), bytes_max, truncated: false }));
        let (exited, exit_status) = watch::channel(None);
        tokio::spawn(run_to_end(child.stdout.take(), child.stderr.take(), child, output.clone(), exited));
        self.created += 1;
        let id = format!("terminal-{}", self.created);
        self.open.insert(id.clone(), AcpTerminal { group, is_guarded: self.guarded.is_some(), output, exit_status });
        Ok(id)
    }

    pub(super) fn output(&self, id: &str) -> Result<Value, String> {
        let terminal = self.get(id)?;
        let output = terminal.output.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, second) = output.bytes.as_slices();
        let text = String::from_utf8_lossy(&[first, second].concat()).into_owned();
        Ok(json!({"output": text, "truncated": output.truncated, "exitStatus": *terminal.exit_status.borrow()}))
    }

    /// Resolves with the program's exit status.
    pub(super) fn exit_status(&self, id: &str) -> Result<BoxFuture<'static, Value>, String> {
        let mut exit_status = self.get(id)?.exit_status.clone();
        Ok(async move {
            let status = exit_status.wait_for(Option::is_some).await.ok().and_then(|status| status.clone());
            status.unwrap_or_else(|| json!({"exitCode": null, "signal": "KILL"}))
        }
        .boxed())
    }

    pub(super) fn kill(&self, id: &str) -> Result<(), String> {
        self.get(id).map(AcpTerminal::kill)
    }

    pub(super) fn release(&mut self, id: &str) -> Result<(), String> {
        self.kill(id)?;
        self.open.remove(id);
        Ok(())
    }

    fn get(&self, id: &str) -> Result<&AcpTerminal, String> {
        self.open.get(id).ok_or_else(|| "no such terminal".into())
    }
}

impl AcpTerminal {
    fn kill(&self) {
        // The group's id is that of its first process, which the system does not reuse before we have reaped it.
        if self.exit_status.borrow().is_none() {
            // A guard needs time to end its processes.
            let signal = if self.is_guarded { Signal::TERM } else { Signal::KILL };
            let _ = kill_process_group(self.group, signal);
        }
    }
}

impl Drop for Terminals {
    fn drop(&mut self) {
        self.open.values().for_each(AcpTerminal::kill);
    }
}

/// Reads the program's output until it ends, kills what it left running in its process group, and publishes its exit
/// status.
async fn run_to_end(
    stdout: Option<impl AsyncRead + Unpin + Send + 'static>,
    stderr: Option<impl AsyncRead + Unpin + Send + 'static>,
    mut child: Child,
    output: Arc<Mutex<TerminalOutput>>,
    exited: watch::Sender<Option<Value>>,
) {
    let group = child.id().and_then(|id| Pid::from_raw(id as i32));
    let (out, err) = (tokio::spawn(store_output(stdout, output.clone())), tokio::spawn(store_output(stderr, output)));
    let status = child.wait().await;
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = (out.await, err.await);
    exited.send_replace(Some(exit_payload(status.ok())));
}

async fn store_output(from: Option<impl AsyncRead + Unpin>, output: Arc<Mutex<TerminalOutput>>) {
    let Some(mut from) = from else { return };
    let mut buffer = [0; 8 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        output.lock().unwrap_or_else(PoisonError::into_inner).push(&buffer[..read]);
    }
}

fn exit_payload(status: Option<ExitStatus>) -> Value {
    use std::os::unix::process::ExitStatusExt;
    let signal = status.and_then(|status| status.signal()).map(|signal| signal.to_string());
    json!({"exitCode": status.and_then(|status| status.code()), "signal": signal})
}
