//! How fast the server is, measured from outside: the figures that `targets.rs` has targets for and others, on both engines, in
//! one run. `cargo xtask bench` starts it and gives it a Postgres cluster; it starts and stops the servers itself.
//!
//! The load comes from one thread that writes prepared bytes and reads little more than status and length of an answer,
//! so that it never is what limits a figure; what it used is reported beside what the server used. CPU figures are the
//! server process's own time, because wall-clock time on a shared machine depends more on the neighbours.

#![expect(clippy::print_stdout, reason = "the figures are the output of this program")]

mod agui;
mod alone;
mod append;
mod bare;
mod calls;
mod codex;
mod consent;
mod daemon;
mod engine;
mod follow;
mod growth;
mod history;
mod http;
mod idle;
mod instructions;
mod kubernetes;
mod lists;
mod machine;
mod manifest;
mod mesh;
mod outcome;
mod peers;
mod refuse;
mod replay;
mod replicas;
mod report;
mod result;
mod run;
mod scale;
mod server;
mod sessions;
mod soak;
mod start;
mod targets;
mod tools;
mod websocket;

use std::{path::PathBuf, process::ExitCode};

use codex::Programs;
use engine::Bench;
use report::Report;
use tokio::signal::unix::{SignalKind, signal};

use crate::outcome::Outcome;

const USAGE: &str =
    "usage: ostler-bench --ostler FILE --postgres-url URL --codex FILE --stand-in FILE [--pg-test-fsync FILE]
                    [--out FILE] [--quick] [FILTER]
  FILTER  measure only groups whose name contains this: append, run, result, follow, replay, idle, instructions,
          sessions, lists, replicas, start, manifest, consent, refuse, mesh, codex, agui, daemon, tools, growth, soak, scale,
          kubernetes";

struct Options {
    ostler: PathBuf,
    postgres_url: String,
    programs: Programs,
    pg_test_fsync: Option<PathBuf>,
    out: Option<PathBuf>,
    quick: bool,
    filter: Option<String>,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let (mut ostler, mut postgres_url, mut pg_test_fsync, mut out) = (None, None, None, None);
        let (mut quick, mut filter, mut codex, mut stand_in) = (false, None, None, None);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value\n{USAGE}"));
            match argument.as_str() {
                "--ostler" => ostler = Some(value()?.into()),
                "--postgres-url" => postgres_url = Some(value()?),
                "--codex" => codex = Some(value()?.into()),
                "--stand-in" => stand_in = Some(value()?.into()),
                "--pg-test-fsync" => pg_test_fsync = Some(value()?.into()),
                "--out" => out = Some(value()?.into()),
                "--quick" => quick = true,
                word if !word.starts_with('-') && filter.is_none() => filter = Some(argument),
                _ => return Err(format!("what is {argument:?}?\n{USAGE}")),
            }
        }
        let ostler = ostler.ok_or(USAGE)?;
        let postgres_url = postgres_url.ok_or(USAGE)?;
        let programs = Programs { codex: codex.ok_or(USAGE)?, stand_in: stand_in.ok_or(USAGE)? };
        Ok(Self { ostler, postgres_url, programs, pg_test_fsync, out, quick, filter })
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [note, codex, rest @ ..] = &arguments[..]
        && note == "--note"
    {
        return ended(codex::note(codex, rest));
    }
    if let Some(options) = peers::Options::parse(&arguments) {
        return ended(options.map_err(Into::into).and_then(|options| on_one_thread(peers::compare(&options))));
    }
    let options = Options::parse(arguments.into_iter()).map_err(Into::into);
    ended(options.and_then(|options| on_one_thread(measure(&options))))
}

/// One thread: what the load costs is then easy to see, and never more than one core. A signal ends the work as a failure does,
/// so that the processes that it started are stopped.
fn on_one_thread(work: impl Future<Output = Outcome<()>>) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut terminated = signal(SignalKind::terminate())?;
        tokio::select! {
            outcome = work => outcome,
            _ = terminated.recv() => Err("terminated".into()),
            _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
        }
    })
}

fn ended(outcome: Outcome<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn measure(options: &Options) -> Outcome<()> {
    let bench = Bench::new(options.ostler.clone(), options.postgres_url.clone(), options.quick)?;
    machine::raise_open_files()?;
    let mut report = Report::default();
    let wanted = |group: &str| options.filter.as_deref().is_none_or(|filter| group.contains(filter));
    machine::describe(&mut report)?;
    if let Some(program) = &options.pg_test_fsync {
        report.figure("fsync.us", machine::fsync_us(program, bench.scratch())?);
    }
    if wanted("start") {
        start::measure(&bench, &mut report)?;
    }
    if wanted("idle") {
        idle::measure(&bench, &mut report).await?;
    }
    if wanted("instructions") {
        instructions::measure(&bench, &mut report).await?;
    }
    if wanted("append") {
        append::measure(&bench, &mut report).await?;
    }
    if wanted("run") {
        run::measure(&bench, &mut report).await?;
    }
    if wanted("result") {
        result::measure(&bench, &mut report).await?;
    }
    if wanted("follow") {
        follow::measure(&bench, &mut report).await?;
    }
    if wanted("replay") {
        replay::measure(&bench, &mut report).await?;
    }
    if wanted("sessions") {
        sessions::measure(&bench, &mut report).await?;
    }
    if wanted("lists") {
        lists::measure(&bench, &mut report).await?;
    }
    if wanted("replicas") {
        replicas::measure(&bench, &mut report).await?;
    }
    if wanted("agui") {
        agui::measure(&bench, &mut report).await?;
        alone::measure(&bench, &mut report).await?;
        history::measure(&bench, &mut report).await?;
    }
    if wanted("manifest") {
        manifest::measure(&bench, &mut report).await?;
    }
    if wanted("consent") {
        consent::measure(&bench, &mut report).await?;
    }
    if wanted("refuse") {
        refuse::measure(&bench, &mut report).await?;
    }
    if wanted("mesh") {
        mesh::measure(&bench, &mut report).await?;
    }
    if wanted("daemon") {
        // `cargo xtask` installs and names them.
        let program = |variable: &str| std::env::var_os(variable).map(PathBuf::from);
        let programs = program("OSTLER_TEST_NODE").zip(program("OSTLER_TEST_QWEN"));
        let programs = programs.map(|(node, qwen)| daemon::QwenPrograms { node, qwen });
        daemon::measure(&bench, programs.as_ref(), &mut report).await?;
    }
    if wanted("tools") {
        tools::measure(&bench, &mut report).await?;
    }
    if wanted("growth") {
        growth::measure(&bench, &mut report).await?;
    }
    // A quarter of an hour for each engine: only where it is named.
    if options.filter.as_deref().is_some_and(|filter| "soak".contains(filter)) {
        soak::measure(&bench, &mut report).await?;
    }
    // A hundred thousand sessions and a minute of load: only where it is named.
    if options.filter.as_deref().is_some_and(|filter| "scale".contains(filter)) {
        scale::measure(&bench, &mut report).await?;
    }
    if wanted("kubernetes") {
        kubernetes::measure(&bench, &mut report).await?;
    }
    if wanted("codex") {
        codex::measure(&bench, &options.programs, &mut report).await?;
    }
    print!("{}", report.table());
    if let Some(out) = &options.out {
        std::fs::write(out, report.json()?)?;
        eprintln!("==> wrote {}", out.display());
    }
    report.outcome()
}
