//! A private repository on loopback: git's own `http-backend` behind a server that lets in whoever has the password, and
//! takes note of every process that shows it meanwhile.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
};

use crate::profiles::processes_showing;

pub const USER: &str = "reader";
pub const PASSWORD: &str = "pl4nted-git-password-8812";
/// Both of them, in Base64.
const AUTHORIZATION: &str = "Basic cmVhZGVyOnBsNG50ZWQtZ2l0LXBhc3N3b3JkLTg4MTI=";

pub struct GitServer {
    pub url: String,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    let_in: u32,
    turned_away: u32,
    showing: Vec<String>,
}

impl GitServer {
    /// Serves the repositories in this directory until the test ends.
    pub fn start(root: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (seen, root) = (Arc::<Mutex<Seen>>::default(), root.to_owned());
        let desk = seen.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (desk, root) = (desk.clone(), root.clone());
                std::thread::spawn(move || serve(stream, &root, &desk));
            }
        });
        Self { url, seen }
    }

    /// How many requests had the password, and how many had not.
    pub fn counts(&self) -> (u32, u32) {
        let seen = self.seen.lock().unwrap();
        (seen.let_in, seen.turned_away)
    }

    /// Arguments and environments that held the password while somebody was let in with it.
    pub fn showing(&self) -> Vec<String> {
        self.seen.lock().unwrap().showing.clone()
    }
}

fn serve(stream: TcpStream, root: &PathBuf, seen: &Mutex<Seen>) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let (method, target) = line.trim().strip_suffix(" HTTP/1.1")?.split_once(' ')?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let headers = headers(&mut reader);
    let header = |name: &str| headers.get(name).map_or("", String::as_str);
    let mut body = vec![0; header("content-length").parse().unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    let mut stream = reader.into_inner();
    if header("authorization") != AUTHORIZATION {
        seen.lock().unwrap().turned_away += 1;
        let refusal = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"private\"\r\nContent-Length: 0\r\n\
            Connection: close\r\n\r\n";
        return stream.write_all(refusal.as_bytes()).ok();
    }
    let showing = processes_showing(PASSWORD);
    {
        let mut seen = seen.lock().unwrap();
        seen.let_in += 1;
        seen.showing.extend(showing);
    }
    let mut backend = Command::new("git");
    backend.arg("http-backend").env("GIT_PROJECT_ROOT", root).env("GIT_HTTP_EXPORT_ALL", "1").env("REMOTE_USER", USER);
    backend.env("PATH_INFO", path).env("QUERY_STRING", query).env("REQUEST_METHOD", method);
    backend.env("CONTENT_TYPE", header("content-type")).env("CONTENT_LENGTH", body.len().to_string());
    backend.env("HTTP_CONTENT_ENCODING", header("content-encoding")).env("GIT_PROTOCOL", header("git-protocol"));
    let mut backend = backend.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let sent = backend.stdin.take().unwrap().write_all(&body);
    let output = backend.wait_with_output().unwrap().stdout;
    sent.ok()?;
    let mut output = output.as_slice();
    let answer = self::headers(&mut output);
    let status = answer.get("status").map_or("200 OK", String::as_str);
    let kind = answer.get("content-type").map_or("", String::as_str);
    let content = output;
    let length = content.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(&[head.as_bytes(), content].concat()).ok()
}

/// Up to the empty line; names in lower case.
fn headers(from: &mut impl BufRead) -> HashMap<String, String> {
    let lines = from.by_ref().lines().map_while(Result::ok).take_while(|line| !line.trim().is_empty());
    lines.filter_map(|line| line.split_once(':').map(|(k, v)| (k.to_lowercase(), v.trim().to_owned()))).collect()
}
