//! The configurations of docs/proxy.md, in real proxies with TLS: commands, streams, WebSockets, and the client's address.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Command, Output, Stdio},
};

use crate::fixtures::{
    http::Http,
    process::{Guarded, Server, eventually},
    test_home::{Engine, TestHome},
};

const NGINX: &str = include_str!("../../../../../deploy/nginx.conf");
const CADDY: &str = include_str!("../../../../../deploy/Caddyfile");
const NAME: &str = "ostler.example.org";
const UPSTREAM: &str = "127.0.0.1:4747";
/// Requests without a token that one address may send before it has to wait.
const STRANGER_BURST: usize = 5;

#[track_caller]
fn stdout_of(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A text with another one in place of each of these, which must all be there.
fn replaced(text: &str, pairs: &[(&str, &str)]) -> String {
    pairs.iter().fold(text.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from:?} is not in {text}");
        text.replace(from, to)
    })
}

fn program(name: &str) -> Command {
    let debian = Path::new("/usr/sbin").join(name);
    if debian.is_file() { Command::new(debian) } else { Command::new(name) }
}

#[derive(Clone, Copy, Debug)]
enum ProxyKind {
    Nginx,
    Caddy,
}

/// A server behind a proxy.
struct Proxied {
    home: TestHome,
    server: Server,
    _proxy: Guarded,
    port: u16,
}

