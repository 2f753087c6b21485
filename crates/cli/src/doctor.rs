//! `ostler doctor`: what is well and what is not between here and an answer, each with what to do about it. It only looks.

#[cfg(test)]
mod tests;

use std::{future::Future, path::Path};

use jiff::fmt::rfc2822;
use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind, Timestamp,
    health::{ConfinementReadiness, Health, MeshReadiness, Readiness, SERVICE_ID, WorkspaceReadiness},
    kernel::{
        backends::{Backend, CodexProgram},
        provider_profiles::{AgentKind, ProviderProfile},
        runs::ListRuns,
    },
};
use serde::Serialize;
use tokio::time::{Duration, Instant};

use crate::{
    connect::{self, Connection, Origin, Settings},
    errors, exit_codes,
    output::{self, Output, count, line},
    paint::Paint,
    preflight::judge,
    times::now,
};

/// A clock that is off by this much makes ages and leases hard to read; by that much, tokens end at the wrong time.
const SKEW_S_WARN: i64 = 5;
const SKEW_S_FAIL: i64 = 60;
/// How long a response is waited for. Readiness takes 2 s at most, whatever the store does.
const RESPONSE_WAIT: Duration = Duration::from_secs(4);
const DISK_BYTES_WARN: u64 = 1 << 30;
const DISK_BYTES_FAIL: u64 = 100 << 20;

/// Check everything between here and an answer, and say what to do about it
///
/// Looks at the settings, the server, its version, the token, the store, its durability and migrations, the clocks, the disk
/// and the agents' programs. The exit code is 1 if a check failed; a warning is no failure.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler doctor\n  ostler --context lab doctor\n  \
    ostler doctor -o json | jq '.[] | select(.state == \"fail\")'")]
pub struct Args {
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Warn,
    Fail,
    /// Could not be looked at from here.
    Skip,
}

#[derive(Debug, PartialEq, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Check {
    fn of(name: &'static str, state: State, found: impl Into<String>, fix: &str) -> Self {
        let fix = (state != State::Ok && !fix.is_empty()).then(|| fix.to_owned());
        Self { name, state, found: found.into(), fix }
    }

    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self::of(name, State::Ok, found, "")
    }
}

pub async fn doctor(connection: &Connection, args: &Args) -> Result<u8, Failure> {
    let mut checks = Checks { found: vec![], is_text: args.output.is_text() };
    examine(connection, &mut checks).await;
    let checks = checks.found;
    args.output.many(&checks, || verdict(&checks));
    let failed = checks.iter().any(|check| check.state == State::Fail);
    Ok(if failed { exit_codes::BROKEN } else { exit_codes::OK })
}

/// The checks that are done. For people each one is printed as soon as it is known.
struct Checks {
    found: Vec<Check>,
    is_text: bool,
}

impl Checks {
    fn extend(&mut self, checks: impl IntoIterator<Item = Check>) {
        for check in checks {
            if self.is_text {
                output::data(&render(&check, Paint::stdout()));
            }
            self.found.push(check);
        }
    }
}

/// Waits a limited time for a response, because a server whose store hangs keeps its callers waiting.
async fn within<T>(call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    match tokio::time::timeout(RESPONSE_WAIT, call).await {
        Ok(response) => response,
        Err(_) => {
            let message = format!("the server did not respond within {} s", RESPONSE_WAIT.as_secs());
            Err(Failure::new(FailureKind::Overloaded, message))
        }
    }
}

async fn examine(connection: &Connection, checks: &mut Checks) {
    let settings = match connection.settings() {
        Ok(settings) => settings,
        Err(failure) => return checks.extend([of_failure("settings", &failure)]),
    };
    let from = format!("{} (from {})", line(&settings.server.value, 200), settings.server.origin);
    checks.extend([Check::ok("settings", from)]);
    let client = match connection.client() {
        Ok(client) => client,
        Err(failure) => return checks.extend([of_failure("token", &failure)]),
    };
    let is_answered = server(&client, &settings, checks).await;
    if connect::is_loopback(&settings.server.value) {
        checks.extend(settings.data_dir.as_ref().and_then(|dir| disk(&dir.value)));
    } else {
        let elsewhere = "the server is on another machine; run `ostler doctor` there";
        checks.extend([Check::of("machine", State::Skip, elsewhere, "")]);
    }
    if !is_answered {
        return;
    }
    if let Ok(known) = within(client.list_backends()).await {
        let profiles = within(client.list_provider_profiles(&Default::default())).await;
        let profiles = profiles.map(|all| all.provider_profiles).unwrap_or_default();
        checks.extend(agents(&known.backends, &profiles));
        checks.extend([codex(&known.codex)]);
        checks.extend(profiles.iter().filter_map(program));
    }
}

