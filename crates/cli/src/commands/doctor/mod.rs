//! `ostler doctor`: checks everything between this machine and a working server, and suggests fixes. It changes nothing.

mod checks;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod machine;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use jiff::fmt::rfc2822;
use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind, Rule, Timestamp,
    health::{ConfinementReadiness, Health, Readiness, SERVICE_ID},
    kernel::{
        backends::{Backend, CodexProgram},
        provider_profiles::{AgentKind, ProviderProfile},
        runs::ListRuns,
    },
    mesh::health::MeshReadiness,
};
use tokio::time::Instant;

use checks::{Check, CheckState, DoctorReport, of_failure, within, worst};
use machine::{disk, git, user};

use crate::{
    commands::backends::{can_run, has_runner, name_of},
    connection::{self, Connection, Settings, better_token},
    errors, exit_codes,
    preflight::check,
    terminal::{
        output::{self, Output, count, line},
        shell_words::quoted,
        times::now,
    },
};

/// With a warning-level skew, ages and leases are hard to read; with a failing one, tokens expire at the wrong time.
const SKEW_S_WARN: i64 = 5;
const SKEW_S_FAIL: i64 = 60;
/// The access of callers who may set profiles.
const PROVIDE: &str = "provide";

/// Check everything between here and a working server, and suggest fixes
///
/// Checks the settings, the server, its version, the token, the store, its durability and migrations, the clocks, the disk
/// and the agents' programs. The exit code is 1 if a check failed; a warning is not a failure.
///
/// With `--kubernetes`, checks instead what a server with these settings needs of its cluster: the rights of the account, the
/// storage class, the image of runners, and the address under which pods reach the server.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler doctor\n  ostler --context lab doctor\n  \
    ostler doctor -o json | jq '.[] | select(.state == \"fail\")'\n  ostler doctor --kubernetes --config ostler.toml")]
