//! A page of a foreign origin, in a real browser, against a server as it starts by default: nothing it tries may get
//! through, and nothing may be written. A name that is re-bound to this machine is played by a site that hands on what
//! the browser sends; the browser then believes that the server is its own site.

use std::net::TcpListener;

use serde_json::{Value, json};

use crate::{
    home::{Engine, Home},
    http::Http,
    process::Server,
    site::Site,
};

const PAGE: &str = include_str!("attack.html");
const EVIL: &str = "evil.test";
const REBOUND: &str = "rebound.test";

/// A web site of somebody else's. What is asked for besides its page is handed on to the target, if there is one.
fn open(listener: TcpListener, target: Option<String>) -> Site {
    Site::open(listener, vec![("/attack", "text/html", PAGE.to_owned())], target)
}

/// Opens the page in a browser of its own and waits for what it says.
fn attack(site: &Site, target: &str, run_id: &str, guesses: &str) -> Value {
    let host = if target.starts_with(REBOUND) { REBOUND } else { EVIL };
    let url = format!("http://{host}:{}/attack?target={target}&run={run_id}&guesses={guesses}", site.port);
    let report = site.visited(&url, &format!("MAP {EVIL} 127.0.0.1, MAP {REBOUND} 127.0.0.2"));
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
    let site = open(TcpListener::bind("127.0.0.1:0").unwrap(), None);
    assert_eq!(scene.attacked(&site, &["127.0.0.1", "localhost", EVIL]), Vec::<String>::new());
    let there = TcpListener::bind(format!("127.0.0.2:{}", scene.port())).unwrap();
    let rebound = open(there, Some(scene.server.address.clone()));
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
    let site = open(TcpListener::bind("127.0.0.1:0").unwrap(), None);
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