/// The server itself, and whether it lets us in. What is open to everybody is asked without a token, so that a bad one is
/// not taken for a missing server.
/// Whether it is of use to ask it for more.
async fn server(client: &Client, settings: &Settings, checks: &mut Checks) -> bool {
    let began = Instant::now();
    let mut open = client.with_token(None);
    let mut answer = within(open.health_and_clock()).await;
    if answer.as_ref().is_err_and(|failure| failure.kind == FailureKind::Unauthenticated) {
        // It asks for a token everywhere.
        open = client.clone();
        answer = within(open.health_and_clock()).await;
    }
    let (health, date) = match answer {
        Ok((health, date)) if health.service_id == SERVICE_ID => (health, date),
        Ok((health, _)) => {
            checks.extend([foreign(&format!("it says it is {:?}", line(&health.service_id, 80)))]);
            return false;
        }
        Err(failure) if failure.kind == FailureKind::Unauthenticated => {
            checks.extend([Check::ok("server", "answers, and asks for a token everywhere")]);
            checks.extend([token(client, settings).await]);
            return true;
        }
        Err(failure) => {
            checks.extend([unwell(&failure)]);
            return false;
        }
    };
    checks.extend([Check::ok("server", format!("answers in {} ms", began.elapsed().as_millis()))]);
    checks.extend([version(&health, env!("CARGO_PKG_VERSION"))]);
    if let Err(failure) = judge(within(open.capabilities()).await, &[]) {
        checks.extend([of_failure("protocol", &failure)]);
    }
    checks.extend([clock(date.as_deref(), now())]);
    let readiness = within(open.readiness()).await;
    // Without its store the server cannot check a token, so a request would prove nothing.
    let is_reachable = readiness.as_ref().is_ok_and(|readiness| readiness.store.reachable);
    checks.extend([if is_reachable { token(client, settings).await } else { unknown("token") }]);
    checks.extend(store(readiness));
    is_reachable
}

/// What only the store could tell.
fn unknown(name: &'static str) -> Check {
    Check::of(name, State::Skip, "unknown: the server's store does not answer", "")
}

fn unwell(failure: &Failure) -> Check {
    let said = line(&failure.message, 400);
    match failure.kind {
        _ if ostler_client::is_unreachable(failure) => {
            let fix = "start one here with `ostler serve`, or name another with `--server` or `--context`";
            Check::of("server", State::Fail, said, fix)
        }
        FailureKind::RateLimited | FailureKind::Overloaded | FailureKind::Draining => {
            let fix = "wait a moment; if it stays so, look at the server's log and its [rate_limit]";
            Check::of("server", State::Fail, format!("says later: {said}"), fix)
        }
        _ => foreign(&said),
    }
}

fn foreign(why: &str) -> Check {
    let fix = "another program has this address; name Ostler's with `--server` or `--context`";
    Check::of("server", State::Fail, format!("something answers, but it is no Ostler: {why}"), fix)
}

fn of_failure(name: &'static str, failure: &Failure) -> Check {
    Check::of(name, State::Fail, line(&failure.message, 400), &errors::hint_of(failure))
}

fn worst(fails: bool, warns: bool) -> State {
    match (fails, warns) {
        (true, _) => State::Fail,
        (false, true) => State::Warn,
        (false, false) => State::Ok,
    }
}

fn version(health: &Health, ours: &str) -> Check {
    let theirs = line(&health.version, 40);
    if theirs == ours {
        return Check::ok("version", format!("{ours}, here and there"));
    }
    let fix = "install the same version here and there; until then, what only one of them knows is refused";
    Check::of("version", State::Warn, format!("here {ours}, the server {theirs}"), fix)
}

/// By the `Date` of an answer, which counts whole seconds.
fn clock(date: Option<&str>, now: Timestamp) -> Check {
    let Some(theirs) = date.and_then(|date| rfc2822::DateTimeParser::new().parse_timestamp(date).ok()) else {
        return Check::of("clock", State::Skip, "the server does not tell its time", "");
    };
    let skew_s = (now.as_second() - theirs.as_second()).abs();
    let state = worst(skew_s >= SKEW_S_FAIL, skew_s >= SKEW_S_WARN);
    let found = if skew_s <= 1 { "together with the server's".into() } else { format!("{skew_s} s from the server's") };
    Check::of("clock", state, found, "set both clocks by NTP (timedatectl set-ntp true)")
}