pub(crate) struct DoctorArgs {
    /// Check the cluster that the server's runners run in, instead of the server
    #[arg(long)]
    kubernetes: bool,
    /// The server's configuration file
    #[arg(long, value_name = "FILE", requires = "kubernetes")]
    config: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn doctor(connection: &Connection, args: &DoctorArgs) -> Result<u8, Failure> {
    let mut report = DoctorReport { checks: vec![], is_text: args.output.is_text() };
    if args.kubernetes {
        check_cluster(connection, args, &mut report).await?;
    } else {
        run_checks(connection, &mut report).await;
    }
    let checks = report.checks;
    args.output.many(&checks, || verdict(&checks));
    let failed = checks.iter().any(|check| check.state == CheckState::Fail);
    Ok(if failed { exit_codes::BROKEN } else { exit_codes::OK })
}

#[cfg(feature = "kubernetes")]
async fn check_cluster(connection: &Connection, args: &DoctorArgs, report: &mut DoctorReport) -> Result<(), Failure> {
    kubernetes::run_checks(connection, args.config.as_deref(), report).await;
    Ok(())
}

#[cfg(not(feature = "kubernetes"))]
async fn check_cluster(_: &Connection, args: &DoctorArgs, _: &mut DoctorReport) -> Result<(), Failure> {
    let file = args.config.as_ref().map_or_else(String::new, |file| format!(" of {}", file.display()));
    let message = format!("this build cannot check the cluster{file}");
    Err(errors::usage(message, "build it with `--features kubernetes`"))
}

async fn run_checks(connection: &Connection, report: &mut DoctorReport) {
    let settings = match connection.settings() {
        Ok(settings) => settings,
        Err(failure) => return report.extend([of_failure("settings", &failure)]),
    };
    let from = format!("{} (from {})", line(&settings.server.value, 200), settings.server.origin);
    report.extend([Check::ok("settings", from)]);
    let client = match connection.client() {
        Ok(client) => client,
        Err(failure) => return report.extend([of_failure("token", &failure)]),
    };
    let is_usable = server(&client, &settings, report).await;
    if connection::is_loopback(&settings.server.value) {
        report.extend(settings.data_dir.as_ref().and_then(|dir| disk(&dir.value)));
    } else {
        let elsewhere = "the server is on another machine; run `ostler doctor` there";
        report.extend([Check::of("machine", CheckState::Skip, elsewhere, "")]);
    }
    if !is_usable {
        return;
    }
    if let Ok(list) = within(client.list_backends()).await {
        report.extend(agents(&list.backends, now()));
        report.extend(places(&list.backends));
        report.extend(list.backends.iter().filter_map(|backend| external(backend, now())));
        report.extend([codex(&list.codex)]);
        let profiles = within(client.list_provider_profiles(&Default::default())).await;
        let profiles = profiles.map(|all| all.provider_profiles).unwrap_or_default();
        // A caller who cannot be looked up sees what the operator sees.
        let caller = within(client.caller()).await;
        let may_only_use = caller.is_ok_and(|caller| caller.access.iter().all(|access| access != PROVIDE));
        report.extend(profiles.iter().filter_map(|profile| program(profile, !may_only_use)));
    }
}

/// Checks the server itself, and whether it accepts the token. Public endpoints are called without a token, so that a bad
/// token is not mistaken for a missing server. Returns whether the server can respond to further requests.
async fn server(client: &Client, settings: &Settings, report: &mut DoctorReport) -> bool {
    let began = Instant::now();
    let mut open = client.with_token(None);
    let mut response = within(open.health_and_clock()).await;
    if response.as_ref().is_err_and(|failure| failure.kind == FailureKind::Unauthenticated) {
        // It requires a token everywhere.
        open = client.clone();
        response = within(open.health_and_clock()).await;
    }
    let (health, date) = match response {
        Ok((health, date)) if health.service_id == SERVICE_ID => (health, date),
        Ok((health, _)) => {
            report.extend([foreign(&format!("it identifies itself as {:?}", line(&health.service_id, 80)))]);
            return false;
        }
        Err(failure) if failure.kind == FailureKind::Unauthenticated => {
            report.extend([Check::ok("server", "responds, and requires a token everywhere")]);
            report.extend([token(client, settings).await]);
            return true;
        }
        Err(failure) => {
            report.extend([server_failure(&failure)]);
            return false;
        }
    };
    report.extend([Check::ok("server", format!("responds in {} ms", began.elapsed().as_millis()))]);
    report.extend([version(&health, env!("CARGO_PKG_VERSION"), env!("OSTLER_COMMIT"))]);
    if let Err(failure) = check(within(open.capabilities()).await, &[]) {
        report.extend([of_failure("protocol", &failure)]);
    }
    report.extend([clock(date.as_deref(), now())]);
    let readiness = within(open.readiness()).await;
    // Without its store the server cannot check a token.
    let is_reachable = readiness.as_ref().is_ok_and(|readiness| readiness.store.reachable);
    report.extend([if is_reachable { token(client, settings).await } else { unknown("token") }]);
    report.extend(store(readiness));
    is_reachable
}

/// A check that needs the store, which does not respond.
fn unknown(name: &'static str) -> Check {
    Check::of(name, CheckState::Skip, "unknown: the server's store does not respond", "")
}

fn server_failure(failure: &Failure) -> Check {
    let message = line(&failure.message, 400);
    match failure.kind {
        _ if matches!(failure.broken_rule(), Some(Rule::ServerWithoutTls | Rule::ServerCertificate)) => {
            of_failure("server", failure)
        }
        _ if ostler_client::is_unreachable(failure) => {
            let fix = "start one here with `ostler serve`, or name another with `--server` or `--context`";
            Check::of("server", CheckState::Fail, message, fix)
        }
        FailureKind::RateLimited | FailureKind::Overloaded | FailureKind::Draining => {
            let fix = "wait a moment; if it persists, check the server's log and its [rate_limit]";
            Check::of("server", CheckState::Fail, format!("asks to retry later: {message}"), fix)
        }
        // Also in the form of the daemon, which has no kind.
        FailureKind::OriginDenied | FailureKind::Forbidden if failure.broken_rule() != Some(Rule::AnswerUnknown) => {
            let fix = "add the host name of this address to `server.hosts` of the server, or name another address with `--server`";
            Check::of("server", CheckState::Fail, format!("rejects requests to this address: {message}"), fix)
        }
        _ => foreign(&message),
    }
}

fn foreign(why: &str) -> Check {
    let fix = "another program uses this address; name Ostler's with `--server` or `--context`";
    Check::of("server", CheckState::Fail, format!("something responds, but it is not Ostler: {why}"), fix)
}

/// Compares the versions, and the commits of the same version. A commit may be shortened, or unknown.
fn version(health: &Health, ours: &str, our_commit: &str) -> Check {
    const UNKNOWN: &str = "unknown";
    let (theirs, their_commit) = (line(&health.version, 40), line(&health.source_commit, 40));
    let is_known = our_commit != UNKNOWN && their_commit != UNKNOWN && !their_commit.is_empty();
    let is_same_commit = our_commit.starts_with(&their_commit) || their_commit.starts_with(our_commit);
    if theirs == ours && is_known && !is_same_commit {
        let found = format!("{ours}, here of commit {our_commit}, on the server of commit {their_commit}");
        let fix = "install the same build on both; until then, they may differ in details";
        return Check::of("version", CheckState::Warn, found, fix);
    }
    if theirs == ours {
        return Check::ok("version", format!("{ours}, here and on the server"));
    }
    let fix = "install the same version on both; until then, features that only one of them has are rejected";
    Check::of("version", CheckState::Warn, format!("here {ours}, the server {theirs}"), fix)
}

/// Compares with the `Date` header of a response, which has whole seconds.
fn clock(date: Option<&str>, now: Timestamp) -> Check {
    let Some(theirs) = date.and_then(|date| rfc2822::DateTimeParser::new().parse_timestamp(date).ok()) else {
        return Check::of("clock", CheckState::Skip, "the server sent no time", "");
    };
    let skew_s = (now.as_second() - theirs.as_second()).abs();
    let state = worst(skew_s >= SKEW_S_FAIL, skew_s >= SKEW_S_WARN);
    let found = if skew_s <= 1 { "in sync with the server's".into() } else { format!("{skew_s} s from the server's") };
    Check::of("clock", state, found, "set both clocks by NTP: `timedatectl set-ntp true`")
}

async fn token(client: &Client, settings: &Settings) -> Check {
    let from = settings.token.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
    match within(client.list_runs(&ListRuns { limit: Some(1), ..ListRuns::default() })).await {
        Ok(_) => Check::ok("token", format!("accepted ({from})")),
        Err(failure) if failure.kind == FailureKind::Forbidden => {
            Check::of("token", CheckState::Warn, format!("may not list runs ({from})"), errors::hint(failure.kind))
        }
        Err(failure) => {
            let state = if failure.kind == FailureKind::RateLimited { CheckState::Warn } else { CheckState::Fail };
            let fix = match (&settings.token, failure.kind) {
                (Some(origin), FailureKind::Unauthenticated) => better_token(origin),
                _ => errors::hint_of(&failure).unwrap_or_default(),
            };
            Check::of("token", state, format!("{} ({from})", line(&failure.message, 200)), &fix)
        }
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
        (false, _) => {
            (format!("; does not respond ({reason})"), "check the server's log, and whether the database is up")
        }
        (true, false) => (format!("; not writable ({reason})"), trouble_fix(&reason)),
        (true, true) => (String::new(), ""),
    };
    let applied = &readiness.migrations.applied;
    let latest = latest_migration(applied);
    let migrated = if readiness.migrations.ready { CheckState::Ok } else { CheckState::Fail };
    let durable = if readiness.durability.durable { CheckState::Ok } else { CheckState::Fail };
    let weak = line(&readiness.durability.weak_settings.join(", "), 300);
    let durability =
        if readiness.durability.durable { "acknowledged writes survive a power failure".into() } else { weak };
    let migrations = Check::of(
        "migrations",
        migrated,
        format!("{} applied{latest}", applied.len()),
        "start the newest version of the server once; it migrates",
    );
    let durability =
        Check::of("durability", durable, durability, "turn these settings on, or acknowledged writes can be lost");
    let is_reachable = readiness.store.reachable;
    vec![
        Check::of(
            "store",
            if works { CheckState::Ok } else { CheckState::Fail },
            format!("{engine}, {replicas}{trouble}"),
            fix,
        ),
        if is_reachable { migrations } else { unknown("migrations") },
        if is_reachable { durability } else { unknown("durability") },
        confinement(&readiness.confinement),
        user(&readiness.confinement),
        git(&readiness.workspaces),
        readiness.dialect("mesh").map_or_else(|| unknown("mesh"), |found| mesh(&found)),
        Check::of(
            "ready",
            if readiness.status == "ready" { CheckState::Ok } else { CheckState::Fail },
            line(&readiness.status, 80),
            "see the checks above and the server's log",
        ),
    ]
}

/// How many migrations were applied, and the latest. If its number is larger than the count, a remark explains that numbers may be skipped.
fn latest_migration(applied: &[String]) -> String {
    let Some(id) = applied.last() else { return String::new() };
    let number = id.split('_').next().and_then(|number| number.parse::<usize>().ok());
    let skipped = if number.is_some_and(|number| number > applied.len()) { "; numbers may be skipped" } else { "" };
    format!(", the latest {}{skipped}", line(id, 80))
}

/// What to do about a store that can be read but not written.
fn trouble_fix(reason: &str) -> &'static str {
    match reason {
        "disk-full" => "free space on the store's disk; the server resumes by itself",
        "read-only" => "check for a failed disk, or a standby that was not promoted",
        _ => "check the server's log and the store's disk",
    }
}

