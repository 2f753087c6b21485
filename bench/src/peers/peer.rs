//! A program that users would pick instead of this server: how it is started, what it is asked to do, and what it keeps.
//! Each has a file of its own beside this one. Everything here is data; the driver does the work, once for all.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::outcome::Outcome;

pub(crate) struct Peer {
    pub name: &'static str,
    /// What has survived a power cut when the client has its answer.
    pub durability: &'static str,
    /// How we know.
    pub evidence: &'static str,
    pub plan: fn(&Installed, &Path) -> Outcome<Plan>,
    pub work: Work,
}

/// The work that is compared.
#[derive(Clone, Copy)]
pub(crate) enum Work {
    /// Runs, one request each.
    Runs {
        /// The bytes of a client's run: the address, the client's number, the run's number.
        request: fn(SocketAddr, usize, usize) -> Vec<u8>,
        /// Only the answer of a run that succeeded contains this.
        end: &'static [u8],
    },
    /// Messages published to a JetStream.
    Publish,
}

/// How a peer is started in an empty directory.
pub(crate) struct Plan {
    /// All are started at once, in this order.
    pub commands: Vec<Command>,
    /// Where the load goes.
    pub address: SocketAddr,
    /// The peer is ready when this is answered with success.
    pub ready: Call,
    /// Sent once it is ready.
    pub prepare: Vec<Call>,
}

/// A request of the driver's own.
pub(crate) struct Call {
    pub address: SocketAddr,
    pub request: Vec<u8>,
    /// What the answer must contain.
    pub answer: &'static [u8],
}

/// Where the installation has put a peer's files, by their role.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(crate) struct Installed {
    pub version: String,
    pub files: BTreeMap<String, PathBuf>,
}

impl Installed {
    pub(crate) fn file(&self, role: &str) -> Outcome<&Path> {
        self.files.get(role).map(PathBuf::as_path).ok_or_else(|| format!("the installation has no {role}").into())
    }

    /// One of its programs, without our environment: no proxy, no configuration and no credential reaches a peer.
    pub(crate) fn command(&self, role: &str, directory: &Path) -> Outcome<Command> {
        let mut command = Command::new(self.file(role)?);
        command.env_clear().env("HOME", directory).current_dir(directory);
        command.envs(std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "LANG"));
        Ok(command)
    }
}

/// An address of this machine that no process listens on.
pub(crate) fn free_address() -> Outcome<SocketAddr> {
    let [address] = free_addresses()?;
    Ok(address)
}

/// So many different ones.
pub(crate) fn free_addresses<const N: usize>() -> Outcome<[SocketAddr; N]> {
    let mut addresses = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)); N];
    // All are held until the last one is known, or the system could name one twice.
    let mut held = vec![];
    for address in &mut addresses {
        let listener = TcpListener::bind(*address)?;
        *address = listener.local_addr()?;
        held.push(listener);
    }
    Ok(addresses)
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n").into_bytes()
}

/// A request with a JSON body that takes a stream as its answer.
pub(crate) fn post(address: SocketAddr, path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\naccept: text/event-stream, application/json\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// The same message that Ostler gets, as AG-UI wants it.
pub(crate) fn run_input(client: usize, number: usize) -> String {
    format!(
        r#"{{"threadId":"thread-{client}","runId":"run-{client}-{number}","state":{{}},"messages":[{{"id":"m-{number}","role":"user","content":"hi"}}],"tools":[],"context":[],"forwardedProps":{{}}}}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_length_of_its_body() {
        let address = "127.0.0.1:80".parse().unwrap();
        let request = String::from_utf8(post(address, "/run", &run_input(1, 2))).unwrap();
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        assert!(head.ends_with(&format!("content-length: {}", body.len())), "{request}");
        serde_json::from_str::<serde_json::Value>(body).unwrap();
    }

    #[test]
    fn free_addresses_are_different() {
        let [first, second] = free_addresses().unwrap();
        assert!(first != second && first.ip().is_loopback() && first.port() != 0);
    }

    #[test]
    fn a_missing_file_is_named() {
        let installed = Installed { version: "1".into(), files: BTreeMap::new() };
        assert!(installed.file("server").unwrap_err().to_string().contains("server"));
    }
}
