//! `cargo xtask test`: what CI runs, in CI's order, so that a green run here is a green run there. It stops at the
//! first step that fails and names it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ostler_testkit::postgres::Cluster;

use crate::chromium;
use crate::flaky;
use crate::kubernetes::{self, ControlPlane};
use crate::npm::{self, Agents};
use crate::openssl;
use crate::postgres;
use crate::process::{cargo, in_workspace, now, run, seconds_since};
use crate::proxies;
use crate::python;
use crate::subjects;
use crate::tools::{DENY, NEXTEST, find_or_install};
use crate::torture;

/// Nextest's own; its option `--test-threads` has precedence.
const THREADS_VARIABLE: &str = "NEXTEST_TEST_THREADS";

/// The tests about clusters: by their names, those of the API in a binary of their own, and those of session storage on claims.
const ON_CLUSTER: &str = "test(kube) | binary(kube) | test(session_storage)";

pub(crate) fn test(arguments: &[String]) -> Result<(), String> {
    let (ours, for_nextest) = match arguments.iter().position(|argument| argument == "--") {
        Some(separator) => (&arguments[..separator], &arguments[separator + 1..]),
        None => (arguments, &[][..]),
    };
    let (mut fast, mut on_cluster) = (false, false);
    for argument in ours {
        match argument.as_str() {
            "--fast" => fast = true,
            "--kubernetes" => on_cluster = true,
            other => return Err(format!("`test` does not know `{other}`\nhint: arguments for nextest go after `--`")),
        }
    }
    if on_cluster {
        return test_on_cluster(for_nextest);
    }

    let started = now();
    match subjects::reason_to_skip()? {
        Some(reason) => eprintln!("==> commit subjects: skipped ({reason})"),
        None => step("commit subjects", subjects::check)?,
    }
    step("format", || run(cargo()?.args(["fmt", "--all", "--check"])).map_err(|e| hint(e, "`cargo fmt --all`")))?;
    step("lints", || {
        let arguments = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
        run(cargo()?.args(arguments))
    })?;
    if fast {
        eprintln!("==> dependencies: skipped (--fast)");
    } else {
        let deny = step("cargo-deny", || find_or_install(&DENY))?;
        step("dependencies", || check_dependencies(&deny))?;
    }
    let nextest = step("cargo-nextest", || find_or_install(&NEXTEST))?;
    let surroundings = Surroundings::start()?;
    let not_tested = std::env::temp_dir().join(format!("ostler-not-tested-{}", std::process::id()));
    let outcome = step("tests on both engines", || {
        flaky::delete_report()?;
        let mut command = surroundings.nextest(&nextest)?;
        command.env("OSTLER_NOT_TESTED", &not_tested);
        command.args(["nextest", "run", "--workspace", "--all-features", "--profile", "ci"]);
        run(command.args(for_nextest))
    });
    drop(surroundings);
    // A test that could not do its work passes; it must not pass quietly.
    let said = fs::read_to_string(&not_tested).unwrap_or_default();
    let _ = fs::remove_file(&not_tested);
    said.lines().for_each(|line| eprintln!("==> {line}"));
    let flaky_tests = flaky::list().unwrap_or_else(|message| {
        eprintln!("==> flaky tests are not known: {message}");
        vec![]
    });
    let outcome = outcome.and_then(|()| torture_unless_filtered(for_nextest));
    // Last, because the output of the torture is long, and a flaky test fails nothing.
    flaky_tests.iter().for_each(|name| eprintln!("==> FLAKY, a bug to fix: {name}"));
    outcome?;
    let exception = match flaky_tests.len() {
        0 => String::new(),
        count => format!(" (flaky tests: {count})"),
    };
    eprintln!("==> everything passed in {}{exception}", seconds_since(started));
    Ok(())
}

/// Some tests picked by a filter are not everything, and need not wait for the torture.
fn torture_unless_filtered(for_nextest: &[String]) -> Result<(), String> {
    if for_nextest.is_empty() {
        return step("three minutes of torture", torture::test);
    }
    eprintln!("==> three minutes of torture: skipped (only some tests were asked for)");
    Ok(())
}