/// The mesh. A server without it is still useful, so a failure is a warning.
fn mesh(found: &MeshReadiness) -> Check {
    let domain = line(&found.domain, 80);
    match &found.reason {
        None => Check::ok("mesh", format!("open for names of {domain}")),
        Some(why) => {
            let found = format!("closed: {}", line(why, 300));
            Check::of(
                "mesh",
                CheckState::Warn,
                found,
                "see `ostler pki show`, and docs/mesh.md for where its keys are stored",
            )
        }
    }
}

/// How agents' programs are confined.
fn confinement(found: &ConfinementReadiness) -> Check {
    let (state, found) = match (found.guarded, found.landlock) {
        (false, _) => (CheckState::Warn, "agents' programs are not guarded".to_owned()),
        (true, 0) => (CheckState::Warn, "agents are guarded; their files are not confined".to_owned()),
        (true, level) => {
            let processes = if found.isolated { "a PID namespace for each" } else { "no PID namespaces" };
            let what =
                format!("agents are guarded; files by Landlock {level}; {processes}; the network by Codex alone");
            (CheckState::Ok, what)
        }
    };
    Check::of(
        "confinement",
        state,
        found,
        "run the server on Linux 5.13 or newer with Landlock on (confinement.landlock)",
    )
}

/// Profiles that runs can use, as the server decides it.
fn agents(backends: &[Backend], now: Timestamp) -> Option<Check> {
    if backends.is_empty() {
        return None;
    }
    let (ready, unready): (Vec<_>, Vec<_>) = backends.iter().partition(|backend| can_run(backend, now));
    let names = |of: &[&Backend]| of.iter().map(|backend| name_of(backend)).collect::<Vec<_>>().join(", ");
    let mut found = format!("{} can run: {}", count(ready.len() as i64, "profile"), names(&ready));
    if !unready.is_empty() {
        found += &format!("; not ready: {} (`ostler backends list` shows why)", names(&unready));
    }
    let state = if ready.is_empty() { CheckState::Fail } else { CheckState::Ok };
    Some(Check::of("backends", state, found, "set one: `ostler profiles set codex < key.txt`"))
}

