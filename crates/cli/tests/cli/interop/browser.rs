//! A page of a foreign origin, in a real browser, against a server with default settings: no attempt of the page may
//! succeed, and nothing may be written. A site that forwards the browser's requests simulates a name that is re-bound to
//! this machine; the browser then takes the server for the site.

use std::net::TcpListener;

use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    process::Server,
    test_home::{Engine, TestHome},
    web_site::WebSite,
};

const PAGE: &str = include_str!("attack.html");
const EVIL: &str = "evil.test";
const REBOUND: &str = "rebound.test";

/// A foreign web site. Requests for other paths than its page are forwarded to the target, if there is one.
fn open(listener: TcpListener, target: Option<String>) -> WebSite {
    WebSite::open(listener, vec![("/attack", "text/html", PAGE.to_owned())], target)
}

/// Opens the page in a new browser and waits for its report.
fn attack(site: &WebSite, target: &str, run_id: &str, guesses: &str) -> Value {
    let host = if target.starts_with(REBOUND) { REBOUND } else { EVIL };
    let url = format!("http://{host}:{}/attack?target={target}&run={run_id}&guesses={guesses}", site.port);
    let report = site.visited(&url, &format!("MAP {EVIL} 127.0.0.1, MAP {REBOUND} 127.0.0.2"));
    assert!(report["tried"].as_u64().unwrap() >= 30, "{report}");
    report
}

struct BrowserFixture {
    server: Server,
    run_id: String,
}

impl BrowserFixture {
    fn set(home: &TestHome) -> Self {
        let server = home.serve();
        let body = json!({"tenantId": "local", "projectId": "me/first", "providerId": "local",
            "backendProfile": "scripted", "workspaceRef": {"kind": "none"}, "traceSink": null});
        let created = Http::new(&server).post("/api/v1/runs", &body).good();
        Self { run_id: created["runId"].as_str().unwrap().to_owned(), server }
    }

    fn port(&self) -> &str {
        self.server.address.rsplit_once(':').unwrap().1
    }

    /// Everything that a page could have changed.
    fn state(&self) -> Value {
        let mut http = Http::new(&self.server);
        let events = format!("/api/v1/runs/{}/events", self.run_id);
        let paths = ["/api/v1/runs", &events, "/api/v1/sessions?state=all", "/api/v1/tokens", "/api/v1/users"];
        paths.map(|path| http.get(path).good()).into()
    }

    /// The attempts of the page that succeeded, by every name of this machine.
    fn attacked(&self, site: &WebSite, hosts: &[&str]) -> Vec<String> {
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

/// A foreign page, and a page whose name is re-bound to this machine while it is open.
fn nothing_gets_through(flags: &[&str]) {
    let mut home = TestHome::new(Engine::Sqlite);
    home.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    let fixture = BrowserFixture::set(&home);
    let before = fixture.state();
    let site = open(TcpListener::bind("127.0.0.1:0").unwrap(), None);
    assert_eq!(fixture.attacked(&site, &["127.0.0.1", "localhost", EVIL]), Vec::<String>::new());
    let there = TcpListener::bind(format!("127.0.0.2:{}", fixture.port())).unwrap();
    let rebound = open(there, Some(fixture.server.address.clone()));
    assert_eq!(fixture.attacked(&rebound, &[REBOUND]), Vec::<String>::new());
    assert_eq!(fixture.state(), before, "something was written");
    // The server itself rejected both: the foreign origin and the foreign host name.
    for rule in ["origin", "host"] {
        assert!(home.log().contains(&format!("rule=\"{rule}\"")), "nothing was refused by {rule}:\n{}", home.log());
    }
    fixture.server.stop();
}

#[test]
fn a_page_of_a_foreign_origin_cannot_reach_a_default_server() {
    nothing_gets_through(&[]);
}

#[test]
fn a_page_of_a_foreign_origin_cannot_reach_an_open_server() {
    nothing_gets_through(&["--open-loopback"]);
}

/// The same attempts from an allowed origin succeed: the page's attempts are real, and the flag works.
#[test]
fn a_page_of_an_allowed_origin_can_reach_the_server() {
    let site = open(TcpListener::bind("127.0.0.1:0").unwrap(), None);
    let mut home = TestHome::new(Engine::Sqlite);
    home.flags = vec!["--open-loopback".into(), "--allow-origin".into(), format!("http://{EVIL}:{}", site.port)];
    let fixture = BrowserFixture::set(&home);
    let before = fixture.state();
    let through = fixture.attacked(&site, &["127.0.0.1"]);
    for name in ["read /api/v1/runs", "start a run", "follow"] {
        assert!(through.contains(&format!("127.0.0.1: {name}")), "{name} is not in {through:?}");
    }
    // A guessed token is still rejected, and so is a content type that needs no preflight request.
    assert!(!through.iter().any(|name| name.contains(" with ost") || name.contains("text/plain")), "{through:?}");
    assert_ne!(fixture.state(), before);
    fixture.server.stop();
}
