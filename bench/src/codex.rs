//! A turn of a real Codex through the server against the same turn driven by a bare script: same scripted provider, warm
//! processes, one after the other in turn. And how long the first text takes from the agent printing it to a follower
//! having it: the agent's output passes through a copy of this program that notes the time.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use memchr::memmem;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::engine::{Bench, Engine};
use crate::http::{Connection, field, request};
use crate::machine::{now, since, unix_us};
use crate::outcome::Outcome;
use crate::report::{Quartiles, Report, median, percentile};
use crate::server::Server;

const WARM_UP_TURNS: usize = 3;
const TURNS: usize = 60;
const TURN_TIMEOUT: Duration = Duration::from_secs(60);
/// In the agent's home, where a confined program may write.
const PRINTED: &str = "printed.log";
const PROMPT: &str = "say something short";

/// The programs that are measured beside the server.
pub(crate) struct Programs {
    pub codex: PathBuf,
    pub stand_in: PathBuf,
}

pub(crate) async fn measure(bench: &Bench, programs: &Programs, report: &mut Report) -> Outcome<()> {
    let provider = Provider::start(&programs.stand_in)?;
    let mut bare = Bare::start(&programs.codex, &bench.scratch().join("bare"), &provider.base_url)?;
    let mut through = Through::start(bench, &programs.codex, &provider.base_url).await?;
    let (mut alone, mut served) = (vec![], vec![]);
    for turn in 0..WARM_UP_TURNS + TURNS {
        // Each of the two is first in every second pair.
        let (bare_ms, served_ms) = if turn % 2 == 0 {
            let bare_ms = bare.turn()?;
            (bare_ms, through.turn().await?.took_ms)
        } else {
            let served_ms = through.turn().await?.took_ms;
            (bare.turn()?, served_ms)
        };
        if turn >= WARM_UP_TURNS {
            alone.push(bare_ms);
            served.push(served_ms);
        }
    }
    through.server.stop()?;
    // A ratio of medians would compare turns of different minutes of the machine.
    let ratios: Vec<f64> = served.iter().zip(&alone).map(|(served, alone)| served / alone).collect();
    let spread = Quartiles::of(ratios.iter().copied()).ok_or("no turn was measured")?;
    report.figure("codex.turn_bare_ms", median(alone));
    report.figure("codex.turn_ms", median(served));
    report.figure("codex.turn_ratio_to_bare", spread.median);
    report.figure("codex.turn_ratio_to_bare_q1", spread.lower);
    report.figure("codex.turn_ratio_to_bare_q3", spread.upper);
    let mut lags = lags(bench, programs, &provider.base_url).await?;
    lags.sort_by(f64::total_cmp);
    report.figure("codex.first_text_lag_ms", percentile(&lags, 50));
    report.figure("codex.first_text_lag_p99_ms", percentile(&lags, 99));
    report.note(format!(
        "codex: {TURNS} turns each, in turn, after {WARM_UP_TURNS} to warm up; scripted provider, SQLite, resident runner; from \
         the request to the end on an event stream, and from turn/start to turn/completed; the ratio is the median of those of \
         neighbouring turns"
    ));
    Ok(())
}

/// From the agent printing a turn's first text to a follower having it.
async fn lags(bench: &Bench, programs: &Programs, base_url: &str) -> Outcome<Vec<f64>> {
    let wrapper = bench.scratch().join("noting-codex");
    let own = std::env::current_exe()?;
    let script = format!("#!/bin/sh\nexec '{}' --note '{}' \"$@\"\n", own.display(), programs.codex.display());
    fs::write(&wrapper, script)?;
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
    let mut through = Through::start(bench, &wrapper, base_url).await?;
    let mut had = vec![];
    for _ in 0..WARM_UP_TURNS + TURNS {
        had.push(through.turn().await?.first_text_us);
    }
    let printed = through.printed()?;
    through.server.stop()?;
    if printed.len() != had.len() {
        return Err(format!("{} turns printed text, {} were followed", printed.len(), had.len()).into());
    }
    let lag = |(had, printed): (u64, u64)| had.saturating_sub(printed) as f64 / 1e3;
    Ok(had.into_iter().zip(printed).skip(WARM_UP_TURNS).map(lag).collect())
}