/// A server without places for runners starts none.
fn places(backends: &[Backend]) -> Option<Check> {
    let capacities = backends.iter().filter_map(|backend| backend.capacity);
    let starts_none = capacities.map(|capacity| capacity.runners_max).max() == Some(0);
    let fix = "raise `runner.slots` of this server, unless another server of this store starts the runners";
    starts_none.then(|| {
        Check::of("runners", CheckState::Warn, "this server starts no runners (runner.slots = 0)".to_owned(), fix)
    })
}

/// An external profile, and whether a runner serves it.
fn external(backend: &Backend, now: Timestamp) -> Option<Check> {
    backend.external.as_ref()?;
    let state = if has_runner(backend, now) { CheckState::Ok } else { CheckState::Warn };
    let (name, message) = (line(&backend.profile, 63), backend.message.as_deref().unwrap_or("external profile"));
    let fix = format!(
        "start a runner that claims profile {name} (docs/writing-a-runner.md shows one), unless it works on a job now, or \
         the runner uses another server of this store"
    );
    Some(Check::of("profile", state, format!("{name}: {}", line(message, 300)), &fix))
}

/// A profile whose own program is missing on the server's machine. A warning to a caller who cannot do anything about it.
fn program(profile: &ProviderProfile, may_manage: bool) -> Option<Check> {
    let message = profile.message.as_deref().filter(|_| profile.configured && profile.agent == AgentKind::Acp)?;
    let is_missing = profile.failure_kind == Some(FailureKind::InfraFailed);
    let (name, found) = (line(&profile.profile, 63), line(message, 300));
    let (state, fix) = match may_manage {
        true => (
            CheckState::Fail,
            format!(
                "install it on the server's machine, or change the command: `ostler profiles config {} --file FILE`",
                quoted(&name)
            ),
        ),
        false => (CheckState::Warn, "use another profile, or ask the operator of this server to install it".to_owned()),
    };
    is_missing.then(|| Check::of("profile", state, format!("{name}: {found}"), &fix))
}

