//! An agent with ten thousand people connected breaks what they consented to: how long until every one of them is notified.

use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::timeout;

use crate::engine::{Bench, Engine};
use crate::http::{Connection, field, request};
use crate::machine::{cpu, now, own_cpu, since};
use crate::outcome::Outcome;
use crate::report::Report;
use crate::server::Server;
use crate::websocket::WebSocket;

const PEOPLE: usize = 10_000;
/// Connections over which people and their relations are made.
const MAKERS: usize = 32;
const TOKEN_LIFE_MS: u32 = 3_600_000;
const TIMEOUT: Duration = Duration::from_secs(600);
const EVENT: &[u8] = b"h2a.reauth_required";

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let mut worst = 0.0_f64;
    for engine in Engine::BOTH {
        let place = bench.place(engine)?;
        let server = bench.serve(&place)?;
        let took = timeout(TIMEOUT, load(report, &server)).await??.as_secs_f64();
        server.stop()?;
        eprintln!("    consent.{}: {PEOPLE} people notified within {took:.3} s", engine.name());
        report.figure(format!("consent.{}.reauth_10k_s", engine.name()), took);
        worst = worst.max(took);
    }
    report.figure("consent.reauth_10k_s", worst);
    report.note(format!(
        "consent: {PEOPLE} people, each with a relation and a WebSocket; from the PATCH's first byte to the last person's \
         h2a.reauth_required; on the engine where it is worse"
    ));
    Ok(())
}

async fn load(report: &mut Report, server: &Server) -> Outcome<Duration> {
    let mut owner = Connection::open(server).await?;
    let body = format!(r#"{{"name":"bench","capability_manifest":{}}}"#, manifest(&["notes:read"]));
    let agent = field(owner.call(&request(server, "POST", "/agents", &body)).await?, "id")?.to_owned();
    let makers = (0..MAKERS).map(|maker| people(server, &agent, maker));
    let tokens: Vec<String> = try_join_all(makers).await?.concat();
    let mut sockets = Vec::with_capacity(PEOPLE);
    for token in &tokens {
        sockets.push(connect(server, token).await?);
    }
    let (server_before, own_before) = (cpu(server.pid())?, own_cpu()?);
    let body = format!(r#"{{"capability_manifest":{}}}"#, manifest(&["notes:read", "notes:write"]));
    let change = request(server, "PATCH", &format!("/agents/{agent}"), &body);
    let started = now();
    owner.call(&change).await?;
    try_join_all(sockets.iter_mut().map(|socket| socket.until(EVENT))).await?;
    let took = since(started);
    let (used, own) = (cpu(server.pid())? - server_before, own_cpu()? - own_before);
    report.generator_share(own.as_secs_f64() / used.as_secs_f64());
    Ok(took)
}

pub(crate) fn manifest(scopes: &[&str]) -> String {
    let scopes = scopes.iter().map(|id| {
        format!(
            r#"{{"description_fallback":"Notes.","id":"{id}","label_fallback":"Notes","label_i18n_key":"a.b","sensitivity":"low"}}"#
        )
    });
    let scopes = scopes.collect::<Vec<_>>().join(",");
    format!(r#"{{"agent_version":"1.0.0","permission_scopes":[{scopes}],"schema_version":"1.0","tools":[]}}"#)
}

/// Makes a share of the people, each with a relation to the agent; their tokens.
async fn people(server: &Server, agent: &str, maker: usize) -> Outcome<Vec<String>> {
    let mut connection = Connection::open(server).await?;
    let mut tokens = vec![];
    for number in (maker..PEOPLE).step_by(MAKERS) {
        let body = format!(r#"{{"name":"person-{number}","timezone":"UTC"}}"#);
        connection.call(&request(server, "POST", "/api/v1/users", &body)).await?;
        let path = format!("/api/v1/users/person-{number}/token");
        let body = format!(r#"{{"expiresInMs":{TOKEN_LIFE_MS}}}"#);
        let token = field(connection.call(&request(server, "POST", &path, &body)).await?, "token")?.to_owned();
        let body = format!(r#"{{"agent_id":"{agent}","granted_scopes":["notes:read"]}}"#);
        connection.call(&as_person(server, &token, &body)).await?;
        tokens.push(token);
    }
    Ok(tokens)
}

fn as_person(server: &Server, token: &str, body: &str) -> Vec<u8> {
    let (host, length) = (server.address, body.len());
    format!(
        "POST /h2a/relations HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Opens a WebSocket and authenticates.
async fn connect(server: &Server, token: &str) -> Outcome<WebSocket> {
    let mut socket = WebSocket::open(server, "/ws/human").await?;
    socket.send_text(&format!(r#"{{"type":"auth","token":"{token}"}}"#)).await?;
    socket.until(b"auth.ok").await?;
    Ok(socket)
}