impl Proxied {
    fn start(kind: ProxyKind) -> Self {
        let mut home = TestHome::on_disk(Engine::Sqlite);
        home.set("OSTLER_SERVER__TRUSTED_PROXIES", "127.0.0.1");
        home.set("OSTLER_RATE_LIMIT__ON", "true");
        home.set("OSTLER_RATE_LIMIT__STRANGER_BURST", &STRANGER_BURST.to_string());
        home.set("OSTLER_RATE_LIMIT__STRANGER_PER_SECOND", "1");
        let server = home.serve();
        certify(&home);
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = match kind {
            ProxyKind::Nginx => nginx(&home, &server, port),
            ProxyKind::Caddy => caddy(&home, &server, port),
        };
        let log = File::create(home.path("proxy.log")).unwrap();
        let started = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let mut proxy = Guarded(started.expect("`cargo xtask test` installs nginx and Caddy"));
        eventually("the proxy listens", || {
            if let Some(status) = proxy.0.try_wait().unwrap() {
                panic!("{kind:?} ended with {status}: {}", fs::read_to_string(home.path("proxy.log")).unwrap());
            }
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        Self { home, server, _proxy: proxy, port }
    }

    /// A command as on another machine: it knows the proxy, a token and the authority of the proxy's certificate.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.home.command(args);
        command.env("OSTLER_SERVER", format!("https://localhost:{}", self.port));
        command.env("OSTLER_TOKEN", &self.server.token).env("SSL_CERT_FILE", self.home.path("ca.pem"));
        command
    }

    fn cli(&self, args: &[&str]) -> String {
        stdout_of(self.command(args).output().unwrap())
    }

    /// The status of a request without a token, from this address of the machine.
    fn status_for(&self, address: &str, header: &str) -> String {
        let mut tls = Command::new("openssl");
        tls.args(["s_client", "-quiet", "-servername", "localhost", "-bind", &format!("{address}:0")]);
        tls.args(["-connect", &format!("127.0.0.1:{}", self.port)]);
        let mut tls = tls.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let request = format!("GET /api/v1/runs HTTP/1.1\r\nHost: localhost\r\n{header}Connection: close\r\n\r\n");
        tls.stdin.take().unwrap().write_all(request.as_bytes()).unwrap();
        let answer = String::from_utf8(tls.wait_with_output().unwrap().stdout).unwrap();
        answer.split(' ').nth(1).unwrap_or_else(|| panic!("{answer:?}")).to_owned()
    }
}

/// An authority, and a certificate of it for the proxy.
fn certify(home: &TestHome) {
    let openssl = |arguments: &str| {
        let output = Command::new("openssl").args(arguments.split(' ')).current_dir(home.path("")).output().unwrap();
        assert!(output.status.success(), "openssl {arguments}: {output:?}");
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(&format!("req -x509 {key} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority"));
    openssl(&format!("req {key} -keyout proxy.key -out proxy.csr -subj /CN=localhost"));
    let extensions = "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n";
    fs::write(home.path("extensions"), extensions).unwrap();
    openssl(
        "x509 -req -in proxy.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile extensions -out proxy.pem",
    );
}

fn nginx(home: &TestHome, server: &Server, port: u16) -> Command {
    let folder = home.path("");
    let path = |name: &str| home.path(name).display().to_string();
    let letsencrypt = format!("/etc/letsencrypt/live/{NAME}");
    let site = replaced(
        NGINX,
        &[
            (&format!("{letsencrypt}/fullchain.pem"), &path("proxy.pem")),
            (&format!("{letsencrypt}/privkey.pem"), &path("proxy.key")),
            ("listen 443 ssl", &format!("listen 127.0.0.1:{port} ssl")),
            (UPSTREAM, &server.address),
            (NAME, "localhost"),
        ],
    );
    fs::write(home.path("site.conf"), site).unwrap();
    let temporary =
        ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|name| format!("{name}_temp_path {name};"));
    // The master of a root's nginx gives its workers to another user, who may not enter our directory.
    let user = if rustix::process::geteuid().is_root() { "user root;" } else { "" };
    let whole = format!(
        "{user} daemon off; pid nginx.pid; error_log stderr; events {{}} http {{ access_log off; {} include site.conf; }}",
        temporary.join(" ")
    );
    fs::write(home.path("whole.conf"), whole).unwrap();
    let mut command = program("nginx");
    command.arg("-p").arg(folder).args(["-e", "stderr", "-c", "whole.conf"]);
    command
}

fn caddy(home: &TestHome, server: &Server, port: u16) -> Command {
    let path = |name: &str| home.path(name).display().to_string();
    let site =
        format!("https://localhost:{port} {{\n\tbind 127.0.0.1\n\ttls {} {}", path("proxy.pem"), path("proxy.key"));
    let site = replaced(CADDY, &[(&format!("\n{NAME} {{"), &format!("\n{site}")), (UPSTREAM, &server.address)]);
    // Neither the port of its own interface nor a redirect from port 80.
    let whole = format!("{{\n\tadmin off\n\tauto_https disable_redirects\n}}\n{site}");
    fs::write(home.path("Caddyfile"), whole).unwrap();
    let mut command = program("caddy");
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(home.path("Caddyfile"));
    command.env("XDG_DATA_HOME", home.path("caddy-data")).env("XDG_CONFIG_HOME", home.path("caddy-config"));
    command.env("HOME", home.path(""));
    command
}

fn check(kind: ProxyKind) {
    let proxied = Proxied::start(kind);
    assert_eq!(proxied.cli(&["run", "say hello"]).trim(), "say hello");
    streams_arrive_at_once(&proxied);
    websockets_connect(&proxied);
    strangers_are_counted_by_their_own_address(&proxied);
}

fn streams_arrive_at_once(proxied: &Proxied) {
    let script = r#"{"script":[{"say":"first"},{"awaitSteer":{"waitMs":60000}},{"say":"second"}]}"#;
    let mut command = proxied.command(&["run", "--session", "stream", script]);
    let mut following = Guarded(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let (mut shown, mut begun) = (following.0.stdout.take().unwrap(), [0; 5]);
    // The turn cannot end before it is steered, so this text came while the response was still open.
    shown.read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"first");
    let mut http = Http::new(&proxied.server);
    let runs = http.get("/api/v1/runs").good();
    let run_id = runs["runs"][0]["runId"].as_str().unwrap();
    let result = http.get(&format!("/api/v1/runs/{run_id}/result")).good();
    assert!(result["terminalStatus"].is_null(), "{result}");
    proxied.cli(&["steer", "stream", "go on"]);
    let mut rest = String::new();
    shown.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("second\n"), "{rest}");
    assert!(following.wait().success());
}

fn websockets_connect(proxied: &Proxied) {
    for name in ["alice", "bobby"] {
        proxied.cli(&["mesh", "join", name]);
    }
    proxied.cli(&["mesh", "send", "bobby", "hello", "--as", "alice"]);
    assert!(proxied.cli(&["mesh", "inbox", "--as", "bobby"]).contains("hello"));
}

fn strangers_are_counted_by_their_own_address(proxied: &Proxied) {
    let used_up = (0..4 * STRANGER_BURST).any(|_| proxied.status_for("127.0.0.2", "") == "429");
    assert!(used_up, "an address without a token has to wait after a while");
    // Independent of what the client sends about itself.
    let claim = "X-Forwarded-For: 203.0.113.7\r\n";
    let waits = (0..2 * STRANGER_BURST).any(|_| proxied.status_for("127.0.0.2", claim) == "429");
    assert!(waits, "a client cannot name another address");
    assert_eq!(proxied.status_for("127.0.0.3", ""), "401", "another client does not wait for it");
}

#[test]
fn ostler_works_behind_nginx() {
    check(ProxyKind::Nginx);
}

#[test]
fn ostler_works_behind_caddy() {
    check(ProxyKind::Caddy);
}