/// Which Codex the server runs, and whether it works.
fn codex(found: &CodexProgram) -> Check {
    if let Some(image) = &found.image {
        let found = format!(
            "must be in the image of runners ({}); `ostler profiles validate codex` tries it",
            line(image, 200)
        );
        return Check::of("codex", CheckState::Skip, found, "");
    }
    let program = found.program.as_deref().map(|program| line(program, 200));
    let problem = line(found.problem.as_deref().unwrap_or("the server gave no reason"), 200);
    match (program, &found.version) {
        (Some(program), Some(version)) => Check::ok("codex", format!("{} ({program})", line(version, 80))),
        (Some(program), None) => {
            let fix = "reinstall it, or set the server's agents.codex to a working one, and restart the server";
            Check::of("codex", CheckState::Fail, format!("{program}: {problem}"), fix)
        }
        (None, _) => {
            let fix =
                "for Codex's profiles: `npm install -g @openai/codex` on the server's machine, or set its agents.codex";
            Check::of("codex", CheckState::Warn, problem, fix)
        }
    }
}

/// The last line: how many checks failed.
fn verdict(checks: &[Check]) -> String {
    let number = |state| checks.iter().filter(|check| check.state == state).count() as i64;
    let (failed, warned) = (number(CheckState::Fail), number(CheckState::Warn));
    let verdict = match (failed, warned) {
        (0, 0) => "all checks passed".into(),
        (0, _) => format!("no failures, {}", output::count(warned, "warning")),
        _ => format!("{} failed, {}", output::count(failed, "check"), output::count(warned, "warning")),
    };
    format!("\n{verdict}\n")
}
