//! A page of a foreign origin, in a real browser, against a server as it starts by default: nothing it tries may get
//! through, and nothing may be written. A name that is re-bound to this machine is played by a site that hands on what
//! the browser sends; the browser then believes that the server is its own site.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, Stdio},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    home::{Engine, Home},
    http::Http,
    process::{Guarded, Server, eventually},
};

const CHROMIUM_VARIABLE: &str = "OSTLER_TEST_CHROMIUM";
const PAGE: &str = include_str!("attack.html");
const EVIL: &str = "evil.test";
const REBOUND: &str = "rebound.test";
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

/// A web site of somebody else's.
struct Site {
    port: u16,
    reports: Receiver<Value>,
}

impl Site {
    /// Serves the page. What is asked for besides is handed on to the target, if there is one.
    fn open(listener: TcpListener, target: Option<String>) -> Self {
        let port = listener.local_addr().unwrap().port();
        let (report, reports) = channel();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (report, target) = (report.clone(), target.clone());
                thread::spawn(move || answer(stream, &report, target.as_deref()));
            }
        });
        Self { port, reports }
    }
}

fn answer(stream: TcpStream, report: &Sender<Value>, target: Option<&str>) -> Option<()> {
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
    let path = head.split(' ').nth(1)?.to_owned();
    match (path.starts_with("/attack"), path == "/report", target) {
        (true, _, _) => reply(stream, PAGE),
        (_, true, _) => {
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            let _ = report.send(serde_json::from_slice(&body).ok()?);
            reply(stream, "thanks")
        }
        (_, _, None) => reply(stream, ""),
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

fn reply(mut stream: TcpStream, body: &str) -> Option<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\ncontent-length:";
    write!(stream, "{head} {}\r\n\r\n{body}", body.len()).ok()
}

/// Opens the page in a browser of its own and waits for what it says.
fn attack(site: &Site, target: &str, run_id: &str, guesses: &str) -> Value {
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
    command.arg(format!("--host-resolver-rules=MAP {EVIL} 127.0.0.1, MAP {REBOUND} 127.0.0.2"));
    command.arg(format!("--user-data-dir={}", profile.path().display()));
    let host = if target.starts_with(REBOUND) { REBOUND } else { EVIL };
    command.arg(format!("http://{host}:{}/attack?target={target}&run={run_id}&guesses={guesses}", site.port));
    // It leaves files wherever temporary ones go, and has helpers that write until they are gone.
    command.env("TMPDIR", profile.path()).process_group(0);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let group = Pid::from_child(&child);
    let browser = Guarded(child);
    let report = site.reports.recv_timeout(PATIENCE).expect("the page reports");
    let _ = kill_process_group(group, Signal::KILL);
    drop(browser);
    let profile = profile.keep();
    eventually("its files are gone", || (fs::remove_dir_all(&profile).is_ok() || !profile.exists()).then_some(()));
    assert!(report["tried"].as_u64().unwrap() >= 30, "{report}");
    report
}

struct Scene {
    server: Server,
    run_id: String,
}

impl Scene {
    fn set(home: &Home) -> Self {
        let server = home.serve();
        let body = json!({"tenantId": "local", "projectId": "me/first", "providerId": "local",
            "backendProfile": "scripted", "workspaceRef": {"kind": "none"}, "traceSink": null});
        let created = Http::new(&server).post("/api/v1/runs", &body).good();
        Self { run_id: created["runId"].as_str().unwrap().to_owned(), server }
    }

    fn port(&self) -> &str {
        self.server.address.rsplit_once(':').unwrap().1
    }

    /// All that a page could have changed.
    fn state(&self) -> Value {
        let mut http = Http::new(&self.server);
        let events = format!("/api/v1/runs/{}/events", self.run_id);
        let paths = ["/api/v1/runs", &events, "/api/v1/sessions?state=all", "/api/v1/tokens", "/api/v1/users"];
        paths.map(|path| http.get(path).good()).into()
    }

    /// What got through from the page, by every name that leads to this machine.
    fn attacked(&self, site: &Site, hosts: &[&str]) -> Vec<String> {
        let almost = format!("{}0", self.server.token);
        let guesses = ["token", "ost_op_0", "operator", &almost].join(",");
        let mut through = vec![];
        for host in hosts {
            let report = attack(site, &format!("{host}:{}", self.port()), &self.run_id, &guesses);
            let names = report["through"].as_array().unwrap().iter();
            through.extend(names.map(|name| format!("{host}: {}", name.as_str().unwrap())));
        }
        through
    }
}

/// The page of a stranger, and that of a name re-bound to this machine while it is open.
fn nothing_gets_through(flags: &[&str]) {
    let mut home = Home::new(Engine::Sqlite);
    home.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    let scene = Scene::set(&home);
    let before = scene.state();
    let site = Site::open(TcpListener::bind("127.0.0.1:0").unwrap(), None);
    assert_eq!(scene.attacked(&site, &["127.0.0.1", "localhost", EVIL]), Vec::<String>::new());
    let there = TcpListener::bind(format!("127.0.0.2:{}", scene.port())).unwrap();
    let rebound = Site::open(there, Some(scene.server.address.clone()));
    assert_eq!(scene.attacked(&rebound, &[REBOUND]), Vec::<String>::new());
    assert_eq!(scene.state(), before, "something was written");
    // It was the server that said no, to what comes from elsewhere and to what has another name.
    for rule in ["origin", "host"] {
        assert!(home.log().contains(&format!("rule=\"{rule}\"")), "nothing was refused by {rule}:\n{}", home.log());
    }
    scene.server.stop();
}

#[test]
fn no_page_of_a_foreign_origin_gets_through_to_a_default_start() {
    nothing_gets_through(&[]);
}

#[test]
fn nor_when_callers_of_this_machine_need_no_token() {
    nothing_gets_through(&["--open-loopback"]);
}

/// The same attempts, let in: what shows that the page tries in earnest, and that the flag does what it says.
#[test]
fn a_page_of_an_allowed_origin_does_get_through() {
    let site = Site::open(TcpListener::bind("127.0.0.1:0").unwrap(), None);
    let mut home = Home::new(Engine::Sqlite);
    home.flags = vec!["--open-loopback".into(), "--allow-origin".into(), format!("http://{EVIL}:{}", site.port)];
    let scene = Scene::set(&home);
    let before = scene.state();
    let through = scene.attacked(&site, &["127.0.0.1"]);
    for name in ["read /api/v1/runs", "start a run", "follow"] {
        assert!(through.contains(&format!("127.0.0.1: {name}")), "{name} is not in {through:?}");
    }
    // A guess of a token is still a guess, and a type that needs no asking is still refused.
    assert!(!through.iter().any(|name| name.contains(" with ost") || name.contains("text/plain")), "{through:?}");
    assert_ne!(scene.state(), before);
    scene.server.stop();
}
