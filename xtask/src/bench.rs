//! `cargo xtask bench`: builds the release server and the load generator, lends them a private Postgres cluster with its
//! durability on, and leaves the figures in `target/bench/latest.json`.

use std::fs;

use crate::npm;
use crate::postgres;
use crate::process::{cargo, in_workspace, run, workspace_root};

pub fn bench(arguments: &[String]) -> Result<(), String> {
    let (flags, filters): (Vec<_>, Vec<_>) = arguments.iter().partition(|argument| argument.starts_with('-'));
    if let Some(unknown) = flags.iter().find(|flag| **flag != "--quick") {
        return Err(format!("what is {unknown:?}? `cargo xtask bench [--quick] [FILTER]`"));
    }
    eprintln!("==> building the release server and the load generator");
    let packages = ["ostler-cli", "ostler-bench", "ostler-stand-ins"].map(|package| ["--package", package]);
    run(cargo()?.args(["build", "--release"]).args(packages.as_flattened()))?;
    let agents = npm::find_or_install()?;

    let root = workspace_root()?;
    // Joining an absolute path replaces the root, which is also what cargo does with this variable.
    let release = root.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into())).join("release");
    // Always here, wherever cargo builds: whoever reads the figures should not have to search.
    let figures = root.join("target").join("bench");
    fs::create_dir_all(&figures).map_err(|e| format!("cannot make {}: {e}", figures.display()))?;
    let cluster = postgres::start_on_disk()?;
    let mut program = in_workspace(release.join("ostler-bench"))?;
    program.arg("--ostler").arg(release.join("ostler")).args(["--postgres-url", &cluster.url()]);
    program.arg("--codex").arg(agents.codex()).arg("--stand-in").arg(release.join("ostler-stand-in"));
    match cluster.program("pg_test_fsync") {
        Some(tool) => drop(program.arg("--pg-test-fsync").arg(tool)),
        None => eprintln!("    this Postgres has no pg_test_fsync: what a sync costs will be missing"),
    }
    // Some figures must not pass for all of them.
    if filters.is_empty() {
        program.arg("--out").arg(figures.join("latest.json"));
    }
    eprintln!("==> measuring");
    run(program.args(flags).args(filters))
}
