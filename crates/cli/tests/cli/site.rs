//! A web site on loopback that is not the server's own, and a real browser that visits it.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Guarded, eventually};

const CHROMIUM_VARIABLE: &str = "OSTLER_TEST_CHROMIUM";
/// A browser's start and every attempt's patience, with room for a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn chromium() -> PathBuf {
    std::env::var_os(CHROMIUM_VARIABLE).map(PathBuf::from).unwrap_or_else(|| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path)
            .flat_map(|folder| ["chromium", "chromium-browser", "google-chrome"].map(|name| folder.join(name)))
            .find(|candidate| candidate.is_file());
        found.unwrap_or_else(|| {
            panic!("no browser: {CHROMIUM_VARIABLE} is not set and there is no chromium; use `cargo xtask test`, which installs one")
        })
    })
}

/// Paths, their content types and what is there.
pub type Pages = Vec<(&'static str, &'static str, String)>;

pub struct Site {
    pub port: u16,
    reports: Receiver<Value>,
}

impl Site {
    /// Serves the pages, and hears what they post to `/report`. What is asked for besides is handed on to the target, if
    /// there is one.
    pub fn open(listener: TcpListener, pages: Pages, target: Option<String>) -> Self {
        let port = listener.local_addr().unwrap().port();
        let (report, reports) = channel();
        let pages = Arc::new(pages);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (report, pages, target) = (report.clone(), pages.clone(), target.clone());
                thread::spawn(move || answer(stream, &report, &pages, target.as_deref()));
            }
        });
        Self { port, reports }
    }

    /// Opens an address in a browser of its own, in which these names lead where they are said to, and waits for what the
    /// page reports.
    pub fn visited(&self, url: &str, names: &str) -> Value {
        let profile = TempDir::new().unwrap();
        let mut command = Command::new(chromium());
        command.args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
        command.args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-proxy-server",
        ]);
        // The browser has a wall of its own between networks; it is our server that is tried here.
        command.arg("--disable-features=LocalNetworkAccessChecks,PrivateNetworkAccessSendPreflights,BlockInsecurePrivateNetworkRequests");
        command.arg(format!("--host-resolver-rules={names}"));
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        command.arg(url);
        // It leaves files wherever temporary ones go, and has helpers that write until they are gone.
        command.env("TMPDIR", profile.path()).process_group(0);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let group = Pid::from_child(&child);
        let browser = Guarded(child);
        let report = self.reports.recv_timeout(PATIENCE);
        let _ = kill_process_group(group, Signal::KILL);
        drop(browser);
        let profile = profile.keep();
        eventually("its files are gone", || (fs::remove_dir_all(&profile).is_ok() || !profile.exists()).then_some(()));
        report.expect("the page reports")
    }
}

fn answer(stream: TcpStream, report: &Sender<Value>, pages: &Pages, target: Option<&str>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let start = head.len();
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
        let line = head[start..].to_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let path = head.split(' ').nth(1)?.split('?').next()?.to_owned();
    let page = pages.iter().find(|(place, ..)| *place == path);
    match (page, path == "/report", target) {
        (Some((_, kind, body)), _, _) => reply(stream, kind, body),
        (_, true, _) => {
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            let _ = report.send(serde_json::from_slice(&body).ok()?);
            reply(stream, "text/plain", "thanks")
        }
        (_, _, None) => reply(stream, "text/html", ""),
        (_, _, Some(target)) => {
            let mut there = TcpStream::connect(target).ok()?;
            // One request each: what comes next on the connection may be for us.
            there.write_all(head.replace("onnection: keep-alive", "onnection: close").as_bytes()).ok()?;
            there.write_all(reader.buffer()).ok()?;
            let (mut back_from, mut back_to) = (there.try_clone().ok()?, stream.try_clone().ok()?);
            thread::spawn(move || {
                let _ = std::io::copy(&mut back_from, &mut back_to);
                let _ = back_to.shutdown(Shutdown::Both);
            });
            let mut stream = stream;
            let _ = std::io::copy(&mut stream, &mut there);
            Some(())
        }
    }
}

fn reply(mut stream: TcpStream, kind: &str, body: &str) -> Option<()> {
    let length = body.len();
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all((head + body).as_bytes()).ok()
}