/// The other half of this program: starts the agent, passes on what it prints, and notes when its text comes.
pub(crate) fn note(codex: &str, arguments: &[String]) -> Outcome<()> {
    let home = std::env::var("CODEX_HOME")?;
    let mut log = fs::File::options().create(true).append(true).open(Path::new(&home).join(PRINTED))?;
    let mut child = Command::new(codex).args(arguments).stdout(Stdio::piped()).spawn()?;
    let mut output = BufReader::new(child.stdout.take().ok_or("no stdout")?);
    let mut stdout = std::io::stdout().lock();
    let mut line = vec![];
    while output.read_until(b'\n', &mut line)? > 0 {
        let at = unix_us();
        stdout.write_all(&line)?;
        stdout.flush()?;
        if memmem::find(&line, br#""method":"turn/started""#).is_some() {
            writeln!(log, "turn")?;
        } else if memmem::find(&line, br#""method":"item/agentMessage/delta""#).is_some() {
            writeln!(log, "{at}")?;
        }
        line.clear();
    }
    child.wait()?;
    Ok(())
}

fn config(base_url: &str) -> String {
    format!(
        "model = \"stand-in\"\nmodel_provider = \"stand-in\"\n[model_providers.stand-in]\nname = \"stand-in\"\n\
         base_url = \"{base_url}\"\nwire_api = \"responses\"\nrequires_openai_auth = true\n[features]\nplugins = false\n\
         apps = false\n"
    )
}

const AUTH: &str = r#"{"OPENAI_API_KEY":"not-a-key"}"#;

struct Provider {
    child: Child,
    base_url: String,
}