async fn token(client: &Client, settings: &Settings) -> Check {
    let from = settings.token.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
    match within(client.list_runs(&ListRuns { limit: Some(1), ..ListRuns::default() })).await {
        Ok(_) => Check::ok("token", format!("accepted ({from})")),
        Err(failure) if failure.kind == FailureKind::Forbidden => {
            Check::of("token", State::Warn, format!("may not list runs ({from})"), errors::hint(failure.kind))
        }
        Err(failure) => {
            let state = if failure.kind == FailureKind::RateLimited { State::Warn } else { State::Fail };
            let fix = match (&settings.token, failure.kind) {
                (Some(origin), FailureKind::Unauthenticated) => better_token(origin),
                _ => errors::hint_of(&failure),
            };
            Check::of("token", state, format!("{} ({from})", line(&failure.message, 200)), &fix)
        }
    }
}

/// What to do about a token that the server does not know.
fn better_token(origin: &Origin) -> String {
    match origin {
        Origin::File(path) => {
            let path = path.display();
            format!("{path} holds no token of this server; `--data-dir` names its own directory, OSTLER_TOKEN a token")
        }
        _ => "put a token of this server into OSTLER_TOKEN, or unset it to use the one in its data directory".into(),
    }
}

fn store(readiness: Result<Readiness, Failure>) -> Vec<Check> {
    let readiness = match readiness {
        Ok(readiness) => readiness,
        Err(failure) => return vec![of_failure("store", &failure)],
    };
    let engine = line(&readiness.store.engine, 40);
    let works = readiness.store.reachable && readiness.store.writable;
    let replicas = if readiness.store.multi_replica { "for several servers" } else { "for one server" };
    let reason = line(readiness.store.reason.as_deref().unwrap_or("no reason given"), 40);
    let (trouble, fix) = match (readiness.store.reachable, readiness.store.writable) {
        (false, _) => (format!("; does not answer ({reason})"), "look at the server's log; is the database up?"),
        (true, false) => (format!("; does not write ({reason})"), trouble_fix(&reason)),
        (true, true) => (String::new(), ""),
    };
    let applied = &readiness.migrations.applied;
    let latest = applied.last().map(|id| format!(", the latest {}", line(id, 80))).unwrap_or_default();
    let migrated = if readiness.migrations.ready { State::Ok } else { State::Fail };
    let durable = if readiness.durability.durable { State::Ok } else { State::Fail };
    let weak = line(&readiness.durability.weak_settings.join(", "), 300);
    let durability = if readiness.durability.durable { "an answer survives a power cut".into() } else { weak };
    let migrations = Check::of(
        "migrations",
        migrated,
        format!("{} applied{latest}", applied.len()),
        "start the server's newest version once; it migrates",
    );
    let durability =
        Check::of("durability", durable, durability, "switch these settings on, or answered writes can be lost");
    let is_known = readiness.store.reachable;
    vec![
        Check::of("store", if works { State::Ok } else { State::Fail }, format!("{engine}, {replicas}{trouble}"), fix),
        if is_known { migrations } else { unknown("migrations") },
        if is_known { durability } else { unknown("durability") },
        confinement(&readiness.confinement),
        user(&readiness.confinement),
        git(&readiness.workspaces),
        mesh(&readiness.mesh),
        Check::of(
            "ready",
            if readiness.status == "ready" { State::Ok } else { State::Fail },
            line(&readiness.status, 80),
            "the checks above and the server's log say why",
        ),
    ]
}

/// What to do about a store that reads and does not write.
fn trouble_fix(reason: &str) -> &'static str {
    match reason {
        "disk-full" => "free space on the store's disk; the server goes on by itself",
        "read-only" => "look for a failed disk, or for a standby that was not promoted",
        _ => "look at the server's log and at the store's disk",
    }
}

/// Whether agents can talk to each other here. A server without is still of use.
fn mesh(found: &MeshReadiness) -> Check {
    let domain = line(&found.domain, 80);
    match &found.reason {
        None => Check::ok("mesh", format!("open for names of {domain}")),
        Some(why) => {
            let found = format!("closed: {}", line(why, 300));
            Check::of("mesh", State::Warn, found, "`ostler pki show` and docs/mesh.md say where its keys lie")
        }
    }
}

/// What agents' programs are held to.
fn confinement(found: &ConfinementReadiness) -> Check {
    let (state, found) = match (found.guarded, found.landlock) {
        (false, _) => (State::Warn, "nobody stands guard over agents' programs".to_owned()),
        (true, 0) => (State::Warn, "agents are guarded; their files are not confined".to_owned()),
        (true, level) => {
            let processes = if found.isolated { "a PID namespace for each" } else { "no PID namespaces" };
            let what =
                format!("agents are guarded; files by Landlock {level}; {processes}; the network by Codex alone");
            (State::Ok, what)
        }
    };
    Check::of(
        "confinement",
        state,
        found,
        "run the server on Linux 5.13 or newer with Landlock on (confinement.landlock)",
    )
}

