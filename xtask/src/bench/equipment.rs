//! What every measurement needs: release builds of the server and the load generator, a place for the figures, and a private
//! Postgres cluster on disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ostler_testkit::postgres::Cluster;

use crate::npm::{self, Agents};
use crate::postgres;
use crate::process::{in_workspace, run, workspace_root};
use crate::python;

const PACKAGES: [&str; 3] = ["ostler-cli", "ostler-bench", "ostler-stand-ins"];
pub(crate) const PROGRAMS: [&str; 3] = ["ostler", "ostler-bench", "ostler-stand-in"];

/// Builds all programs of a measurement, in the checkout that the command runs in.
pub(crate) fn build(cargo: &mut Command) -> Result<(), String> {
    build_with(cargo, &[])
}

/// [`build`], with further arguments for cargo.
pub(crate) fn build_with(cargo: &mut Command, arguments: &[&str]) -> Result<(), String> {
    let packages = PACKAGES.map(|package| ["--package", package]);
    run(cargo.args(["build", "--release"]).args(packages.as_flattened()).args(arguments))
}

pub(crate) fn release_dir() -> Result<PathBuf, String> {
    // Joining an absolute path replaces the root, which is also what cargo does with this variable.
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    Ok(workspace_root()?.join(target).join("release"))
}

/// Always the same place, wherever cargo builds, so that the figures are easy to find.
pub(crate) fn figures_dir() -> Result<PathBuf, String> {
    let figures = workspace_root()?.join("target").join("bench");
    fs::create_dir_all(&figures).map_err(|e| format!("cannot create {}: {e}", figures.display()))?;
    Ok(figures)
}

/// The parts of a measurement that do not depend on the revision.
pub(crate) struct Equipment {
    cluster: Cluster,
    agents: Agents,
    python: PathBuf,
    pg_test_fsync: Option<PathBuf>,
}

impl Equipment {
    pub(crate) fn start() -> Result<Self, String> {
        let agents = npm::find_or_install()?;
        let python = python::find_or_install()?;
        let cluster = postgres::start_on_disk()?;
        let pg_test_fsync = cluster.program("pg_test_fsync");
        if pg_test_fsync.is_none() {
            eprintln!("    this Postgres has no pg_test_fsync: the cost of a sync will be missing");
        }
        Ok(Self { cluster, agents, python, pg_test_fsync })
    }

    /// The load generator among these programs, to measure the server beside it.
    pub(crate) fn load_generator(&self, programs: &Path) -> Result<Command, String> {
        let [ostler, load_generator, stand_in] = PROGRAMS.map(|program| programs.join(program));
        let mut command = in_workspace(load_generator)?;
        command.arg("--ostler").arg(ostler).args(["--postgres-url", &self.cluster.url()]);
        command.arg("--codex").arg(self.agents.codex()).arg("--stand-in").arg(stand_in);
        // Not arguments: generators of earlier revisions do not know them.
        command.env("OSTLER_TEST_NODE", self.agents.node()).env("OSTLER_TEST_QWEN", self.agents.qwen());
        command.env(python::VARIABLE, &self.python);
        if let Some(tool) = &self.pg_test_fsync {
            command.arg("--pg-test-fsync").arg(tool);
        }
        Ok(command)
    }
}