/// What needs a Kubernetes API server: its own validation of our manifests, and the tests that are about clusters.
fn test_on_cluster(for_nextest: &[String]) -> Result<(), String> {
    let nextest = step("cargo-nextest", || find_or_install(&NEXTEST))?;
    let plane = step("Kubernetes API server", ControlPlane::find_or_start)?;
    let accepted = step("dry run of all manifests", || kubernetes::dry_run(&plane))?;
    step("names of Secrets", || kubernetes::check_secret_names(&plane))?;
    let surroundings = Surroundings::start()?;
    step("tests on a cluster", || {
        let mut command = surroundings.nextest(&nextest)?;
        command.env(kubernetes::KUBECONFIG_VARIABLE, plane.kubeconfig());
        command.args(["nextest", "run", "--workspace", "--all-features", "--no-tests=pass", "-E", ON_CLUSTER]);
        run(command.args(for_nextest))
    })?;
    eprintln!("==> Kubernetes {}: {accepted} manifests accepted, tests passed", plane.version()?);
    Ok(())
}

/// `cargo xtask agents`, for runs of single tests: `eval "$(cargo xtask agents)"`.
pub(crate) fn print_variables() -> Result<(), String> {
    let (agents, python) = (npm::find_or_install()?, python::find_or_install()?);
    for (name, program) in agents.variables.iter().chain([&(python::VARIABLE, python)]) {
        println!("export {name}='{}'", program.display());
    }
    Ok(())
}

fn step<T>(name: &str, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    eprintln!("==> {name}");
    let started = now();
    let outcome = work();
    let took = seconds_since(started);
    match &outcome {
        Ok(_) => eprintln!("    {name}: ok in {took}"),
        Err(_) => eprintln!("    {name}: FAILED after {took}"),
    }
    outcome.map_err(|message| format!("step `{name}`: {message}"))
}

fn hint(message: String, what: &str) -> String {
    format!("{message}\nhint: {what}")
}

fn check_dependencies(deny: &Path) -> Result<(), String> {
    let check = |offline: bool, which: &[&str]| {
        let mut command = in_workspace(deny)?;
        command.args(["--log-level", "error"]);
        // Otherwise it would fetch the advisory database, which not every machine that builds this has.
        if offline {
            command.arg("--offline");
        }
        run(command.arg("check").args(which))
    };
    check(false, &["licenses", "bans", "sources"])?;
    if has_advisory_database() {
        return check(true, &["advisories"]);
    }
    eprintln!("    advisories: skipped, there is no database on this machine (`cargo deny fetch db` gets one)");
    Ok(())
}

/// Looks where cargo-deny keeps its databases by default. An attempt to fetch one that failed leaves the
/// folder behind, so only a folder with a repository in it counts.
fn has_advisory_database() -> bool {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    let databases = home.and_then(|home| fs::read_dir(home.join("advisory-dbs")).ok());
    databases.into_iter().flatten().flatten().any(|database| database.path().join(".git").exists())
}

/// The database and the programs that tests use.
pub(crate) struct Surroundings {
    cluster: Cluster,
    browser: PathBuf,
    agents: Agents,
    python: PathBuf,
}

impl Surroundings {
    pub(crate) fn start() -> Result<Self, String> {
        let browser = step("chromium", chromium::find_or_install)?;
        let agents = step("real agents and clients", npm::find_or_install)?;
        step("openssl", openssl::find_or_install)?;
        step("nginx and Caddy", proxies::find_or_install)?;
        let python = step("judges in Python", python::find_or_install)?;
        let cluster = step("private Postgres", postgres::start_in_memory)?;
        Ok(Self { cluster, browser, agents, python })
    }

    /// Nextest with the environment that the tests read.
    pub(crate) fn nextest(&self, nextest: &Path) -> Result<Command, String> {
        // Called by its path, because a copy in our cache is not on cargo's.
        let mut command = in_workspace(nextest)?;
        command.env(postgres::URL_VARIABLE, self.cluster.url()).env(chromium::VARIABLE, &self.browser);
        command.envs(self.agents.variables.iter().map(|(name, program)| (*name, program)));
        command.env(python::VARIABLE, &self.python);
        if std::env::var_os(THREADS_VARIABLE).is_none() {
            command.env(THREADS_VARIABLE, test_threads().to_string());
        }
        Ok(command)
    }
}

/// Twice as many as there are cores, because many tests wait for a process, a lease or a real agent.
fn test_threads() -> usize {
    2 * std::thread::available_parallelism().map_or(1, usize::from)
}
