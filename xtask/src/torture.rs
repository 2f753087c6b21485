//! `cargo xtask torture`: builds the server with its fault-injection seams and the torturer, and breaks things under load
//! on both engines. The table and the figures are left in `target/torture`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::postgres;
use crate::process::{cargo, in_workspace, run, workspace_root};

/// What `cargo xtask test` does of it: three minutes, always the same choices.
const TEST_ARGUMENTS: [&str; 4] = ["--minutes", "3", "--seed", "1"];
const VALUED: [&str; 5] = ["--minutes", "--seed", "--engine", "--probe", "--rounds"];

pub(crate) fn torture(arguments: &[String]) -> Result<(), String> {
    check(arguments)?;
    eprintln!("==> building the server with faults to inject, and the torturer");
    let mut build = cargo()?;
    build.args(["build", "--release", "--package", "ostler-cli", "--bin", "ostler"]);
    run(build.args([
        "--package",
        "ostler-torture",
        "--bin",
        "ostler-torture",
        "--features",
        "ostler-cli/fault-injection",
    ]))?;
    let (built, out) = (target("release")?, out_dir()?);
    // Moved away: a server with seams must not be found where people look for a release.
    let subject = out.join("ostler");
    fs::copy(built.join("ostler"), &subject).map_err(|e| format!("cannot copy the server: {e}"))?;
    fs::remove_file(built.join("ostler")).map_err(|e| format!("cannot remove the server with seams: {e}"))?;
    start(&built, &subject, arguments.iter().map(String::as_str))
}

/// The step of `cargo xtask test`, with the programs that the tests were run with.
pub(crate) fn test() -> Result<(), String> {
    let built = target("debug")?;
    start(&built, &built.join("ostler"), TEST_ARGUMENTS)
}

fn start<'a>(built: &Path, ostler: &Path, arguments: impl IntoIterator<Item = &'a str>) -> Result<(), String> {
    postgres::find_or_install_binaries()?;
    let mut program = in_workspace(built.join("ostler-torture"))?;
    program.arg("--ostler").arg(ostler).arg("--out").arg(out_dir()?);
    run(program.args(arguments))
}

/// Refuses what the torturer does not know before minutes are spent on a build.
fn check(arguments: &[String]) -> Result<(), String> {
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--list" => {}
            valued if VALUED.contains(&valued) && rest.next().is_some() => {}
            other => {
                return Err(format!(
                    "`torture` does not know `{other}`, or its value is missing\nhint: `cargo xtask torture [--minutes N] \
                     [--seed S] [--engine sqlite|postgres|both] [--probe NAME] [--rounds N] [--list]`"
                ));
            }
        }
    }
    Ok(())
}

/// Where cargo builds. Joining an absolute path replaces the root, which is also what cargo does with this variable.
fn target(profile: &str) -> Result<PathBuf, String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Ok(workspace_root()?.join(target).join(profile))
}

/// Always the same place, wherever cargo builds.
fn out_dir() -> Result<PathBuf, String> {
    let out = workspace_root()?.join("target").join("torture");
    fs::create_dir_all(&out).map_err(|e| format!("cannot create {}: {e}", out.display()))?;
    Ok(out)
}
