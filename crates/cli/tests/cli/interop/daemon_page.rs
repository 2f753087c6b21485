//! A page of a foreign origin, in a real browser, against a server that is bound to a workspace, admits callers without a token from
//! this machine, and shares its responses with another page. The page must read nothing and change nothing.

use std::{fs, io::Write, net::TcpListener, path::Path};

use serde_json::{Value, json};

use crate::fixtures::{
    http::{Http, connect},
    process::Server,
    test_home::{Engine, TestHome},
    web_site::WebSite,
};

const PAGE: &str = include_str!("daemon_attack.html");
const EVIL: &str = "evil.test";
const FRIEND: &str = "friend.test";
const REBOUND: &str = "rebound.test";
const MAPPINGS: &str = "MAP evil.test 127.0.0.1, MAP friend.test 127.0.0.1, MAP rebound.test 127.0.0.2";

fn open(listener: TcpListener, target: Option<String>) -> WebSite {
    WebSite::open(listener, vec![("/attack", "text/html", PAGE.to_owned())], target)
}

/// A server with a session, a file and a memory.
struct Daemon {
    server: Server,
    session_id: String,
    client_id: String,
}

impl Daemon {
    fn set(home: &mut TestHome, workspace: &Path, friend: &str) -> Self {
        fs::create_dir(workspace).unwrap();
        fs::write(workspace.join("kept.txt"), "kept").unwrap();
        fs::write(workspace.join("AGENTS.md"), "- kept\n").unwrap();
        let flags = ["--workspace", workspace.to_str().unwrap(), "--open-loopback", "--allow-origin", friend];
        home.flags = flags.map(str::to_owned).into();
        let server = home.serve();
        let session = Http::new(&server).post("/session", &json!({"sessionScope": "thread"})).good();
        let text = |name: &str| session[name].as_str().unwrap().to_owned();
        Self { session_id: text("sessionId"), client_id: text("clientId"), server }
    }

    fn port(&self) -> &str {
        self.server.address.rsplit_once(':').unwrap().1
    }

    /// Everything that a page could have changed.
    fn state(&self, workspace: &Path) -> Value {
        let mut http = Http::new(&self.server);
        let trace = format!("/api/v1/sessions/{}/trace", self.session_id);
        let paths = [
            "/api/v1/sessions?state=all",
            "/api/v1/runs",
            &trace,
            "/workspace/memory",
            "/workspace/settings",
            "/workspace/auth/status",
            "/api/v1/provider-profile-changes",
        ];
        let mut state: Vec<_> = paths.iter().map(|path| http.get(path).good()).collect();
        let mut files: Vec<_> = fs::read_dir(workspace).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        state.extend(files.iter().map(|file| json!([file, fs::read_to_string(file).unwrap_or_default()])));
        state.into()
    }

    /// The attempts of the page at this host name that succeeded.
    fn attacked(&self, site: &WebSite, page: &str, host: &str) -> Vec<String> {
        let (target, session, client) = (format!("{host}:{}", self.port()), &self.session_id, &self.client_id);
        let url = format!("http://{page}:{}/attack?target={target}&session={session}&client={client}", site.port);
        let report = site.visited(&url, MAPPINGS);
        assert!(report["tried"].as_u64().unwrap() >= 150, "{report}");
        let names = report["through"].as_array().unwrap().iter();
        names.map(|name| format!("{host}: {}", name.as_str().unwrap())).collect()
    }

    /// The status of a request with a foreign host name, which a page whose name is re-bound to this machine would send.
    fn status_as(&self, host: &str, method: &str, path: &str) -> String {
        let mut connection = connect(&self.server.address).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {host}:{}\r\nconnection: close\r\n\r\n", self.port());
        connection.get_mut().write_all(head.as_bytes()).unwrap();
        let mut status = String::new();
        std::io::BufRead::read_line(&mut connection, &mut status).unwrap();
        status.split(' ').nth(1).unwrap_or_default().to_owned()
    }
}

#[test]
fn a_hostile_page_reads_and_changes_nothing_of_a_daemon() {
    let site = open(TcpListener::bind("127.0.0.1:0").unwrap(), None);
    let mut home = TestHome::new(Engine::Sqlite);
    let workspace = home.path("workspace");
    let daemon = Daemon::set(&mut home, &workspace, &format!("http://{FRIEND}:{}", site.port));
    let before = daemon.state(&workspace);
    for host in ["127.0.0.1", "localhost", EVIL] {
        assert_eq!(daemon.attacked(&site, EVIL, host), Vec::<String>::new());
    }
    let there = TcpListener::bind(format!("127.0.0.2:{}", daemon.port())).unwrap();
    let rebound = open(there, Some(daemon.server.address.clone()));
    assert_eq!(daemon.attacked(&rebound, REBOUND, REBOUND), Vec::<String>::new());
    let events = format!("/session/{}/events", daemon.session_id);
    for path in ["/health", "/capabilities", "/file?path=kept.txt", &events] {
        assert_eq!(daemon.status_as(REBOUND, "GET", path), "403", "{path}");
        assert_eq!(daemon.status_as("127.0.0.1", "GET", path), "200", "{path}");
    }
    assert_eq!(daemon.state(&workspace), before, "something was changed");
    // The attempts are real: those of the page that the operator allows succeed, except where a token is needed.
    let through = daemon.attacked(&site, FRIEND, "127.0.0.1");
    for name in ["read /capabilities", "read /file?path=kept.txt", "POST /session"] {
        assert!(through.contains(&format!("127.0.0.1: {name}")), "{name} is not in {through:?}");
    }
    assert_eq!(fs::read_to_string(workspace.join("AGENTS.md")).unwrap(), "- kept\n", "that needs a token");
    assert!(!workspace.join("attack.txt").exists(), "that needs a token");
    daemon.server.stop();
}