/// Agents share the server's user, so root is the wrong one.
fn user(found: &ConfinementReadiness) -> Check {
    if !found.root {
        return Check::ok("user", "the server does not run as root");
    }
    let what = "the server runs as root, and so do its agents: they can read and change root's files";
    Check::of("user", State::Warn, what, "run it as a user of its own, as deploy/ostler.service does")
}

fn git(found: &WorkspaceReadiness) -> Check {
    match &found.reason {
        None => Check::ok("git", "is there"),
        Some(why) => {
            let what = format!("{}; checkouts fail, and what a turn changed is unknown", line(why, 200));
            Check::of("git", State::Warn, what, "install git where the server runs, and start the server again")
        }
    }
}

/// Room where the server on this machine keeps its data.
fn disk(dir: &Path) -> Option<Check> {
    let there = dir.ancestors().find(|path| path.exists())?;
    let space = rustix::fs::statvfs(there).ok()?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let state = worst(free < DISK_BYTES_FAIL, free < DISK_BYTES_WARN);
    let found = format!("{:.1} GiB free at {}", free as f64 / f64::from(1 << 30), dir.display());
    Some(Check::of("disk", state, found, "make room: a full disk stops every write"))
}

/// Profiles that a run can name here: there is a program for them, and whatever secret they need.
fn agents(backends: &[Backend], profiles: &[ProviderProfile]) -> Option<Check> {
    if backends.is_empty() {
        return None;
    }
    let is_set = |name: &str| profiles.iter().find(|known| known.profile == name).is_none_or(|known| known.configured);
    let built_in = backends.iter().filter(|backend| backend.available).map(|backend| backend.profile.as_str());
    let own = profiles.iter().map(|known| known.profile.as_str());
    let own = own.filter(|name| !backends.iter().any(|backend| backend.profile == *name));
    let (ready, unset): (Vec<_>, Vec<_>) = built_in.chain(own).partition(|name| is_set(name));
    let names = |names: &[&str]| names.iter().map(|name| line(name, 63)).collect::<Vec<_>>().join(", ");
    let mut found = format!("{} can run: {}", count(ready.len() as i64, "profile"), names(&ready));
    if !unset.is_empty() {
        found += &format!("; not configured: {}", names(&unset));
    }
    let state = if ready.is_empty() { State::Fail } else { State::Ok };
    Some(Check::of("backends", state, found, "set one: `ostler profiles set codex < key.txt`"))
}

/// A profile with a program of its own that is not where the server runs.
fn program(known: &ProviderProfile) -> Option<Check> {
    let message = known.message.as_deref().filter(|_| known.configured && known.agent == AgentKind::Acp)?;
    let is_missing = known.failure_kind == Some(FailureKind::InfraFailed);
    let (name, found) = (line(&known.profile, 63), line(message, 300));
    let fix = format!("install it where the server runs, or change the command: `ostler profiles config {name}`");
    is_missing.then(|| Check::of("profile", State::Fail, format!("{name}: {found}"), &fix))
}

/// Which Codex the server runs, and whether it works.
fn codex(found: &CodexProgram) -> Check {
    let program = found.program.as_deref().map(|program| line(program, 200));
    let problem = line(found.problem.as_deref().unwrap_or("the server does not say"), 200);
    match (program, &found.version) {
        (Some(program), Some(version)) => Check::ok("codex", format!("{} ({program})", line(version, 80))),
        (Some(program), None) => {
            let fix =
                "install it anew, or set agents.codex of the server to one that works, and start the server again";
            Check::of("codex", State::Fail, format!("{program}: {problem}"), fix)
        }
        (None, _) => {
            let fix = "npm install -g @openai/codex where the server runs, or set its agents.codex, if you want Codex's profiles";
            Check::of("codex", State::Warn, problem, fix)
        }
    }
}

fn render(check: &Check, paint: Paint) -> String {
    let (word, painted) = match check.state {
        State::Ok => ("ok", paint.green("ok")),
        State::Warn => ("warn", paint.yellow("warn")),
        State::Fail => ("fail", paint.red("fail")),
        State::Skip => ("skip", paint.dim("skip")),
    };
    let gap = " ".repeat(6 - word.len());
    let fix = check.fix.as_ref().map(|fix| format!("{:18}fix: {fix}\n", "")).unwrap_or_default();
    format!("{painted}{gap}{:<12}{}\n{fix}", check.name, check.found)
}

fn verdict(checks: &[Check]) -> String {
    let number = |state| checks.iter().filter(|check| check.state == state).count() as i64;
    let (failed, warned) = (number(State::Fail), number(State::Warn));
    let verdict = match (failed, warned) {
        (0, 0) => "all is well".into(),
        (0, _) => format!("well, with {}", output::count(warned, "warning")),
        _ => format!("{} failed, {}", output::count(failed, "check"), output::count(warned, "warning")),
    };
    format!("\n{verdict}\n")
}
