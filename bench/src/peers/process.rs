//! The processes of a peer, from their start to their end. They are killed by their ids, also when a measurement fails:
//! nothing that they store is needed afterwards.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use memchr::memmem;
use ostler_testkit::process::{pid, send};
use rustix::process::Signal;
use tokio::time::{sleep, timeout};

use super::peer::{Call, Plan};
use crate::http::Connection;
use crate::machine::{now, since, tree};
use crate::outcome::Outcome;

const READY_TIMEOUT: Duration = Duration::from_secs(90);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(3);
/// The end of a log that an error shows.
const LOG_BYTES_SHOWN_MAX: usize = 300;

pub(crate) struct Processes {
    children: Vec<Child>,
    log: PathBuf,
    pub address: SocketAddr,
    /// From the start of the first process to the first answer.
    pub ready_after: Duration,
}

impl Processes {
    /// Starts a peer and waits until it can work.
    pub(crate) async fn start(plan: Plan, directory: &Path) -> Outcome<Self> {
        let log = directory.join("log");
        let output = File::create(&log)?;
        let mut peer = Self { children: vec![], log, address: plan.address, ready_after: Duration::ZERO };
        let started = now();
        for mut command in plan.commands {
            command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
            let name = command.get_program().to_string_lossy().into_owned();
            peer.children.push(command.spawn().map_err(|error| format!("cannot start {name}: {error}"))?);
        }
        peer.wait_for(&plan.ready).await?;
        peer.ready_after = since(started);
        for call in &plan.prepare {
            peer.wait_for(call).await?;
        }
        Ok(peer)
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.children.iter().map(Child::id).collect()
    }

    /// Repeats a call until it succeeds: a server may listen before it can answer.
    async fn wait_for(&mut self, call: &Call) -> Outcome<()> {
        let started = now();
        let mut last = String::new();
        while since(started) < READY_TIMEOUT {
            for child in &mut self.children {
                if let Some(status) = child.try_wait()? {
                    return Err(format!("it ended by itself ({status}): {}", self.log_end()).into());
                }
            }
            match timeout(CALL_TIMEOUT, try_call(call)).await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => last = error.to_string(),
                Err(_) => last = "no answer".to_owned(),
            }
            sleep(POLL).await;
        }
        Err(format!("it was not ready after {READY_TIMEOUT:?}: {last}; {}", self.log_end()).into())
    }

    /// The end of what it has printed, in one line.
    pub(crate) fn log_end(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let end = log.len().saturating_sub(LOG_BYTES_SHOWN_MAX);
        String::from_utf8_lossy(&log[end..]).split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

async fn try_call(call: &Call) -> Outcome<()> {
    let mut connection = Connection::open_at(call.address).await?;
    let answer = connection.answer(&call.request).await?;
    let is_success = answer.get(9) == Some(&b'2');
    if is_success && memmem::find(answer, call.answer).is_some() {
        return Ok(());
    }
    Err(format!("unexpected answer: {}", String::from_utf8_lossy(&answer[..answer.len().min(LOG_BYTES_SHOWN_MAX)]))
        .into())
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            // Its number may be another process's by now.
            if matches!(child.try_wait(), Ok(Some(_))) {
                continue;
            }
            // Listed before their parent is killed, because they have another parent afterwards.
            let members = tree(child.id()).unwrap_or_default();
            for member in members {
                pid(member).into_iter().for_each(|member| send(member, Signal::KILL));
            }
            let _ = child.wait();
        }
    }
}
