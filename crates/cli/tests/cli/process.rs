//! The program as a child process. Whatever a test does, its processes are gone when their guards are.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub const PATIENCE: Duration = Duration::from_secs(60);

/// The program with nothing of our own environment.
pub fn ostler(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ostler"));
    command.env_clear().args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Asks again and again until there is an answer.
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < until, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A child process, killed when it is dropped.
pub struct Guarded(pub Child);

impl Guarded {
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    pub fn wait(&mut self) -> ExitStatus {
        eventually("the process ends", || self.0.try_wait().unwrap())
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server that said it is ready.
pub struct Server {
    pub process: Guarded,
    /// `host:port`.
    pub address: String,
    pub token: String,
    pub ready: Value,
    /// What came on stdout after the ready line, once that has ended.
    rest: mpsc::Receiver<String>,
}

impl Server {
    /// Starts it and waits for the ready line. `Err`: it ended first, with this status.
    pub fn start(mut command: Command) -> Result<Self, ExitStatus> {
        let mut process = Guarded(command.spawn().unwrap());
        let stdout = process.0.stdout.take().unwrap();
        let (lines, received) = mpsc::channel();
        thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| lines.send(line))
        });
        let line = match received.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err(process.wait()),
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("no ready line within {PATIENCE:?}"),
        };
        let ready: Value = serde_json::from_str(&line).expect("the ready line is JSON");
        let address = ready["address"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
        let token = std::fs::read_to_string(ready["tokenFile"].as_str().unwrap()).unwrap().trim().to_owned();
        Ok(Self { process, address, token, ready, rest: received })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// As a power button would: no warning, no cleaning up.
    pub fn kill(mut self) {
        self.process.0.kill().unwrap();
        self.process.wait();
    }

    /// Asks it to stop, as an init system would. Answers how long it took and what else it said on stdout.
    pub fn terminate(mut self) -> (ExitStatus, Duration, Vec<String>) {
        let started = Instant::now();
        self.process.signal(Signal::TERM);
        let status = self.process.wait();
        let took = started.elapsed();
        (status, took, self.rest.iter().collect())
    }

    /// Stops it and expects it to go in peace.
    pub fn stop(self) {
        let (status, ..) = self.terminate();
        assert!(status.success(), "{status}");
    }
}