impl Provider {
    fn start(program: &Path) -> Outcome<Self> {
        let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut base_url = String::new();
        BufReader::new(child.stdout.take().ok_or("no stdout")?).read_line(&mut base_url)?;
        Ok(Self { child, base_url: base_url.trim().to_owned() })
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Codex, driven by as little as does it.
struct Bare {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    thread_id: String,
    last_id: i64,
}

impl Bare {
    fn start(codex: &Path, home: &Path, base_url: &str) -> Outcome<Self> {
        let workspace = home.join("workspace");
        fs::create_dir_all(&workspace)?;
        fs::write(home.join("config.toml"), config(base_url))?;
        fs::write(home.join("auth.json"), AUTH)?;
        let mut command = Command::new(codex);
        command.arg("app-server").env("CODEX_HOME", home).env("HOME", home).current_dir(&workspace);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let input = child.stdin.take().ok_or("no stdin")?;
        let output = BufReader::new(child.stdout.take().ok_or("no stdout")?);
        let mut bare = Self { child, input, output, thread_id: String::new(), last_id: 0 };
        let client = json!({"clientInfo": {"name": "bench", "title": "bench", "version": "0"}, "capabilities": null});
        bare.call("initialize", client)?;
        writeln!(bare.input, r#"{{"method":"initialized"}}"#)?;
        let settings = json!({"cwd": workspace, "approvalPolicy": "on-request", "sandbox": "workspace-write"});
        let thread = bare.call("thread/start", settings)?;
        bare.thread_id = thread["thread"]["id"].as_str().ok_or("a thread without an id")?.to_owned();
        Ok(bare)
    }

    fn call(&mut self, method: &str, params: Value) -> Outcome<Value> {
        self.last_id += 1;
        writeln!(self.input, "{}", json!({"id": self.last_id, "method": method, "params": params}))?;
        let id = self.last_id;
        let answer = self.until(|line| line["id"] == id && line["method"].is_null())?;
        Ok(answer["result"].clone())
    }

    fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Outcome<Value> {
        let mut line = String::new();
        while self.output.read_line(&mut line)? > 0 {
            let frame = serde_json::from_str(&line)?;
            if wanted(&frame) {
                return Ok(frame);
            }
            line.clear();
        }
        Err("Codex ended".into())
    }

    /// Milliseconds that a turn takes.
    fn turn(&mut self) -> Outcome<f64> {
        let input = json!([{"type": "text", "text": PROMPT, "text_elements": []}]);
        let started = now();
        self.call("turn/start", json!({"threadId": self.thread_id, "input": input}))?;
        let ended = self.until(|frame| frame["method"] == "turn/completed")?;
        let took_ms = since(started).as_secs_f64() * 1e3;
        match ended["params"]["turn"]["status"].as_str() {
            Some("completed") => Ok(took_ms),
            status => Err(format!("a bare turn ended as {status:?}").into()),
        }
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Codex behind a server: one run, its commands posted one by one, its events followed.
struct Through {
    server: Server,
    data_dir: PathBuf,
    connection: Connection,
    run_id: String,
    stream: TcpStream,
    unread: Vec<u8>,
}

struct Turn {
    took_ms: f64,
    first_text_us: u64,
}

impl Through {
    async fn start(bench: &Bench, codex: &Path, base_url: &str) -> Outcome<Self> {
        let place = bench.directory(Engine::Sqlite);
        let data_dir = place.data_dir.clone();
        let codex = codex.to_str().ok_or("a path that is no text")?;
        let server = bench.serve_with(&place, &[("OSTLER_AGENTS__CODEX", codex)])?;
        let mut connection = Connection::open(&server).await?;
        let files = json!({"files": {"auth.json": AUTH, "config.toml": config(base_url)}}).to_string();
        let path = "/api/v1/provider-profiles/codex/credential";
        connection.call(&request(&server, "PUT", path, &files)).await?;
        let scope = json!({"providerCredentials": [{"profile": "codex", "secretRef":
            {"name": "agentrun-v01-provider-codex", "keys": ["auth.json", "config.toml"]}}]});
        let run = json!({"tenantId": "local", "projectId": "local/bench", "workspaceRef": {"kind": "none"},
            "providerId": "local", "backendProfile": "codex", "traceSink": null,
            "executionPolicy": {"secretScope": scope}});
        let run_id =
            field(connection.call(&request(&server, "POST", "/api/v1/runs", &run.to_string())).await?, "runId")?
                .to_owned();
        let mut stream = TcpStream::connect(server.address).await?;
        stream.set_nodelay(true)?;
        let head = format!(
            "GET /api/v1/runs/{run_id}/events HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\naccept: text/event-stream\r\n\r\n",
            server.address, server.token
        );
        stream.write_all(head.as_bytes()).await?;
        Ok(Self { server, data_dir, connection, run_id, stream, unread: vec![] })
    }

    async fn turn(&mut self) -> Outcome<Turn> {
        let body = json!({"type": "turn", "payload": {"prompt": PROMPT}}).to_string();
        let path = format!("/api/v1/runs/{}/commands", self.run_id);
        let started = now();
        let answer = self.connection.call(&request(&self.server, "POST", &path, &body)).await?;
        let command_id = field(answer, "commandId")?.to_owned();
        self.ensure_job(&command_id).await?;
        self.until(br#""type":"assistant_delta""#).await?;
        let first_text_us = unix_us();
        let ended = self.until(br#""type":"terminal_status""#).await?;
        let took_ms = since(started).as_secs_f64() * 1e3;
        match memmem::find(&ended, br#""status":"completed""#) {
            Some(_) => Ok(Turn { took_ms, first_text_us }),
            None => Err(format!("a turn did not complete: {}", String::from_utf8_lossy(&ended)).into()),
        }
    }

    /// Orders a runner with the first turn; it stays for the others.
    async fn ensure_job(&mut self, command_id: &str) -> Outcome<()> {
        let homes = self.data_dir.join("homes");
        if fs::read_dir(homes).is_ok_and(|mut homes| homes.next().is_some()) {
            return Ok(());
        }
        let job = json!({"commandId": command_id}).to_string();
        let path = format!("/api/v1/runs/{}/runner-jobs", self.run_id);
        self.connection.call(&request(&self.server, "POST", &path, &job)).await.map(drop)
    }

    /// Reads the stream up to the end of the event that holds this.
    async fn until(&mut self, wanted: &[u8]) -> Outcome<Vec<u8>> {
        timeout(TURN_TIMEOUT, async {
            loop {
                while let Some(end) = memmem::find(&self.unread, b"\n\n") {
                    let event: Vec<u8> = self.unread.drain(..end + 2).collect();
                    if memmem::find(&event, wanted).is_some() {
                        return Ok(event);
                    }
                }
                if self.stream.read_buf(&mut self.unread).await? == 0 {
                    return Err("the event stream ended".into());
                }
            }
        })
        .await?
    }

    /// When each turn's first text was printed.
    fn printed(&self) -> Outcome<Vec<u64>> {
        let mut times = vec![];
        for home in fs::read_dir(self.data_dir.join("homes"))?.flatten() {
            let text = fs::read_to_string(home.path().join(PRINTED))?;
            let mut lines = text.lines().peekable();
            while let Some(line) = lines.next() {
                if let ("turn", Some(at)) = (line, lines.peek().and_then(|next| next.parse().ok())) {
                    times.push(at);
                }
            }
        }
        Ok(times)
    }
}
