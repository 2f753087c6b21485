//! Terminals: programs that an agent has its host run for it, inside the workspace. What they print is kept within a bound,
//! and none outlives the turn that started it.

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
use crate::{agent::process::Program, guard::Guarded};

const TERMINALS_MAX: usize = 16;
const OUTPUT_BYTES_MAX: usize = 1024 * 1024;
const ARGUMENTS_MAX: usize = 1_000;

pub struct Terminals {
    guarded: Option<Guarded>,
    open: HashMap<String, Terminal>,
    made: u32,
}

struct Terminal {
    group: Pid,
    is_guarded: bool,
    output: Arc<Mutex<Output>>,
    ended: watch::Receiver<Option<Value>>,
}

/// The end of what was printed.
struct Output {
    bytes: VecDeque<u8>,
    bytes_max: usize,
    truncated: bool,
}

impl Output {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        let over = self.bytes.len().saturating_sub(self.bytes_max);
        self.bytes.drain(..over);
        self.truncated |= over > 0;
    }
}

impl Terminals {
    pub fn new(guarded: Option<Guarded>) -> Self {
        Self { guarded, open: HashMap::new(), made: 0 }
    }

    /// Starts a program; the new terminal's id.
    pub fn create(&mut self, asked: CreateTerminal, directory: PathBuf) -> Result<String, String> {
        if self.open.len() >= TERMINALS_MAX || asked.args.len() > ARGUMENTS_MAX {
            return Err("too many terminals or arguments".into());
        }
        let environment = asked.env.into_iter().map(|variable| (variable.name.into(), variable.value.into()));
        let program = Program {
            path: asked.command.into(),
            arguments: asked.args.into_iter().map(Into::into).collect(),
            // Its home is the workspace: the agent's own has its credentials.
            environment: [("HOME".into(), directory.clone().into())].into_iter().chain(environment).collect(),
            directory: Some(directory),
            version: Version::Two,
            guarded: self.guarded.clone(),
        };
        let mut command = program.command();
        let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().map_err(|error| format!("it did not start: {}", error.kind()))?;
        let group = child.id().and_then(|id| Pid::from_raw(id as i32)).ok_or("it has ended already")?;
        let bytes_max = asked.output_byte_limit.unwrap_or(OUTPUT_BYTES_MAX).min(OUTPUT_BYTES_MAX);
        let output = Arc::new(Mutex::new(Output { bytes: VecDeque::new(), bytes_max, truncated: false }));
        let (tell, ended) = watch::channel(None);
        tokio::spawn(attend(child.stdout.take(), child.stderr.take(), child, output.clone(), tell));
        self.made += 1;
        let id = format!("terminal-{}", self.made);
        self.open.insert(id.clone(), Terminal { group, is_guarded: self.guarded.is_some(), output, ended });
        Ok(id)
    }

    pub fn output(&self, id: &str) -> Result<Value, String> {
        let terminal = self.get(id)?;
        let output = terminal.output.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, second) = output.bytes.as_slices();
        let text = String::from_utf8_lossy(&[first, second].concat()).into_owned();
        Ok(json!({"output": text, "truncated": output.truncated, "exitStatus": *terminal.ended.borrow()}))
    }

    /// Resolves with how the program ended.
    pub fn ended(&self, id: &str) -> Result<BoxFuture<'static, Value>, String> {
        let mut ended = self.get(id)?.ended.clone();
        Ok(async move {
            let known = ended.wait_for(Option::is_some).await.ok().and_then(|known| known.clone());
            known.unwrap_or_else(|| json!({"exitCode": null, "signal": "KILL"}))
        }
        .boxed())
    }

    pub fn kill(&self, id: &str) -> Result<(), String> {
        self.get(id).map(Terminal::kill)
    }

    pub fn release(&mut self, id: &str) -> Result<(), String> {
        self.kill(id)?;
        self.open.remove(id);
        Ok(())
    }

    fn get(&self, id: &str) -> Result<&Terminal, String> {
        self.open.get(id).ok_or_else(|| "no such terminal".into())
    }
}

impl Terminal {
    fn kill(&self) {
        // The group's id is its first process's, which is not given to another before we have seen its end.
        if self.ended.borrow().is_none() {
            // A guard has work to do before it goes.
            let signal = if self.is_guarded { Signal::TERM } else { Signal::KILL };
            let _ = kill_process_group(self.group, signal);
        }
    }
}

impl Drop for Terminals {
    fn drop(&mut self) {
        self.open.values().for_each(Terminal::kill);
    }
}

/// Reads what the program prints until it ends, then says how it did. What it left running in its group goes with it.
async fn attend(
    stdout: Option<impl AsyncRead + Unpin + Send + 'static>,
    stderr: Option<impl AsyncRead + Unpin + Send + 'static>,
    mut child: Child,
    output: Arc<Mutex<Output>>,
    tell: watch::Sender<Option<Value>>,
) {
    let group = child.id().and_then(|id| Pid::from_raw(id as i32));
    let (out, err) = (tokio::spawn(keep(stdout, output.clone())), tokio::spawn(keep(stderr, output)));
    let status = child.wait().await;
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = (out.await, err.await);
    tell.send_replace(Some(ending(status.ok())));
}

async fn keep(from: Option<impl AsyncRead + Unpin>, output: Arc<Mutex<Output>>) {
    let Some(mut from) = from else { return };
    let mut buffer = [0; 8 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        output.lock().unwrap_or_else(PoisonError::into_inner).push(&buffer[..read]);
    }
}

fn ending(status: Option<ExitStatus>) -> Value {
    use std::os::unix::process::ExitStatusExt;
    let signal = status.and_then(|status| status.signal()).map(|signal| signal.to_string());
    json!({"exitCode": status.and_then(|status| status.code()), "signal": signal})
}
